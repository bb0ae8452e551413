"""The way out of a full disk, with three brokers: one stops by it, gets room, starts again and follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from demo.brokers.jvm import HOST, free_ports
from demo.brokers.kafka import Kafka
from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka import reclaim
from storage_engine.kafka.format.checkpoints import HIGH_WATERMARK, RECOVERY_POINT, read_offsets
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.stopped import stopped_release
from tests.full_disks import fill, small_disk
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    kafka_jars,
    make_topics,
    served,
    small,
)
from tests.integration.kafka_cluster import Cluster, wait_until
from tests.integration.test_kafka_release import HOUR_MS, in_lake, old, start_of, values
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_200)]

DISK_BYTES = 48 << 20
NEVER_MS = 24 * HOUR_MS
SETTINGS = {
    # The brokers delete nothing by themselves but when they start: what goes is our doing.
    "log.initial.task.delay.ms": 0,
    "log.retention.check.interval.ms": NEVER_MS,
    "file.delete.delay.ms": 1000,
    "log.flush.offset.checkpoint.interval.ms": 1000,
    "log.index.size.max.bytes": 64 << 10,
    "auto.create.topics.enable": "false",
}
RECORDS = 1_000
MORE = 40
"""Which come when a node is gone; they have room in what is freed."""


@pytest.fixture(scope="module")
def cluster_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("kafka-room")
    data = root / "node-1" / "data"
    data.mkdir(parents=True)
    with small_disk(data, DISK_BYTES):
        yield root


def data_of(cluster: Cluster, node: int) -> Path:
    return Path(cluster.nodes[node].server_properties).parent / "data"


def make_room(cluster: Cluster, lake: Path, *words: object, of: Kafka | None = None) -> Outcome:
    node = (of or cluster.nodes[1]).server_properties
    others = ",".join(cluster.nodes[number].address for number in (2, 3))
    return run_command("kafka", "make-room", node, "--lake", lake, "--broker", others, *_place(of), *words)


def _place(of: Kafka | None) -> tuple[str, ...]:
    """Node 1 alone has a disk of its own."""
    return () if of is None else ("--allow-same-disk",)


def made(cluster: Cluster, name: str, *, records: int = RECORDS, **more: Any) -> None:
    """Make a topic led by node 2 whose records have expired, on all three nodes."""
    make_topics(
        cluster.address, name, replicas=3, retention_ms=HOUR_MS, min_insync_replicas=1, **small("4"), **more
    )
    cluster.wait_for_isr(name)
    if cluster.leader(name) != 2:
        cluster.move_leader(name, 2)
    old(cluster.nodes[2], name, 0, records)


def keep_all(cluster: Cluster, topic: str) -> None:
    """Let nothing of a topic expire any more: a broker that starts deletes by its own rules."""
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)],
    )
    admin = admin_of(cluster.nodes[2].address)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(SECONDS)


def flushed(cluster: Cluster, topic: str, end: int) -> None:
    """Wait until node 1 has written down up to where a log is replicated and flushed."""

    def reached() -> bool:
        directory = data_of(cluster, 1)
        watermark, recovery = (
            read_offsets(directory / name).get(f"{topic}-0", 0) if (directory / name).exists() else 0
            for name in (HIGH_WATERMARK, RECOVERY_POINT)
        )
        return watermark >= end and recovery >= bases(cluster, 1, topic)[-1]

    wait_until(reached, f"checkpoints of {topic}")


def bases(cluster: Cluster, node: int, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (data_of(cluster, node) / f"{topic}-0").glob("*.log"))


def lost(cluster: Cluster, topic: str, lake: Path, count: int, by: int = 2) -> list[int]:
    """Return which of the records that were taken are neither served nor in the lake."""
    node = cluster.nodes[by]
    first, there, archived = start_of(node, topic), served(node.address, topic), in_lake(lake, topic)
    return [
        offset
        for offset, value in enumerate(values(0, count))
        if (there if offset >= first else archived).get(offset) != value
    ]


def test_a_full_disk_stops_a_broker_and_room_lets_it_start(cluster: Cluster, lake: Path) -> None:
    made(cluster, "orders")
    flushed(cluster, "orders", RECORDS)
    filler = fill(data_of(cluster, 1))
    old(cluster.nodes[2], "orders", RECORDS, MORE)
    wait_until(lambda: bool(cluster.nodes[1]._tree.ended()), "node 1 ended by its full disk")
    cluster.wait_for_isr("orders", (2, 3))
    with pytest.raises(StorageEngineError):
        cluster.nodes[1].start()
    cluster.nodes[1].kill()

    before = bases(cluster, 1, "orders")
    dry = make_room(cluster, lake, "--bytes", "200KiB", "--dry-run")
    assert "is told to delete it first" in dry.out
    assert "target-reached" in dry.out
    assert bases(cluster, 1, "orders") == before
    assert start_of(cluster.nodes[2], "orders") == 0

    # Of what is asked for, no more goes than it takes.
    some = make_room(cluster, lake, "--bytes", "200KiB", "--yes", "--json")
    assert some.exit_code == 0, some.out + some.err
    room = some.json["room"][0]
    assert room["free_bytes_before"] < room["wanted_bytes"] <= room["free_bytes"] < 512 << 10
    first = bases(cluster, 1, "orders")[0]
    assert 0 < first < before[-2]
    assert start_of(cluster.nodes[2], "orders") == first

    done = make_room(cluster, lake, "--yes")
    assert done.exit_code == 0, done.out + done.err
    assert "start the node's broker" in done.out
    gone = bases(cluster, 1, "orders")[0]
    assert gone > first
    assert start_of(cluster.nodes[2], "orders") == gone
    assert filler.exists()
    assert lost(cluster, "orders", lake, RECORDS + MORE) == []
    keep_all(cluster, "orders")
    cluster.nodes[1].start()
    cluster.wait_for_isr("orders")
    assert lost(cluster, "orders", lake, RECORDS + MORE) == []
    cluster.move_leader("orders", 1)
    assert start_of(cluster.nodes[1], "orders") == gone
    assert lost(cluster, "orders", lake, RECORDS + MORE, by=1) == []
    filler.unlink()


def told_to_begin(cluster: Cluster, topic: str, offset: int) -> None:
    """Have a topic's leader delete records, as whoever may does."""
    admin = admin_of(cluster.nodes[2].address)
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(SECONDS)


def stopped(cluster: Cluster, *topics: str) -> None:
    cluster.stop([1])
    for topic in topics:
        cluster.wait_for_isr(topic, (2, 3))


def test_what_its_leader_has_deleted_goes_and_no_other(cluster: Cluster, lake: Path) -> None:
    """Nothing has expired: what lies below the leader's start is all that goes, once it is proven."""
    count = 200
    for topic in ("young", "behind"):
        made(cluster, topic, records=count)
        keep_all(cluster, topic)
    stopped(cluster, "young", "behind")
    before = {topic: bases(cluster, 1, topic) for topic in ("young", "behind")}
    told_to_begin(cluster, "young", 50)
    # Of this one the leader begins behind all that the node has.
    old(cluster.nodes[2], "behind", count, 20)
    told_to_begin(cluster, "behind", count + 10)

    done = make_room(cluster, lake, "--yes", "--json")
    assert done.exit_code == 0, done.out + done.err
    left = bases(cluster, 1, "young")
    assert left[0] == max(base for base in before["young"] if base <= 50)
    assert bases(cluster, 1, "behind") == before["behind"][-1:]
    assert start_of(cluster.nodes[2], "young") == 50
    assert start_of(cluster.nodes[2], "behind") == count + 10
    for topic, first in (("young", left[0]), ("behind", before["behind"][-1])):
        assert [in_lake(lake, topic).get(at) for at in range(first)] == values(0, first)

    cluster.nodes[1].start()
    cluster.wait_for_isr("young")
    cluster.wait_for_isr("behind")
    for topic, first, end in (("young", 50, count), ("behind", count + 10, count + 20)):
        cluster.move_leader(topic, 1)
        assert start_of(cluster.nodes[1], topic) == first
        there = served(cluster.nodes[1].address, topic)
        assert there == dict(enumerate(values(first, end - first), first))


def test_a_log_of_other_epochs_than_its_leaders_loses_nothing(cluster: Cluster, lake: Path) -> None:
    made(cluster, "diverged", records=100)
    flushed(cluster, "diverged", 100)
    stopped(cluster, "diverged")
    places = sorted((data_of(cluster, 1) / "diverged-0").glob("*.log"))
    ends_at = len(places) - 2
    # The last batch of the last closed segment is of another leader: no checksum has its epoch.
    data = bytearray(places[ends_at].read_bytes())
    at = 0
    while (following := at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")) < len(data):
        at = following
    data[at + 12 : at + 16] = (int.from_bytes(data[at + 12 : at + 16], "big") + 1).to_bytes(4, "big")
    whole = places[ends_at].read_bytes()
    places[ends_at].write_bytes(data)

    done = make_room(cluster, lake, "--yes", "--json")
    assert done.exit_code == 1
    assert "another leader appended other records" in done.out
    assert [int(path.stem) for path in places] == bases(cluster, 1, "diverged")
    assert start_of(cluster.nodes[2], "diverged") == 0
    places[ends_at].write_bytes(whole)
    keep_all(cluster, "diverged")
    cluster.nodes[1].start()
    cluster.wait_for_isr("diverged")


def test_a_leader_that_moves_in_the_middle_ends_the_run_and_the_next_goes_on(
    cluster: Cluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(cluster, "moved", records=100)
    flushed(cluster, "moved", 100)
    stopped(cluster, "moved")
    before = bases(cluster, 1, "moved")
    delete, seen = stopped_release.delete_oldest, list[int]()

    def moves(*words: Any) -> None:
        delete(*words)
        seen.append(1)
        if len(seen) == 2:
            cluster.move_leader("moved", 3)

    monkeypatch.setattr(reclaim, "delete_oldest", moves)
    done = make_room(cluster, lake, "--yes", "--json", "--run-key", "moved")
    assert "its leader has changed meanwhile" in done.out + done.err
    # The first two had gone; its leader begins behind all that was approved.
    assert bases(cluster, 1, "moved") == before[2:], done.out + done.err
    monkeypatch.undo()
    again = make_room(cluster, lake, "--yes", "--json")
    assert again.exit_code == 0, again.out + again.err
    assert bases(cluster, 1, "moved") == before[-1:]
    assert start_of(cluster.nodes[3], "moved") == before[-1]
    keep_all(cluster, "moved")
    cluster.nodes[1].start()
    cluster.wait_for_isr("moved")
    assert lost(cluster, "moved", lake, 100, by=3) == []


@contextmanager
def broker_alone(cluster: Cluster) -> Iterator[Kafka]:
    """Run node 4, a broker that is no controller: the others are a cluster without it."""
    directory, address = data_of(cluster, 1).parents[1] / "node-4", f"{HOST}:{free_ports(2)}"
    own = dict(
        line.split("=", 1) for line in cluster.nodes[2].server_properties.read_text().splitlines() if line
    )
    own |= {
        "node.id": "4",
        "process.roles": "broker",
        "log.dirs": str(directory / "data"),
        "listeners": f"PLAIN://{address}",
        "advertised.listeners": f"PLAIN://{address}",
    }
    (cluster_id,) = read_node(cluster.nodes[2].server_properties).cluster_ids
    port = int(address.rpartition(":")[2])
    node = Kafka(directory, kafka_jars(VERSIONS[-1]), own, first_port=port, cluster_id=cluster_id)
    node.start()
    try:
        yield node
    finally:
        node.kill()


def test_where_no_broker_with_a_replica_runs_what_has_expired_goes(cluster: Cluster, lake: Path) -> None:
    count = 100
    with broker_alone(cluster) as node:
        assignments = {"apart": [[4, 1]], "alone": [[4]], "other": [[4, 2]]}
        admin = admin_of(cluster.nodes[2].address)
        config = {
            "retention.ms": str(HOUR_MS),
            "internal.segment.bytes": "20000",
            # Below it no high watermark moves (KIP-966), and its leader tells no offset.
            "min.insync.replicas": "1",
        }
        topics = [NewTopic(name, 1, replica_assignment=to, config=config) for name, to in assignments.items()]
        for done in admin.create_topics(topics).values():
            done.result(SECONDS)
        cluster.wait_for_isr("apart", (4, 1))
        cluster.wait_for_isr("other", (4, 2))
        for topic in assignments:
            old(node, topic, 0, count)
        node.stop()
        wait_until(lambda: cluster.leader("apart") == 1, "apart led by 1")
        cluster.wait_for_isr("other", (2,))
        log = node.server_properties.parent / "data"

        def there(topic: str) -> list[int]:
            return sorted(int(path.stem) for path in (log / f"{topic}-0").glob("*.log"))

        before = there("apart")
        assert len(before) > 3
        cluster.stop([1])
        wait_until(lambda: cluster.leader("apart") is None, "apart led by none")
        said = make_room(cluster, lake, "--dry-run", of=node)
        assert "no replica leads it, and that node 1, with a replica, doesn't run" in said.out, said.out
        assert "node 2 leads it from offset 0 on" in said.out, said.out
        done = make_room(cluster, lake, "--yes", "--json", of=node)
        assert done.exit_code == 0, done.out + done.err
        for topic in assignments:
            assert there(topic) == before[-1:], topic
        assert start_of(cluster.nodes[2], "other") == before[-1]
        for topic in assignments:
            keep_all(cluster, topic)
        cluster.nodes[1].start()
        node.start()
        cluster.wait_for_isr("apart", (4, 1))
        cluster.wait_for_isr("alone", (4,))
        for topic in assignments:
            assert lost(cluster, topic, lake, count) == [], (topic, start_of(cluster.nodes[2], topic))
