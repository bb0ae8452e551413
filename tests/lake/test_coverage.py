"""Store and lake laid over each other: one interval, or the gaps are LOST."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.lake.coverage.coverage import (
    LocalSpan,
    ReleasedSpan,
    ReplicaSpan,
    Witnesses,
    log_ranges,
    lost_ranges,
)
from storage_engine.lake.coverage.spans import ArchivedSpan
from storage_engine.model.plan import Decision, Reason
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import RangeStatus, Status, Where
from storage_engine.model.store import FileFacts, Lineages, Segment, SegmentState, log_label
from storage_engine.retention.ranges.offset_ranges import Lakes, Place, offset_ranges

SIZE = 100
LOG = "commitlog"


def local(number: int, sha256: str | None = None, *, end: int | None = None, **flags: bool) -> LocalSpan:
    start = number * SIZE
    return LocalSpan(LOG, start, start + SIZE if end is None else end, f"{start:020d}", sha256, **flags)


def receipt(number: int, sha256: str = "", *, size: int = SIZE, lineage: int = 0) -> Receipt:
    return Receipt(
        store_id="store",
        lineage=lineage,
        log=LOG,
        base_offset=number * SIZE,
        size_bytes=size,
        sha256=sha256 or f"{number:064x}",
        broker="rocketmq",
        store_root="/store",
        message_count=1,
        row_count=1,
        damaged_bytes=0,
        first_store_timestamp_ms=1,
        last_store_timestamp_ms=2,
        source_path=f"/store/commitlog/{number * SIZE:020d}",
        source_device=1,
        source_inode=number,
        source_mtime_ns=1,
        source_ctime_ns=1,
        data_file=f"file:///lake/{number}.parquet",
        data_file_bytes=1,
        data_file_sha256="0" * 64,
        proof_version=1,
        proven_at_ms=3,
        moved_to=None,
        sequence=0,
        previous_hash="0" * 64,
        row_hash="1" * 64,
    )


def released(number: int, excused: str = "") -> ReleasedSpan:
    return ReleasedSpan(LOG, number * SIZE, (number + 1) * SIZE, excused)


def decision(number: int) -> Decision:
    facts = FileFacts(f"/store/commitlog/{number * SIZE:020d}", 1, number, SIZE, 1, 1)
    return Decision(Segment(LOG, number * SIZE, facts, SegmentState.SEALED), Reason.NO_CAUSE, "")


def places(rows: tuple[RangeStatus, ...]) -> list[tuple[int, int, Where, Status]]:
    return [(r.start_offset // SIZE, r.end_offset // SIZE, r.where, r.status) for r in rows]


segments = st.sets(st.integers(0, 12))


@given(on_disk=segments, in_lake=segments, gone=segments)
def test_ranges_cover_the_span_once_and_gaps_are_lost(
    on_disk: set[int], in_lake: set[int], gone: set[int]
) -> None:
    rows = log_ranges(
        [local(n, unchanged=True) for n in on_disk],
        [receipt(n) for n in in_lake],
        released=[released(n) for n in gone],
    )
    known = on_disk | in_lake | gone
    if not known:
        assert rows == ()
        return
    assert rows[0].start_offset == min(known) * SIZE
    assert rows[-1].end_offset == (max(known) + 1) * SIZE
    assert all(left.end_offset == right.start_offset for left, right in itertools.pairwise(rows))
    for number in range(min(known), max(known) + 1):
        (row,) = [r for r in rows if r.start_offset <= number * SIZE < r.end_offset]
        assert (
            row.where
            is {
                (True, True): Where.BOTH,
                (True, False): Where.LOCAL,
                (False, True): Where.ARCHIVED,
                (False, False): Where.LOST,
            }[number in on_disk, number in in_lake]
        )
        assert row.status is (Status.FAILURE if row.where is Where.LOST else Status.OK)


@given(on_disk=segments, before=segments, now=segments)
def test_what_is_on_disk_is_not_held_against_receipts_of_an_older_lineage(
    on_disk: set[int], before: set[int], now: set[int]
) -> None:
    spans = [replace(local(n, "of another", end=n * SIZE + SIZE // 2), lineage=2) for n in on_disk - now]
    spans += [replace(local(n, unchanged=True), lineage=2) for n in on_disk & now]
    rows = [*(receipt(n, lineage=1) for n in before), *(receipt(n, lineage=2) for n in now)]
    ranges = log_ranges(spans, rows)
    for number in on_disk:
        (row,) = [r for r in ranges if r.start_offset <= number * SIZE < r.end_offset]
        assert (row.where, row.status) == (Where.BOTH if number in now else Where.LOCAL, Status.OK)
    for number in before - on_disk - now:
        (row,) = [r for r in ranges if r.start_offset <= number * SIZE < r.end_offset]
        assert (row.where, row.status) == (Where.ARCHIVED, Status.OK)


@given(on_disk=segments, in_lake=segments, of_other=segments, gone=segments)
def test_two_logs_of_one_name_depend_on_each_other_in_nothing(
    on_disk: set[int], in_lake: set[int], of_other: set[int], gone: set[int]
) -> None:
    here = [local(n, unchanged=True) for n in on_disk]
    rows = [replace(receipt(n), log_id="c/second/0") for n in in_lake]
    before = [replace(receipt(n + 20), base_offset=n * SIZE, log_id="c/first/0") for n in of_other]
    went = [replace(released(n), others="it was here", log_id="c/first/0") for n in gone]
    witnesses = Witnesses({LOG: "c/second/0"})
    found = log_ranges(here, [*rows, *before], released=went, witnesses=witnesses)
    label = log_label(LOG, "c/first/0")
    assert tuple(row for row in found if row.log == LOG) == log_ranges(here, rows)
    alone = log_ranges((), before, released=went)
    assert tuple(row for row in found if row.log == label) == tuple(replace(row, log=label) for row in alone)
    # The console says the same of it.
    spans = [
        ArchivedSpan(LOG, 0, n * SIZE, (n + 1) * SIZE, SIZE, log_id=f"c/{which}/0")
        for which, of_log in (("first", of_other), ("second", in_lake))
        for n in of_log
    ]
    decisions = [decision(n) for n in on_disk]
    ends = {LOG: 13 * SIZE}
    shown = offset_ranges(
        decisions, ends, Lakes(spans), Lineages(0), gone=went, present=dict(witnesses.present)
    )
    for log in (LOG, label):
        lost = {
            n
            for one in shown
            if one.log == log and one.where is Place.LOST
            for n in range(one.start_offset // SIZE, one.end_offset // SIZE)
        }
        assert lost == {
            n
            for row in found
            if row.log == log and row.where is Where.LOST
            for n in range(row.start_offset // SIZE, row.end_offset // SIZE)
        }


@given(on_disk=segments, in_lake=segments, gone=segments)
def test_what_is_in_no_place_is_unknown_while_a_lake_was_not_asked(
    on_disk: set[int], in_lake: set[int], gone: set[int]
) -> None:
    spans = [local(n, unchanged=True) for n in on_disk]
    rows, went = [receipt(n) for n in in_lake], [released(n) for n in gone]
    everything = log_ranges(spans, rows, released=went)
    found = log_ranges(spans, rows, released=went, witnesses=Witnesses(unasked=("lake B wasn't asked",)))
    assert [replace(row, where=Where.LOST) for row in found if row.where is Where.UNKNOWN] == [
        replace(row, detail=f"{row.detail}; a lake may have it: lake B wasn't asked")
        for row in everything
        if row.where is Where.LOST
    ]
    assert Where.LOST not in {row.where for row in found}


@given(on_disk=segments.filter(bool), in_lake=segments)
def test_neighbours_are_told_apart_only_by_place_or_verdict(on_disk: set[int], in_lake: set[int]) -> None:
    rows = log_ranges([local(n, unchanged=True) for n in on_disk], [receipt(n) for n in in_lake])
    for left, right in itertools.pairwise(rows):
        assert (left.where, left.status, left.detail) != (right.where, right.status, right.detail)


@given(number=st.integers(0, 5), on_disk=st.text("0123456789abcdef", min_size=64, max_size=64))
def test_an_overlap_is_fine_only_with_the_same_hash(number: int, on_disk: str) -> None:
    proof = receipt(number)
    (row,) = log_ranges([local(number, on_disk)], [proof])
    assert row.where is Where.BOTH
    assert row.status is (Status.OK if on_disk == proof.sha256 else Status.FAILURE)


def test_an_overlap_nobody_compared_is_a_warning() -> None:
    (row,) = log_ranges([local(0)], [receipt(0)])
    assert (row.where, row.status) == (Where.BOTH, Status.WARNING)


def test_a_hash_counts_more_than_unchanged_facts() -> None:
    (row,) = log_ranges([local(0, "f" * 64, unchanged=True)], [receipt(0)])
    assert row.status is Status.FAILURE


def test_one_offset_on_two_paths_is_a_failure() -> None:
    (row,) = log_ranges([local(0), local(0)], [])
    assert (row.where, row.status) == (Where.LOCAL, Status.FAILURE)
    assert "on disk more than once" in row.detail


def test_a_segment_archived_twice_in_a_lineage_is_a_failure() -> None:
    (row,) = log_ranges([], [receipt(0), receipt(0, "f" * 64)])
    assert (row.where, row.status) == (Where.ARCHIVED, Status.FAILURE)


def test_the_newest_lineage_counts_where_offsets_were_written_again() -> None:
    rows = log_ranges([local(1, "f" * 64)], [receipt(0), receipt(1), receipt(1, "f" * 64, lineage=1)])
    assert places(rows) == [(0, 1, Where.ARCHIVED, Status.OK), (1, 2, Where.BOTH, Status.OK)]


def test_an_older_lineage_proves_nothing_of_what_went_in_a_newer_one() -> None:
    gone = ReleasedSpan(LOG, 0, SIZE, others="no run deleted them", lineage=2)
    (row,) = log_ranges((), [receipt(0, lineage=1)], released=[gone])
    assert (row.where, row.status) == (Where.LOST, Status.FAILURE)
    (row,) = log_ranges((), [receipt(0, lineage=1), receipt(0, lineage=2)], released=[gone])
    assert (row.where, row.status) == (Where.ARCHIVED, Status.OK)


def test_a_segment_of_another_size_disagrees() -> None:
    rows = log_ranges([local(0, unchanged=True)], [receipt(0, size=2 * SIZE)])
    assert rows[0].status is Status.FAILURE


def test_a_planned_segment_is_pending_until_it_is_archived() -> None:
    spans = [local(0, unchanged=True, pending=True), local(1)]
    assert places(log_ranges(spans, [])) == [
        (0, 1, Where.PENDING, Status.OK),
        (1, 2, Where.LOCAL, Status.OK),
    ]
    assert log_ranges(spans, [receipt(0)])[0].where is Where.BOTH


def test_what_was_deleted_at_the_beginning_is_not_forgotten() -> None:
    assert places(log_ranges([local(1)], [], released=[released(0)])) == [
        (0, 1, Where.LOST, Status.FAILURE),
        (1, 2, Where.LOCAL, Status.OK),
    ]


def test_what_may_have_gone_is_unknown_unless_something_tells_that_it_went() -> None:
    maybe = ReleasedSpan(LOG, 0, SIZE, others="its disk can't be read", unknown=True)
    went = ReleasedSpan(LOG, 0, SIZE, others="no run deleted them")
    assert [(row.where, row.status) for row in log_ranges((), (), released=[maybe])] == [
        (Where.UNKNOWN, Status.FAILURE)
    ]
    assert [row.where for row in log_ranges((), (), released=[maybe, went])] == [Where.LOST]


def test_what_a_person_let_go_without_an_archive_is_a_warning() -> None:
    rows = log_ranges([local(1)], [], released=[released(0, "waived by ada")])
    assert places(rows)[0] == (0, 1, Where.LOST, Status.WARNING)
    assert "waived by ada" in rows[0].detail


def test_a_broken_receipt_proves_nothing() -> None:
    broken = {receipt(0).identity: "data file is gone", receipt(1).identity: "data file is gone"}
    rows = log_ranges([local(1)], [receipt(0), receipt(1)], broken=broken)
    assert places(rows) == [(0, 1, Where.LOST, Status.FAILURE), (1, 2, Where.LOCAL, Status.FAILURE)]
    assert lost_ranges(rows) == rows[:1]


def test_the_active_segment_ends_at_the_logical_end_and_preallocated_files_hold_nothing() -> None:
    rows = log_ranges([local(0), local(1, end=130), local(2, end=200)], [])
    assert [(r.start_offset, r.end_offset) for r in rows] == [(0, 130)]


def test_what_only_the_shield_has_is_neither_lost_nor_archived() -> None:
    kept = local(0, shielded=True)
    gone = ReleasedSpan(LOG, 0, SIZE, others="no run deleted them")
    (row,) = log_ranges([kept], [], released=[gone])
    assert (row.where, row.status) == (Where.SHIELDED, Status.WARNING)
    assert "no run deleted them" in row.detail


def test_a_shielded_segment_is_where_else_it_is() -> None:
    kept = local(0, shielded=True)
    assert log_ranges([kept], [receipt(0)])[0].where is Where.ARCHIVED
    assert log_ranges([kept, local(0)], [])[0].where is Where.LOCAL


def expired(number: int, *, lineage: int = 0) -> Receipt:
    return replace(receipt(number, lineage=lineage), state="expired", act='{"sha256": "3f2a"}')


@given(segments, segments, segments, segments, segments, segments)
def test_what_expired_is_that_where_nothing_else_has_it(
    on_disk: set[int], whole: set[int], gone: set[int], past: set[int], theirs: set[int], past_there: set[int]
) -> None:
    """Never LOST, whatever else is known; and it proves nothing of what is somewhere."""
    rows = [*map(receipt, whole), *map(expired, past)]
    replicas = [
        ReplicaSpan(LOG, n * SIZE, (n + 1) * SIZE, "other", "expired by act 99" if n in past_there else "")
        for n in theirs | past_there
    ]
    found = log_ranges(
        [local(n, unchanged=True) for n in on_disk],
        rows,
        released=map(released, gone),
        witnesses=Witnesses(replicas=replicas, expiries={"3f2a": "by policy 77 since noon"}),
    )
    by_number = {n: row for row in found for n in range(row.start_offset // SIZE, row.end_offset // SIZE)}
    for n, row in by_number.items():
        is_whole = n in whole or n in theirs - past_there
        if n in on_disk:
            assert row.where is (Where.BOTH if n in whole else Where.LOCAL)
        elif is_whole:
            assert row.where is Where.ARCHIVED
        elif n in past | past_there:
            assert (row.where, row.status) == (Where.EXPIRED, Status.OK)
            assert ("by policy 77 since noon" in row.detail) == (n in past)
            assert ("by act 99" in row.detail) == (n in past_there)
        else:
            assert row.where is Where.LOST


def test_what_expired_in_an_older_lineage_says_nothing_of_newer_bytes() -> None:
    gone = ReleasedSpan(LOG, 0, SIZE, others="no run deleted them", lineage=2)
    (row,) = log_ranges((), [expired(0, lineage=1)], released=[gone])
    assert (row.where, row.status) == (Where.LOST, Status.FAILURE)
    (row,) = log_ranges((), [receipt(0, lineage=1), expired(0, lineage=2)], released=[gone])
    assert (row.where, row.status) == (Where.EXPIRED, Status.OK)


def test_what_expired_and_can_not_be_read_on_disk_is_a_warning() -> None:
    span = replace(local(0), unread="Input/output error")
    (row,) = log_ranges([span], [expired(0)])
    assert (row.where, row.status) == (Where.EXPIRED, Status.WARNING)
    assert row.detail.startswith("expired by act 3f2a; ")
    assert "Input/output error" in row.detail


def test_what_one_lake_let_expire_and_the_other_has_damaged_is_told_as_both() -> None:
    (row,) = log_ranges((), [receipt(0), expired(0)], broken={receipt(0).identity: "its file is gone"})
    assert (row.where, row.status) == (Where.EXPIRED, Status.FAILURE)
    assert "its file is gone" in row.detail
