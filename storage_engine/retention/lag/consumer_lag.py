"""Recording of consumer lag, and the lag policy, which keeps messages that consumers still have to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable, to_jsonable, to_recorded
from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.journal.tables.leases import Lease
from storage_engine.model.broker.kind import LagRequest
from storage_engine.model.lag import GroupLag, Lag, LagSummary, QueueLag, Unread
from storage_engine.model.plan import Plan
from storage_engine.model.settings.policy import LagPolicy
from storage_engine.model.store import SegmentId, StoreSnapshot
from storage_engine.retention.lag.lag_policy import apply_lag_policy, lag_doubt
from storage_engine.retention.lag.unread_losses import (
    find_unread,
    find_unread_by_log,
    has_loss,
    join_losses,
    unread_lines,
)
from storage_engine.retention.proof.refusing import Refusal, refusal, refused_logs
from storage_engine.retention.store.broker_answers import package_errors
from storage_engine.retention.store.brokers import settings_of
from storage_engine.retention.store.context import RAN, WHOLE, AnyStore, Context, approved_plan, open_context
from storage_engine.retention.store.managed_store import ManagedStore

if TYPE_CHECKING:
    import pyarrow as pa


MOST_POSITIONS = 20_000
"""Greatest number of groups' positions measured here. A run's lag job measures more, possibly with Spark."""


def measure_groups(store: ManagedStore, now_ms: int) -> tuple[GroupLag, ...] | None:
    """Measure the lag of a store's groups, sorted by name.

    :return: None if the broker doesn't say who consumes, or if there are too many positions.
    :raises BadInputError: positions or queues can't be read.
    :raises BrokerError: the running broker can't be asked.
    """
    broker = find_broker(store.broker)
    with package_errors(store.broker, "find who consumes"):
        job = broker.lag(LagRequest(settings_of(store), (), now_ms))
    if job is None or job.positions.num_rows > MOST_POSITIONS:
        return None
    from storage_engine.arrow.name_columns import add_risk

    return sum_up(add_risk(job.place(job.positions), job.segments))


def sum_up(table: pa.Table) -> tuple[GroupLag, ...]:
    """Sum up a table of lags by group, sorted by name.

    :param table: a table with one row for each :class:`~storage_engine.model.lag.QueueLag`.
    """
    import pyarrow.compute as pc

    by_group = table.group_by("group").aggregate(
        [
            ("lag_messages", "sum"),
            ("lag_messages", "count", pc.CountOptions(mode="only_null")),
            ("next_physical_offset", "min"),
            ("time_to_loss_ms", "min"),
        ]
    )
    return tuple(
        GroupLag(
            group=str(row["group"]),
            lag_messages=row["lag_messages_sum"] or 0,
            unknown_queues=row["lag_messages_count"],
            first_unread_offset=row["next_physical_offset_min"],
            time_to_loss_ms=row["time_to_loss_ms_min"],
        )
        for row in sorted(by_group.to_pylist(), key=lambda row: str(row["group"]))
    )


_NONE = "none recorded"
_NOTHING = "Nothing was deleted."

UNREAD = "unread"
"""Subject and key of the event with consumers' losses by a run's deletion."""


@dataclass(frozen=True, slots=True)
class LagQuestion:
    """Facts that a run needs about its consumers.

    :param segments: segments of the plan that are still on disk.
    :param answered: recorded lag that is final, or None if the lag has to be measured.
    """

    segments: tuple[SegmentId, ...]
    decided_at_ms: int
    answered: LagSummary | None


def lag_question(store: AnyStore, run_key: str) -> LagQuestion:
    """Return the segments for which a run's lag has to be measured, or the recorded lag if that is final.

    The lag is measured again as long as every planned segment is on disk. After a planned segment is deleted,
    the recorded lag is final, because messages at risk in the deleted segment can't be found any more.

    :raises RunStateError: there is no such run, or it has no plan.
    """
    context = open_context(store)
    run = context.run(run_key)
    plan = approved_plan(run)
    present = tuple(s.id for s in plan.to_delete if Path(s.facts.path).exists())
    recorded = recorded_lag(context, run) if len(present) < len(plan.to_delete) else None
    return LagQuestion(present, plan.decided_at_ms, recorded.summary if recorded else None)


def record_lag(
    store: AnyStore,
    run_key: str,
    summary: LagSummary,
    rows: Iterable[QueueLag],
    logs: Sequence[str] | None = None,
    took_ms: int | None = None,
    ran: str = "",
) -> None:
    """Record the lag that was measured for a run's plan. The latest record counts.

    :param rows: rows of every group and queue. Rows at risk are kept, for the gate and the report.
    :param logs: names of the measured logs; None for all logs of the store.
    :param took_ms: duration of the measurement, or None if unknown.
    :param ran: where it was measured, or "" if unknown.
    :raises RunStateError: there is no such run.
    """
    context = open_context(store)
    payload: dict[str, Any] = {
        "result": {
            "summary": to_recorded(summary),
            "at_risk": [to_jsonable(row) for row in rows if row.at_risk],
            "logs": to_jsonable(logs),
        },
        "took_ms": took_ms,
        RAN: ran,
    }
    context.journal.record(context.run(run_key), Step.LAG, Phase.RESULT, [(WHOLE, payload)])


def recorded_lag(context: Context, run: Run) -> Lag | None:
    """Return the latest recorded lag of a run, or None if there is none."""
    results = context.journal.events(run, Step.LAG, Phase.RESULT)
    if not results:
        return None
    payload = results[-1].payload["result"]
    at_risk = tuple(from_jsonable(QueueLag, row) for row in payload["at_risk"])
    logs = payload.get("logs")
    summary = from_jsonable(LagSummary, payload["summary"])
    return Lag(summary, at_risk, None if logs is None else tuple(logs))


def planned_unread(context: Context, run: Run) -> Unread:
    """Return consumers' losses by the run's plan, as recorded."""
    events = context.journal.events(run, Step.PLAN, Phase.RESULT)
    payload = events[-1].payload.get(UNREAD) if events else None
    return Unread() if payload is None else from_jsonable(Unread, payload)


def released_unread(context: Context, run: Run) -> Unread | None:
    """Return consumers' losses as computed right before the deletion, or None if they were not computed."""
    # The event is an intent, because older releases take the last result of this step as the lag.
    events = context.journal.events(run, Step.LAG, Phase.INTENT)
    return from_jsonable(Unread, events[-1].payload) if events else None


def find_losses(
    context: Context, run: Run, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int]
) -> tuple[Unread, list[Refusal]]:
    """Compute consumers' losses right before segments are deleted.

    After the first deletion in a log, its recorded losses are final: they can't be computed again.

    :param new_min_offsets: name of a log → where it will begin.
    :return: losses in the logs that may be released, and refusals of logs in which the policy forbids losses.
    """
    released = released_unread(context, run)
    if not context.journal.events(run, Step.RELEASE, Phase.INTENT):
        released = None
    ends = dict(new_min_offsets) if released is None else released.logs_beyond(new_min_offsets)
    if not ends:
        return released or Unread(), []
    policy = context.store.policy.lag_policy
    unread = find_unread(context.broker, snapshot, ends, policy)
    refusals = []
    if policy is LagPolicy.BLOCK and has_loss(unread):
        refusals = _refuse_losing(context, run, snapshot, ends, unread)
        ends = {log: end for log, end in ends.items() if log not in refused_logs(refusals)}
        unread = find_unread(context.broker, snapshot, ends, policy) if ends else Unread()
        if has_loss(unread):
            raise _loss_error(context, run, snapshot, unread)
    if len(snapshot.logs) > 1:
        unread = replace(unread, logs=tuple(ends))
    return unread if released is None else join_losses(released, unread), refusals


def _refuse_losing(
    context: Context, run: Run, snapshot: StoreSnapshot, ends: Mapping[str, int], losses: Unread
) -> list[Refusal]:
    """Refuse logs in which consumers lose messages, or may lose some.

    :param losses: consumers' losses in all of these logs.
    """
    by_log = dict.fromkeys(ends, losses)
    if len(ends) > 1:
        by_log.update(find_unread_by_log(context.broker, snapshot, ends))
    return [
        refusal(log, _loss_error(context, run, snapshot, unread), _NOTHING, "Let its consumers read on.")
        for log, unread in by_log.items()
        if has_loss(unread)
    ]


def _loss_error(context: Context, run: Run, snapshot: StoreSnapshot, unread: Unread) -> GateRefusedError:
    lines = "; ".join(unread_lines(context, unread, done=False))
    return GateRefusedError(
        f"run {run.run_key!r} of {snapshot.root}: lag_policy is block: expected that consumers have read "
        f"the segments to delete, found unread messages: {lines}. {_NOTHING} Consumers' positions have "
        "changed since the measurement: run this run's lag job again."
    )


def record_unread(context: Context, run: Run, unread: Unread, lease: Lease) -> None:
    """Record consumers' losses before segments are deleted.

    Once the run has an intent to delete, losses that equal the recorded ones aren't recorded again.
    """
    began = bool(context.journal.events(run, Step.RELEASE, Phase.INTENT))
    if not (began and unread == released_unread(context, run)):
        context.journal.record(run, Step.LAG, Phase.INTENT, [(UNREAD, to_recorded(unread))], lease=lease)


def without_held_back(context: Context, run: Run, fresh: Plan) -> Plan:
    """Return a fresh plan, cut by the store's lag policy.

    :raises GateRefusedError: the policy is block, and the lag is unknown or too old.
    """
    policy = context.store.policy.lag_policy
    if policy is not LagPolicy.BLOCK or not fresh.to_delete:
        return fresh
    doubt = _doubt_text(context, run)
    lag = recorded_lag(context, run)
    if doubt or lag is None:
        raise GateRefusedError(
            f"run {run.run_key!r} of {fresh.store_root}: lag_policy is block: expected a present "
            f"measurement of consumers' lag, found {doubt}. Nothing was deleted. Run this run's lag job "
            "first."
        )
    unit = find_broker(context.store.broker).words.queue
    return apply_lag_policy(fresh, lag.at_risk, policy, lag.measured, unit)


def lag_notices(context: Context, run: Run) -> tuple[str, ...]:
    """Return a notice if the policy lets segments be deleted though the recorded lag is unknown or old."""
    doubt = _doubt_text(context, run)
    if context.store.policy.lag_policy is not LagPolicy.WARN or doubt in ("", _NONE):
        return ()
    return (f"consumer lag was not known when segments were deleted: {doubt}",)


def _doubt_text(context: Context, run: Run) -> str:
    """Return why a run's lag isn't known now, or "" if its recorded lag is valid."""
    results = context.journal.events(run, Step.LAG, Phase.RESULT)
    if not results:
        return _NONE
    source = from_jsonable(LagSummary, results[-1].payload["result"]["summary"]).source
    return lag_doubt(source, results[-1].at_ms, clock_ms(), context.store.policy.lag_max_age_minutes)
