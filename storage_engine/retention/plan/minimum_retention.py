"""Keeps what was written too recently, whoever asks for its deletion and however full a disk is. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.core.wording import time_text
from storage_engine.model.plan.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.store.store import Segment, SegmentId

_HOUR_MS = 3_600_000
_NOTHING: Mapping[SegmentId, int] = {}


def apply_minimum_retention(
    plan: Plan, hours: int | None, now_ms: int, sealed_ms: Mapping[SegmentId, int] = _NOTHING
) -> Plan:
    """Cut each log of a plan before the first segment whose last write is less than ``hours`` ago.

    The last write is that of the broker: a time that a hold has given the file doesn't count, and one that
    anybody else has given it makes it no older than its messages. A write in the future is younger than any
    age.

    :param hours: None: the policy sets no minimum, and the plan stays as it is.
    :param now_ms: the moment to decide for.
    :param sealed_ms: when segments were written to last by their messages, as far as that is known.
    """
    if hours is None:
        return plan
    return plan.each_log(lambda log: _keep_young(log, hours, now_ms, sealed_ms))


def _keep_young(log: LogPlan, hours: int, now_ms: int, sealed_ms: Mapping[SegmentId, int]) -> list[Decision]:
    first: Segment | None = None
    decisions = []
    for decision in log.decisions:
        if decision.deletes:
            sealed = sealed_ms.get(decision.segment.id, 0)
            written_ms = max(_written_ms(decision.segment), sealed)
            if now_ms < written_ms + hours * _HOUR_MS:
                first = first or decision.segment
                told_by = ", by its messages" if written_ms == sealed else ""
                detail = _young(decision, hours, written_ms, told_by)
                decision = Decision(decision.segment, Reason.MINIMUM_RETENTION, detail)
            elif first is not None:
                detail = f"{first.name} before it stays ({Reason.MINIMUM_RETENTION.value}); {decision.detail}"
                decision = Decision(decision.segment, Reason.BEHIND_KEPT, detail)
        decisions.append(decision)
    return decisions


def _young(decision: Decision, hours: int, written_ms: int, told_by: str) -> str:
    # Moments, no ages: the same plan a minute later has the same words, and is stored once.
    return (
        f"last written {time_text(written_ms)}{told_by}, minimum_retention_hours {hours}: nothing deletes it "
        f"before {time_text(written_ms + hours * _HOUR_MS)}; without that: {decision.detail}"
    )


def _written_ms(segment: Segment) -> int:
    """Return when a segment's file was last written to, rounded up."""
    return -(-segment.mtime_ns // 1_000_000)
