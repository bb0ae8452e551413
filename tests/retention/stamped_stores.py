"""Stores that were cleaned, and so have a stamp."""

from __future__ import annotations

from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore

NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)


def plan_and_archive(store: ManagedStore, run_key: str, segments: int = 1) -> steps.ArchiveResult:
    steps.make_plan(store, run_key, PlanRequest(manual=True, max_segments=segments))
    steps.record_lag(store, run_key, NO_LAG, ())
    return steps.archive_planned(store, run_key, lambda jobs: steps.archive(store, run_key, jobs))


def clean(store: ManagedStore, run_key: str, segments: int = 1) -> steps.ReleaseResult:
    plan_and_archive(store, run_key, segments)
    return steps.release(store, run_key)
