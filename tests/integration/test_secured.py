"""A broker behind TLS and users: what it answers and refuses, consumer lag, and a release of its store.

Lag: positions by its word, by its files when it is gone, none smaller than it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import (
    BrokerError,
    BrokerProtocolError,
    BrokerRefusedError,
    BrokerUnavailableError,
)
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.lag import LagSummary, PositionsFrom
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import SegmentId
from storage_engine.retention import steps
from storage_engine.retention.lag.lag_table import read_lag_table
from storage_engine.rocketmq.format.layout import LOG
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.connection import Tls
from storage_engine.spark.consumer_lag import (
    ConsumerLagRequest,
    ConsumerLagResult,
    lag_without_spark,
)
from storage_engine.spark.job_io import read_result, write_request
from storage_engine.spark.session import spark_environment, spark_settings
from tests.fixture_stores import unpack
from tests.integration.broker import CLEANS_AT_ONCE, FIXTURE_SIZES
from tests.integration.live_state import bounded, refused
from tests.integration.live_store import LiveLog
from tests.integration.remoting import RemotingClient
from tests.integration.secured import Secured, secured_broker
from tests.integration.stores import Truth, served
from tests.services.lag import measured
from tests.services.released_state import expired

pytestmark = pytest.mark.integration

JOB = Path(__file__).resolve().parents[2] / "spark_jobs" / "consumer_lag.py"
UPDATE_CONSUMER_OFFSET, HEART_BEAT, UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 15, 34, 200
TOPIC, GROUP = "orders", "cg_orders"
SECRET = "admin-secret"
AUTH_CREATE_USER = 3001
NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)
DOOMED = (SegmentId(LOG, 0), SegmentId(LOG, 1 << 20))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Secured]:
    """A broker with users on a store with many groups, that doesn't write offsets down in a test's time."""
    work = tmp_path_factory.mktemp("secured")
    store = unpack("clean-stop", work / "store")
    settings = {
        "flushConsumerOffsetInterval": 3_600_000,
        "cleanResourceInterval": 200,
        "cleanFileForciblyEnable": True,
    }
    with secured_broker(store, work, name_server_port, settings, main_class=CLEANS_AT_ONCE) as secured:
        yield secured


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose only Java is the bundled one."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ca_file(secured: Secured) -> str:
    assert secured.access.tls is not None
    return secured.access.tls.ca_file or ""


def request(secured: Secured, work: Path, **settings: Any) -> ConsumerLagRequest:
    live = LiveBroker(
        address=secured.broker.client.address,
        access_key="admin",
        secret_key=SECRET,
        tls=True,
        tls_ca_file=ca_file(secured),
    )
    sizes = {key: str(size) for key, size in FIXTURE_SIZES.items()}
    return ConsumerLagRequest(
        StoreSettings(str(secured.broker.store), overrides=sizes, time_zone="UTC", live=live),
        str(work / "table"),
        plan_segments=DOOMED,
        **settings,
    )


def rows(asked: ConsumerLagRequest) -> dict[tuple[str, str, int], dict[str, Any]]:
    found = measured(asked).to_pylist()
    return {(row["group"], row["topic"], row["queue_id"]): row for row in found}


@pytest.mark.again
def test_every_question_is_answered_behind_tls_and_users(secured: Secured, truth: Truth) -> None:
    client = secured.broker.client
    assert client.runtime_info().commitlog_min_offset == 0
    assert client.update_config({"fileReservedTime": "99999"})["fileReservedTime"] == "99999"
    assert "-secret" not in str(client.config())
    client.clean_expired_consume_queues()
    assert client.consume_stats(GROUP)
    assert client.consumer_offsets().num_rows
    some = {queue: messages for queue, messages in truth.messages(0, 10**12).items() if queue[0] == "orders"}
    assert some
    assert served(client, some) == some
    assert all(client.view_message(offset) for offset in sorted(truth.frames)[::200])


@pytest.mark.parametrize(
    ("user", "found"),
    [
        pytest.param(("admin", "wrong"), "check signature failed", id="wrong-secret"),
        pytest.param(
            ("nobody", "admin-secret"), "User:nobody is not found", id="unknown-user", marks=pytest.mark.again
        ),
    ],
)
def test_wrong_credentials_are_refused_and_change_nothing(
    secured: Secured, user: tuple[str, str], found: str
) -> None:
    before = secured.broker.client.config()
    with secured.ask(secured.as_user(*user)) as admin:
        for ask in (
            admin.runtime_info,
            lambda: admin.update_config({"deleteWhen": "01"}),
            admin.delete_expired_commitlog,
        ):
            with pytest.raises(BrokerRefusedError, match=f"found 16 .*{found}.*Check the access") as raised:
                ask()
            assert not raised.value.may_have_acted
            assert user[1] not in str(raised.value)
    assert secured.broker.client.config() == before


def test_unsigned_request_is_refused(secured: Secured) -> None:
    with (
        secured.ask(replace(secured.access, credentials=None)) as admin,
        pytest.raises(BrokerRefusedError, match="username cannot be null"),
    ):
        admin.runtime_info()


def test_user_without_rights_is_refused(secured: Secured) -> None:
    user = {"username": "reader", "password": "reader-secret", "userType": "Normal"}
    secured.broker.client.call(AUTH_CREATE_USER, body=json.dumps(user).encode(), username="reader")
    with secured.ask(secured.as_user("reader", "reader-secret")) as admin:
        with pytest.raises(BrokerRefusedError, match="this user's rights") as raised:
            admin.topic_stats("orders")
        assert raised.value.code == command.NO_PERMISSION


def test_broker_that_wants_tls_does_not_answer_without(secured: Secured) -> None:
    with (
        secured.ask(replace(secured.access, tls=None)) as admin,
        bounded(),
        pytest.raises(BrokerUnavailableError, match=r"tls\.server\.mode=enforcing"),
    ):
        admin.runtime_info()


@pytest.mark.parametrize(
    ("tls", "found"),
    [
        (Tls(), "self-signed certificate"),
        (Tls(server_name="elsewhere"), "elsewhere"),
    ],
    ids=["unknown-authority", "another-name"],
)
def test_certificate_of_somebody_else_is_refused(secured: Secured, tls: Tls, found: str) -> None:
    assert secured.access.tls is not None
    if tls.server_name is not None:
        tls = replace(tls, ca_file=secured.access.tls.ca_file)
    with (
        secured.ask(replace(secured.access, tls=tls)) as admin,
        pytest.raises(BrokerProtocolError, match=f"expected a certificate .*{found}"),
    ):
        admin.runtime_info()


def test_certificate_is_not_looked_at_when_told_so(secured: Secured) -> None:
    with secured.ask(replace(secured.access, tls=Tls(verify=False))) as admin:
        assert admin.runtime_info().version == "V5_3_3"


def test_positions_are_the_brokers_and_not_those_that_it_wrote_down(secured: Secured, tmp_path: Path) -> None:
    client = secured.broker.client
    asked = request(secured, tmp_path)
    before = rows(asked)[GROUP, TOPIC, 0]
    moved = before["committed_offset"] - 7
    client.call(UPDATE_CONSUMER_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=0, commitOffset=moved)
    after = rows(asked)[GROUP, TOPIC, 0]
    assert after["committed_offset"] == moved
    assert after["lag_messages"] == before["lag_messages"] + 7
    done = lag_without_spark(asked, None)
    assert done is not None
    assert (done.summary.source.positions, done.summary.source.written_at_ms) == (PositionsFrom.BROKER, None)


def test_every_figure_is_what_the_brokers_consume_stats_say(secured: Secured, tmp_path: Path) -> None:
    found = rows(request(secured, tmp_path))
    compared = 0
    groups = {group for group, _, _ in found if not group.startswith(("CID_RMQ_SYS_", "%LMQ%"))}
    with secured.ask(secured.access) as admin:
        for group in groups:
            for (topic, queue_id), stats in admin.consume_stats(group).items():
                row = found.get((group, topic, queue_id))
                if row is None or row["committed_offset"] is None:
                    continue
                assert (row["committed_offset"], row["max_offset"]) == (
                    stats.consumer_offset,
                    stats.broker_offset,
                ), (group, topic, queue_id)
                assert row["min_offset"] == admin.min_offset(topic, queue_id)
                compared += 1
    assert compared > 15


def test_light_message_queues_have_positions_as_well(secured: Secured, tmp_path: Path) -> None:
    client = secured.broker.client
    light = sorted(path.name for path in (secured.broker.store / "consumequeue").glob("%LMQ%*"))
    client.call(UPDATE_CONSUMER_OFFSET, consumerGroup=light[0], topic=light[0], queueId=0, commitOffset=1)
    assert rows(request(secured, tmp_path))[light[0], light[0], 0]["committed_offset"] == 1


def test_group_that_is_connected_and_never_committed_is_unknown_in_what_it_subscribes_to(
    secured: Secured, tmp_path: Path
) -> None:
    with ExitStack() as members:
        for group, model in (("fresh", "CLUSTERING"), ("everyone", "BROADCASTING")):
            # Its members aren't told of each other: this client takes answers only.
            quiet = {"groupName": group, "notifyConsumerIdsChangedEnable": False}
            body = json.dumps(quiet).encode()
            secured.broker.client.call(UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=body)
            member = members.enter_context(RemotingClient(secured.broker.port, secured.access))
            _heart_beat(member, group, model, TOPIC)
        with secured.ask(secured.access) as admin:
            assert admin.clustering_subscriptions("fresh") >= {TOPIC}
            assert admin.clustering_subscriptions("everyone") == frozenset()
            assert admin.clustering_subscriptions("nobody") == frozenset()
        found = rows(request(secured, tmp_path))
    fresh = [row for (group, topic, _), row in found.items() if (group, topic) == ("fresh", TOPIC)]
    assert len(fresh) == 8
    assert all(row["committed_offset"] is None and row["at_risk"] for row in fresh)
    assert not [key for key in found if key[:2] == ("everyone", TOPIC)]


@pytest.mark.again
def test_submitted_job_on_the_bundled_java_gets_the_secret_in_its_environment_alone(
    secured: Secured, tmp_path: Path, without_java: None
) -> None:
    assert spark_environment()["JAVA_HOME"].startswith(str(tmp_path / "cache"))
    asked = request(secured, tmp_path, now_ms=1_900_000_000_000)
    paths = [tmp_path / "private" / name for name in ("request.json", "result.json")]
    environment = {**spark_environment(), **write_request(paths[0], asked)}
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", "local[1]"]
    for setting in spark_settings().items():
        command += ["--conf", "=".join(setting)]
    ended = subprocess.run(
        [*command, str(JOB), *map(str, paths)],
        env={**os.environ, **environment},
        cwd=tempfile.mkdtemp(dir=tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = read_result(paths[1], paths[0], ConsumerLagResult)
    assert result.summary.source.positions is PositionsFrom.BROKER
    written = read_lag_table(asked.table_path).to_pylist()
    assert sorted(map(str, written)) == sorted(map(str, rows(asked).values()))
    assert result.summary.groups == len({row["group"] for row in written})
    said = [ended.stdout, ended.stderr, repr(asked), *(path.read_text() for path in paths)]
    assert not [text for text in said if SECRET in text]


def test_a_store_is_released_and_a_stranger_changes_nothing(secured: Secured, tmp_path: Path) -> None:
    secured.broker.client.update_config({"fileReservedTime": "48"})
    first, second = expired(secured.broker.store, tmp_path).there[:2]
    log = LiveLog(secured.broker)
    ours = {"access_key": "admin", "secret_key": SECRET, "tls": True, "tls_ca_file": ca_file(secured)}
    for wrong, said in (
        ({"secret_key": "wrong"}, "found 16 .*Check the access key"),
        ({"access_key": ""}, "found 16"),
        ({"tls": False}, r"tls\.server\.mode=enforcing"),
        ({"tls_ca_file": ""}, "expected a certificate"),
        ({"tls_server_name": "elsewhere"}, "elsewhere"),
    ):
        refused(log, log.managed(tmp_path / "managed", **{**ours, **wrong}), said)
    store = log.managed(tmp_path / "managed", **ours)
    steps.make_plan(store, "run", PlanRequest(manual=True, max_segments=1))
    steps.archive(store, "run", steps.archive_jobs(store, "run"))
    steps.record_lag(store, "run", NO_LAG, [])
    assert [one.base_offset for one in steps.release(store, "run").deleted] == [first]
    assert log.names()[0] == second


def test_broker_that_is_killed_is_unavailable_at_once(secured: Secured) -> None:
    client = secured.broker.client
    client.runtime_info()
    secured.broker.java.kill()
    with bounded():
        for ask in (client.runtime_info, client.delete_expired_commitlog):
            with pytest.raises(BrokerUnavailableError) as raised:
                ask()
            assert not raised.value.may_have_acted


def test_what_the_broker_wrote_down_counts_when_it_cannot_be_asked_and_says_how_old_it_is(
    secured: Secured, tmp_path: Path
) -> None:
    # The first segment went with the release.
    asked = replace(request(secured, tmp_path), plan_segments=DOOMED[1:])
    secured.broker.client.close()
    secured.broker.java.kill()
    began = time.monotonic()
    done = lag_without_spark(asked, None)
    assert time.monotonic() - began < 60
    assert done is not None
    source = done.summary.source
    written = secured.broker.store / "config" / "lmqConsumerOffset.json"
    assert source.positions is PositionsFrom.FILES
    assert source.written_at_ms == written.stat().st_mtime_ns // 10**6
    assert "could not be asked" in source.notices[0]
    assert SECRET not in source.notices[0]
    for path in written.parent.glob("*onsumerOffset.json*"):
        path.unlink()
    with pytest.raises(BrokerError):
        lag_without_spark(asked, None)


def _heart_beat(member: RemotingClient, group: str, model: str, topic: str) -> None:
    """Say that a member of a group is there, until the client asks for another change or closes."""
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    body = {"clientID": f"test@{group}", "producerDataSet": [], "consumerDataSet": [consumer]}
    member.call(HEART_BEAT, body=json.dumps(body).encode())
