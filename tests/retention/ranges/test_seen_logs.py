"""Where logs were seen, and what of them is missing: pure."""

from __future__ import annotations

from dataclasses import replace

from storage_engine.model.store import Absence, LogIdentity
from storage_engine.retention.ranges.seen_logs import SeenLog, absent_logs, merge_logs, missing_ranges

A = SeenLog("a-0", 1, 10, 50, 40, 1, LogIdentity("c/first/0", 7))
AGAIN = replace(A, start_offset=0, end_offset=5, safe_end=5, at_ms=2, identity=LogIdentity("c/second/0", 9))
GONE, WRONG = Absence(True, "its topic was deleted"), Absence(False, "it should be here")


def ranges(known: list[SeenLog], here: list[SeenLog], absence: Absence = WRONG) -> list[tuple[int, int]]:
    absences = dict.fromkeys(absent_logs(known, here), absence)
    return [(one.start_offset, one.end_offset) for one in missing_ranges(known, here, absences)]


def test_another_log_under_a_name_is_not_the_one_that_was_seen() -> None:
    assert absent_logs([A], [AGAIN]) == (A,)
    assert absent_logs([A], [replace(AGAIN, identity=LogIdentity())]) == ()
    assert ranges([A], [AGAIN]) == [(10, 50)]
    assert ranges([A], [AGAIN], GONE) == []


def test_another_log_hides_nothing_however_far_it_reaches() -> None:
    grown = replace(AGAIN, end_offset=900, safe_end=900)
    (missing,) = missing_ranges([A], [grown], {A: WRONG})
    assert (missing.start_offset, missing.end_offset) == (10, 50)
    assert (missing.log_id, missing.is_other) == ("c/first/0", True)
    assert "another one has its name by now" in missing.why
    # Of two that are gone the one that was seen last has the name.
    found = {one.log_id: one for one in missing_ranges([A, grown], [], {A: WRONG, grown: WRONG})}
    assert [found["c/first/0"].is_other, found["c/second/0"].is_other] == [True, False]


def test_both_are_remembered_until_the_first_is_known_to_be_rightly_gone() -> None:
    assert merge_logs([A], [AGAIN], {A: WRONG}) == (A, AGAIN)
    assert merge_logs([A, AGAIN], [AGAIN], {A: WRONG}) == (A, AGAIN)
    assert merge_logs([A, AGAIN], [AGAIN], {A: GONE}) == (AGAIN,)


def test_only_below_what_replicas_had_a_log_may_not_be_cut() -> None:
    assert ranges([A], [replace(A, end_offset=40)]) == []
    assert ranges([A], [replace(A, end_offset=30)]) == [(30, 40)]
    assert ranges([A], [replace(A, start_offset=0, end_offset=0)]) == [(10, 40)]
    # In another lineage the offsets carry other bytes, and a person knows.
    assert ranges([A], [replace(A, end_offset=30, lineage=2)]) == []


def test_a_log_that_was_cut_stays_remembered_by_how_far_it_was() -> None:
    cut = replace(A, end_offset=30, safe_end=30, at_ms=2)
    (kept,) = merge_logs([A], [cut], {})
    assert (kept.end_offset, kept.safe_end) == (30, 40)
    assert ranges([kept], [cut]) == [(30, 40)]


def test_a_look_that_finds_a_log_as_it_was_changes_nothing() -> None:
    later = replace(A, at_ms=9, identity=LogIdentity("c/first/0", 99))
    assert merge_logs([A], [later], {}) == (A,)
    grown = replace(later, end_offset=60)
    assert merge_logs([A], [grown], {}) == (grown,)
