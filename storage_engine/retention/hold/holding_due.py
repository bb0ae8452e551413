"""Beside a broker that is left to its rules: hold what goes soon though no lake has it, or say what goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.drift import drift_since_renewal
from storage_engine.journal.reading.deletions import GONE
from storage_engine.model.hold.hold import Drift, HoldStatus
from storage_engine.model.report.validation import Where
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.store import FileFacts, SegmentId
from storage_engine.retention.archive.sealed import MeasuredLag, measure_lag
from storage_engine.retention.hold.recording_drift import with_rules_word
from storage_engine.retention.ranges.drift import gone_ranges, ranges_of_drift
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.context import Context

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
    doing = "hold what goes soon"
    status = ask(context.store.broker, doing, lambda: context.broker.hold_due(proven, margin_ms, now_ms))
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
        return {}, (f"what the lakes prove isn't known, so that nothing counts as proven: {said}",)
    proven = measured.archivable - measured.unproven
    segments = (segment for log in measured.snapshot.logs for segment in log.segments)
    return {one.id: one.facts for one in segments if one.id in proven}, measured.lag.notes


def _unarchived(context: Context, found: Sequence[Drift]) -> tuple[Drift, ...]:
    """Leave out what went and was archived since it was looked at last, or didn't have to be by a rule."""
    rows = gone_ranges(context.journal, context.record, context.store, found)
    return tuple(
        one
        for one in found
        if one.kind not in GONE or any(row.where not in _ACCOUNTED for row in ranges_of_drift(one, rows))
    )
