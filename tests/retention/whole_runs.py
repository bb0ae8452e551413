"""A run by hand of every step."""

from __future__ import annotations

from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore

MANUAL = PlanRequest(manual=True)


def do_everything(store: ManagedStore, run_key: str = "r", request: PlanRequest = MANUAL) -> None:
    steps.make_plan(store, run_key, request)
    steps.archive(store, run_key, steps.archive_jobs(store, run_key))
    steps.release(store, run_key)
    steps.clean_dependents(store, run_key)
    steps.flush_checkpoint(store, run_key)
