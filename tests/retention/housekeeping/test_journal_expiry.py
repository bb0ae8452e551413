"""What may go of a store's history, and what never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_engine.core.clock import DAY_MS, REMEMBERED_MS, ClockReading
from storage_engine.journal.records import RunState
from storage_engine.retention.housekeeping.maintaining import (
    Expiry,
    OldReport,
    OldRun,
    OldSample,
    reports_to_expire,
    runs_to_expire,
    samples_to_expire,
)

NOW_MS = 2_000 * DAY_MS
EXPIRY = Expiry()
RUN = OldRun(1, "r", RunState.FINISHED, planned=True, reported=True, last_ms=NOW_MS - 91 * DAY_MS)


@pytest.mark.parametrize(
    ("run", "goes"),
    [
        (RUN, True),
        (replace(RUN, last_ms=NOW_MS - 89 * DAY_MS), False),
        (replace(RUN, reported=False, last_ms=NOW_MS - 31 * DAY_MS), True),
        (replace(RUN, reported=False, last_ms=NOW_MS - 29 * DAY_MS), False),
        (replace(RUN, state=RunState.PLANNED), False),
        (replace(RUN, state=RunState.OPEN, planned=False, reported=False), True),
        (replace(RUN, state=RunState.OPEN, planned=True), False),
        (replace(RUN, run_key="last"), False),
    ],
    ids=["old", "young", "idle", "young idle", "unfinished", "without a plan", "opened", "stood on"],
)
def test_runs_expire_once_they_have_ended_long_ago(run: OldRun, goes: bool) -> None:
    assert runs_to_expire([run], {"last"}, NOW_MS, EXPIRY) == ((run,) if goes else ())


@pytest.mark.parametrize(
    ("change", "goes"),
    [
        ({}, True),
        ({"finished_at_ms": NOW_MS - 89 * DAY_MS}, False),
        ({"finished_at_ms": None}, False),
        ({"run_key": "last"}, False),
        ({"run_key": "last", "store_id": "other"}, True),
    ],
    ids=["old", "young", "unfinished", "stood on", "another store's"],
)
def test_reports_expire_once_their_run_has_ended_long_ago(change: dict[str, object], goes: bool) -> None:
    report = replace(OldReport("/r", "s", "r", NOW_MS - 91 * DAY_MS), **change)  # type: ignore[arg-type]
    assert reports_to_expire([report], {("s", "last")}, NOW_MS, EXPIRY) == ((report,) if goes else ())


def test_of_old_samples_the_last_of_each_day_stays_for_two_years() -> None:
    def sample(number: int, days_ago: float) -> OldSample:
        return OldSample(number, int(NOW_MS - days_ago * DAY_MS), None)

    samples = [sample(1, 731), sample(2, 99.7), sample(3, 99.2), sample(4, 98.5), sample(5, 89), sample(6, 0)]
    assert samples_to_expire(samples, None, NOW_MS, EXPIRY) == (1, 2)


def test_the_clock_readings_of_the_last_day_stay_however_old_a_clock_that_was_set_makes_them() -> None:
    def sample(number: int, boottime_ms: int, boot_id: str = "now") -> OldSample:
        return OldSample(number, DAY_MS + number, ClockReading(boot_id, boottime_ms, 0))

    newest = ClockReading("now", 10 * DAY_MS, 0)
    samples = [
        sample(1, 10 * DAY_MS, "before"),
        sample(2, 10 * DAY_MS - REMEMBERED_MS - 1),
        sample(3, 10 * DAY_MS - REMEMBERED_MS),
        sample(4, 10 * DAY_MS),
    ]
    assert samples_to_expire(samples, newest, NOW_MS, EXPIRY) == (1, 2)
