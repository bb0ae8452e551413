"""At which levels of its disk a broker deletes, told by its own rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.plan.plan import Cause, PlanRequest, Urgency
from storage_engine.model.store.store import StoreSnapshot
from storage_engine.retention.plan.what_if import with_disk_levels
from storage_engine.retention.store.broker_answers import take_triggers


@dataclass(frozen=True, slots=True)
class Levels:
    """Whole percent of a disk, each the lowest at which something begins; None: at none.

    :param cleans_percent: the broker deletes what has expired, at any hour.
    :param forces_percent: it deletes the oldest, whatever their age.
    :param urges_percent: it would delete whatever the age, if it were allowed to.
    """

    cleans_percent: int | None = None
    forces_percent: int | None = None
    urges_percent: int | None = None


def levels_of(broker: BrokerStore, snapshot: StoreSnapshot, now_ms: int) -> Levels:
    """Ask a broker's rules at each level of all its disks."""
    paths = [disk.path for disk in snapshot.disks]
    found: dict[str, int] = {}
    for percent in range(101):
        assumed = with_disk_levels(snapshot, dict.fromkeys(paths, percent))
        causes, _ = take_triggers(broker, assumed, now_ms, PlanRequest())
        for cause in causes:
            if cause.cause is Cause.SPACE_FULL:
                found.setdefault("cleans", percent)
                if cause.urgency is Urgency.FORCED:
                    found.setdefault("forces", percent)
                if cause.at_once:
                    found.setdefault("urges", percent)
    return Levels(found.get("cleans"), found.get("forces"), found.get("urges"))
