"""What is gone from logs, in no lake and on no record, however many looks a run takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.cycle import archive_here
from storage_engine.journal.journal import Journal
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.coverage.coverage import ReleasedSpan
from storage_engine.lake.coverage.spans import ReceiptSpan, receipt_spans
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.move.making import make_lake
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import Drift
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.model.store import (
    Archivable,
    FileFacts,
    Lineages,
    LogIdentity,
    LogSnapshot,
    Segment,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.retention.archive import archivable as missing_ranges_module
from storage_engine.retention.archive.archivable import Listed, LogLooks, missing_ranges
from storage_engine.retention.archive.sealed import archive_sealed, measure_lag
from storage_engine.retention.housekeeping.maintaining import maintain_store
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.ranges import range_memory
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.ranges.offset_ranges import Place
from storage_engine.retention.ranges.range_memory import keep_ranges, kept_ranges
from storage_engine.retention.ranges.seen_logs import SeenLog
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.steps import monitor
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of
from tests.kafka.stopped_nodes import OLD_MS, empty_snapshot, make_node, managed

DISK = DiskUsage("/disk", None)
SPAN = st.tuples(st.integers(0, 30), st.integers(1, 8)).map(lambda span: (span[0], span[0] + span[1]))


def look(first: int, end: int, why: str = "") -> Listed:
    """Return a look at a log of segments of one offset each."""
    segments = tuple(
        Segment("a-0", base, FileFacts(f"/disk/{base}", 1, base, 1, 1, 1), SegmentState.SEALED, end=base + 1)
        for base in range(first, end)
    )
    snapshot = StoreSnapshot(
        "kafka", "/disk", 0, (LogSnapshot("a-0", segments, end, end),), (DISK,), DISK, False
    )
    archivable = Archivable((), {"a-0": why}) if why else Archivable(segments)
    return Listed(archivable, (), snapshot)


@given(
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=5),
    archived=st.lists(SPAN, max_size=4),
    gone=st.lists(SPAN, max_size=3),
    before=st.none() | st.integers(0, 30),
)
def test_each_offset_is_on_disk_known_to_be_somewhere_or_missing(
    steps: Sequence[tuple[int, int]],
    archived: Sequence[tuple[int, int]],
    gone: Sequence[tuple[int, int]],
    before: int | None,
) -> None:
    looks, first, begins = LogLooks(), 0, []
    for went, left in steps:
        # More may go than a look has seen.
        first += went
        begins.append(first)
        listed = look(first, first + left)
        looks.add(listed, {"a-0": "id"})
    known = [] if before is None else [SeenLog("a-0", 1, before, 99, 99, 0, LogIdentity("id"))]
    covered = [ReleasedSpan("a-0", *span, lineage=1, log_id="id") for span in archived]
    covered += [ReleasedSpan("a-0", *span) for span in gone]
    others = [
        ReleasedSpan("a-0", 0, 99, lineage=2),
        ReleasedSpan("a-0", 0, 99, lineage=1, log_id="another"),
        ReleasedSpan("b-0", 0, 99),
    ]
    parts = looks.parts(listed, {"a-0": "id"})
    missing = list(missing_ranges(parts, known, [*covered, *others], Lineages(1)))
    offsets = [at for one in missing for at in range(one.start_offset, one.end_offset)]
    lowest = min([begins[0], *(span[0] for span in (*archived, *gone)), *(one.start_offset for one in known)])
    somewhere = {at for span in (*archived, *gone) for at in range(*span)}
    assert offsets == [at for at in range(lowest, begins[-1]) if at not in somewhere]
    assert all(one.is_earlier == (one.end_offset <= begins[0]) for one in missing)


def test_of_a_log_that_is_no_more_its_sealed_segments_are_missing() -> None:
    looks, last = LogLooks(), look(3, 3)
    looks.add(look(2, 9), {"a-0": "id"})
    looks.add(last, {})
    (missing,) = missing_ranges(looks.parts(last, {}), (), (), Lineages(1))
    assert (missing.log, missing.start_offset, missing.end_offset, missing.log_id) == ("a-0", 2, 9, "id")


def test_a_log_that_its_broker_keeps_out_of_lakes_lacks_nothing() -> None:
    looks, last = LogLooks(), look(5, 9, "it is compacted")
    looks.add(look(2, 9, "it is compacted"), {})
    looks.add(last, {})
    assert not list(missing_ranges(looks.parts(last, {}), (), (), Lineages(1)))


def go_on(node: MadeNode, first: int) -> None:
    """Delete a log's segments, also such as nobody saw, and go on at an offset."""
    (log,) = node.root.glob("*/a-0")
    for path in log.glob("0*"):
        path.unlink()
    for base in (first, first + 2, first + 4):
        (log / f"{base:020d}.log").write_bytes(batch_of(base, ms=OLD_MS))
        for suffix in ("index", "timeindex", "txnindex"):
            (log / f"{base:020d}.{suffix}").write_bytes(b"")
        (log / f"{base + 2:020d}.snapshot").write_bytes(empty_snapshot())
    (log / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {first}\n")
    node.checkpoint("replication-offset-checkpoint", {"a-0": first + 6})


@pytest.fixture
def node(tmp_path: Path) -> MadeNode:
    return make_node(tmp_path / "node", ("a-0",), ("logs",))


@pytest.fixture
def store(tmp_path: Path, node: MadeNode) -> ManagedStore:
    store = managed(tmp_path / "managed", node.root)
    make_lake(store.lake, "kafka")
    return store


def recorded(store: ManagedStore) -> list[Drift]:
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    return [one for one, _ in recorded_gone(journal, record)]


def rows_of(store: ManagedStore) -> list[tuple[str, int, int, str]]:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    rows = read_deletions(open_lake(store.lake), record.store_id)
    return [(row.run, row.start_offset, row.end_offset, row.what) for row in rows]


def assert_all_is_named(store: ManagedStore) -> None:
    """Each loss that verifying finds is one on record, and the digests hold."""
    (result,) = verify_store(store, VerifyLevel.RECEIPTS)
    ranges = [(one.start_offset, one.end_offset) for one in recorded(store)]
    lost = [(row.start_offset, row.end_offset) for row in result.ranges if row.where is Where.LOST]
    assert lost == ranges
    assert [one for one in result.findings if one.status is Status.FAILURE and "SHA-256" in one.detail] == []


def test_what_comes_and_goes_between_two_looks_of_a_run_is_lost_where_no_broker_runs(
    store: ManagedStore, node: MadeNode
) -> None:
    calls: list[int] = []

    def overtaken(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
        calls.append(len(jobs))
        if len(calls) == 1:
            go_on(node, 20)
        return archive_here(jobs)

    done = archive_sealed(store, "first", overtaken)
    assert [row.base_offset for row in done.receipts] == [20, 22]
    (refused,) = done.refused
    assert (
        refused.why
        == "expected records of offsets [0, 20) on disk or in a lake, found them in neither: LOST."
    )
    (drift,) = recorded(store)
    assert (drift.log, drift.start_offset, drift.end_offset) == ("a-0", 0, 20)
    assert rows_of(store) == [("first", 0, 20, "gone")]
    assert_all_is_named(store)
    # It is on record, and told once.
    assert archive_sealed(store, "second", archive_here).refused == ()
    assert len(recorded(store)) == 1


def test_what_comes_and_goes_between_two_runs_may_have_been_its_broker_s(
    store: ManagedStore, node: MadeNode
) -> None:
    end = max(row.end for row in archive_sealed(store, "first", archive_here).receipts)
    go_on(node, 20)
    done = archive_sealed(store, "second", archive_here)
    assert done.refused == ()
    assert [one for one in done.notices if f"[{end}, 20)" in one and "by its own rules" in one] != []
    (drift,) = recorded(store)
    assert (drift.start_offset, drift.end_offset) == (end, 20)
    assert rows_of(store) == [("second", end, 20, "gone")]
    assert_all_is_named(store)
    assert archive_sealed(store, "third", archive_here).notices == ()


def test_what_the_monitor_s_look_kept_of_lakes_is_not_read_again(
    store: ManagedStore, node: MadeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(node, 20)
    rows = archive_sealed(store, "first", archive_here).receipts
    monitor(store, "look")
    read: list[int] = []

    def spied(lake: Lake, store_id: str, first_sequence: int) -> tuple[ReceiptSpan, ...]:
        read.append(first_sequence)
        return receipt_spans(lake, store_id, first_sequence)

    for module in (missing_ranges_module, range_memory):
        monkeypatch.setattr(module, "receipt_spans", spied)
    assert archive_sealed(store, "second", archive_here).notices == ()
    assert read == [len(rows) - 1]
    # A chain that isn't the one of the last look is read from its beginning.
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    memory = kept_ranges(store.journal_url, record.store_id)
    marks = tuple(replace(one, row_hash="0" * 64) for one in memory.archived[0].marks)
    other = memory.with_archived(replace(memory.archived[0], marks=marks))
    keep_ranges(store.journal_url, record.store_id, other)
    assert archive_sealed(store, "third", archive_here).notices == ()
    assert read == [len(rows) - 1] * 2 + [0]
    # And so it is where something is missing.
    keep_ranges(store.journal_url, record.store_id, memory)
    go_on(node, 40)
    archive_sealed(store, "fourth", archive_here)
    assert read[3:] == [len(rows) - 1, 0]
    (drift,) = recorded(store)
    assert (drift.start_offset, drift.end_offset) == (max(row.end for row in rows), 40)


@pytest.mark.parametrize("deleted", [22, 24], ids=["kept in a run", "kept as a receipt"])
def test_what_the_last_look_kept_is_none_where_another_engine_deletes_receipts(
    store: ManagedStore, node: MadeNode, deleted: int
) -> None:
    for first in (20, 24):
        go_on(node, first)
        archive_sealed(store, f"from-{first}", archive_here)
    monitor(store, "look")
    open_lake(store.lake).segments().delete(f"base_offset == {deleted}")
    go_on(node, 28)
    with opened(store) as context:
        measured = measure_lag(context)
        shown = look_for_ranges(context, measured.snapshot, measured)[0]
    archived = [(one.start_offset, one.end_offset) for one in shown if one.where is Place.ARCHIVED]
    assert archived == [(20, deleted), (deleted + 2, 28)]
    archive_sealed(store, "later", archive_here)
    (drift,) = recorded(store)
    assert (drift.start_offset, drift.end_offset) == (deleted, deleted + 2)


def test_maintaining_brings_in_what_no_run_could_write(
    store: ManagedStore, node: MadeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_sealed(store, "first", archive_here)
    go_on(node, 20)
    with monkeypatch.context() as patch:
        patch.setattr("storage_engine.retention.archive.sealed.record_deletions", lambda *_: ())
        archive_sealed(store, "second", archive_here)
    assert rows_of(store) == []
    assert maintain_store(store, dry_run=True).notices == ()
    assert rows_of(store) == []
    assert maintain_store(store).notices == ()
    ((run, _, end, what),) = rows_of(store)
    assert (run, end, what) == ("second", 20, "gone")
    assert_all_is_named(store)
