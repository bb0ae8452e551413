"""Consumer lag: its record, the lag policy, and consumers' losses by a deletion.

The policy keeps segments that a consumer group still has to read. Losses are computed with the plan and again
right before segments are deleted. Segments that others have deleted, and that only the shield has, are
examined as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable, to_jsonable, to_recorded
from storage_engine.core.wording import count_text, duration_text, reason_text, time_text
from storage_engine.exceptions import GateRefusedError, StorageEngineError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.journal.tables.leases import Lease
from storage_engine.lake.catalog.config import CATALOG_FILE, DESCRIPTION, LakeConfig
from storage_engine.model.broker.broker_store import BrokerStore, consumers_of
from storage_engine.model.broker.kind import LagRequest
from storage_engine.model.lag import (
    GroupLag,
    Lag,
    LagSource,
    LagSummary,
    PositionsFrom,
    QueueLag,
    Unread,
    UnreadMessages,
)
from storage_engine.model.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.settings.policy import LagPolicy
from storage_engine.model.store import Segment, SegmentId, SegmentState, StoreSnapshot
from storage_engine.retention.proof.refusing import Refusal, refusal, refused_logs
from storage_engine.retention.store.broker_answers import package_errors
from storage_engine.retention.store.brokers import settings_of
from storage_engine.retention.store.context import RAN, WHOLE, AnyStore, Context, approved_plan, open_context
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield

if TYPE_CHECKING:
    from storage_engine.retention.store.context import AnyStore


@dataclass(frozen=True, slots=True)
class ShieldedUnread:
    """Unread messages of consumer groups, in segments that only the shield still has.

    :param rows: sorted by the number of messages, the most first.
    :param error: why the messages are not known completely, or "" if they are.
    :param notices: notices about the groups' positions for a person.
    """

    rows: tuple[UnreadMessages, ...] = ()
    error: str = ""
    notices: tuple[str, ...] = ()


def find_shielded_unread(broker: BrokerStore, snapshot: StoreSnapshot) -> ShieldedUnread:
    """Find unread messages that only the shield has, by the consume queues' present entries. Reads only."""
    losses: list[Unread] = []
    logs = {log.name: log for log in snapshot.logs}
    try:
        for run in shielded_runs(snapshot):
            log = run[-1].log
            before = replace(snapshot, logs=(replace(logs[log], segments=run),))
            with package_errors(snapshot.broker, "say which messages consumers have not read"):
                losses.append(consumers_of(broker).unread(before, {log: run[-1].end_offset}, deleted=True))
    except (StorageEngineError, OSError) as error:
        return ShieldedUnread(error=reason_text(error))
    return shielded_unread(losses)


def shielded_unread(losses: Iterable[Unread]) -> ShieldedUnread:
    """Sum up the unread messages of several runs of segments."""
    parts = tuple(losses)
    return ShieldedUnread(
        tuple(_merge_rows((row for part in parts for row in part.rows), _combine_rows)),
        "; ".join(dict.fromkeys(part.error for part in parts if part.error)),
        tuple(dict.fromkeys(notice for part in parts for notice in part.notices)),
    )


def _merge_rows(
    rows: Iterable[UnreadMessages], merge: Callable[[UnreadMessages, UnreadMessages], UnreadMessages]
) -> list[UnreadMessages]:
    """Merge the rows of each group and topic, and sort them by messages, the most first."""
    merged: dict[tuple[str, str], UnreadMessages] = {}
    for row in rows:
        earlier = merged.get((row.group, row.topic))
        merged[row.group, row.topic] = row if earlier is None else merge(earlier, row)
    return sorted(merged.values(), key=lambda row: (-(row.messages or 0), row.group, row.topic))


def _combine_rows(left: UnreadMessages, right: UnreadMessages) -> UnreadMessages:
    times = [row.from_ms for row in (left, right) if row.from_ms is not None]
    return replace(
        left,
        messages=(left.messages or 0) + (right.messages or 0) or None,
        queues=max(left.queues, right.queues),
        from_ms=min(times, default=None),
    )


def shielded_runs(snapshot: StoreSnapshot) -> tuple[tuple[Segment, ...], ...]:
    """Return the segments below their log's start, which only the shield has, in groups.

    The segments of a group are consecutive segments of one log.

    :raises ShieldError: the shield's content is unknown.
    """
    begin = {log.name: log.min_offset for log in snapshot.logs}
    runs: list[list[Segment]] = []
    for file in look_at_shield(snapshot.root).gone:
        link = file.link
        segment = Segment(link.log, link.base_offset, file.facts, SegmentState.SEALED, link.mtime_ns)
        last = runs[-1][-1] if runs and runs[-1][-1].log == link.log else None
        end_offset = last.end_offset if last else 0
        # A link with the same offsets as an earlier one is from another lineage.
        if segment.end_offset > begin.get(link.log, 0) or link.base_offset < end_offset:
            continue
        if last and link.base_offset == end_offset:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return tuple(map(tuple, runs))


def shielded_text(row: UnreadMessages) -> str:
    """Return the text on a group's unread messages that only the shield has."""
    verb = "is" if row.messages in (None, 1) else "are"
    return f"{unread_text(row)} {verb} gone from the broker and only in the shield"


def error_text(error: str) -> str:
    """Return the text that the unread messages in the shield are not known completely."""
    return f"consumers' unread messages that only the shield has are not completely known: {error}"


def unread_text(row: UnreadMessages) -> str:
    """Describe a group's unread messages of a topic."""
    if row.messages is None:
        return (
            f"group {row.group} has no known position in {count_text(row.queues, 'queue')} of {row.topic}: "
            "any message of them that it needs"
        )
    return f"{count_text(row.messages, 'unread message')} of {row.group} in {row.topic}"


ROWS_KEPT = 100
ROWS_SHOWN = 10


def find_unread(
    broker: BrokerStore, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], lag_policy: LagPolicy
) -> Unread:
    """Compute consumers' losses if logs begin at other offsets. A loss that can't be computed is unknown.

    Earlier losses of messages that only the shield has are included. Nothing is read if the policy ignores
    consumers, or if no message is deleted and the shield has none that the log lacks.

    :param new_min_offsets: name of a log → where it will begin. Other logs stay as they are.
    """
    if lag_policy is LagPolicy.IGNORE:
        return Unread()
    shielded = find_shielded_unread(broker, snapshot)
    unread = Unread()
    begin = {log.name: log.min_offset for log in snapshot.logs}
    if any(offset > begin.get(log, -1) for log, offset in new_min_offsets.items()):
        try:
            unread = consumers_of(broker).unread(snapshot, new_min_offsets)
        except (StorageEngineError, OSError) as error:
            unread = Unread(error=reason_text(error))
    return replace(
        unread,
        rows=unread.rows[:ROWS_KEPT],
        more=max(len(unread.rows) - ROWS_KEPT, 0),
        notices=tuple(dict.fromkeys((*unread.notices, *shielded.notices))),
        shielded=shielded.rows[:ROWS_KEPT],
        shielded_error=shielded.error,
    )


def find_unread_by_log(
    broker: BrokerStore, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int]
) -> Mapping[str, Unread]:
    """Compute consumers' losses in each log by itself. A loss that can't be computed is unknown.

    :param new_min_offsets: name of a log → where it will begin.
    """
    try:
        return consumers_of(broker).unread_by_log(snapshot, new_min_offsets)
    except (StorageEngineError, OSError) as error:
        return dict.fromkeys(new_min_offsets, Unread(error=reason_text(error)))


def join_losses(first: Unread, second: Unread) -> Unread:
    """Add up consumers' losses in two sets of logs, which have no queue in common."""
    most_first = _merge_rows((*first.rows, *second.rows), _add_rows)
    return replace(
        second,
        rows=tuple(most_first[:ROWS_KEPT]),
        more=first.more + second.more + max(len(most_first) - ROWS_KEPT, 0),
        error="; ".join(error for error in (first.error, second.error) if error),
        notices=tuple(dict.fromkeys((*first.notices, *second.notices))),
        logs=None if first.logs is None or second.logs is None else (*first.logs, *second.logs),
    )


def _add_rows(left: UnreadMessages, right: UnreadMessages) -> UnreadMessages:
    counts = [row.messages for row in (left, right) if row.messages is not None]
    times = [row.from_ms for row in (left, right) if row.from_ms is not None]
    return replace(
        left,
        messages=sum(counts) if counts else None,
        queues=left.queues + right.queues,
        from_ms=min(times) if len(times) == 2 else None,
    )


def unread_lines(place: AnyStore, unread: Unread, *, done: bool, waived: bool = False) -> tuple[str, ...]:
    """Return a line for each group and topic with consumers' losses, with the command to export messages.

    :param place: the store. If it is open, its own journal is asked.
    :param done: the segments are already deleted.
    :param waived: segments are deleted without receipts.
    """
    return tuple(_loss_lines(place, unread, done=done, waived=waived))


def _loss_lines(place: AnyStore, unread: Unread, *, done: bool, waived: bool) -> Iterator[str]:
    store = place if isinstance(place, ManagedStore) else place.store
    in_lake = store.archives and not waived
    unarchived = _unarchived_topics(place, store, unread.rows[:ROWS_SHOWN]) if in_lake else frozenset()
    if unread.error:
        segments = "deleted segments" if done else "segments to delete"
        yield f"it is unknown which messages of the {segments} consumers have not read: {unread.error}"
    for row in unread.rows[:ROWS_SHOWN]:
        archived = in_lake and row.topic not in unarchived
        remedy = f"; to get them: {_command(store, row)}" if archived else ""
        yield f"{unread_text(row)} {_loss_text(row, done=done, archived=archived)}{remedy}"
    if more := len(unread.rows[ROWS_SHOWN:]) + unread.more:
        named = f"the first {len(unread.rows)}" if unread.more else "all"
        yield f"the same holds for {count_text(more, 'more group and topic')}; report.json names {named}"
    if unread.shielded_error:
        yield error_text(unread.shielded_error)
    for row in unread.shielded[:ROWS_SHOWN]:
        remedy = f" until a lake has them. To get them then: {_command(store, row)}" if store.archives else ""
        yield f"{shielded_text(row)}{remedy}"
    if more := len(unread.shielded[ROWS_SHOWN:]):
        yield f"the same holds for at least {count_text(more, 'more group and topic')} that report.json names"


def _unarchived_topics(
    place: AnyStore, store: ManagedStore, rows: Sequence[UnreadMessages]
) -> frozenset[str]:
    """Return the topics whose messages a rule permits to delete without a copy."""
    if not rows or not store.may_have_journal:
        return frozenset()
    from storage_engine.retention.proof.proofs import look_up_permits

    permits = look_up_permits(place)
    return frozenset(row.topic for row in rows if permits.may_lack(row.topic))


def _loss_text(row: UnreadMessages, *, done: bool, archived: bool) -> str:
    verb = "is" if row.messages in (None, 1) else "are"
    if archived:
        return f"{verb} only in the lake now" if done else "would be only in the lake if deleted"
    return f"{verb if done else 'would be'} gone{'' if done else ' if deleted'}, unless a lake has them"


def _command(store: ManagedStore, row: UnreadMessages) -> str:
    words = ["storage-engine", "export", "--lake", lake_directory(store.lake), "--topic", row.topic]
    if row.from_ms is not None:
        words += ["--from-time", time_text(row.from_ms)]
    return shlex.join([*words, "--to", "unread.parquet"])


def lake_directory(lake: LakeConfig) -> str:
    """Return a lake's value of ``--lake``, or "LAKE" if no directory of this machine is known as the lake."""
    warehouse = urlsplit(lake.properties.get("warehouse", ""))
    root = Path(unquote(warehouse.path)).parent
    files = [root / name for name in (CATALOG_FILE, DESCRIPTION) if warehouse.scheme in ("", "file")]
    return str(root) if any(file.exists() for file in files) else "LAKE"


def has_loss(unread: Unread) -> bool:
    """Return whether consumers lose messages, or may lose some."""
    return bool(unread.rows or unread.error)


def loss_count(rows: Sequence[UnreadMessages]) -> int:
    """Return the number of lost messages, as far as it is known."""
    return sum(row.messages or 0 for row in rows)


def apply_lag_policy(
    plan: Plan,
    lags: Iterable[QueueLag],
    policy: LagPolicy,
    measured: Collection[str] | None = None,
    unit: str = "queue",
) -> Plan:
    """Under ``LagPolicy.BLOCK``, cut each log of a plan before the first segment that a group has to read.

    If a group's position in a queue is unknown, and the plan has messages of that queue, the group may need
    any of these messages. Then the queue's whole log stays. So does a log that was not measured.

    :param lags: the lag computed for this plan, with the row that decides for each log.
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
    """:param first: name of a log → the row that keeps most of it; None → a row that counts for every log."""
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


if TYPE_CHECKING:
    import pyarrow as pa


MOST_POSITIONS = 20_000
"""Number of groups' positions above which only a run's lag job measures them, possibly with Spark."""


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
    """Return for which segments the run's lag has to be measured, or the recorded lag that is final.

    The lag is measured again as long as every planned segment is on disk. After one is deleted, the recorded
    lag is final, because messages at risk in the deleted segment can't be found any more.

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
    """Record consumers' losses before the first segment is deleted. The same losses are recorded once."""
    began = bool(context.journal.events(run, Step.RELEASE, Phase.INTENT))
    if not (began and unread == released_unread(context, run)):
        context.journal.record(run, Step.LAG, Phase.INTENT, [(UNREAD, to_recorded(unread))], lease=lease)


def without_held_back(context: Context, run: Run, fresh: Plan) -> Plan:
    """Return the new plan, which the store's lag policy has shortened.

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
    """Return notices on an unknown or old lag, if the policy lets segments be deleted all the same."""
    doubt = _doubt_text(context, run)
    if context.store.policy.lag_policy is not LagPolicy.WARN or doubt in ("", _NONE):
        return ()
    return (f"consumer lag was not known when segments were deleted: {doubt}",)


def _doubt_text(context: Context, run: Run) -> str:
    """Return why the recorded lag is no longer valid, or "" if it is valid."""
    results = context.journal.events(run, Step.LAG, Phase.RESULT)
    if not results:
        return _NONE
    source = from_jsonable(LagSummary, results[-1].payload["result"]["summary"]).source
    return lag_doubt(source, results[-1].at_ms, clock_ms(), context.store.policy.lag_max_age_minutes)
