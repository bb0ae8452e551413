"""Which of the segments that may go are needed for the free space that a person asks for. Pure.

Disk by disk: what is deleted for the cluster already goes first, then what has expired, then what goes sooner
as a person asks; of each the oldest first. The others stay.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from storage_engine.core.wording import bytes_text
from storage_engine.model.plan.plan import Decision, LogPlan, PlanRequest, Reason, wanted_bytes
from storage_engine.model.store.store import DiskUsage, Segment, SegmentId


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a disk lacks.

    :param wanted_bytes: that are to be free on it; None: its size isn't known.
    :param lacking_bytes: of these; None: how full it is isn't known.
    """

    wanted_bytes: int | None
    lacking_bytes: int | None


def shortage_of(disk: DiskUsage, request: PlanRequest) -> Shortage:
    """Return what a disk lacks of the free space that is asked for."""
    wanted = wanted_bytes(disk, request)
    if wanted is None or disk.usable_bytes is None:
        return Shortage(None, None)
    return Shortage(wanted, max(wanted - disk.usable_bytes, 0))


def is_bounded(request: PlanRequest) -> bool:
    """Return whether a request says how much space is to be free."""
    return request.free_bytes is not None or request.target_used_percent is not None


def only_needed(
    plans: Sequence[LogPlan], shortages: Mapping[int, Shortage], deleted: Set[SegmentId]
) -> tuple[LogPlan, ...]:
    """Keep the segments that the wanted space doesn't need.

    :param plans: of all that may go.
    :param shortages: by the disk's device.
    :param deleted: segments whose records are deleted for the cluster already.
    """
    needed = set(_needed(plans, shortages, deleted))

    def decided(one: Decision) -> Decision:
        if not one.deletes or one.segment.id in needed:
            return one
        shortage = shortages.get(one.segment.facts.device, Shortage(None, None))
        if shortage.wanted_bytes is None:
            return replace(one, reason=Reason.UNKNOWN, detail="how full its disk is isn't known")
        why = f"its disk has {bytes_text(shortage.wanted_bytes)} free without it; otherwise: {one.detail}"
        return replace(one, reason=Reason.TARGET_REACHED, detail=why)

    return tuple(LogPlan(plan.log, tuple(map(decided, plan.decisions))) for plan in plans)


def _needed(
    plans: Sequence[LogPlan], shortages: Mapping[int, Shortage], deleted: Set[SegmentId]
) -> list[SegmentId]:
    lacking = {device: one.lacking_bytes or 0 for device, one in shortages.items()}
    queues = [[one for one in plan.decisions if one.deletes] for plan in plans]
    heads = [(*_order(queue[0], deleted), number, 0) for number, queue in enumerate(queues) if queue]
    heapq.heapify(heads)
    found = []
    while heads:
        *_, number, place = heapq.heappop(heads)
        segment: Segment = queues[number][place].segment
        if lacking.get(segment.facts.device, 0) <= 0:
            continue
        lacking[segment.facts.device] -= segment.disk_bytes
        found.append(segment.id)
        if place + 1 < len(queues[number]):
            heapq.heappush(heads, (*_order(queues[number][place + 1], deleted), number, place + 1))
    return found


def _order(decision: Decision, deleted: Set[SegmentId]) -> tuple[int, int]:
    segment = decision.segment
    if segment.id in deleted:
        return 0, segment.facts.mtime_ns
    return 2 if decision.reason is Reason.FORCED else 1, segment.facts.mtime_ns
