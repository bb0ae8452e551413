"""What a person asks of a run beyond a broker's rules: so many segments, or down to a disk's level. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from storage_engine.exceptions import BadInputError
from storage_engine.model.plan.plan import Decision, LogPlan, PlanRequest, Reason
from storage_engine.model.store.store import DiskUsage, Segment, SegmentId, percent_rounded_up


def check_limits(request: PlanRequest) -> None:
    """
    :raises BadInputError: no such number of segments or level.
    """
    if request.max_segments is not None and request.max_segments < 0:
        raise BadInputError(f"max_segments: expected 0 or more, found {request.max_segments}.")
    target = request.target_used_percent
    if target is not None and not 0 <= target <= 100:
        raise BadInputError(f"target_used_percent: expected 0 to 100, found {target}.")


def limited(
    logs: Sequence[LogPlan], request: PlanRequest, disks: Sequence[DiskUsage], disk_name: str
) -> tuple[LogPlan, ...]:
    """Cut the plans of a store's logs to what a person asks for: of all logs together the oldest goes first.

    :param disks: of the logs.
    :param disk_name: what such a disk is called.
    :raises BadInputError: as :func:`check_limits`.
    """
    check_limits(request)
    if request.max_segments is None and request.target_used_percent is None:
        return tuple(logs)
    # Of each log its first one that isn't chosen yet: what goes of a log is a prefix.
    waiting = [(of.to_delete[0].mtime_ns, number, 0) for number, of in enumerate(logs) if of.to_delete]
    heapq.heapify(waiting)
    going: list[Segment] = []
    why = Reason.BATCH_FULL, f"at most, as asked, {request.max_segments} segments go in one pass"
    while waiting and len(going) != request.max_segments:
        reached = target_reached(disks, going, request.target_used_percent, disk_name)
        if reached:
            why = Reason.TARGET_REACHED, reached
            break
        _, number, place = heapq.heappop(waiting)
        segments = logs[number].to_delete
        going.append(segments[place])
        if place + 1 < len(segments):
            heapq.heappush(waiting, (segments[place + 1].mtime_ns, number, place + 1))
    chosen = {segment.id for segment in going}
    return tuple(LogPlan(of.log, tuple(_kept(one, chosen, why) for one in of.decisions)) for of in logs)


def _kept(decision: Decision, chosen: set[SegmentId], why: tuple[Reason, str]) -> Decision:
    goes = not decision.deletes or decision.segment.id in chosen
    return decision if goes else Decision(decision.segment, *why)


def target_reached(
    disks: Sequence[DiskUsage], going: Sequence[Segment], target: int | None, disk_name: str
) -> str:
    """Return why the target holds once ``going`` is gone; empty when it does not, or there is none.

    The fullest disk whose figures are known decides. With no known disk nobody can say that the target is not
    reached, so it counts as reached.

    :param disk_name: what disks of the log are called.
    """
    if target is None:
        return ""
    levels = []
    for disk in disks:
        if (
            disk.used_percent is None
            or not disk.total_bytes
            or disk.usable_bytes is None
            or disk.device is None
        ):
            continue
        freed = sum(segment.facts.size_bytes for segment in going if segment.facts.device == disk.device)
        used = max(disk.total_bytes - disk.usable_bytes - freed, 0)
        levels.append((percent_rounded_up(used, disk.total_bytes), disk.path))
    if not levels:
        return f"no {disk_name}'s level is known, so nothing says that the target {target} % is not reached"
    percent, path = max(levels)
    if percent > target:
        return ""
    return (
        f"{path}, the fullest {disk_name}, is at about {percent} % with {len(going)} segments gone: the "
        f"target {target} % is reached"
    )
