"""A copy of the cluster's metadata from which anything is missing says nothing of topics."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.metadata.cluster_metadata import read_cluster_metadata
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.stopped.observed_tasks import DELETE_LOGS, stopped_tasks
from storage_engine.kafka.stopped.stopped_release import stopped_node
from storage_engine.model.plan import Reason
from tests.kafka.batches import Record, batch
from tests.kafka.made_node import CONTROL, WRITTEN_MS, MadeNode, batch_of, metadata_record, partition, text

Change = Callable[[Path], object]
FOOTER = batch([Record(WRITTEN_MS, struct.pack(">hh", 0, 4), b"\0\0\1")], base_offset=6, attributes=CONTROL)
LATER_MS = 10_000_000_000_000
NO_FOOTER = f"{12:020d}-{1:010d}.checkpoint"


def topics(first: int, count: int, base: int) -> list[bytes]:
    """Return a batch for each topic, at offsets from ``base`` on."""
    values = [
        metadata_record(2, text(f"t{one}") + uuid.UUID(int=one + 1).bytes)
        for one in range(first, first + count)
    ]
    return [batch([Record(WRITTEN_MS, None, one)], base_offset=base + at) for at, one in enumerate(values)]


def segment(base: int) -> str:
    return f"{base:020d}.log"


LAST_BYTES = len(topics(11, 1, 11)[0])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A copy whose snapshot ends at offset 6, in the second of four segments of three records."""
    for base in (3, 6, 9):
        (tmp_path / segment(base)).write_bytes(b"".join(topics(base, 3, base)))
    (tmp_path / segment(12)).write_bytes(b"")
    (tmp_path / f"{12:020d}.snapshot").write_bytes(b"")
    (tmp_path / f"{6:020d}-{1:010d}.checkpoint").write_bytes(b"".join([*topics(0, 6, 0), FOOTER]))
    return tmp_path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path, size_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-size_bytes])


def test_a_whole_copy_has_the_topics_of_its_snapshot_and_those_behind_it(log: Path) -> None:
    assert sorted(read_cluster_metadata(log).topic_ids) == sorted(f"t{one}" for one in range(12))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda log: flip(log / segment(6), 80), "CRC-32C"),
        (lambda log: flip(log / segment(9), -1), "CRC-32C"),
        (lambda log: flip(log / segment(6), 7), "a batch that begins at offset 6"),
        (lambda log: cut(log / segment(9), 5), "bytes"),
        (lambda log: cut(log / segment(9), LAST_BYTES), "offset 11, where the segment before ends"),
        (lambda log: ((log / segment(12)).unlink(), (log / segment(9)).write_bytes(b"")), "up to offset 12"),
        (lambda log: (log / segment(9)).unlink(), "offset 9, where the segment before ends"),
        (
            lambda log: ((log / segment(3)).unlink(), (log / segment(6)).unlink()),
            "at or before offset 6",
        ),
        (lambda log: [path.unlink() for path in log.glob("*.log")], "found none"),
        (lambda log: next(log.glob("*.checkpoint")).unlink(), "at or before offset 0"),
        (lambda log: flip(next(log.glob("*.checkpoint")), 80), "CRC-32C"),
        (lambda log: cut(next(log.glob("*.checkpoint")), len(FOOTER)), "the record that ends a snapshot"),
        (lambda log: (log / NO_FOOTER).write_bytes(b""), "the record that ends a snapshot"),
    ],
)
def test_a_copy_that_is_damaged_or_lacks_records_is_refused(log: Path, change: Change, expected: str) -> None:
    change(log)
    with pytest.raises(CorruptFileError, match=expected):
        read_cluster_metadata(log)


@pytest.fixture
def node(tmp_path: Path) -> MadeNode:
    """A node with a topic that is there, of which a directory was set aside all the same."""
    made = MadeNode(tmp_path)
    kept = made.add("kept-0", {0: [batch_of(0)], 2: []})
    made.write()
    kept.rename(kept.with_name(f"kept-0.{'a' * 32}-delete"))
    return made


@pytest.mark.parametrize("at", [65, -1, None])
def test_nothing_is_decided_by_a_damaged_copy(node: MadeNode, at: int | None) -> None:
    path = node.root / "meta" / "__cluster_metadata-0" / segment(0)
    if at is None:
        path.write_bytes(b"")
    else:
        flip(path, at)
    found = read_node(node.properties)
    settings = read_topic_settings(found)
    assert "the cluster's metadata can't be read" in str(settings.of("kept"))
    stopped = stopped_node(found, settings)
    assert isinstance(stopped, tuple)
    assert stopped[0] is Reason.UNKNOWN
    task = {one.name: one for one in stopped_tasks(found, settings, LATER_MS, stopped)}[DELETE_LOGS]
    assert task.left == ()
    assert "the cluster's metadata can't be read" in task.kept[0]


@pytest.mark.parametrize("several_bytes", [False, True])
def test_partitions_of_a_newer_version_keep_all_but_hide_no_topic(
    node: MadeNode, several_bytes: bool
) -> None:
    newer = partition(node.topic_ids["kept"], 1, (1,))
    assert newer[2] == 0
    # Whoever writes a number may take more bytes than it needs.
    node.more_records.append(newer[:2] + (b"\x83\0" if several_bytes else b"\3") + newer[3:])
    node.write()
    found = read_node(node.properties)
    settings = read_topic_settings(found)
    assert not isinstance(settings.of("kept"), str)
    assert settings.metadata.partitions_of("kept") == {0, 1}
    stopped = stopped_node(found, settings)
    assert isinstance(stopped, tuple)
    assert (stopped[0], "found kind 3 of version 3" in stopped[1]) == (Reason.UNKNOWN, True)


def test_a_directory_stays_where_its_delay_cannot_be_read(node: MadeNode) -> None:
    node.topic_ids.clear()
    node.replicas.clear()
    node.topic_ids["other"] = uuid.UUID(int=7)
    node.settings.clear()

    def tasks(delay: str) -> tuple[int, tuple[str, ...]]:
        node.node_settings["log.segment.delete.delay.ms"] = delay
        node.write()
        found = read_node(node.properties)
        topics = read_topic_settings(found)
        tasks = stopped_tasks(found, topics, LATER_MS, stopped_node(found, topics))
        named = {one.name: one for one in tasks}
        return len(named[DELETE_LOGS].left), named[DELETE_LOGS].kept

    count, kept = tasks("a minute")
    assert count == 0
    assert "log.segment.delete.delay.ms of the node can't be read" in kept[0]
    assert tasks("1000") == (1, ())


def test_a_node_whose_logs_are_all_set_aside_may_have_crashed(node: MadeNode) -> None:
    assert not read_node(node.properties).left_uncleanly
    (node.directories[0] / ".kafka_cleanshutdown").unlink()
    assert read_node(node.properties).left_uncleanly
