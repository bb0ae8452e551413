from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.lake.archive import SegmentJob, archive_all
from storage_engine.lake.catalog import Lake
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.ranges import ReleasedSpan
from storage_engine.lake.verify import VerifyLevel, local_spans, unchanged, verify
from storage_engine.model.receipt import Receipt
from storage_engine.model.store import (
    DiskUsage,
    FileFacts,
    LogSnapshot,
    Segment,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.model.validation import Status, Where

MakeJobs = Callable[..., tuple[SegmentJob, ...]]
LEVELS = list(VerifyLevel)


@pytest.fixture
def archived(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> tuple[Receipt, ...]:
    return archive_all(lake, make_jobs(lake, *segments[:2]))


def _snapshot(paths: list[Path]) -> StoreSnapshot:
    segments = tuple(
        Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED) for path in paths
    )
    end = segments[-1].end_offset if segments else 0
    return StoreSnapshot(
        broker="rocketmq",
        root=str(paths[0].parents[1]) if paths else "",
        taken_at_ms=0,
        logs=(LogSnapshot("commitlog", segments, max_offset=end, dispatched_offset=end),),
        log_disks=(),
        dependents_disk=DiskUsage("", None),
        crashed=False,
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_sound_lake_is_ok_at_every_level(
    level: VerifyLevel, lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    done: list[int] = []
    found = verify(lake, "store-1", level=level, progress=done.append)
    assert found.overall is Status.OK
    assert (found.receipt_count, found.checked_bytes, sum(done)) == (2, 2 << 20, 2 << 20)
    (row,) = found.ranges
    assert (row.start_offset, row.end_offset, row.where) == (0, 2 << 20, Where.ARCHIVED)


def test_store_and_lake_laid_over_each_other_tell_where_every_byte_is(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...]
) -> None:
    segments[0].unlink()
    pending = frozenset({("commitlog", 2 << 20)})
    local = local_spans(_snapshot(segments[1:]), archived, pending=pending)
    found = verify(lake, "store-1", level=VerifyLevel.FILES, local=local)
    assert [(row.where, row.status) for row in found.ranges] == [
        (Where.ARCHIVED, Status.OK),
        (Where.BOTH, Status.OK),
        (Where.PENDING, Status.OK),
    ]


def test_a_deleted_segment_without_a_receipt_is_lost(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...]
) -> None:
    released = [ReleasedSpan("commitlog", 2 << 20, 3 << 20)]
    found = verify(lake, "store-1", level=VerifyLevel.RECEIPTS, released=released)
    assert [(row.where, row.status) for row in found.ranges][-1] == (Where.LOST, Status.FAILURE)
    assert found.overall is Status.FAILURE


def test_a_missing_data_file_is_a_failure_at_every_level(lake: Lake, archived: tuple[Receipt, ...]) -> None:
    path = local_path(archived[0].data_file)
    assert path is not None
    path.unlink()
    for level in (VerifyLevel.RECEIPTS, VerifyLevel.FILES):
        found = verify(lake, "store-1", level=level)
        assert found.overall is Status.FAILURE
        assert found.ranges[0].where is Where.LOST


def test_a_flipped_bit_is_found_from_the_level_of_files_on(lake: Lake, archived: tuple[Receipt, ...]) -> None:
    path = local_path(archived[0].data_file)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert verify(lake, "store-1", level=VerifyLevel.RECEIPTS).overall is Status.OK
    for level in (VerifyLevel.FILES, VerifyLevel.BYTES):
        found = verify(lake, "store-1", level=level)
        assert found.overall is Status.FAILURE
        assert "has SHA-256" in found.ranges[0].detail


def test_rows_that_another_engine_rewrote_are_proven_by_their_bytes(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    table = lake.messages()
    table.overwrite(table.scan().to_arrow())
    assert verify(lake, "store-1", level=VerifyLevel.FILES).overall is Status.FAILURE
    found = verify(lake, "store-1", level=VerifyLevel.BYTES)
    assert found.overall is Status.WARNING
    assert [row.status for row in found.ranges] == [Status.OK]
    assert len(found.notices) == 2
    assert "its rows prove the same bytes" in found.notices[0]


def test_deleted_rows_are_a_failure_of_their_segment_only(lake: Lake, archived: tuple[Receipt, ...]) -> None:
    lake.messages().delete("segment_base_offset = 0")
    found = verify(lake, "store-1", level=VerifyLevel.BYTES)
    assert [(row.where, row.status) for row in found.ranges] == [
        (Where.LOST, Status.FAILURE),
        (Where.ARCHIVED, Status.OK),
    ]


def test_a_removed_receipt_breaks_the_chain(lake: Lake, archived: tuple[Receipt, ...]) -> None:
    lake.segments().delete("base_offset = 0")
    found = verify(lake, "store-1", level=VerifyLevel.RECEIPTS)
    assert "was removed or replaced" in found.chain_fault
    assert found.overall is Status.FAILURE


def test_a_touched_file_is_hashed_and_an_untouched_one_is_not(
    segments: list[Path], archived: tuple[Receipt, ...]
) -> None:
    os.utime(segments[0])
    touched, untouched, unknown = local_spans(_snapshot(segments), archived)
    assert (touched.sha256, touched.unchanged) == (archived[0].sha256, False)
    assert (untouched.sha256, untouched.unchanged) == (None, True)
    assert (unknown.sha256, unknown.unchanged) == (None, False)
    (cheap, *_) = local_spans(_snapshot(segments), archived, hash_changed=False)
    assert (cheap.sha256, cheap.unchanged) == (None, False)


def test_the_active_segment_ends_at_the_logical_end(segments: list[Path]) -> None:
    snapshot = _snapshot(segments)
    log = replace(snapshot.logs[0], max_offset=(2 << 20) + 77)
    spans = local_spans(replace(snapshot, logs=(log,)), ())
    assert [span.end_offset for span in spans] == [1 << 20, 2 << 20, (2 << 20) + 77]


def test_unchanged_means_every_fact(segments: list[Path], archived: tuple[Receipt, ...]) -> None:
    facts = FileFacts.of(segments[0])
    assert unchanged(facts, archived[0])
    time.sleep(0.01)
    for change in ("device", "inode", "size_bytes", "mtime_ns", "ctime_ns"):
        assert not unchanged(replace(facts, **{change: 1}), archived[0])
