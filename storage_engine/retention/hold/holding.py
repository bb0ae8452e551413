"""Keep a running broker from deleting what isn't archived, and leave its store as it was found.

Where the broker is stopped nothing has to be held between runs, and all of this does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from storage_engine.commands import Text, join_texts
from storage_engine.core.clock import HOUR_MS, clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import GateRefusedError, StorageEngineError, StoreBusyError
from storage_engine.journal.journal import Phase, Run, Step, drift_since_renewal, hold_memory, untold_mends
from storage_engine.journal.reading.run_rows import GONE
from storage_engine.model.broker.broker_store import hold_of
from storage_engine.model.hold import Drift, HoldStatus
from storage_engine.model.report.validation import Where
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.store import FileFacts, SegmentId
from storage_engine.retention.archive.archivable import still_unproven
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.archive.sealed import MeasuredLag, measure_lag
from storage_engine.retention.hold.leaving_unproven import (
    Acceptance,
    check_unproven,
    record_intent,
    record_result,
)
from storage_engine.retention.hold.recording_drift import (
    alarms_of,
    record_hold_drift,
    with_lakes_word,
    with_rules_word,
)
from storage_engine.retention.hold.shield_removal import make_removable, remove_all
from storage_engine.retention.proof.proofs import Proofs
from storage_engine.retention.ranges.drift import gone_ranges, ranges_of_drift
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.shield.index import shield_path

_ACCOUNTED = frozenset({Where.ARCHIVED, Where.NOT_ARCHIVED})


def hold_what_is_due(context: Context, measured: MeasuredLag | None, now_ms: int) -> HoldStatus:
    """Hold what goes within the policy's margin and isn't proven; put back what is archived by now.

    :param measured: what the lakes prove; None: they are asked.
    :raises GateRefusedError: nothing can be held; says why, and the remedy.
    :raises BrokerError: the broker can't be asked.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return HoldStatus(False, left_to_broker=True, described="nothing of it is archived (archive: off)")
    proven, unknown = _proven(context, measured)
    margin_ms = context.store.policy.archive_margin_hours * HOUR_MS
    status = hold_of(context.broker).hold_due(proven, margin_ms, now_ms)
    # With what a look found that ended before it could tell.
    found = (*drift_since_renewal(context.journal, context.record), *status.disturbances)
    marked = with_rules_word(context, replace(status, disturbances=tuple(dict.fromkeys(found))))
    unarchived = _unarchived(context, marked.disturbances)
    return replace(status, disturbances=unarchived, notices=(*status.notices, *unknown))


def _proven(
    context: Context, measured: MeasuredLag | None
) -> tuple[Mapping[SegmentId, FileFacts], tuple[str, ...]]:
    """Return which segments lakes prove, with their files; where that can't be told, none."""
    try:
        measured = measured or measure_lag(context)
    except (StorageEngineError, OSError) as error:
        said = reason_text(error).removesuffix(".")
        return {}, (Text("what the lakes prove isn't known, so that nothing counts as proven: ", said),)
    every = (segment for log in measured.snapshot.logs for segment in log.segments)
    segments = [segment for segment in every if segment.id in measured.archivable]
    unproven, broken = measured.unproven, _broken(context, measured.proofs)
    if broken:
        left = tuple(one for one in measured.proofs.asked if one.lake.location not in broken)
        proofs = replace(measured.proofs, asked=left)
        unproven |= {one.id for one in still_unproven(context.journal, context.record, proofs, segments)}
    notes = (*measured.lag.notes, *broken.values())
    return {one.id: one.facts for one in segments if one.id not in unproven}, notes


def _broken(context: Context, proofs: Proofs) -> Mapping[str, str]:
    """Return why chains of receipts are broken, by lake: a look follows them from known rows on alone."""
    known, broken = known_heads(context.journal, context.record), {}
    for one in proofs.asked:
        try:
            known.check(one.lake, context.record.store_id, whole=True)
        except (StorageEngineError, OSError) as error:
            broken[one.lake.location] = reason_text(error)
    return broken


def _unarchived(context: Context, found: Sequence[Drift]) -> tuple[Drift, ...]:
    """Leave out what went and was archived since it was looked at last, or didn't have to be by a rule."""
    rows = gone_ranges(context.journal, context.record, context.store, found)
    return tuple(
        one
        for one in found
        if one.kind not in GONE or any(row.where not in _ACCOUNTED for row in ranges_of_drift(one, rows))
    )


@dataclass(frozen=True, slots=True)
class HoldResult:
    """:param beside: whether a broker runs on the store by its settings; otherwise there is nothing to hold.
    :param renewed: the hold was begun or renewed now; otherwise another of our runs was at it, or had no
        need to.
    """

    store: str
    store_id: str
    beside: bool
    renewed: bool
    status: HoldStatus


def hold(
    store: AnyStore,
    now_ms: int | None = None,
    *,
    run_key: str | None = None,
    measured: MeasuredLag | None = None,
) -> HoldResult:
    """Begin or renew the hold on a store whose broker runs on.

    Where that broker deletes by its own rules, only what goes soon though no lake has it is held.

    :param now_ms: the moment to decide for; None: this machine's clock.
    :param measured: what lakes prove, for a store that is left to its broker; None: they are asked.
    :param run_key: the run that records the hold's status, and is begun if it isn't yet; None: only
        drift is recorded, under a run of its own.
    :raises GateRefusedError: the store can't be held; says why, and the remedy.
    :raises BrokerError: the broker can't be asked.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    if run_key is None:
        return _result(context, *_renew(context, None, now_ms, measured))
    run = begin_background_run(context, run_key)
    with context.errors(run, Step.HOLD):
        return _result(context, *_renewed(context, run, now_ms, measured))


def unmanage(store: AnyStore, now_ms: int | None = None, acceptance: Acceptance | None = None) -> HoldResult:
    """End the hold: every file's time and every setting as they were. The broker's own rules count again.

    The shield goes with it. Before the first setting is put back it is settled what that leaves unproven.

    :param acceptance: a person's word that some goes unproven; None: nobody has given it.
    :raises StoreBusyError: a run has the store; nothing was changed.
    :raises GateRefusedError: more goes unproven within a day than was accepted, or the shield has what is
        nowhere else; nothing was changed.
    :raises BrokerError: the broker can't be asked.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    make_removable(context)
    unproven = None
    with context.journal.lease(context.record.store_id):
        if context.broker.is_live and _is_protected(context):
            unproven = check_unproven(context, acceptance, now_ms)
        record_intent(context, unproven, acceptance)
        status = hold_of(context.broker).end(now_ms)
        record_hold_drift(context, status)
        record_result(context)
    # Behind that: a watch makes links for a held store only.
    left = remove_all(context)
    if unproven is not None and unproven.count:
        left += (f"left to its broker, as was accepted: {unproven.text}",)
    status = with_lakes_word(context, status)
    return _result(context, replace(status, notices=(*status.notices, *left)), True)


def _is_protected(context: Context) -> bool:
    """Return whether a hold or a shield keeps anything, which ends with the hold."""
    memory = hold_memory(context.journal, context.record.store_id)
    return memory.load() is not None or shield_path(context.store.real_root).exists()


def keep_held(context: Context, run: Run, now_ms: int) -> tuple[str, ...]:
    """Begin or renew the hold for a run, and record its status.

    :return: what a person should know of it; nothing where no broker runs.
    :raises GateRefusedError: the store can't be held; says why, and the remedy.
    """
    if not context.broker.is_live:
        return ()
    status, _ = _renewed(context, run, now_ms)
    notices = (*status.notices, *status.alarms, *alarms_of(context, status))
    if not status.held:
        raise GateRefusedError(join_texts("; ", notices))
    return notices


def recorded_hold(context: Context, run: Run) -> HoldStatus | None:
    """The run's last look at its hold, with all drift that the run has found."""
    found = [
        from_jsonable(HoldStatus, event.payload["result"])
        for event in context.journal.events(run, Step.HOLD, Phase.RESULT)
    ]
    if not found:
        return None
    disturbances = dict.fromkeys(one for status in found for one in status.disturbances)
    return replace(found[-1], disturbances=tuple(disturbances))


def _renewed(
    context: Context, run: Run, now_ms: int, measured: MeasuredLag | None = None
) -> tuple[HoldStatus, bool]:
    started_ns = time.monotonic_ns()
    status, renewed = _renew(context, run, now_ms, measured)
    if context.broker.is_live:
        context.save(run, Step.HOLD, status, started_ns)
    return status, renewed


def _renew(
    context: Context, run: Run | None, now_ms: int, measured: MeasuredLag | None
) -> tuple[HoldStatus, bool]:
    """Return the hold's state, and whether it was renewed for it."""
    status, renewed = _try_to_renew(context, run, now_ms, measured)
    return with_lakes_word(context, status), renewed


def _try_to_renew(
    context: Context, run: Run | None, now_ms: int, measured: MeasuredLag | None
) -> tuple[HoldStatus, bool]:
    if not context.broker.is_live:
        return hold_of(context.broker).renew(now_ms), False
    # First, under this run: what only the renewal finds is recorded by that.
    record_hold_drift(context, hold_of(context.broker).status(now_ms), run)
    done = untold_mends(context.journal, context.record)
    try:
        # Two of our processes must not change the same files and settings at a time.
        with context.journal.lease(context.record.store_id, waits=False):
            if context.store.cleans_up:
                status = hold_of(context.broker).renew(now_ms)
            else:
                status = hold_what_is_due(context, measured, now_ms)
            record_hold_drift(context, status, run)
            return replace(status, disturbances=(*done, *status.disturbances)), True
    except StoreBusyError as error:
        status = hold_of(context.broker).status(now_ms)
        if status.left_to_broker:
            # Nothing was judged, so that nothing says that it is well.
            said = (Text("what goes soon wasn't looked for: ", error),)
            told = drift_since_renewal(context.journal, context.record)
            return replace(status, disturbances=told, alarms=said), False
        notices = (*status.notices, Text("the hold was only looked at: ", error))
        found = (*done, *status.disturbances)
        return replace(status, disturbances=found, notices=notices), False


def _result(context: Context, status: HoldStatus, renewed: bool) -> HoldResult:
    beside = context.broker.is_live
    return HoldResult(context.name, context.record.store_id, beside, renewed and beside, status)
