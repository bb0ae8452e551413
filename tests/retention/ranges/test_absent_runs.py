"""Why a journal lacks a run that was witnessed: an older copy lacks it, or another program changed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_engine.journal.reading.run_rows import EventsAround
from storage_engine.retention.ranges.deleted_ranges import (
    Absence,
    RunHistory,
    explain_absence,
    find_absent,
    missing_ranges,
)
from tests.retention.ranges.test_deleted_ranges import REASONS, event, history

WITNESSED = history([event(20, "a-0", 0, REASONS[0])])
"""Run r, begun at 5, which deleted [0, 10) at 1020 by event 20."""
(ROW,) = missing_ranges(WITNESSED, (), None)


def run(key: str, begun_at_ms: int, slot: int) -> RunHistory:
    it = history([event(3, "a-0", slot, REASONS[0])])
    return replace(it, run=replace(it.run, run_key=key, begun_at_ms=begun_at_ms))


COPY, REMOVED, ALTERED = Absence.OLDER_COPY, Absence.REMOVED, Absence.ALTERED


@pytest.mark.parametrize(
    ("histories", "around", "why"),
    [
        ((), (None, None), COPY),
        ((), (900, None), COPY),
        ((), (2000, 3000), COPY),
        ((), (2000, None), COPY),
        ((), (900, 4), COPY),
        ((), (900, 1020), REMOVED),
        ((), (1020, 2000), REMOVED),
        ((), (None, 2000), REMOVED),
        ((run("r", 4, 7),), (None, None), ALTERED),
        ((run("r", 1020, 7),), (None, None), ALTERED),
        ((run("r", 1021, 7),), (2000, 3000), COPY),
        ((run("r", 1021, 7),), (900, 2000), REMOVED),
        ((run("r", 1021, 0),), (2000, 3000), ALTERED),
        ((run("x", 1021, 0),), (2000, 3000), ALTERED),
        ((run("x", 1021, 7), run("x", 6, 0)), (2000, 3000), ALTERED),
        ((run("x", 5, 7),), (900, None), COPY),
    ],
)
def test_an_older_copy_lacks_all_behind_a_moment(
    histories: tuple[RunHistory, ...], around: tuple[int | None, int | None], why: Absence
) -> None:
    (absent,) = find_absent([it.run for it in histories], (), (ROW,))
    explained = explain_absence(absent, histories, EventsAround(*around))
    assert explained.why is why
    assert explained.altered == (histories[-1].run if why is ALTERED else None)


def test_the_same_range_of_another_lineage_is_another_one() -> None:
    (absent,) = find_absent((), (), (replace(ROW, lineage=1),))
    assert explain_absence(absent, (run("x", 1021, 0),), EventsAround(2000, 3000)).why is COPY


def test_the_same_events_under_another_key_are_found_without_the_lakes_rows() -> None:
    renamed = replace(WITNESSED, run=replace(WITNESSED.run, run_key="x", begun_at_ms=9000))
    (absent,) = find_absent((renamed.run,), (WITNESSED.digest,), ())
    assert explain_absence(absent, (renamed,), EventsAround(2000, 3000)).altered == renamed.run


def test_a_run_of_the_journal_is_not_absent() -> None:
    assert find_absent((WITNESSED.run,), (WITNESSED.digest,), (ROW,)) == ()
