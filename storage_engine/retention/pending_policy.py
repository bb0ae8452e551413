"""Keeps what a broker still has to deliver or to decide, where the policy says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from storage_engine.model.owed import Owed, OwedKind
from storage_engine.model.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.policy import PendingPolicy
from storage_engine.model.store import Segment
from storage_engine.wording import count_text, time_text

_NAMES = {
    OwedKind.DELAYED: "delayed message",
    OwedKind.TIMER: "timer message",
    OwedKind.HALF: "undecided half message",
}


def apply_pending_policy(plan: Plan, owed: Iterable[Owed], policy: PendingPolicy) -> Plan:
    """Cut each log of a plan before the first segment that holds something owed.

    Only under ``PendingPolicy.BLOCK``; the other policies leave the plan as it is. A kind that is unknown
    may be in any segment of its log: it keeps all of that log.
    """
    if policy is not PendingPolicy.BLOCK:
        return plan
    # A name that no log has may mean any of them.
    names = plan.log_names
    owed = [item if item.log in names else replace(item, log=None) for item in owed]
    return plan.each_log(lambda log: _keep_owed(log, owed))


def _keep_owed(log: LogPlan, owed: Sequence[Owed]) -> Sequence[Decision]:
    held = [(segment.base_offset, owed_text(item)) for item in owed if (segment := _first_going(log, item))]
    if not held:
        return log.decisions
    kept_from, _ = min(held)
    why = "; ".join(text for base_offset, text in held if base_offset == kept_from)

    def decide(decision: Decision) -> Decision:
        if decision.deletes and decision.segment.base_offset >= kept_from:
            return Decision(decision.segment, Reason.PENDING_BLOCKED, why)
        return decision

    return [decide(decision) for decision in log.decisions]


def pending_notices(plan: Plan, owed: Sequence[Owed], policy: PendingPolicy) -> tuple[str, ...]:
    """What a person should know: what goes with the plan's segments though it is owed, and what is lost.

    :param plan: as it is after :func:`apply_pending_policy`.
    """
    if policy is PendingPolicy.IGNORE:
        return ()
    going = [
        f"{owed_text(item)}: what lies in the plan's segments, from {segment.name} on, is not delivered any "
        f"more{_and(item)}"
        for item in owed
        for log in plan.logs
        if item.error == "" and (segment := _first_going(log, item))
    ]
    unknown = [owed_text(item) for item in owed if item.error and plan.to_delete]
    lost = [
        f"{_counted(item, item.lost)} that the broker still waits for lay in segments that are "
        f"gone{_and(item)}"
        for item in owed
        if item.lost
    ]
    return (*going, *unknown, *lost)


def owed_text(item: Owed) -> str:
    """How much is owed, from where in the log on, and until when."""
    if item.count is None:
        return f"whether {_NAMES[item.kind]}s are owed is unknown, so any segment may hold one: {item.error}"
    if item.first_offset is None:
        return f"no {_NAMES[item.kind]} is owed"
    text = f"{_counted(item, item.count)} owed, the first at offset {item.first_offset}"
    if item.last_due_ms is not None:
        text += f", due until {time_text(item.last_due_ms)}"
    return text


def _first_going(log: LogPlan, item: Owed) -> Segment | None:
    """The first segment to be deleted from a log that holds, or may hold, something owed."""
    if item.log not in (None, log.log):
        return None
    going = log.to_delete
    if item.count is None:
        return going[0] if going else None
    if item.first_offset is None:
        return None
    return next((segment for segment in going if item.first_offset < segment.end_offset), None)


def _counted(item: Owed, count: int) -> str:
    return count_text(count, _NAMES[item.kind])


def _and(item: Owed) -> str:
    return f"; {item.consequence}" if item.consequence else ""
