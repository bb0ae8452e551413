"""Keeps what a broker still has to deliver or to decide, where the policy says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from storage_engine.core.wording import count_text, time_text
from storage_engine.model.broker.broker_store import Pending, PendingKind
from storage_engine.model.plan.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.settings.policy import PendingPolicy
from storage_engine.model.store.store import Segment

_NAMES = {
    PendingKind.DELAYED: "delayed message",
    PendingKind.TIMER: "timer message",
    PendingKind.HALF: "undecided half message",
}


def apply_pending_policy(plan: Plan, pending: Iterable[Pending], policy: PendingPolicy) -> Plan:
    """Cut each log of a plan before the first segment that holds something pending.

    Only under ``PendingPolicy.BLOCK``; the other policies leave the plan as it is. A kind that is unknown
    may be in any segment of its log: it keeps all of that log.
    """
    if policy is not PendingPolicy.BLOCK:
        return plan
    # A name that no log has may mean any of them.
    names = plan.log_names
    pending = [item if item.log in names else replace(item, log=None) for item in pending]
    return plan.each_log(lambda log: _keep_pending(log, pending))


def _keep_pending(log: LogPlan, pending: Sequence[Pending]) -> Sequence[Decision]:
    held = [
        (segment.base_offset, pending_text(item)) for item in pending if (segment := _first_going(log, item))
    ]
    if not held:
        return log.decisions
    kept_from, _ = min(held)
    why = "; ".join(text for base_offset, text in held if base_offset == kept_from)

    def decide(decision: Decision) -> Decision:
        if decision.deletes and decision.segment.base_offset >= kept_from:
            return Decision(decision.segment, Reason.PENDING_BLOCKED, why)
        return decision

    return [decide(decision) for decision in log.decisions]


def pending_notices(plan: Plan, pending: Sequence[Pending], policy: PendingPolicy) -> tuple[str, ...]:
    """Return what a person should know: what goes with the plan's segments though it is pending, and what is
    lost.

    :param plan: as it is after :func:`apply_pending_policy`.
    """
    if policy is PendingPolicy.IGNORE:
        return ()
    going = [
        f"{pending_text(item)}: what lies in the plan's segments, from {segment.name} on, is not delivered "
        f"any more{_and(item)}"
        for item in pending
        for log in plan.logs
        if item.error == "" and (segment := _first_going(log, item))
    ]
    unknown = [pending_text(item) for item in pending if item.error and plan.to_delete]
    lost = [
        f"{_counted(item, item.lost)} that the broker still waits for lay in segments that are "
        f"gone{_and(item)}"
        for item in pending
        if item.lost
    ]
    return (*going, *unknown, *lost)


def pending_text(item: Pending) -> str:
    """Return how much is pending, from where in the log on, and until when."""
    if item.count is None:
        kind = _NAMES[item.kind]
        return f"whether {kind}s are pending is unknown, so any segment may hold one: {item.error}"
    if item.first_offset is None:
        return f"no {_NAMES[item.kind]} is pending"
    text = f"{_counted(item, item.count)} pending, the first at offset {item.first_offset}"
    if item.last_due_ms is not None:
        text += f", due until {time_text(item.last_due_ms)}"
    return text


def _first_going(log: LogPlan, item: Pending) -> Segment | None:
    """The first segment to be deleted from a log that holds, or may hold, something pending."""
    if item.log not in (None, log.log):
        return None
    going = log.to_delete
    if item.count is None:
        return going[0] if going else None
    if item.first_offset is None:
        return None
    return next((segment for segment in going if item.first_offset < segment.end_offset), None)


def _counted(item: Pending, count: int) -> str:
    return count_text(count, _NAMES[item.kind])


def _and(item: Pending) -> str:
    return f"; {item.consequence}" if item.consequence else ""
