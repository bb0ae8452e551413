"""Where bytes are: every offset once, few ranges for many segments, and unknown where nobody can tell."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, update

from storage_engine import cycle
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import deletions_after
from storage_engine.lake.coverage.coverage import LocalSpan, ReleasedSpan
from storage_engine.lake.coverage.spans import ArchivedSpan
from storage_engine.model.plan import Decision, Reason
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.model.settings.policy import Policy
from storage_engine.model.store import FileFacts, Lineages, Segment, SegmentId, SegmentState
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt
from storage_engine.retention.proof.history import released_spans
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.ranges import range_memory
from storage_engine.retention.ranges.offset_ranges import Lakes, OffsetRange, Place, offset_ranges
from storage_engine.retention.ranges.range_memory import RangeMemory, keep_ranges, kept_ranges
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.steps import monitor
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.conftest import MANUAL

pytestmark = pytest.mark.usefixtures("plainly")

MIB = 1 << 20
LOG = "commitlog"
Managed = Callable[..., ManagedStore]


def decision(number: int, reason: Reason = Reason.NOT_EXPIRED, log: str = LOG) -> Decision:
    facts = FileFacts(f"/s/{log}/{number * MIB:020d}", 1, number, MIB, 2, 3)
    state = SegmentState.ACTIVE if reason is Reason.ACTIVE else SegmentState.SEALED
    return Decision(Segment(log, number * MIB, facts, state), reason, "because")


def span(number: int, lineage: int = 1, log: str = LOG) -> ArchivedSpan:
    return ArchivedSpan(log, lineage, number * MIB, (number + 1) * MIB, MIB)


def told(ranges: Iterable[OffsetRange]) -> list[tuple[int, int, int, str, str]]:
    return [
        (one.lineage, one.start_offset // MIB, one.end_offset // MIB, one.where.value, one.reason)
        for one in ranges
    ]


def test_a_log_goes_from_the_lake_over_both_to_the_disk_and_what_is_due_is_said() -> None:
    decisions = [
        decision(3, Reason.EXPIRED),
        *map(decision, range(4, 6)),
        decision(6),
        decision(7, Reason.ACTIVE),
        decision(8, Reason.ACTIVE),
    ]
    proven = frozenset(SegmentId(LOG, number * MIB) for number in (3, 4, 5))
    lakes = Lakes([span(number) for number in range(6)], proven)
    found = offset_ranges(decisions, {LOG: 7 * MIB + 5}, lakes, Lineages(1))
    assert told(found) == [
        (1, 0, 3, "archived", ""),
        (1, 3, 4, "due", "expired"),
        (1, 4, 6, "both", "not-expired"),
        (1, 6, 7, "local", "not-expired"),
        (1, 7, 7, "local", "active"),
    ]
    assert [(one.segments, one.size_bytes) for one in found] == [
        (3, 3 * MIB), (1, MIB), (2, 2 * MIB), (1, MIB), (1, MIB)
    ]  # fmt: skip
    assert found[1].detail == "because; a lake has it"
    assert found[-1].end_offset == 7 * MIB + 5


def test_what_is_nowhere_is_lost_and_who_accepted_it_is_named() -> None:
    gone = [
        ReleasedSpan(LOG, 0, 2 * MIB),
        ReleasedSpan(LOG, 4 * MIB, 5 * MIB, excused="accepted by ann (fire)", others="somebody did"),
        ReleasedSpan(LOG, 5 * MIB, 6 * MIB, others="somebody did"),
    ]
    lakes = Lakes([span(2), span(3)])
    found = offset_ranges(map(decision, range(8, 10)), {LOG: 10 * MIB}, lakes, Lineages(1), gone=gone)
    assert told(found) == [
        (1, 0, 2, "lost", "missing"),
        (1, 2, 4, "archived", ""),
        (1, 4, 5, "lost", "accepted"),
        (1, 5, 6, "lost", "missing"),
        (1, 6, 8, "lost", "missing"),
        (1, 8, 10, "local", "not-expired"),
    ]
    assert "ann" in found[2].detail
    assert found[3].detail == "somebody did"
    assert "none of our runs" in found[4].detail


def test_a_lake_that_can_not_be_asked_makes_nothing_lost_and_nothing_archived() -> None:
    gone = [ReleasedSpan(LOG, 0, 3 * MIB)]
    lakes = Lakes([span(2)], frozenset({SegmentId(LOG, 5 * MIB)}), "the lake is away")
    decisions = [decision(4), decision(5), decision(6, Reason.ACTIVE)]
    found = offset_ranges(decisions, {LOG: 7 * MIB}, lakes, Lineages(1), gone=gone)
    assert told(found) == [
        (1, 0, 2, "unknown", ""),
        (1, 2, 3, "archived", ""),
        (1, 3, 4, "unknown", ""),
        (1, 4, 5, "unknown", "not-expired"),
        (1, 5, 6, "both", "not-expired"),
        (1, 6, 7, "local", "active"),
    ]


def test_logs_and_lineages_are_told_apart() -> None:
    lineages = Lineages(2, {"other": 5})
    spans = [*(span(number) for number in range(4)), span(3, 2), span(0, 5, "other")]
    decisions = [*map(decision, range(4, 6)), decision(2, log="other")]
    lakes = Lakes(spans)
    found = offset_ranges(decisions, {LOG: 6 * MIB, "other": 3 * MIB}, lakes, lineages)
    assert [(one.log, *row) for one, row in zip(found, told(found), strict=True)] == [
        (LOG, 1, 0, 4, "archived", ""),
        (LOG, 2, 3, 4, "archived", ""),
        (LOG, 2, 4, 6, "local", "not-expired"),
        ("other", 5, 0, 1, "archived", ""),
        ("other", 5, 1, 2, "lost", "missing"),
        ("other", 5, 2, 3, "local", "not-expired"),
    ]


def test_what_others_deleted_in_this_lineage_is_not_hidden_by_what_lakes_have_of_an_older_one() -> None:
    gone = [
        ReleasedSpan(LOG, MIB, 2 * MIB, others="deleted by another", lineage=2),
        ReleasedSpan(LOG, 2 * MIB, 3 * MIB, excused="in lineage 1, which is closed", others="x", lineage=1),
    ]
    lakes = Lakes([span(number) for number in range(4)])
    found = offset_ranges([decision(4)], {LOG: 5 * MIB}, lakes, Lineages(2), gone=gone)
    assert told(found) == [
        (1, 0, 4, "archived", ""),
        (2, 1, 2, "lost", "missing"),
        (2, 4, 5, "local", "not-expired"),
    ]


def test_what_verifying_found_at_fault_is_told_and_not_as_archived() -> None:
    faulty = [replace(span(number), fault=f"{number}.parquet is gone") for number in (0, 1, 2, 5)]
    lakes = Lakes(
        [*faulty, span(1), span(3), replace(span(2), fault="of the other")],
        faulty=frozenset({SegmentId(LOG, 5 * MIB)}),
    )
    found = offset_ranges([decision(4), decision(5)], {LOG: 6 * MIB}, lakes, Lineages(1))
    assert told(found) == [
        (1, 0, 1, "unknown", "faulty"),
        (1, 1, 2, "archived", ""),
        (1, 2, 3, "unknown", "faulty"),
        (1, 3, 4, "archived", ""),
        (1, 4, 5, "local", "not-expired"),
        (1, 5, 6, "local", "faulty"),
    ]
    assert "0.parquet is gone" in found[0].detail
    assert "fault" in found[5].detail


def test_what_expired_is_told_as_that_where_it_is_in_no_other_place() -> None:
    gone = [replace(span(number), ended="expired by act 3f2a") for number in (0, 1, 2, 4, 5)]
    other = replace(span(3), ended="expired by act 99aa")
    deleted = [ReleasedSpan(LOG, 0, 7 * MIB)]
    found = offset_ranges(
        [decision(5)], {LOG: 7 * MIB}, Lakes([*gone, other, span(2)]), Lineages(1), gone=deleted
    )
    assert told(found) == [
        (1, 0, 2, "expired", ""),
        (1, 2, 3, "archived", ""),
        (1, 3, 4, "expired", ""),
        (1, 4, 5, "expired", ""),
        (1, 5, 6, "local", "not-expired"),
        (1, 6, 7, "lost", "missing"),
    ]
    assert [one.detail for one in found if one.where is Place.EXPIRED] == [
        "expired by act 3f2a",
        "expired by act 99aa",
        "expired by act 3f2a",
    ]
    # They count in no sum of archived bytes.
    assert {(one.segments, one.size_bytes) for one in found if one.where is Place.EXPIRED} == {(0, 0)}


def test_the_shield_keeps_what_is_in_no_other_place() -> None:
    kept = [LocalSpan(LOG, number * MIB, (number + 1) * MIB, "x", shielded=True) for number in (0, 1)]
    found = offset_ranges([decision(2)], {LOG: 3 * MIB}, Lakes([span(0)]), Lineages(1), shielded=kept)
    assert told(found) == [
        (1, 0, 1, "archived", ""),
        (1, 1, 2, "local", "shielded"),
        (1, 2, 3, "local", "not-expired"),
    ]


def test_many_segments_are_few_ranges() -> None:
    proven = frozenset(SegmentId(LOG, number * MIB) for number in range(10_000, 15_000))
    lakes = Lakes([span(number) for number in range(15_000)], proven)
    found = offset_ranges(map(decision, range(10_000, 20_000)), {LOG: 20_000 * MIB}, lakes, Lineages(1))
    assert told(found) == [
        (1, 0, 10_000, "archived", ""),
        (1, 10_000, 15_000, "both", "not-expired"),
        (1, 15_000, 20_000, "local", "not-expired"),
    ]
    assert [one.segments for one in found] == [10_000, 5_000, 5_000]


numbers = st.sets(st.integers(0, 30))


@given(numbers, numbers, numbers, numbers, st.booleans())
@settings(max_examples=200, deadline=None)
def test_each_offset_is_told_once_and_truly(
    here: set[int], there: set[int], deleted: set[int], proven: set[int], is_away: bool
) -> None:
    lakes = Lakes(
        [span(number) for number in there],
        frozenset(SegmentId(LOG, number * MIB) for number in proven & there),
        "away" if is_away else "",
    )
    gone = [ReleasedSpan(LOG, number * MIB, (number + 1) * MIB) for number in deleted]
    found = offset_ranges(map(decision, here), {LOG: 31 * MIB}, lakes, Lineages(1), gone=gone)
    known = here | there | deleted
    assert all(one.end_offset == other.start_offset for one, other in pairwise(found))
    by_number = {
        number: one.where for one in found for number in range(one.start_offset // MIB, one.end_offset // MIB)
    }
    assert by_number.keys() == (set(range(min(known), max(known) + 1)) if known else set())
    for number, where in by_number.items():
        if number in here:
            sure = Place.BOTH if number in proven & there else Place.UNKNOWN if is_away else Place.LOCAL
            assert where is sure
        elif number in there:
            assert where is Place.ARCHIVED
        else:
            assert where is (Place.UNKNOWN if is_away else Place.LOST)


def recorded(store: ManagedStore) -> list[tuple[int, int, str]]:
    reader = JournalReader(store.journal_url)
    found = reader.findings(reader.stores()[0].store_id)
    assert found is not None
    assert found.found["page_errors"] == []
    return [
        (one["start_offset"] // MIB, -(-one["end_offset"] // MIB), one["where"])
        for one in found.found["ranges"]
    ]


def test_the_monitor_records_where_the_bytes_of_a_store_are(managed: Managed, lake_dir: Path) -> None:
    store = managed(overrides={"deleteWhen": "99"})
    with opened(store) as once:
        monitor(once, "before")
        assert recorded(store) == [(0, 7, "local"), (7, 8, "local")]
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        for step in cycle.CLEANUP:
            if step is not cycle.validate:
                step(cleanup)
        monitor(once, "after")
    after = recorded(store)
    assert after[0] == (0, 7, "archived")
    assert {where for _, _, where in after[1:]} == {"local"}
    away = lake_dir.with_name("away")
    shutil.move(lake_dir, away)
    monitor(store, "away")
    assert recorded(store)[0][2] == "unknown"
    assert {where for _, _, where in recorded(store)} <= {"unknown", "local"}
    shutil.move(away, lake_dir)
    monitor(store, "back")
    assert recorded(store) == after


def test_a_segment_that_somebody_removed_before_it_was_archived_is_told_as_lost(managed: Managed) -> None:
    store = managed(overrides={"deleteWhen": "99"})
    steps.archive_sealed(store, "ahead", lambda jobs: steps.archive(store, "ahead", jobs), budget_bytes=MIB)
    monitor(store, "before")
    (Path(store.root) / "commitlog" / f"{0:020d}").unlink()
    (Path(store.root) / "commitlog" / f"{MIB:020d}").unlink()
    alarm = (
        "segment-gone: neither on disk nor in a lake, and none of our runs deleted it. "
        f"commitlog [{MIB}, {2 * MIB}) is LOST."
    )
    assert alarm in monitor(store, "after").alarms
    reader = JournalReader(store.journal_url)
    found = reader.findings(reader.stores()[0].store_id)
    assert found is not None
    assert found.found["lost"] == (f"1 range neither on disk nor in a lake: commitlog [{MIB}, {2 * MIB})")
    steps.accept_loss(store, MIB, 2 * MIB, "ann", "removed by hand")
    assert alarm not in monitor(store, "accepted").alarms


def test_what_went_without_proof_in_this_lineage_is_not_archived_by_an_older_one(managed: Managed) -> None:
    store = managed(overrides={"deleteWhen": "99"})
    steps.archive_sealed(store, "ahead", lambda jobs: steps.archive(store, "ahead", jobs))
    adopt(store, "ann", "other bytes", force=True)
    steps.make_plan(store, "r", replace(MANUAL, max_segments=2))
    Journal(store.journal_url).waive(steps.recorded_plan(store, "r").digest, "ann", "not needed")
    assert len(steps.release(store, "r").deleted) == 2
    monitor(store, "look")
    reader = JournalReader(store.journal_url)
    found = reader.findings(reader.stores()[0].store_id)
    assert found is not None
    (gone,) = (one for one in found.found["ranges"] if one["where"] == "lost")
    assert (gone["lineage"], gone["start_offset"], gone["end_offset"]) == (2, 0, 2 * MIB)
    assert gone["reason"] == "accepted"
    assert "waived by ann: not needed" in gone["detail"]
    # The page of all stores tells only what nobody has accepted.
    assert found.found["lost"] == ""
    (verified,) = verify_store(store, VerifyLevel.FILES)
    (row,) = (one for one in verified.ranges if one.start_offset == 0)
    assert (row.where, row.status, row.end_offset) == (Where.LOST, Status.WARNING, 2 * MIB)


def told_ranges(store: ManagedStore) -> tuple[object, int]:
    reader = JournalReader(store.journal_url)
    found = reader.findings(reader.stores()[0].store_id)
    assert found is not None
    assert found.found["page_errors"] == []
    return found.found["ranges"], found.at_ms


def check_as_from_scratch(store: ManagedStore, run_key: str) -> RangeMemory:
    """Look with what earlier looks kept, and then without; return what the first one kept."""
    journal, (row,) = Journal(store.journal_url), JournalReader(store.journal_url).stores()
    monitor(store, run_key)
    kept = kept_ranges(store.journal_url, row.store_id)
    with_memory, _ = told_ranges(store)
    keep_ranges(store.journal_url, row.store_id, RangeMemory())
    monitor(store, f"{run_key} again")
    assert told_ranges(store)[0] == with_memory
    assert kept_ranges(store.journal_url, row.store_id).deleted == kept.deleted
    reader = JournalReader(store.journal_url)
    deleted = reader.read(lambda connection: deletions_after(connection, row.store_id, 0))
    assert [(one.log, one.start_offset, one.end_offset, one.excuse, one.lineage) for one in deleted] == [
        (one.log, one.start_offset, one.end_offset, one.excused, one.lineage)
        for one in released_spans(journal, row.store_id)
    ]
    keep_ranges(store.journal_url, row.store_id, kept)
    return kept


@pytest.mark.again
def test_each_look_reads_what_came_since_and_tells_what_reading_all_tells(managed: Managed) -> None:
    store = managed(policy=Policy(undo_window_hours=1), overrides={"deleteWhen": "99"})

    def clean(run_key: str, segments: int) -> None:
        with opened(store) as once:
            cleanup = cycle.Cleanup(once, run_key, replace(MANUAL, max_segments=segments))
            for step in cycle.CLEANUP:
                if step is not cycle.validate:
                    step(cleanup)

    monitor(store, "first")
    clean("one", 2)
    kept = check_as_from_scratch(store, "after one")
    assert [(one.segments, one.end_offset) for one in kept.archived[0].settled] == [(2, 2 * MIB)]
    steps.archive_sealed(store, "ahead", lambda jobs: steps.archive(store, "ahead", jobs))
    kept = check_as_from_scratch(store, "ahead")
    assert len(kept.archived[0].marks[0].open) == 5
    clean("two", 3)
    kept = check_as_from_scratch(store, "after two")
    assert [(one.segments, one.end_offset) for one in kept.archived[0].settled] == [(5, 5 * MIB)]
    (deleted,) = kept.deleted.spans
    assert (deleted.start_offset, deleted.end_offset) == (0, 5 * MIB)
    # What is brought back lies on disk again, before what was the first.
    undo(store, "two", "ann")
    kept = check_as_from_scratch(store, "undone")
    assert [(one.segments, one.end_offset) for one in kept.archived[0].settled] == [(2, 2 * MIB)]
    assert [(one.start_offset, one.end_offset) for one in kept.deleted.spans] == [(0, 2 * MIB)]


def test_what_another_release_kept_of_a_look_is_read_anew(managed: Managed) -> None:
    store = managed(overrides={"deleteWhen": "99"})
    monitor(store, "first")
    (row,) = JournalReader(store.journal_url).stores()
    expected, _ = told_ranges(store)
    for spoil in ({"version": 1}, {"memory": b"torn"}, {"memory": zlib.compress(b'{"archived": 5}')}):

        def write(connection: Connection, spoil: dict[str, object] = spoil) -> None:
            assert connection.execute(update(range_memory._MEMORIES.table).values(**spoil)).rowcount == 1

        Journal(store.journal_url)._database.write(write)
        assert kept_ranges(store.journal_url, row.store_id) == RangeMemory()
        monitor(store, f"{spoil}")
        assert told_ranges(store)[0] == expected


@pytest.mark.again
def test_the_monitor_tells_what_verify_remembers_as_faulty(managed: Managed, lake_dir: Path) -> None:
    store = managed(overrides={"deleteWhen": "99"})
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        for step in cycle.CLEANUP:
            if step is not cycle.validate:
                step(cleanup)
    damaged = min(lake_dir.rglob("messages/**/*.parquet"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert any(one.findings for one in verify_store(store, VerifyLevel.FILES))
    monitor(store, "damaged")
    assert "unknown" in {where for _, _, where in recorded(store)}
    damaged.write_bytes(whole)
    verify_store(store, VerifyLevel.FILES)
    monitor(store, "repaired")
    assert recorded(store)[0] == (0, 7, "archived")
