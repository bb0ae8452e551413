"""The remoting client against a real name server and a real broker, whose store is as we found it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.brokers.reading import PullStatus, ReadingAdmin, route, slaves_of
from storage_engine.exceptions import (
    BrokerRefusedError,
    BrokerUnavailableError,
    NotOnBrokerError,
    StoreBusyError,
)
from storage_engine.rocketmq.remoting.connection import Access, Connection
from storage_engine.rocketmq.remoting.masters import NameServers
from storage_engine.rocketmq.store.store_lock import lock
from tests.integration.broker import Broker, BrokerStartError, name_server, start_broker
from tests.integration.remoting import RemotingClient
from tests.integration.stores import Truth, file_hashes, open_store, served, unpack

pytestmark = pytest.mark.integration

HASTY = Access(connect_timeout_seconds=1, request_timeout_seconds=1)
BOUND_SECONDS = 60
GROUP = "cg_orders"
UNKNOWN = "never-created"
REGISTER_BROKER = 103


@pytest.fixture
def client(untouched_broker: Broker) -> RemotingClient:
    return untouched_broker.client


@contextmanager
def bounded() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < BOUND_SECONDS, "took longer than its timeouts"


def until_stopped(process: int) -> None:
    """Wait until no thread runs on: one that had begun to answer may still do so."""
    gives_up = time.monotonic() + 120
    states = ["R"]
    while set(states) - {"T"}:
        assert time.monotonic() < gives_up
        stats = (path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat"))
        states = [stat.rpartition(")")[2].split()[0] for stat in stats]


def until_answered(admin: ReadingAdmin) -> None:
    """Ask until the broker is quick enough for a hasty access."""
    gives_up = time.monotonic() + 120
    while True:
        try:
            admin.runtime_info()
            return
        except BrokerUnavailableError:
            assert time.monotonic() < gives_up


def test_broker_serves_every_message_of_every_queue_as_written(client: RemotingClient, truth: Truth) -> None:
    expected = truth.messages(0, max(truth.frames) + 1)
    assert sum(map(len, expected.values())) == sum(map(len, truth.queues.values()))
    assert served(client, expected) == expected


def test_broker_finds_every_message_by_its_physical_offset(client: RemotingClient, truth: Truth) -> None:
    found = {offset: hashlib.sha256(client.view(offset) or b"").hexdigest() for offset in truth.frames}
    assert found == truth.frames


def test_broker_begins_at_the_first_segment(client: RemotingClient, truth: Truth) -> None:
    assert client.runtime_info().commitlog_min_offset == 0
    assert {queue: client.min_offset(*queue) for queue in truth.queues} == truth.first_offsets(0)


def test_runtime_info_agrees_with_the_store(client: RemotingClient, truth: Truth) -> None:
    info = client.runtime_info()
    assert info.version == "V5_3_3"
    assert info.commitlog_min_offset == 0
    assert info.commitlog_max_offset > max(truth.frames)
    assert all(used is not None and 0 < used < 100 for used in info.commitlog_used_percent.values())
    assert info.boot_timestamp_ms / 1000 < time.time()
    assert info.earliest_message_timestamp_ms is not None


def test_name_server_knows_the_broker(untouched_broker: Broker, name_server_port: int) -> None:
    servers = NameServers(f"127.0.0.1:{name_server_port}")
    members = servers.broker("broker-integration")
    assert (members.cluster, members.master) == ("integration", f"127.0.0.1:{untouched_broker.port}")
    assert "broker-integration" in servers.cluster_info().clusters["integration"]
    with pytest.raises(NotOnBrokerError, match="found broker-integration"):
        servers.broker(UNKNOWN)


def test_route_names_the_brokers_and_queues_of_a_topic(
    client: RemotingClient, name_server_port: int, truth: Truth
) -> None:
    servers = NameServers(f"127.0.0.1:{name_server_port}")
    found = route(servers, "orders")
    config = client.topic_config("orders")
    assert [members.master for members in found.brokers] == [client.address]
    assert found.queues["broker-integration"].read_queues == config.read_queues
    assert {queue for topic, queue in truth.queues if topic == "orders"} <= set(range(config.write_queues))
    with pytest.raises(NotOnBrokerError, match=UNKNOWN):
        route(servers, UNKNOWN)


def test_slaves_are_told_from_masters(name_server_port: int) -> None:
    address = f"127.0.0.1:{name_server_port}"
    tables = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": {}}
    body = json.dumps({"topicConfigSerializeWrapper": tables, "filterServerList": []}).encode()
    registration = {
        "brokerName": "pair",
        "clusterName": "other",
        "haServerAddr": "10.0.0.9:10912",
        "compressed": False,
        "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
    }
    # A name server forgets a broker when its connection goes.
    with Connection(address) as slave, Connection(address) as master:
        slave.act(REGISTER_BROKER, {**registration, "brokerId": 1, "brokerAddr": "10.0.0.2:10911"}, body=body)
        alone = NameServers(address).broker("pair")
        assert (alone.master, slaves_of(alone)) == (None, ("10.0.0.2:10911",))
        master.act(
            REGISTER_BROKER, {**registration, "brokerId": 0, "brokerAddr": "10.0.0.1:10911"}, body=body
        )
        both = NameServers(address).broker("pair")
        assert (both.master, slaves_of(both), both.cluster) == (
            "10.0.0.1:10911",
            ("10.0.0.2:10911",),
            "other",
        )


def test_name_server_that_is_down_is_passed_over(tmp_path: Path, name_server_port: int) -> None:
    with name_server(tmp_path) as port:
        pair = NameServers(f"127.0.0.1:{port};127.0.0.1:{name_server_port}")
        alone = NameServers(f"127.0.0.1:{port}")
        assert pair.cluster_info().brokers == alone.cluster_info().brokers == {}
    with bounded():
        assert "broker-integration" in pair.cluster_info().brokers
        with pytest.raises(BrokerUnavailableError, match=f"127.0.0.1:{port}, request 106"):
            alone.cluster_info()


def test_offsets_agree_with_the_queues(client: RemotingClient, truth: Truth) -> None:
    for (topic, queue_id), entries in truth.queues.items():
        assert client.min_offset(topic, queue_id) == min(entries), topic
        # A broker delivers what is due, so that some queues grow while it runs.
        assert client.max_offset(topic, queue_id) > max(entries), topic
    stats = client.topic_stats("orders")
    assert {queue: (it.min_offset, it.max_offset) for queue, it in stats.items() if it.max_offset} == {
        queue: (min(entries), max(entries) + 1)
        for (topic, queue), entries in truth.queues.items()
        if topic == "orders"
    }
    earliest = client.earliest_message_timestamp_ms("orders", 0)
    newest = stats[0].last_update_timestamp_ms
    assert earliest is not None
    assert newest is not None
    assert earliest <= newest


def test_groups_offsets_agree_in_both_answers(client: RemotingClient) -> None:
    committed = {
        (row["topic"], row["queue_id"]): row["committed_offset"]
        for row in client.consumer_offsets().to_pylist()
        if row["group"] == GROUP
    }
    consumed = client.consume_stats(GROUP)
    assert committed
    assert {queue: consumed[queue].consumer_offset for queue in committed} == committed
    (topic, queue_id), stats = next(iter(consumed.items()))
    assert stats.broker_offset == client.max_offset(topic, queue_id)
    assert client.consume_stats(GROUP, topic).keys() == {queue for queue in consumed if queue[0] == topic}


def test_what_the_broker_does_not_know_is_told_from_zero_and_left_uncreated(untouched_broker: Broker) -> None:
    client, queues = untouched_broker.client, untouched_broker.store / "consumequeue"
    before, groups = set(queues.rglob("*")), client.groups()
    for ask in (client.min_offset, client.max_offset, client.earliest_message_timestamp_ms):
        with pytest.raises(NotOnBrokerError, match="expected topic 'never-created'"):
            ask(UNKNOWN, 0)
        with pytest.raises(NotOnBrokerError, match="expected queue 99"):
            ask("orders", 99)
    for topic_question in (client.topic_stats, client.topic_config, lambda topic: client.pull(topic, 0, 0)):
        with pytest.raises(NotOnBrokerError, match="expected topic 'never-created'"):
            topic_question(UNKNOWN)
    with pytest.raises(NotOnBrokerError, match="expected topic 'never-created'"):
        client.consume_stats(GROUP, UNKNOWN)
    with pytest.raises(NotOnBrokerError, match="expected consumer group 'never-created'"):
        client.consume_stats(UNKNOWN)
    assert client.consume_stats("TOOLS_CONSUMER") == {}
    assert (set(queues.rglob("*")), client.groups()) == (before, groups)


def test_offset_outside_a_queue_is_told_from_its_end(client: RemotingClient) -> None:
    end = client.max_offset("orders", 0)
    assert client.pull("orders", 0, end).status is PullStatus.NOT_FOUND
    beyond = client.pull("orders", 0, end + 1000)
    assert (beyond.status, beyond.max_offset) == (PullStatus.OFFSET_MOVED, end)


def test_only_whole_messages_are_viewed(client: RemotingClient, truth: Truth) -> None:
    assert client.view_message(10**12) is None
    offset = sorted(truth.frames)[5]
    with pytest.raises(BrokerRefusedError, match="request 33"):
        client.view_message(offset + 5)


def test_settings_are_changed_and_put_back(client: RemotingClient) -> None:
    before = client.config()
    try:
        after = client.update_config({"fileReservedTime": "99999", "deleteWhen": "98"})
        assert {key for key in after if after[key] != before.get(key)} == {"fileReservedTime", "deleteWhen"}
        for value in ("many", "099999"):
            with pytest.raises(
                BrokerRefusedError, match=f"has fileReservedTime='99999' instead of '{value}'"
            ):
                client.update_config({"fileReservedTime": value})
    finally:
        client.update_config({key: before[key] for key in ("fileReservedTime", "deleteWhen")})
    assert client.config() == before


def test_deletion_is_asked_for_and_a_fresh_file_stays(untouched_broker: Broker) -> None:
    log = untouched_broker.store / "commitlog"
    before = file_hashes(log)
    untouched_broker.client.delete_expired_commitlog()
    untouched_broker.client.clean_expired_consume_queues()
    assert file_hashes(log) == before


def test_name_server_is_not_taken_for_a_broker(name_server_port: int) -> None:
    with ReadingAdmin(f"127.0.0.1:{name_server_port}") as admin:
        for ask in (admin.runtime_info, admin.config, admin.delete_expired_commitlog):
            with pytest.raises(BrokerRefusedError, match="no name server or proxy") as raised:
                ask()
            assert not raised.value.may_have_acted


def test_running_broker_is_noticed_and_its_store_left_alone(untouched_broker: Broker) -> None:
    root = untouched_broker.store
    store = open_store(root)
    log = (root / "commitlog", root / "consumequeue", root / "index")
    before = file_hashes(*log)
    # Twice: a refused attempt must not have loosened the broker's own lock.
    for _ in range(2):
        with pytest.raises(StoreBusyError, match=str(untouched_broker.java.process.pid)), lock(store.layout):
            pytest.fail("held a store that a broker runs on")
    assert file_hashes(*log) == before
    assert untouched_broker.client.runtime_info().commitlog_min_offset == 0


def test_broker_refuses_to_start_on_a_store_that_we_hold(tmp_path: Path, name_server_port: int) -> None:
    root = unpack("clean-stop", tmp_path / "store")
    before = file_hashes(root / "commitlog")
    with lock(open_store(root).layout):
        with pytest.raises(BrokerStartError, match="Lock failed"):
            start_broker(root, tmp_path, name_server_port)
        assert file_hashes(root / "commitlog") == before


def test_broker_that_hangs_is_unavailable_in_bounded_time_and_serves_on(untouched_broker: Broker) -> None:
    process = untouched_broker.java.process.pid
    with ReadingAdmin(untouched_broker.client.address, HASTY) as connected:
        until_answered(connected)
        os.kill(process, signal.SIGSTOP)
        try:
            until_stopped(process)
            with ReadingAdmin(untouched_broker.client.address, HASTY) as fresh, bounded():
                for admin in (connected, fresh):
                    with pytest.raises(BrokerUnavailableError, match="expected an answer within 1 s"):
                        admin.runtime_info()
                with pytest.raises(BrokerUnavailableError) as raised:
                    fresh.clean_expired_consume_queues()
                assert raised.value.may_have_acted
        finally:
            os.kill(process, signal.SIGCONT)
    assert untouched_broker.client.runtime_info().commitlog_min_offset == 0
