"""Keeps what a consumer group still has to read, where the policy says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from storage_engine.model.lag import QueueLag
from storage_engine.model.plan import Decision, Plan, Reason
from storage_engine.model.policy import LagPolicy


def apply_lag_policy(plan: Plan, lags: Iterable[QueueLag], policy: LagPolicy) -> Plan:
    """Cut a plan before the first segment that some group still has to read.

    Only under ``LagPolicy.BLOCK``; the other policies leave the plan as it is. A group whose position in a
    queue is not known, while messages of that queue are in the plan, may need any of them: it keeps
    everything.

    :param lags: of every group and queue, computed for this plan (``at_risk`` refers to it).
    """
    doomed = [segment.base_offset for segment in plan.to_delete]
    if policy is not LagPolicy.BLOCK or not doomed:
        return plan
    first, why = None, ""
    for lag in lags:
        if not lag.at_risk:
            continue
        base_offset = doomed[0] if lag.next_segment_base_offset is None else lag.next_segment_base_offset
        if first is None or base_offset < first:
            first, why = base_offset, _why(lag)
    if first is None:
        return plan
    kept_from = first

    def decide(decision: Decision) -> Decision:
        if decision.deletes and decision.segment.base_offset >= kept_from:
            return Decision(decision.segment, Reason.LAG_BLOCKED, why)
        return decision

    return replace(plan, decisions=tuple(decide(decision) for decision in plan.decisions))


def _why(lag: QueueLag) -> str:
    queue = f"queue {lag.queue_id} of topic {lag.topic}"
    if lag.committed_offset is None or lag.next_segment_base_offset is None:
        return f"group {lag.group} has no known position in {queue}, so it may need any of its messages"
    return (
        f"group {lag.group} has read {queue} up to {lag.committed_offset} of {lag.max_offset}; its next "
        f"message lies in segment {lag.next_segment_base_offset}"
    )
