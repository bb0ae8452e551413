"""The way out of a full disk, with three brokers: one stops by it, gets room, starts again and follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.checkpoints import HIGH_WATERMARK, RECOVERY_POINT, read_offsets
from tests.full_disks import fill, small_disk
from tests.integration.kafka_broker import SECONDS, VERSIONS, admin_of, make_topics
from tests.integration.kafka_cluster import Cluster, running_cluster, wait_until
from tests.integration.test_kafka_release import HOUR_MS, in_lake, old, served, small, start_of, values
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("kafka-room")
    data = root / "node-1" / "data"
    data.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(small_disk(data, DISK_BYTES))
        yield stack.enter_context(running_cluster(root, VERSIONS[-1], SETTINGS))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    directory = tmp_path / "lake"
    assert run_command("init-lake", "--broker-type", "kafka", "--lake", directory).exit_code == 0
    return directory


def data_of(cluster: Cluster, node: int) -> Path:
    return Path(cluster.nodes[node].server_properties).parent / "data"


def make_room(cluster: Cluster, lake: Path, *words: object) -> Outcome:
    node = cluster.nodes[1].server_properties
    others = ",".join(cluster.nodes[number].address for number in (2, 3))
    return run_command("kafka", "make-room", node, "--lake", lake, "--broker", others, *words)


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
    first, there, archived = start_of(node, topic), served(node, topic), in_lake(lake, topic)
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
    assert "is told to begin behind it first" in dry.out
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
