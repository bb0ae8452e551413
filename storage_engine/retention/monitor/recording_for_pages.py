"""Record what pages show of a store and can't see themselves: rules, ranges, the shield."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import count_text, unexpected
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.course.course import CourseStart, RuleLevels
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store.store import StoreSnapshot
from storage_engine.retention.archive.sealed import MeasuredLag
from storage_engine.retention.doctor.levels import levels_of
from storage_engine.retention.monitor.recording_ranges import store_ranges
from storage_engine.retention.ranges.missing_logs import remember_logs
from storage_engine.retention.ranges.offset_ranges import OffsetRange, Place
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.context import Context
from storage_engine.shield.seen import look_at_shield


def record_rules(context: Context, snapshot: StoreSnapshot, now_ms: int) -> CourseStart | None:
    """Record the rules in effect where they changed, and return what a simulation starts from.

    :return: None: that isn't known, or the broker can't be simulated.
    :raises StorageEngineError: the rules can't be told, or not be recorded.
    :raises OSError: a file can't be read.
    """
    kind = context.store.broker
    start = ask(kind, "say what a simulation starts from", lambda: context.broker.course_start(snapshot))
    found = rules_of(context, snapshot, None if start is None else start.time_zone, now_ms)
    context.journal.save_rules(context.record.store_id, found)
    return start


def rules_of(
    context: Context, snapshot: StoreSnapshot, time_zone: str | None, now_ms: int
) -> Mapping[str, Any]:
    """Return settings, levels and windows. Of the settings only those that a simulation can change.

    :param time_zone: IANA name, in which windows are meant; None: not known, and so are they.
    """
    kind = context.store.broker
    rules = find_broker(kind).rules
    if rules is None:
        # A level is told as the lowest at which something begins; here, as that above which it does.
        lowest = levels_of(context.broker, snapshot, now_ms)
        above = {"cleans_percent": lowest.cleans_percent, "forces_percent": lowest.forces_percent}
        levels = {name: None if percent is None else percent - 1 for name, percent in above.items()}
        return {"settings": {}, "levels": levels, "windows": None, "unsupported": ""}

    def tell() -> tuple[dict[str, str], RuleLevels, tuple[int, ...], str]:
        config = context.broker.rule_config()
        values = rules.values(config)
        return values, rules.levels(values), rules.hours(values), rules.unsupported(config)

    values, known, hours, unsupported = ask(kind, "tell its rules", tell)
    windows = None if time_zone is None else {"hours": hours, "time_zone": time_zone}
    told = {"settings": values, "levels": to_jsonable(known), "windows": windows}
    return {**told, "unsupported": unsupported}


def found_for_pages(context: Context, measured: MeasuredLag | None) -> Mapping[str, Any]:
    """Record the rules, and return what else is to be kept with the findings of this look.

    What can't be told is None, and ``page_errors`` says why: nothing that only pages show ends a look.

    :param measured: what the lakes prove; None: they were not asked, or none could be.
    """
    errors: list[str] = []
    snapshot = _told(errors, "the store", lambda: _snapshot(context, measured))
    if snapshot is None:
        return {"page_errors": errors}
    _told(errors, "which logs there are", lambda: _remember(context, snapshot))
    ranges = _told(errors, "where bytes are", lambda: store_ranges(context, snapshot, measured))
    return {
        "start": _told(errors, "what a simulation starts from", lambda: _start(context, snapshot)),
        "ranges": ranges,
        "lost": _lost_text(ranges),
        "shield": _told(errors, "the shield", lambda: _shield(context)),
        "page_errors": errors,
    }


def _told(errors: list[str], what: str, tell: Callable[[], Any]) -> Any:
    try:
        return tell()
    except Exception as error:
        known = isinstance(error, (StorageEngineError, OSError))
        errors.append(f"{what} is not known: {error if known else unexpected(error)}")
        return None


def _snapshot(context: Context, measured: MeasuredLag | None) -> StoreSnapshot:
    return context.snapshot(clock_ms()) if measured is None else measured.snapshot


def _remember(context: Context, snapshot: StoreSnapshot) -> None:
    remember_logs(context.store, context.journal, context.record, context.broker, snapshot)


def _start(context: Context, snapshot: StoreSnapshot) -> CourseStart | None:
    return record_rules(context, snapshot, clock_ms())


def _lost_text(ranges: Sequence[OffsetRange] | None) -> str | None:
    """Say which offsets are nowhere, as far as no person has accepted it; "": none; None: nobody knows."""
    lost = [one for one in ranges or () if one.where is Place.LOST and one.is_missing]
    if not lost and (ranges is None or any(one.where is Place.UNKNOWN for one in ranges)):
        return None
    named = named_in_short([f"{one.log} [{one.start_offset}, {one.end_offset})" for one in lost])
    return f"{count_text(len(lost), 'range')} neither on disk nor in a lake: {named}" if lost else ""


def _shield(context: Context) -> Mapping[str, Any]:
    """Return what the shield keeps; of a store that has none, nothing."""
    shield = look_at_shield(context.store.real_root)
    return {
        "mode": context.store.policy.shield.value,
        "segments": len(shield.links),
        "size_bytes": sum(seen.facts.size_bytes for seen in shield.links),
        "gone_segments": len(shield.gone),
        "gone_bytes": sum(seen.facts.size_bytes for seen in shield.gone),
        "foreign_files": len(shield.foreign),
    }
