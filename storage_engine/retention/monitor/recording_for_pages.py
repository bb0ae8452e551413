"""Record what pages show of a store and can't see themselves: rules, ranges, the shield."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import count_text, unexpected
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.course.course import CourseStart
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store.store import StoreSnapshot
from storage_engine.retention.archive.sealed import MeasuredLag
from storage_engine.retention.monitor.recording_ranges import store_ranges
from storage_engine.retention.monitor.recording_rules import record_rules
from storage_engine.retention.ranges.missing_logs import remember_logs
from storage_engine.retention.ranges.offset_ranges import OffsetRange, Place
from storage_engine.retention.store.context import Context
from storage_engine.shield.seen import look_at_shield


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
        "lost": _lost_text(ranges or ()),
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


def _lost_text(ranges: Sequence[OffsetRange]) -> str:
    """Say which offsets are nowhere, as far as no person has accepted it; "": none."""
    lost = [one for one in ranges if one.where is Place.LOST and one.is_missing]
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
