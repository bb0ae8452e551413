"""Look at a store's disks and clock: what triggers a cleanup now."""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.model.plan import PlanRequest, Trigger
from storage_engine.model.store import DiskUsage
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.steps.context import open_context


@dataclass(frozen=True, slots=True)
class SenseResult:
    """:param levels: every disk of the log, then the dependents' disk."""

    store: str
    sensed_at_ms: int
    triggers: tuple[Trigger, ...]
    notices: tuple[str, ...]
    levels: tuple[DiskUsage, ...]
    crashed: bool


def sense(store: ManagedStore, now_ms: int | None = None, request: PlanRequest | None = None) -> SenseResult:
    """Find the causes that hold now and record a sample of the levels.

    :param now_ms: the moment to decide for; None: this machine's clock.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    snapshot = context.broker.snapshot(now_ms)
    triggers, notices = context.broker.triggers(snapshot, now_ms, request or PlanRequest())
    levels = (*snapshot.log_disks, snapshot.dependents_disk)
    context.journal.add_sample(context.record.store_id, levels, now_ms)
    return SenseResult(store.name, now_ms, triggers, notices, levels, snapshot.crashed)
