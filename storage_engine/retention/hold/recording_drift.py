"""Record drift found on a held store and report whether missing ranges are archived."""

from __future__ import annotations

from dataclasses import replace

from storage_engine.journal.drift import WATCH_RUN, record_drift
from storage_engine.journal.journal import Run
from storage_engine.journal.reading.deletions import GONE
from storage_engine.model.hold.hold import HoldStatus
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.proof.archive_permits import read_store_permits
from storage_engine.retention.ranges.drift import drift_alarms, gone_ranges
from storage_engine.retention.ranges.replaced_logs import with_unproven
from storage_engine.retention.store.context import Context


def record_hold_drift(context: Context, status: HoldStatus, run: Run | None = None) -> None:
    """Record drift that is new; None: under :data:`WATCH_RUN`."""
    if status.disturbances:
        status = with_rules_word(context, status)
        run = run or begin_background_run(context, WATCH_RUN)
        record_drift(context.journal, context.record, run, status.disturbances)


def with_rules_word(context: Context, status: HoldStatus) -> HoldStatus:
    """Return a look at a hold that says which ranges that went nobody had to archive, by rule."""
    if not any(one.kind in GONE and one.log for one in status.disturbances):
        return status
    permits = read_store_permits(context.store, context.journal, context.record)
    marked = (
        replace(one, unarchived=one.unarchived or permits.clause_of_log(one.log)) if one.kind in GONE else one
        for one in status.disturbances
    )
    return replace(status, disturbances=tuple(marked))


def with_lakes_word(context: Context, status: HoldStatus) -> HoldStatus:
    """Return a look at a hold that says what no lake has of logs that are no more."""
    return replace(status, disturbances=with_unproven(context.record, context.store, status.disturbances))


def alarms_of(context: Context, status: HoldStatus) -> tuple[str, ...]:
    """Return each drift as a sentence; a range that is gone with whether it is ARCHIVED or LOST."""
    found = with_lakes_word(context, with_rules_word(context, status)).disturbances
    return drift_alarms(found, gone_ranges(context.journal, context.record, context.store, found))
