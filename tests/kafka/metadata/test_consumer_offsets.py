"""What __consumer_offsets says of groups: the newest committed offset, whatever is compacted or aborted."""

from __future__ import annotations

import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from storage_engine.kafka.format.layout import LogDirectory, PartitionLog, read_node
from storage_engine.kafka.lag import consumers_of
from storage_engine.kafka.metadata.consumer_offsets import TOPIC, read_consumer_offsets
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.model.lag import PositionsFrom
from tests.kafka import batches
from tests.kafka.batches import Record

TRANSACTIONAL = 16
PRODUCER = 7


def text(word: str) -> bytes:
    return struct.pack(">h", len(word)) + word.encode()


def key(group: str, topic: str = "orders", partition: int = 0, version: int = 1) -> bytes:
    return struct.pack(">h", version) + text(group) + text(topic) + struct.pack(">i", partition)


def value(offset: int, version: int = 3) -> bytes:
    """Return a value; of all versions the offset comes first, and behind it what nobody reads here."""
    return struct.pack(">hq", version, offset) + b"the rest"


def log_of(tmp_path: Path, *segments: bytes) -> tuple[LogDirectory, PartitionLog]:
    """Make a log directory with a partition of the topic, of which the cleaner has been everywhere."""
    directory = tmp_path / "data" / f"{TOPIC}-0"
    directory.mkdir(parents=True)
    base = 0
    for data in segments:
        (directory / f"{base:020d}.log").write_bytes(data)
        base += 100
    (tmp_path / "data" / "cleaner-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {base}\n")
    (found,) = read_node(tmp_path / "data").logs
    return found


def commits(
    base: int, *records: tuple[bytes, bytes | None], attributes: int = 0, producer: int = -1
) -> bytes:
    made = [Record(1_000, one, two) for one, two in records]
    return batches.batch(made, base_offset=base, attributes=attributes, producer_id=producer)


def test_the_newest_offset_of_a_group_counts_in_whatever_version_it_is(tmp_path: Path) -> None:
    first = commits(
        0,
        (key("b", version=0), value(7)),
        (key("a"), value(1, 0)),
        (key("a", partition=1), value(5, 1)),
        (key("b"), value(9, 2)),
    )
    second = commits(100, (key("a"), value(3, 4)), (key("b", version=0), value(8, 3)))
    found = read_consumer_offsets([log_of(tmp_path, first, second)])
    # A key of version 0 is another key, as it is for the cleaner; the broker reads both, in their order.
    assert found.offsets == {("a", "orders", 0): 3, ("a", "orders", 1): 5, ("b", "orders", 0): 8}
    assert found.groups == {"a", "b"}


def test_an_offset_that_was_deleted_is_gone(tmp_path: Path) -> None:
    data = commits(0, (key("a"), value(1)), (key("b"), value(2)), (key("a"), None))
    assert read_consumer_offsets([log_of(tmp_path, data)]).offsets == {("b", "orders", 0): 2}


def test_groups_without_any_offset_are_known_by_their_own_records(tmp_path: Path) -> None:
    classic, new, other = (struct.pack(">h", version) + text("g") for version in (2, 3, 5))
    data = commits(0, (classic[:2] + text("c"), b"x"), (new, b"x"), (other, b"x"), (classic, None))
    assert read_consumer_offsets([log_of(tmp_path, data)]).groups == {"c", "g"}


@pytest.mark.parametrize(("end", "expected"), [(1, 20), (0, 10), (None, 10)])
def test_an_offset_counts_once_its_transaction_has_committed(
    tmp_path: Path, end: int | None, expected: int
) -> None:
    data = commits(0, (key("a"), value(10)))
    data += commits(1, (key("a"), value(20)), attributes=TRANSACTIONAL, producer=PRODUCER)
    # The marker may lie in a later segment.
    later = b"" if end is None else batches.marker(end, PRODUCER, 100)
    found = read_consumer_offsets([log_of(tmp_path, data, later)])
    assert found.offsets == {("a", "orders", 0): expected}


def test_an_offset_that_came_behind_a_transactions_own_wins_over_it(tmp_path: Path) -> None:
    """The coordinator goes by where the offset itself lies, not by where its marker does."""
    data = commits(0, (key("a"), value(20)), attributes=TRANSACTIONAL, producer=PRODUCER)
    data += commits(1, (key("a"), value(30))) + batches.marker(1, PRODUCER, 2)
    assert read_consumer_offsets([log_of(tmp_path, data)]).offsets == {("a", "orders", 0): 30}


@pytest.mark.parametrize(
    ("wrong_key", "wrong_value", "said"),
    [
        (key("a"), value(1, 5), "expected a committed offset of a version up to 4"),
        (key("a"), b"\x00\x01", "expected a committed offset"),
        (key("a")[:-1], value(1), "expected the key of an offset or a group"),
        (struct.pack(">hh", 1, 99) + b"short", value(1), "expected the key of an offset or a group"),
    ],
)
def test_a_record_that_cannot_be_read_leaves_the_positions_of_its_partition_unknown(
    tmp_path: Path, wrong_key: bytes, wrong_value: bytes, said: str
) -> None:
    directory, log = log_of(tmp_path, commits(0, (key("b"), value(3)), (wrong_key, wrong_value)))
    found = read_consumer_offsets([(directory, log)])
    (why,) = found.unknown
    assert said in why
    assert log.name.log in why
    assert (found.offsets["b", "orders", 0], "b" in found.groups) == (None, True)


@pytest.mark.parametrize(
    ("place", "may_be_torn", "is_unknown"),
    [(0, False, True), (0, True, True), (1, False, True), (2, False, True), (2, True, False)],
)
def test_a_damaged_batch_leaves_the_positions_of_its_partition_unknown(
    tmp_path: Path, place: int, may_be_torn: bool, is_unknown: bool
) -> None:
    """At the log's end alone it may be what a broker was just writing."""
    made = [
        bytearray(commits(at, (key("a"), value(10 + at)), (key("b"), value(20 + at)))) for at in (0, 2, 4)
    ]
    made[place][-1] ^= 1
    directory, log = log_of(tmp_path, b"".join(made))
    found = read_consumer_offsets([(directory, log)], may_be_torn=may_be_torn)
    assert found.groups == {"a", "b"}
    if is_unknown:
        assert set(found.offsets.values()) == {None}
        (why,) = found.unknown
        at = sum(map(len, made[:place]))
        assert why.startswith(f"positions of a, b in {TOPIC}-0 aren't known: {log.segments[0].log.path}: ")
        assert f"at byte {at} expected" in why
    else:
        assert (found.offsets["a", "orders", 0], found.unknown) == (12, [])


@pytest.mark.parametrize(("cleaned_to", "is_unknown"), [(4, False), (3, True), (0, True), (None, True)])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_closed_segment_that_is_missing_or_empty_may_have_had_newer_positions(
    tmp_path: Path, cleaned_to: int | None, is_unknown: bool, is_there: bool
) -> None:
    directory = tmp_path / f"{TOPIC}-0"
    directory.mkdir()
    for base in (0, 2, 4):
        data = commits(base, (key("a"), value(10 + base)), (key("b"), value(20 + base)))
        (directory / f"{base:020d}.log").write_bytes(data)
    lost = directory / f"{2:020d}.log"
    if is_there:
        lost.write_bytes(b"")
    else:
        lost.unlink()
    if cleaned_to is not None:
        (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {cleaned_to}\n")
    found = read_consumer_offsets(read_node(tmp_path).logs)
    assert found.groups == {"a", "b"}
    assert found.offsets == {
        ("a", "orders", 0): None if is_unknown else 14,
        ("b", "orders", 0): None if is_unknown else 24,
    }
    assert ["[2, 4) is missing" in one for one in found.unknown] == [True] * is_unknown


def test_a_damaged_batch_is_told_beside_groups_of_other_partitions(node: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(node, tmp_path / "node"))
    properties = copied / "server.properties"
    properties.write_text(properties.read_text().replace(str(node), str(copied)))
    before = consumers_of(read_node(properties), None)
    (segment, *_) = sorted(copied.rglob(f"{TOPIC}-0/*.log"))
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    found = consumers_of(read_node(properties), None)
    assert (before.logs, found.logs) == (None, ())
    assert any(
        f"in {TOPIC}-0 aren't known: {segment}: at byte 0 expected" in one for one in found.source.notices
    )
    changed = {place for place, offset in found.committed.items() if before.committed[place] != offset}
    assert changed
    assert {found.committed[place] for place in changed} == {None}
    assert found.committed.keys() - changed


def test_groups_of_a_real_broker_are_all_known_where_the_node_has_the_whole_topic(node: Path) -> None:
    looked = read_node(node / "server.properties")
    assert read_topic_settings(looked).metadata.partitions_of(TOPIC) == {0, 1}
    found = consumers_of(looked, None)
    assert found.logs is None
    assert (found.source.positions, found.source.notices) == (PositionsFrom.FILES, ())
    assert {group for group, _, _ in found.committed} == {"g-classic", "g-manual", "g-new"}
    assert found.committed["g-manual", "plain", 0] == 123
    assert found.committed["g-new", "txn", 1] == 386
    # It has committed in another partition of the topic, so that it reads this one, too.
    assert found.committed["g-manual", "empty", 1] == 0
    assert found.committed["g-manual", "empty", 0] is None


def test_what_a_node_does_not_have_of_the_topic_is_said_and_nobody_is_known(
    node: Path, tmp_path: Path
) -> None:
    whole = read_node(node / "server.properties")
    (directory, *others) = whole.directories
    fewer = tuple(log for log in directory.logs if log.name.log != f"{TOPIC}-1")
    part = replace(whole, directories=(replace(directory, logs=fewer), *others))
    found = consumers_of(part, None)
    assert found.logs == ()
    assert found.source.notices == (f"groups of 1 partition of {TOPIC} aren't known: this node has 1 of 2",)
    assert found.committed["g-manual", "plain", 0] == 123


def test_a_committed_offset_costs_few_calls(tmp_path: Path) -> None:
    def calls_of(pairs: int) -> int:
        records = [(key(f"g{number % 7}", partition=number), value(number)) for number in range(pairs)]
        read = [log_of(tmp_path / str(pairs), commits(0, *records))]
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            found = read_consumer_offsets(read)
        finally:
            sys.setprofile(None)
        assert len(found.offsets) == pairs
        return calls

    calls_of(10)
    assert calls_of(600) - calls_of(200) <= 400 * 5
