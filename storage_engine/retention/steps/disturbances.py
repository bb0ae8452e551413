"""Take down what disturbed a hold, and say what became of what went without us."""

from __future__ import annotations

from storage_engine.model.hold import HoldStatus
from storage_engine.retention.disturbed import disturbance_alarms, gone_ranges, take_down
from storage_engine.retention.journal import Run
from storage_engine.retention.steps.archiving import begin_background_run
from storage_engine.retention.steps.context import Context
from storage_engine.retention.watch_records import WATCH_RUN


def record_disturbances(context: Context, status: HoldStatus, run: Run | None = None) -> None:
    """Take down what is new; None: under :data:`WATCH_RUN`."""
    if status.disturbances:
        run = run or begin_background_run(context, WATCH_RUN)
        take_down(context.journal, context.record, run, status.disturbances)


def alarms_of(context: Context, status: HoldStatus) -> tuple[str, ...]:
    """Each disturbance as a sentence; a range that is gone with whether it is ARCHIVED or LOST."""
    found = status.disturbances
    return disturbance_alarms(found, gone_ranges(context.journal, context.record, context.store, found))
