"""What is open in a log, replayed behind an older snapshot, is what the broker's later snapshot says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format.layout import PartitionLog, read_node
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.transactions import last_stable_offset, open_transactions
from tests.kafka.batches import with_crc
from tests.kafka.made_node import CONTROL, TRANSACTIONAL, MadeNode, batch_of


def logs(node: Path) -> list[PartitionLog]:
    return [log for _, log in read_node(node / "server.properties").logs]


def open_in(path: str) -> dict[int, int]:
    producers = parse_producer_snapshot(Path(path).read_bytes(), path)
    firsts = {one.producer_id: one.transaction_first_offset for one in producers}
    return {producer: first for producer, first in firsts.items() if first is not None}


def found_in(log: PartitionLog, end: int) -> dict[int, int]:
    return {one.producer_id: one.first_offset for one in open_transactions(log, end)}


def test_the_log_replayed_behind_each_snapshot_gives_the_next_ones(node: Path) -> None:
    compared = with_open = 0
    for log in logs(node):
        offsets = [int(Path(one.path).stem) for one in log.snapshots]
        for place, end in enumerate(offsets):
            segments = tuple(one for one in log.segments if one.base_offset < end)
            expected = open_in(log.snapshots[place].path)
            for older in range(max(0, place - 3), place):
                cut = replace(log, segments=segments, snapshots=log.snapshots[: older + 1])
                assert found_in(cut, end) == expected
                compared += 1
                with_open += bool(expected)
    assert compared > 100
    assert with_open > 10


def test_a_log_that_has_no_snapshot_is_replayed_from_its_first_offset(node: Path) -> None:
    log = next(log for log in logs(node) if log.name.log == "txn-0" and log.segments[0].base_offset == 0)
    end = end_offset(log)
    assert found_in(replace(log, snapshots=()), end) == found_in(log, end) == open_in(log.snapshots[-1].path)


def test_the_last_stable_offset_is_the_oldest_open_transactions_first(node: Path) -> None:
    log = next(log for log in logs(node) if open_transactions(log, end_offset(log)))
    end = end_offset(log)
    found = open_transactions(log, end)
    assert last_stable_offset(found, end) == found[0].first_offset < end
    assert last_stable_offset((), end) == end
    assert last_stable_offset(found, 1) == 1


def test_a_log_that_lost_its_beginning_tells_what_is_open_in_the_rest(node: Path) -> None:
    log = next(log for log in logs(node) if open_transactions(log, end_offset(log)))
    end = end_offset(log)
    first = open_in(log.snapshots[-1].path)
    rest = replace(log, segments=log.segments[1:], snapshots=())
    assert found_in(rest, end) == {
        producer: max(offset, rest.segments[0].base_offset) for producer, offset in first.items()
    }


def test_a_damaged_snapshot_is_an_error(node: Path, tmp_path: Path) -> None:
    log = next(log for log in logs(node) if log.name.log == "txn-0")
    copied = Path(shutil.copy(log.snapshots[-1].path, tmp_path))
    data = bytearray(copied.read_bytes())
    data[-1] ^= 1
    copied.write_bytes(data)
    damaged = replace(log.snapshots[-1], path=str(copied))
    with pytest.raises(CorruptFileError, match="CRC-32C"):
        open_transactions(replace(log, snapshots=(*log.snapshots[:-1], damaged)), end_offset(log))


def test_what_lies_at_or_above_the_offset_does_not_count(node: Path) -> None:
    compared = 0
    for log in logs(node):
        for place, snapshot in enumerate(log.snapshots):
            end = int(Path(snapshot.path).stem)
            for kept in (log.snapshots, log.snapshots[:place]):
                assert found_in(replace(log, snapshots=kept), end) == open_in(snapshot.path)
                compared += 1
    assert compared > 100


def test_damage_that_may_hide_a_marker_is_an_error(node: Path, tmp_path: Path) -> None:
    log = next(log for log in logs(node) if log.name.log == "txn-0")
    end = end_offset(log)
    for place, cut in ((0, 5), (len(log.segments) - 1, 5)):
        torn = Path(shutil.copy(log.segments[place].log.path, tmp_path))
        torn.write_bytes(torn.read_bytes()[:-cut])
        files = log.segments[place]._replace(log=replace(log.segments[place].log, path=str(torn)))
        segments = (*log.segments[:place], files, *log.segments[place + 1 :])
        damaged = replace(log, segments=segments, snapshots=())
        if place:
            # The broker may just write the end of its active segment, here the one batch of a transaction.
            assert found_in(log, end)
            assert found_in(damaged, end_offset(damaged)) == {}
        else:
            with pytest.raises(CorruptFileError, match=rf"{torn.name}: at byte \d+ expected a batch of"):
                open_transactions(damaged, end)


@pytest.mark.parametrize(
    ("attributes", "is_right", "expected"),
    [(0, True, {}), (TRANSACTIONAL, True, {7: 2}), (0, False, None), (TRANSACTIONAL | CONTROL, True, None)],
)
def test_a_batch_without_readable_records_hides_a_marker_only_where_it_may_be_one(
    tmp_path: Path, attributes: int, is_right: bool, expected: dict[int, int] | None
) -> None:
    made = MadeNode(tmp_path)
    whole = batch_of(2, producer=7, attributes=attributes)
    of_no_count = whole[:57] + (-1).to_bytes(4, "big", signed=True) + whole[61:]
    batches = [batch_of(0), with_crc(of_no_count) if is_right else of_no_count, batch_of(4)]
    made.add("t-0", {0: batches, 6: [batch_of(6)]})
    (log,) = (one for _, one in read_node(made.write()).logs if one.name.log == "t-0")
    if expected is not None:
        assert found_in(log, 8) == expected
        return
    with pytest.raises(CorruptFileError, match=rf"at byte {len(batches[0])} expected records that fit"):
        open_transactions(log, 8)
