"""When a run's lag is taken, and for which segments."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from storage_engine.exceptions import GateRefusedError
from storage_engine.model.lag import LagSource, LagSummary, PositionsFrom
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.settings.policy import LagPolicy, Policy
from storage_engine.model.store import SegmentId
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]

LAG = LagSummary(1, 1, 4, 1000, 0, ("g",), 1)
MIB = 1 << 20


def test_lag_is_taken_anew_while_every_planned_segment_is_there(planned: Make) -> None:
    store = planned(max_segments=2)
    decided_at_ms = steps.recorded_plan(store, "r").decided_at_ms
    expected = steps.LagQuestion(
        (SegmentId("commitlog", 0), SegmentId("commitlog", MIB)), decided_at_ms, None
    )
    assert steps.lag_question(store, "r") == expected
    steps.record_lag(store, "r", LAG, [])
    assert steps.lag_question(store, "r") == expected


def test_lag_taken_before_the_deletions_stands_after_them(archived: Make) -> None:
    store = archived(max_segments=2)
    steps.record_lag(store, "r", LAG, [])
    steps.release(store, "r")
    assert steps.lag_question(store, "r").answered == LAG


def test_what_another_run_deleted_is_not_asked_about(archived: Make) -> None:
    store = archived(max_segments=1)
    steps.make_plan(store, "second", PlanRequest(manual=True, max_segments=3))
    steps.release(store, "r")
    asked = steps.lag_question(store, "second")
    assert (asked.segments, asked.answered) == ((("commitlog", MIB), ("commitlog", 2 * MIB)), None)


def make_lag_older(store: ManagedStore, minutes: int) -> None:
    connection = sqlite3.connect(store.journal_url.removeprefix("sqlite:///"))
    with connection:
        connection.execute(
            "UPDATE storage_engine_events SET at_ms = at_ms - ? WHERE step = 'lag'", (minutes * 60_000,)
        )
    connection.close()


@pytest.mark.parametrize(
    ("older_by_minutes", "found"),
    [(61, r"taken 1 h 1 min ago: at most 60 min are allowed"), (-5, "from now: the clock went back")],
)
def test_lag_that_is_too_old_is_unknown_and_blocks(archived: Make, older_by_minutes: int, found: str) -> None:
    store = archived(max_segments=1, policy=Policy(lag_policy=LagPolicy.BLOCK))
    steps.record_lag(store, "r", LAG, [])
    make_lag_older(store, older_by_minutes)
    with pytest.raises(GateRefusedError, match=found):
        steps.release(store, "r")
    steps.record_lag(store, "r", LAG, [])
    assert len(steps.release(store, "r").deleted) == 1


def test_under_warn_lag_that_is_too_old_is_told(archived: Make) -> None:
    store = archived(max_segments=1, policy=Policy(lag_max_age_minutes=10))
    steps.record_lag(store, "r", LAG, [])
    make_lag_older(store, 11)
    said = "consumer lag was not known when segments were deleted: a measurement taken 11 min"
    assert any(notice.startswith(said) for notice in steps.release(store, "r").notices)


def test_positions_that_the_broker_wrote_down_long_ago_block_however_late_they_were_read(
    archived: Make,
) -> None:
    store = archived(max_segments=1, policy=Policy(lag_policy=LagPolicy.BLOCK))
    written_at_ms = time.time_ns() // 1_000_000 - 61 * 60_000
    old = replace(LAG, source=LagSource(PositionsFrom.FILES, written_at_ms, ("not asked",)))
    steps.record_lag(store, "r", old, [])
    said = "written down by the broker, which could not be asked, 1 h 1 min ago"
    with pytest.raises(GateRefusedError, match=said):
        steps.release(store, "r")
    just_now = replace(old, source=replace(old.source, written_at_ms=written_at_ms + 60 * 60_000))
    steps.record_lag(store, "r", just_now, [])
    assert len(steps.release(store, "r").deleted) == 1


def test_a_log_whose_lag_was_not_measured_stays_where_the_policy_blocks(archived: Make) -> None:
    store = archived(max_segments=2, policy=Policy(lag_policy=LagPolicy.BLOCK))
    steps.record_lag(store, "r", replace(LAG, logs=1), [], ("another",))
    result = steps.release(store, "r")
    assert (result.deleted, result.refused) == ((), ())
    assert {(one.reason, "its lag is unknown" in one.detail) for one in result.kept} == {
        (Reason.LAG_BLOCKED, True)
    }


def test_a_log_whose_lag_was_measured_goes(archived: Make) -> None:
    store = archived(max_segments=2, policy=Policy(lag_policy=LagPolicy.BLOCK))
    steps.record_lag(store, "r", replace(LAG, logs=1), [], ("commitlog",))
    assert len(steps.release(store, "r").deleted) == 2
