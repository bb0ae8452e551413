"""The lag policy: it keeps segments that a consumer group still has to read. Pure."""

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
    """Under ``LagPolicy.BLOCK``, cut each log of a plan before the first segment that a group has to read.

    If a group's position in a queue is unknown, and the plan has messages of that queue, the group may need
    any of these messages. Then the queue's whole log stays. A log that was not measured stays whole, too.

    :param lags: rows of the plan's measured lag. For each log, the row that keeps most of it is included.
    :param measured: names of the logs whose lag is known; None for all.
    :param unit: the broker's word for the parts of a topic that have its messages, such as queue.
    """
    if policy is not LagPolicy.BLOCK:
        return plan
    first: dict[str | None, QueueLag] = {}
    names = plan.log_names
    for lag in lags:
        # If no log has this name, the messages may be in any log.
        log = lag.log if lag.log in names else None
        if lag.at_risk and _needed_offset(lag) < _needed_offset(first.setdefault(log, lag)):
            first[log] = lag
    if measured is not None:
        plan = plan.each_log(lambda log: log.decisions if log.log in measured else _keep_all(log))
    return plan.each_log(lambda log: _keep_needed(log, first, unit)) if first else plan


def lag_doubt(source: LagSource, at_ms: int, now_ms: int, most_minutes: int) -> str:
    """Return why a measured lag is no longer valid, as a clause after "found", or "" if it is valid.

    :param at_ms: when the lag was measured.
    :param most_minutes: greatest age that is allowed, in minutes.
    """
    if source.positions is PositionsFrom.NOBODY:
        return "that the broker doesn't say who consumes"
    written_at_ms = source.written_at_ms
    taken = "taken" if written_at_ms is None else "written down by the broker, which could not be asked,"
    age_ms = now_ms - (at_ms if written_at_ms is None else min(at_ms, written_at_ms))
    if age_ms < 0:
        return f"a measurement {taken} {duration_text(-age_ms)} from now: the clock went back"
    if age_ms > most_minutes * 60_000:
        return f"a measurement {taken} {duration_text(age_ms)} ago: at most {most_minutes} min are allowed"
    return ""


def _keep_all(log: LogPlan) -> Sequence[Decision]:
    why = f"it was not measured which messages of log {log.log} consumers have not read: its lag is unknown"
    return log.kept(Reason.LAG_BLOCKED, why)


def _keep_needed(log: LogPlan, first: Mapping[str | None, QueueLag], unit: str) -> Sequence[Decision]:
    """Return a log's decisions, cut before the first segment that a group has to read.

    :param first: name of a log → the row that keeps most of the log; None → a row that may be of any log.
    """
    lags = [first[name] for name in (log.log, None) if name in first]
    if not lags:
        return log.decisions
    lag = min(lags, key=_needed_offset)
    return log.kept(Reason.LAG_BLOCKED, _lag_text(lag, unit), from_offset=_needed_offset(lag))


def _needed_offset(lag: QueueLag) -> int:
    return 0 if lag.next_segment_base_offset is None else lag.next_segment_base_offset


def _lag_text(lag: QueueLag, unit: str) -> str:
    queue = f"{unit} {lag.queue_id} of topic {lag.topic}"
    if lag.committed_offset is not None and lag.next_segment_base_offset is None:
        return (
            f"group {lag.group} has read {queue} up to {lag.committed_offset}; the place of its next "
            "message is unknown, so the group may need any message"
        )
    if lag.committed_offset is None:
        return f"group {lag.group} has no known position in {queue}, so it may need any of its messages"
    return (
        f"group {lag.group} has read {queue} up to {lag.committed_offset} of {lag.max_offset}; its next "
        f"message lies in segment {lag.next_segment_base_offset}"
    )
