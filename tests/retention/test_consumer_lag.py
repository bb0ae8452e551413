"""When a run's lag is taken, and for which segments."""

from __future__ import annotations

from collections.abc import Callable

from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.managed_store import ManagedStore

Make = Callable[..., ManagedStore]

LAG = LagSummary(1, 1, 4, 1000, 0, ("g",), 1)
MIB = 1 << 20


def test_lag_is_taken_anew_while_every_planned_segment_is_there(planned: Make) -> None:
    store = planned(max_segments=2)
    decided_at_ms = steps.recorded_plan(store, "r").decided_at_ms
    expected = steps.LagQuestion((0, MIB), decided_at_ms, None)
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
    assert (asked.base_offsets, asked.answered) == ((MIB, 2 * MIB), None)
