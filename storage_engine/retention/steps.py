"""The steps of a run. Each may be killed at any instant and run again. They share nothing but the journal.

:mod:`storage_engine.cycle` has their order. Five steps may be called at any time: sense, hold, unmanage,
monitor and accept_loss. The steps make_plan and release call hold, too.
"""

from storage_engine.retention.archive.archiving import (
    ArchiveResult,
    archive,
    archive_jobs,
    archive_planned,
    where_here,
)
from storage_engine.retention.archive.sealed import archive_sealed, record_archive_lag
from storage_engine.retention.decisions import accept_loss
from storage_engine.retention.hold.holding import HoldResult, hold, unmanage
from storage_engine.retention.lag.consumer_lag import LagQuestion, lag_question, record_lag
from storage_engine.retention.monitor.broker_tasks import TaskResult, run_broker_tasks
from storage_engine.retention.monitor.monitoring import MonitorResult, monitor
from storage_engine.retention.plan.cleanup_due import look_for_due, segments_to_archive, sense
from storage_engine.retention.plan.planning import PlanResult, is_dry_run, make_plan, recorded_plan
from storage_engine.retention.release.checkpointing import (
    CheckpointResult,
    DependentsResult,
    clean_dependents,
    flush_checkpoint,
)
from storage_engine.retention.release.releasing import ReleaseResult, release
from storage_engine.retention.report.report import record_validation

__all__ = [
    "ArchiveResult",
    "CheckpointResult",
    "DependentsResult",
    "HoldResult",
    "LagQuestion",
    "MonitorResult",
    "PlanResult",
    "ReleaseResult",
    "TaskResult",
    "accept_loss",
    "archive",
    "archive_jobs",
    "archive_planned",
    "archive_sealed",
    "clean_dependents",
    "flush_checkpoint",
    "hold",
    "is_dry_run",
    "lag_question",
    "look_for_due",
    "make_plan",
    "monitor",
    "record_archive_lag",
    "record_lag",
    "record_validation",
    "recorded_plan",
    "release",
    "run_broker_tasks",
    "segments_to_archive",
    "sense",
    "unmanage",
    "where_here",
]
