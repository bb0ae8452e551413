"""Look at a store's disks and clock: what triggers a cleanup now. Beside a running broker, also at how far
that broker is, and at drift of the hold."""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError
from storage_engine.model.hold.hold import BrokerProgress, HoldStatus
from storage_engine.model.plan.plan import PlanRequest, Trigger
from storage_engine.model.store.store import DiskUsage
from storage_engine.retention.hold.progress_alarms import progress_alarms
from storage_engine.retention.hold.recording_drift import alarms_of, record_hold_drift, with_lakes_word
from storage_engine.retention.store.broker_answers import ask, take_progress, take_triggers
from storage_engine.retention.store.context import AnyStore, Context, open_context


@dataclass(frozen=True, slots=True)
class SenseResult:
    """:param levels: every disk of the log, then the dependents' disk.
    :param progress: None where no broker runs.
    :param hold: as it is found, without renewing it; None where no broker runs.
    :param alarms: drift found on the hold, and how far the broker is behind beyond the policy's limits.
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
    """Find the causes that hold now and record a sample of the levels.

    Drift of a hold is in the journal before anything else is looked at.

    :param now_ms: the moment to decide for; None: this machine's clock.
    :raises BrokerError: the running broker can't be asked.
    :raises BadInputError: the directory isn't its store, or not any more.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    hold = look_at_hold(context, now_ms)
    try:
        snapshot = context.snapshot(now_ms)
    except BadInputError as error:
        if not (hold and hold.notices):
            raise
        raise BadInputError(f"{error} Its hold: {'; '.join(hold.notices)}") from error
    triggers, notices = take_triggers(context.broker, snapshot, now_ms, request or PlanRequest())
    levels = snapshot.disks
    progress = take_progress(context.broker, now_ms, context.store.broker)
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
    """Record drift of a hold and return its status; None where no broker runs."""
    if not context.broker.is_live:
        return None
    doing = "tell what is held"
    status = ask(context.store.broker, doing, lambda: context.broker.hold_status(now_ms))
    record_hold_drift(context, status)
    return with_lakes_word(context, status)
