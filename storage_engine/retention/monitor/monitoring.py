"""Care for a store between its cleanups: renewal of its hold, a sample, and the measurement of lags.

Lags are measured for the broker's own work, for its consumer groups, and for the lake. Lost ranges are
reported. Facts that pages show but can't read themselves are recorded: rules, ranges, the shield.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from storage_engine.brokers import find_broker
from storage_engine.commands import Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable, to_recorded
from storage_engine.core.wording import count_text, reason_text, time_text, unexpected_text
from storage_engine.exceptions import GateRefusedError, StorageEngineError
from storage_engine.journal.journal import drift_since_renewal
from storage_engine.model.broker.broker_store import course_of
from storage_engine.model.hold import HoldStatus
from storage_engine.model.lag import ArchiveLag, GroupLag
from storage_engine.model.report.diagnosis import Finding, named_in_short
from storage_engine.model.settings.policy import ArchiveMode, ShieldMode
from storage_engine.model.simulation import CourseStart, RuleLevels
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.archive.sealed import MeasuredLag, measure_lag
from storage_engine.retention.doctor.doctor import findings_of
from storage_engine.retention.doctor.space_and_time import levels_of
from storage_engine.retention.hold.hold_text import drift_text, due_alarms
from storage_engine.retention.hold.holding import alarms_of, end_alarms, expiry_alarms, hold
from storage_engine.retention.lag.consumer_lag import measure_groups
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.plan.cleanup_due import SenseResult, sense
from storage_engine.retention.proof.approvals import open_questions, question_alarms
from storage_engine.retention.ranges.drift import loss_alarms, recorded_gone
from storage_engine.retention.ranges.missing_logs import remember_logs
from storage_engine.retention.ranges.offset_ranges import OffsetRange, Place
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.broker_answers import ask, due_now
from storage_engine.retention.store.context import AnyStore, Context, managed_of, open_context
from storage_engine.shield.index import look_at_shield, shield_path


def record_rules(context: Context, snapshot: StoreSnapshot, now_ms: int) -> CourseStart | None:
    """Record the rules in effect if they changed, and return the state from which a simulation starts.

    :return: None if the state is unknown or the broker can't be simulated.
    :raises StorageEngineError: the rules can't be read or recorded.
    :raises OSError: a file can't be read.
    """
    start = course_of(context.broker).start(snapshot)
    rules = rules_of(context, snapshot, None if start is None else start.time_zone, now_ms)
    context.journal.save_rules(context.record.store_id, rules)
    return start


def rules_of(
    context: Context, snapshot: StoreSnapshot, time_zone: str | None, now_ms: int
) -> Mapping[str, Any]:
    """Return settings, levels and windows. Only settings that a simulation can change are included.

    :param time_zone: IANA name of the windows' time zone. If it is None, the windows are unknown.
    """
    kind = context.store.broker
    rules = find_broker(kind).rules
    if rules is None:
        # Found is the lowest level at which a deletion begins. Recorded is the level above which it begins.
        lowest = levels_of(context.broker, snapshot, now_ms)
        above = {"cleans_percent": lowest.cleans_percent, "forces_percent": lowest.forces_percent}
        levels = {name: None if percent is None else percent - 1 for name, percent in above.items()}
        return {"settings": {}, "levels": levels, "windows": None, "unsupported": ""}

    def tell() -> tuple[dict[str, str], RuleLevels, tuple[int, ...], str]:
        config = course_of(context.broker).rule_config()
        values = rules.values(config)
        return values, rules.levels(values), rules.hours(values), rules.unsupported(config)

    values, rule_levels, hours, unsupported = ask(kind, "tell its rules", tell)
    windows = None if time_zone is None else {"hours": hours, "time_zone": time_zone}
    facts = {"settings": values, "levels": to_jsonable(rule_levels), "windows": windows}
    return {**facts, "unsupported": unsupported}


def found_for_pages(context: Context, measured: MeasuredLag | None) -> Mapping[str, Any]:
    """Record the rules. Return the other facts for pages, which are kept with this look's findings.

    An unknown fact is None, and ``page_errors`` says why. A failure here never ends the look.

    :param measured: the lakes' proofs, or None if no lake was asked or answered.
    """
    errors: list[str] = []
    snapshot = _try_to_read(
        errors, "the store", lambda: context.snapshot(clock_ms()) if measured is None else measured.snapshot
    )
    if snapshot is None:
        return {"page_errors": errors}
    _try_to_read(errors, "which logs there are", lambda: remember_logs(context, snapshot))
    result = _try_to_read(errors, "where bytes are", lambda: look_for_ranges(context, snapshot, measured))
    ranges, unasked = result or (None, "")
    lost = _list_lost(ranges, unasked)
    return {
        "start": _try_to_read(
            errors, "what a simulation starts from", lambda: record_rules(context, snapshot, clock_ms())
        ),
        "ranges": ranges,
        "lost": None if lost is None else _lost_text(lost),
        "lost_ranges": None if lost is None else len(lost),
        "due": _try_to_read(errors, "what is due", lambda: _read_due(context, snapshot, measured)),
        "shield": _try_to_read(errors, "the shield", lambda: _read_shield(context)),
        "page_errors": errors,
    }


def _try_to_read(errors: list[str], subject: str, tell: Callable[[], Any]) -> Any:
    try:
        return tell()
    except Exception as error:
        is_expected = isinstance(error, (StorageEngineError, OSError))
        errors.append(Text(f"{subject} is not known: ", error if is_expected else unexpected_text(error)))
        return None


def _read_due(context: Context, snapshot: StoreSnapshot, measured: MeasuredLag | None) -> Mapping[str, Any]:
    """Return how many bytes a requested cleanup would delete, and how many no lake has (None if unknown)."""
    due = due_now(context.broker, snapshot, clock_ms())
    unproven = None if measured is None else [item for item in due if item.id not in measured.archived]
    return {
        "size_bytes": sum(segment.disk_bytes for segment in due),
        "unproven_bytes": None if unproven is None else sum(segment.disk_bytes for segment in unproven),
    }


def _list_lost(ranges: Sequence[OffsetRange] | None, unasked: str) -> list[OffsetRange] | None:
    """Return the lost ranges whose loss no person has accepted.

    :param unasked: why a lake can't be asked, or "".
    :return: None if no range is known to be lost, but a range is unknown or a lake can't be asked.
    """
    lost = [piece for piece in ranges or () if piece.where is Place.LOST and piece.is_missing]
    is_unknown = ranges is None or unasked or any(piece.where is Place.UNKNOWN for piece in ranges)
    return None if is_unknown and not lost else lost


def _lost_text(lost: Sequence[OffsetRange]) -> str:
    named = named_in_short([f"{piece.log} [{piece.start_offset}, {piece.end_offset})" for piece in lost])
    return f"{count_text(len(lost), 'range')} neither on disk nor in a lake: {named}" if lost else ""


def _read_shield(context: Context) -> Mapping[str, Any]:
    """Return the numbers of segments and bytes in the shield, or zeros for a store without a shield."""
    shield = look_at_shield(context.store.real_root)
    return {
        "mode": context.store.policy.shield.value,
        "segments": len(shield.links),
        "size_bytes": sum(entry.facts.size_bytes for entry in shield.links),
        "gone_segments": len(shield.gone),
        "gone_bytes": sum(entry.facts.size_bytes for entry in shield.gone),
        "foreign_files": len(shield.foreign),
    }


@dataclass(frozen=True, slots=True)
class MonitorResult:
    """Result of a look of the monitor.

    :param hold: status of the hold after its renewal, or None if no broker runs, or the hold was refused.
    :param alarms: everything that a person should know at once.
    :param lag_error: why the lag of consumer groups is unknown, or "" if it is known.
    :param archive_lag: lag of the archive, or None if nothing is archived, or the lag is unknown.
    """

    hold: HoldStatus | None
    sensed: SenseResult
    alarms: tuple[str, ...]
    lag_error: str = ""
    archive_lag: ArchiveLag | None = None


def monitor(store: AnyStore, run_key: str) -> MonitorResult:
    """Look for drift of the hold, renew the hold, take a sample, and measure how far the broker is behind.

    The findings are kept in the journal.

    :raises BrokerError: the running broker can't be asked.
    """
    managed = managed_of(store)
    holds = managed.is_live and managed.cleans_up
    # This comes first, because the drift of a hold can't be seen any more once the hold is renewed.
    try:
        context = open_context(store)
        sensed = sense(context)
    except (StorageEngineError, OSError) as error:
        if managed.is_live:
            _hold_and_note(store, run_key, error)
        raise
    status, alarms = None, list(sensed.alarms)
    if holds:
        try:
            status = hold(context, run_key=run_key).status
        except GateRefusedError as error:
            alarms.append(Text("the store can't be held: ", error))
        else:
            before = sensed.hold.disturbances if sensed.hold else ()
            if new := tuple(drift for drift in status.disturbances if drift not in before):
                alarms += alarms_of(context, replace(status, disturbances=new))
            if not status.is_well:
                clause = "not all of the store is held" if status.held else "the store isn't held"
                alarms += [Text(f"{clause}: ", notice) for notice in (*status.notices, *status.alarms)]
    alarms += _shield_alarms(context)
    measured, behind = _measure_archive_lag(context, sensed.sensed_at_ms)
    alarms += behind
    if managed.is_live and not managed.cleans_up:
        status, hold_alarms = _hold_due(context, run_key, measured)
        alarms += hold_alarms
    elif status is None:
        alarms += _expiry_alarms(context, measured)
    alarms += end_alarms(context, sensed.hold if status is None else status, sensed.sensed_at_ms)
    alarms += _question_alarms(context, sensed, status)
    archive_lag = None if measured is None else measured.lag
    lags, lag_error = _measure_lags(context)
    for_pages = found_for_pages(context, measured)
    alarms += loss_alarms(for_pages.get("ranges") or (), recorded_gone(context.journal, context.record))
    result = MonitorResult(status, sensed, tuple(dict.fromkeys(alarms)), lag_error, archive_lag)
    _save(context, result, lags, for_pages)
    return result


def _question_alarms(context: Context, sensed: SenseResult, status: HoldStatus | None) -> tuple[str, ...]:
    """Return alarms on plans that wait for approval while a disk is so full that age is ignored.

    Each alarm says when the broker deletes by itself.
    """
    questions = open_questions(context.journal, context.record.store_id, sensed.sensed_at_ms)
    at_ms = None if status is None else status.deletes_from_ms or status.ends_at_ms
    if not context.broker.is_live:
        by_itself = "its broker deletes by itself once it is started"
    elif status is not None and not status.held:
        by_itself = "the broker deletes by itself now"
    elif at_ms is None:
        by_itself = "when the broker deletes by itself isn't known"
    else:
        by_itself = f"the broker deletes by itself from {time_text(at_ms)}, unless the hold is renewed"
    return question_alarms(questions, sensed.triggers, by_itself)


def _hold_and_note(store: AnyStore, run_key: str, error: Exception) -> None:
    """Renew the hold of a store that can't be read, and add the findings to the error as notes."""
    with suppress(StorageEngineError):
        status = hold(store, run_key=run_key).status
        for text in (*map(drift_text, status.disturbances), *due_alarms(status, clock_ms())):
            error.add_note(text)


def _hold_due(
    context: Context, run_key: str, measured: MeasuredLag | None
) -> tuple[HoldStatus | None, tuple[str, ...]]:
    """Hold segments that a broker would soon delete by its own rules.

    :return: the hold's status, or None if unknown; and alarms on segments that can't be held, and on drift.
    """
    try:
        result = hold(context, run_key=run_key, measured=measured)
    except (StorageEngineError, OSError) as error:
        # The call may have recorded drift before it failed.
        status = HoldStatus(False, disturbances=drift_since_renewal(context.journal, context.record))
        alarms = (
            Text("segments that will be deleted soon can't be held: ", reason_text(error)),
            *alarms_of(context, status),
        )
        return None, (*alarms, *_expiry_alarms(context, measured))
    soon = () if result.renewed else _expiry_alarms(context, measured)
    return result.status, (*alarms_of(context, result.status), *due_alarms(result.status, clock_ms()), *soon)


def _measure_archive_lag(context: Context, sensed_at_ms: int) -> tuple[MeasuredLag | None, tuple[str, ...]]:
    """Measure the archive lag, and return it with its alarms.

    The lag is added to the sample of this look, so that a chart has one sample for each look.
    """
    policy = context.store.policy
    if policy.archive is ArchiveMode.OFF:
        return None, ()
    try:
        measured = measure_lag(context)
        context.journal.add_archive_lag(context.record.store_id, sensed_at_ms, measured.lag)
    except (StorageEngineError, OSError) as error:
        return None, (Text("archive lag is not known: ", reason_text(error)),)
    return measured, measured.lag.alarms(policy)


def _expiry_alarms(context: Context, measured: MeasuredLag | None) -> tuple[str, ...]:
    """If we don't clean the store up, return alarms on unproven segments that its broker deletes soon."""
    if measured is None or (context.store.cleans_up and context.broker.limit is None):
        return ()
    try:
        return expiry_alarms(context, measured, clock_ms())
    except OSError as error:
        return (f"it is unknown when the broker deletes unproven segments: {reason_text(error)}",)


def _measure_lags(context: Context) -> tuple[tuple[GroupLag, ...] | None, str]:
    try:
        return measure_groups(context.store, clock_ms()), ""
    except (StorageEngineError, OSError) as error:
        return None, reason_text(error)


def _save(
    context: Context, result: MonitorResult, lags: tuple[GroupLag, ...] | None, for_pages: Mapping[str, Any]
) -> None:
    findings = {
        "alarms": to_recorded(result.alarms),
        "notices": result.sensed.notices,
        "causes": [trigger.cause for trigger in result.sensed.triggers],
        "crashed": result.sensed.crashed,
        "held": result.hold.held if result.hold and not result.hold.left_to_broker else None,
        "hold_notices": result.hold.notices if result.hold else (),
        "progress": result.sensed.progress,
        "lag_error": result.lag_error,
        "doctor": to_recorded(_diagnose(context)),
        **for_pages,
    }
    context.journal.save_findings(context.record.store_id, findings, lags)


def _diagnose(context: Context) -> tuple[Finding, ...]:
    """Return doctor's findings on the store, the most urgent first. A failure to look becomes a finding."""
    try:
        return findings_of(context.store, context.broker, context.journal, context.record, clock_ms())
    except Exception as error:
        # No error may keep the other findings and alarms of this look from being recorded.
        is_expected = isinstance(error, (StorageEngineError, OSError))
        text = Text(error).removesuffix(".") if is_expected else unexpected_text(error)
        return (Finding.warning("unreadable", text),)


def _shield_alarms(context: Context) -> tuple[str, ...]:
    """Tend the shield if no watch does, and return alarms on its segments that are gone from the log."""
    store = context.store
    if store.policy.shield is not ShieldMode.ON and not shield_path(store.real_root).exists():
        return ()
    try:
        result = tend_shield(context)
    except (StorageEngineError, OSError) as error:
        return (Text("the shield can't be tended: ", reason_text(error)),)
    return result.notices if result.gone or result.given_up else ()
