"""What a verification says of a sound lake, and of a store laid over it. Faults: test_verify_faults.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.long_work import Advance, LongWork, listening
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.coverage.coverage import ReleasedSpan
from storage_engine.lake.coverage.spans import local_spans
from storage_engine.lake.file import data_file
from storage_engine.lake.file.data_file import WindowMemory
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.verify.verify import StoreVerification, VerifyLevel, verify
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, Where
from storage_engine.model.store import Lineages
from tests.heard import Heard
from tests.lakes import path_of

MakeJobs = Callable[..., tuple[SegmentJob, ...]]
LEVELS = list(VerifyLevel)
MIB = 1 << 20


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    return filled(2)


@pytest.fixture
def archived(lake: Lake) -> tuple[Receipt, ...]:
    return receipts(lake, "store-1")


def _one(lake: Lake, level: VerifyLevel, **more: object) -> StoreVerification:
    (found,) = verify(lake, level, store_id="store-1", **more)
    return found


@pytest.mark.slow
def test_a_sound_lake_is_ok_at_every_level(lake: Lake, archived: tuple[Receipt, ...]) -> None:
    for level in LEVELS:
        _is_sound(lake, level)


def _is_sound(lake: Lake, level: VerifyLevel) -> None:
    heard = Heard()
    with listening(heard):
        found = _one(lake, level)
    looked = 0 if level is VerifyLevel.RECEIPTS else 2
    assert (found.overall, found.findings) == (Status.OK, ())
    assert (found.receipt_count, found.checked_count, found.checked_bytes) == (2, looked, looked * MIB)
    assert heard.works == ([(LongWork("Verifying", looked * MIB), looked * MIB)] if looked else [])
    assert (found.coverage.verified_bytes, found.coverage.never_count) == (2 * MIB, 0)
    (row,) = found.ranges
    assert (row.start_offset, row.end_offset, row.where) == (0, 2 * MIB, Where.ARCHIVED)


@pytest.mark.slow
def test_expired_snapshots_leave_a_lake_sound(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, segments[2]))
    for table in (lake.messages(), lake.segments()):
        old = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
        assert old
        table.maintenance.expire_snapshots().by_ids(old).commit()
    found = [_one(lake, level) for level in LEVELS]
    assert [(result.overall, result.receipt_count) for result in found] == [(Status.OK, 3)] * len(LEVELS)


@pytest.mark.slow
def test_bytes_of_several_stores_and_lineages_are_told_apart(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, *segments, lineage=1))
    archive_all(lake, make_jobs(lake, segments[0], store_id="store-2"))
    for level in LEVELS:
        first, second = verify(lake, level)
        assert (first.overall, first.receipt_count, second.overall) == (Status.OK, 5, Status.OK)
        assert [(row.start_offset, row.end_offset) for row in first.ranges] == [(0, 3 * MIB)]


@pytest.mark.slow
def test_memory_of_segments_is_held_once_a_thread_however_many_stores_there_are(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window may have a quarter of a gigabyte."""
    made: list[int] = []

    class Counted(WindowMemory):
        def __init__(self) -> None:
            made.append(threading.get_ident())
            super().__init__()

    for number in range(2, 6):
        archive_all(lake, make_jobs(lake, segments[0], store_id=f"store-{number}"))
    monkeypatch.setattr(data_file, "WindowMemory", Counted)
    assert {found.overall for found in verify(lake, VerifyLevel.BYTES)} == {Status.OK}
    assert made
    assert len(made) == len(set(made))


@pytest.mark.slow
def test_a_fault_in_an_older_lineage_is_found_though_a_newer_one_has_the_offsets(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, *segments, lineage=1))
    path_of(lake, archived[0]).unlink()
    found = _one(lake, VerifyLevel.RECEIPTS)
    assert found.overall is Status.FAILURE
    assert [finding.subject for finding in found.findings] == [f"commitlog/{0:020d} (lineage 0)"]
    assert [(row.where, row.status) for row in found.ranges] == [(Where.ARCHIVED, Status.OK)]


def test_an_empty_lake_has_nothing_to_verify(filled: Callable[[int], Lake]) -> None:
    assert verify(filled(0), VerifyLevel.BYTES) == ()


def test_store_and_lake_laid_over_each_other_tell_where_every_byte_is(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], snapshot_of
) -> None:
    segments[0].unlink()
    both, planned = local_spans(snapshot_of(segments[1:]), archived, Lineages(0))
    local = (both, replace(planned, pending=True))
    for level in (VerifyLevel.FILES, VerifyLevel.STORE):
        found = _one(lake, level, local=local)
        assert [(row.where, row.status) for row in found.ranges] == [
            (Where.ARCHIVED, Status.OK),
            (Where.BOTH, Status.OK),
            (Where.PENDING, Status.OK),
        ]


def test_a_segment_that_a_cleanup_takes_meanwhile_is_in_the_lake_only(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], snapshot_of
) -> None:
    local = local_spans(snapshot_of(segments[:2]), archived, Lineages(0))
    segments[0].unlink()
    found = _one(lake, VerifyLevel.STORE, local=local)
    assert [(row.where, row.status) for row in found.ranges] == [
        (Where.ARCHIVED, Status.OK),
        (Where.BOTH, Status.OK),
    ]


def test_a_deleted_segment_without_a_receipt_is_lost(lake: Lake, archived: tuple[Receipt, ...]) -> None:
    found = _one(lake, VerifyLevel.RECEIPTS, released=lambda _: [ReleasedSpan("commitlog", 2 * MIB, 3 * MIB)])
    assert [(row.where, row.status) for row in found.ranges][-1] == (Where.LOST, Status.FAILURE)
    assert found.overall is Status.FAILURE


@pytest.mark.slow
def test_rows_that_another_engine_rewrote_are_proven_by_their_bytes(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    table = lake.messages()
    table.overwrite(table.scan().to_arrow())
    assert _one(lake, VerifyLevel.FILES).overall is Status.FAILURE
    found = _one(lake, VerifyLevel.BYTES)
    assert found.overall is Status.WARNING
    assert [row.status for row in found.ranges] == [Status.OK]
    assert len(found.findings) == 2
    assert "its rows prove the same bytes" in found.findings[0].detail


def test_a_data_file_that_goes_away_meanwhile_is_a_finding(lake: Lake, archived: tuple[Receipt, ...]) -> None:
    path = path_of(lake, archived[0])

    @contextmanager
    def gone(_work: LongWork) -> Iterator[Advance]:
        path.unlink()
        yield lambda _: None

    with listening(gone):
        found = _one(lake, VerifyLevel.BYTES)
    assert [finding.detail for finding in found.findings] == [
        f"data file {data_file_of(lake.messages(), archived[0])} is missing"
    ]
    assert found.checked_count == 2
