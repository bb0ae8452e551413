"""Lag policy: keeps segments that a consumer group still has to read. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from storage_engine.core.wording import duration_text
from storage_engine.model.lag import LagSource, PositionsFrom, QueueLag
from storage_engine.model.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.settings.policy import LagPolicy


def apply_lag_policy(
    plan: Plan,
    lags: Iterable[QueueLag],
    policy: LagPolicy,
    measured: Collection[str] | None = None,
    unit: str = "queue",
) -> Plan:
    """Cut each log of a plan before the first segment that some group still has to read.

    Only under ``LagPolicy.BLOCK``; the other policies leave the plan as it is. A group whose position in a
    queue is not known, while messages of that queue are in the plan, may need any of them: it keeps all of
    that queue's log. So does a log that was not measured keep all of itself, and nothing of another log.

    :param lags: computed for this plan (``at_risk`` refers to it), with the row of each log that decides.
    :param measured: the logs of which lag is known; None: all.
    :param unit: parts of a topic that have its messages, such as queues.
    """
    if policy is not LagPolicy.BLOCK:
        return plan
    first: dict[str | None, QueueLag] = {}
    names = plan.log_names
    for lag in lags:
        # A name that no log has may mean any of them.
        log = lag.log if lag.log in names else None
        if lag.at_risk and _needed_from(lag) < _needed_from(first.setdefault(log, lag)):
            first[log] = lag
    if measured is not None:
        plan = plan.each_log(lambda log: log.decisions if log.log in measured else _keep_all(log))
    return plan.each_log(lambda log: _keep_needed(log, first, unit)) if first else plan


def lag_doubt(source: LagSource, at_ms: int, now_ms: int, most_minutes: int) -> str:
    """Return why lag says nothing of the consumers as they are now, as what was found; "" when it does.

    :param at_ms: when it was measured.
    :param most_minutes: how old it may be.
    """
    if source.positions is PositionsFrom.NOBODY:
        return "that the broker doesn't say who consumes"
    written_at_ms = source.written_at_ms
    taken = "taken" if written_at_ms is None else "written down by the broker, which could not be asked,"
    age_ms = now_ms - (at_ms if written_at_ms is None else min(at_ms, written_at_ms))
    if age_ms < 0:
        return f"one that was {taken} {duration_text(-age_ms)} from now: the clock went back"
    if age_ms > most_minutes * 60_000:
        return f"one that was {taken} {duration_text(age_ms)} ago, where {most_minutes} min are allowed"
    return ""


def _keep_all(log: LogPlan) -> Sequence[Decision]:
    why = f"which messages of log {log.log} consumers have not read was not measured: its lag is unknown"
    return log.kept(Reason.LAG_BLOCKED, why)


def _keep_needed(log: LogPlan, first: Mapping[str | None, QueueLag], unit: str) -> Sequence[Decision]:
    """:param first: by log, the lag that keeps most of it; None: of any log."""
    found = [first[name] for name in (log.log, None) if name in first]
    if not found:
        return log.decisions
    lag = min(found, key=_needed_from)
    return log.kept(Reason.LAG_BLOCKED, _why(lag, unit), from_offset=_needed_from(lag))


def _needed_from(lag: QueueLag) -> int:
    return 0 if lag.next_segment_base_offset is None else lag.next_segment_base_offset


def _why(lag: QueueLag, unit: str) -> str:
    queue = f"{unit} {lag.queue_id} of topic {lag.topic}"
    if lag.committed_offset is not None and lag.next_segment_base_offset is None:
        return (
            f"group {lag.group} has read {queue} up to {lag.committed_offset}; where its next message lies "
            "can't be told, so it may need any of its messages"
        )
    if lag.committed_offset is None:
        return f"group {lag.group} has no known position in {queue}, so it may need any of its messages"
    return (
        f"group {lag.group} has read {queue} up to {lag.committed_offset} of {lag.max_offset}; its next "
        f"message lies in segment {lag.next_segment_base_offset}"
    )
