"""A look at a store's disks and clock: what triggers a cleanup now, and whether a cleanup is due.

A cleanup is due if a cause holds and a run would do or report something, and also if a run would empty a
quarantine. The decision is made as in a run, but no plan is recorded. If a broker runs, its progress and the
hold's drift are looked at as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from storage_engine.commands import join_texts
from storage_engine.core.clock import HOUR_MS, clock_ms
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.queries import JournalReader, read_archive_lags
from storage_engine.model.broker.broker_store import hold_of, process_of
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import BrokerProgress, HoldStatus
from storage_engine.model.plan import Cause, Plan, PlanRequest, Reason, Trigger
from storage_engine.retention.archive.sealed import archive_lag_of_store
from storage_engine.retention.hold.hold_text import progress_alarms
from storage_engine.retention.hold.holding import alarms_of, record_hold_drift, with_lake_notes
from storage_engine.retention.plan.deciding import check_quarantine, decide
from storage_engine.retention.plan.planning import add_identity
from storage_engine.retention.proof.approvals import open_questions, was_refused
from storage_engine.retention.quarantine.emptying import expired_or_in_the_way
from storage_engine.retention.store.broker_answers import take_triggers
from storage_engine.retention.store.context import AnyStore, Context, open_context


@dataclass(frozen=True, slots=True)
class SenseResult:
    """The causes for a cleanup that hold at one moment, and the state of the disks.

    :param levels: level of every disk of the log, then of the dependents' disk.
    :param progress: the broker's progress, or None if no broker runs.
    :param hold: the hold's status, without a renewal, or None if no broker runs.
    :param alarms: drift of the hold, and limits of the policy that the broker's lag exceeds.
    """

    store: str
    sensed_at_ms: int
    triggers: tuple[Trigger, ...]
    notices: tuple[str, ...]
    levels: tuple[DiskUsage, ...]
    crashed: bool
    progress: BrokerProgress | None = None
    hold: HoldStatus | None = None
    alarms: tuple[str, ...] = ()


def sense(store: AnyStore, now_ms: int | None = None, request: PlanRequest | None = None) -> SenseResult:
    """Return the causes that hold now, and record a sample of the levels.

    Drift of a hold is recorded in the journal before anything else is looked at.

    :param now_ms: the moment to decide for; None for this machine's clock.
    :raises BrokerError: the running broker can't be asked.
    :raises BadInputError: the directory doesn't have this store, or no longer has it.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    hold = look_at_hold(context, now_ms)
    try:
        snapshot = context.snapshot(now_ms)
    except BadInputError as error:
        if not (hold and hold.notices):
            raise
        raise BadInputError(error, " Its hold: ", join_texts("; ", hold.notices)) from error
    triggers, notices = take_triggers(context.broker, snapshot, now_ms, request or PlanRequest())
    levels = snapshot.disks
    progress = process_of(context.broker).progress(now_ms)
    context.sample(snapshot, now_ms, progress=progress)
    return SenseResult(
        context.name,
        now_ms,
        triggers,
        (*notices, *(hold.notices if hold else ())),
        levels,
        snapshot.crashed,
        progress,
        hold,
        (*(alarms_of(context, hold) if hold else ()), *progress_alarms(progress, context.store.policy)),
    )


def look_at_hold(context: Context, now_ms: int) -> HoldStatus | None:
    """Record drift of a hold and return its status, or None if no broker runs."""
    if not context.broker.is_live:
        return None
    status = hold_of(context.broker).status(now_ms)
    record_hold_drift(context, status)
    return with_lake_notes(context, status)


_MOMENT_MS = 15 * 60_000
_MORE_MS = 20 * 60_000
"""Delay of the next question after the last one, in milliseconds, for each open question after the first.

So a DAG asks at most ten questions in half a day: fewer than the runs that it may have at once.
"""
_REFUSED_MS = 12 * HOUR_MS
"""Time in which nobody is asked again about the same plan after a refusal."""


@dataclass(frozen=True, slots=True)
class DueResult:
    """Work that is due at one moment.

    :param deletes: number of segments that a run would delete now.
    :param delete_bytes: size of these segments.
    :param why: sentences on the work that a run would do or report; empty if no cleanup is due.
    :param stays: why no segment would be deleted though a cause holds, else "".
    :param waiting: keys of runs whose plans wait for a second person.
    :param is_asked: the plan that a run would make now already waits for an answer, and that question has an
        end. Or so many such questions are open that the next one would come too early.
    :param is_refused: the last answer about that plan came lately, and wasn't an approval.
    """

    sensed: SenseResult
    deletes: int = 0
    delete_bytes: int = 0
    why: tuple[str, ...] = ()
    stays: str = ""
    waiting: tuple[str, ...] = ()
    is_asked: bool = False
    is_refused: bool = False


def look_for_due(store: AnyStore, now_ms: int | None = None) -> DueResult:
    """Return the work that a run would have now, and record a sample of the levels.

    A run is also due if it only reports that it may delete nothing, because the store has crashed or messages
    are pending. A run that only empties a quarantine is due, too.

    :param now_ms: the moment to decide for; None for this machine's clock.
    :raises BrokerError: the running broker can't be asked.
    :raises BadInputError: the store can't be planned or cleaned up, or its files can't be set aside.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    sensed = sense(context, now_ms)
    causes = {trigger.cause for trigger in sensed.triggers}
    store_id, managed, is_short = context.record.store_id, context.store, Cause.SPACE_FULL in causes
    quarantine = expired_or_in_the_way(context.journal, store_id, now_ms, space_is_short=is_short)
    if not causes or not managed.cleans_up:
        return DueResult(sensed, why=quarantine)
    decided = decide(context.broker, PlanRequest(), now_ms, kind=managed.broker, policy=managed.policy)
    check_quarantine(managed, context.broker.data_paths, decided)
    plan = decided.plan
    size_bytes = sum(segment.disk_bytes for segment in plan.to_delete)
    why = (*_blocked_notices(plan), *quarantine)
    if plan.to_delete:
        count = count_text(len(plan.to_delete), "segment")
        why = (f"{count}, {bytes_text(size_bytes)}, would be deleted", *why)
    is_asked = is_refused = False
    waiting = open_questions(context.journal, store_id, now_ms) if plan.to_delete else ()
    if plan.to_delete and not quarantine:
        digest = add_identity(plan, context.record).digest
        # A question at a shell has no end and may never be answered, so it delays no question of a DAG.
        timed = [entry.question for entry in waiting if entry.question.until_ms is not None]
        early_ms = max((question.asked_at_ms for question in timed), default=0) + (len(timed) - 1) * _MORE_MS
        is_asked = any(question.digest == digest for question in timed) or bool(timed and now_ms < early_ms)
        is_refused = was_refused(context.journal, store_id, digest, now_ms - _REFUSED_MS)
    return DueResult(
        sensed,
        len(plan.to_delete),
        size_bytes,
        why,
        "" if why else _stays_text(plan),
        tuple(dict.fromkeys(entry.run_key for entry in waiting)),
        is_asked,
        is_refused,
    )


def segments_to_archive(store: AnyStore) -> int:
    """Return how many sealed segments wait to be archived ahead, or 0 if the policy doesn't archive ahead.

    If the monitor found no such segment in the last 15 minutes, the result is 0. Later calls find segments
    that were sealed meanwhile.

    :raises LakeUnavailableError: no lake can be read.
    """
    context = open_context(store)
    if not context.store.archives_ahead or _has_no_lag(context):
        return 0
    lag = archive_lag_of_store(context)
    return lag.segments + lag.touched


def _has_no_lag(context: Context) -> bool:
    """Return whether archive lags were measured in the last 15 minutes, and all of them are 0."""
    now_ms, reader = clock_ms(), JournalReader(context.store.journal_url)
    since_ms, store_id = now_ms - _MOMENT_MS, context.record.store_id
    lags = reader.read(lambda connection: read_archive_lags(connection, store_id, since_ms, now_ms + 1))
    return bool(lags) and not any(lag.segments + lag.touched for lag in lags)


def _blocked_notices(plan: Plan) -> tuple[str, ...]:
    reasons = {decision.reason: decision.detail for decision in plan.decisions}
    blocked = (Reason.STORE_CRASHED, Reason.PENDING_BLOCKED, Reason.REFUSED)
    return tuple(
        f"no segment may be deleted: {reasons[reason]}"
        for reason in blocked
        if reason in reasons and not plan.to_delete
    )


def _stays_text(plan: Plan) -> str:
    counts = Counter(decision.reason.value for decision in plan.decisions)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    return f"no segment would be deleted: {reasons or 'there are no segments'}"
