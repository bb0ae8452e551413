"""Keeps what was written too recently, whoever asks for its deletion and however full a disk is. Pure."""

from __future__ import annotations

from storage_engine.model.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.store import Segment
from storage_engine.wording import time_text

_HOUR_MS = 3_600_000


def apply_minimum_retention(plan: Plan, hours: int | None, now_ms: int) -> Plan:
    """Cut each log of a plan before the first segment whose last write is less than ``hours`` ago.

    The last write is that of the broker: a time that a hold has given the file doesn't count. A write in the
    future is younger than any age.

    :param hours: None: the policy sets no minimum, and the plan stays as it is.
    :param now_ms: the moment to decide for.
    """
    if hours is None:
        return plan
    return plan.each_log(lambda log: _keep_young(log, hours, now_ms))


def _keep_young(log: LogPlan, hours: int, now_ms: int) -> list[Decision]:
    first: Segment | None = None
    decisions = []
    for decision in log.decisions:
        if decision.deletes:
            may_go_ms = _written_ms(decision.segment) + hours * _HOUR_MS
            if now_ms < may_go_ms:
                first = first or decision.segment
                decision = Decision(decision.segment, Reason.MINIMUM_RETENTION, _young(decision, hours))
            elif first is not None:
                detail = f"{first.name} before it stays ({Reason.MINIMUM_RETENTION.value}); {decision.detail}"
                decision = Decision(decision.segment, Reason.BEHIND_KEPT, detail)
        decisions.append(decision)
    return decisions


def _young(decision: Decision, hours: int) -> str:
    # Moments, no ages: the same plan a minute later has the same words, and is stored once.
    written_ms = _written_ms(decision.segment)
    return (
        f"last written {time_text(written_ms)}, minimum_retention_hours {hours}: nothing deletes it before "
        f"{time_text(written_ms + hours * _HOUR_MS)}; without that: {decision.detail}"
    )


def _written_ms(segment: Segment) -> int:
    """Return when a segment was last written to, rounded up."""
    return -(-segment.mtime_ns // 1_000_000)
