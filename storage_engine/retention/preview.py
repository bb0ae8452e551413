"""What a cleanup would do, at this moment or another one, without touching store, journal or lake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_engine.model.plan import DependentFile, Plan, PlanRequest
from storage_engine.model.store import DiskUsage
from storage_engine.retention.brokers import open_store
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.rocketmq.disk import with_disk_levels


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan that nobody recorded, the files that would go after its segments, and the levels it saw."""

    plan: Plan
    dependents: tuple[DependentFile, ...]
    disks: tuple[DiskUsage, ...]


def preview(
    store: ManagedStore,
    request: PlanRequest,
    *,
    now_ms: int | None = None,
    used_percents: Mapping[str, int] | None = None,
) -> Preview:
    """Decide what would go and why.

    :param now_ms: the moment to decide for; None: this machine's clock.
    :param used_percents: levels to assume, by path; other disks are measured.
    :raises BadInputError: a path that is none of the store's disks, or a store that can't be planned.
    """
    broker = open_store(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    snapshot = with_disk_levels(broker.snapshot(now_ms), used_percents or {})
    plan = broker.plan(snapshot, now_ms, request)
    return Preview(
        plan=plan,
        dependents=broker.dependents(plan.new_min_offset) if plan.to_delete else (),
        disks=(*snapshot.log_disks, snapshot.dependents_disk),
    )
