"""What a store's broker decides at one moment, with every file read that the cleanup will depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_engine.model.broker import BrokerStore
from storage_engine.model.plan import DependentFile, Plan, PlanRequest
from storage_engine.model.store import DiskUsage, StoreSnapshot
from storage_engine.retention.what_if import with_disk_levels


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan and what it was decided from.

    :param dependents: the files that would go after the plan's segments.
    :param checkpoint: the values of the broker's checkpoint by name.
    """

    snapshot: StoreSnapshot
    plan: Plan
    dependents: tuple[DependentFile, ...]
    checkpoint: Mapping[str, int]

    @property
    def disks(self) -> tuple[DiskUsage, ...]:
        return (*self.snapshot.log_disks, self.snapshot.dependents_disk)


def decide(
    broker: BrokerStore,
    request: PlanRequest,
    now_ms: int,
    used_percents: Mapping[str, int] | None = None,
) -> Decided:
    """Decide what goes and why. Reads only.

    The dependents and the checkpoint are read although the plan doesn't need them: a broken one must be
    found while every segment is still there.

    :param used_percents: levels to assume, by path; other disks are measured.
    :raises BadInputError: a store that can't be planned or cleaned up, or a path that is none of its disks.
    """
    snapshot = with_disk_levels(broker.snapshot(now_ms), used_percents or {})
    plan = broker.plan(snapshot, now_ms, request)
    dependents = broker.dependents(plan.new_min_offset) if plan.to_delete else ()
    return Decided(snapshot, plan, dependents, broker.checkpoint())
