"""A DAG's tasks: one operator for each step of :mod:`storage_engine.cycle`, in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule, chain

from storage_engine import cycle
from storage_engine.hooks.configured_stores import ConfiguredStore
from storage_engine.operators.base import StoreOperator
from storage_engine.operators.retention import (
    StorageEngineArchiveLagOperator,
    StorageEngineCleanDependentsOperator,
    StorageEngineFlushCheckpointOperator,
    StorageEnginePlanOperator,
    StorageEngineReleaseOperator,
    StorageEngineReportOperator,
    StorageEngineValidateOperator,
)
from storage_engine.operators.spark_job import (
    StorageEngineArchiveOperator,
    StorageEngineArchiveSealedOperator,
    StorageEngineConsumerLagOperator,
)
from storage_engine.sensors.cleanup import StorageEngineCleanupSensor

OPERATORS: Mapping[Callable[[cycle.Cleanup], object], type[StoreOperator]] = {
    cycle.plan: StorageEnginePlanOperator,
    cycle.consumer_lag: StorageEngineConsumerLagOperator,
    cycle.archive: StorageEngineArchiveOperator,
    cycle.release: StorageEngineReleaseOperator,
    cycle.clean_dependents: StorageEngineCleanDependentsOperator,
    cycle.flush_checkpoint: StorageEngineFlushCheckpointOperator,
    cycle.validate: StorageEngineValidateOperator,
    cycle.report: StorageEngineReportOperator,
    cycle.archive_sealed: StorageEngineArchiveSealedOperator,
    cycle.archive_lag: StorageEngineArchiveLagOperator,
}

FORCED_REQUEST = """{{ {
    "manual": True,
    "forced": True,
    "max_segments": params.segments,
    "target_used_percent": params.target_used_percent,
    "reason": params.reason,
    "dry_run": params.dry_run,
} | tojson }}"""
"""What a person asks for by a DAG's params, as :func:`requested_cleanup` takes it."""

WHATEVER_FAILED = (cycle.report, cycle.archive_lag)


def sensed_cleanup(store: ConfiguredStore, *, sense_for: timedelta) -> None:
    """Wait for a cause and clean up; the report is written whether there was one or not.

    :param sense_for: how long to wait for a cause. After that the plan still says why all stays.
    """
    arguments = store.task_arguments
    sense = StorageEngineCleanupSensor(
        task_id="sense",
        **arguments,
        timeout=sense_for,
        soft_fail=True,
    )
    cleanup = _tasks(cycle.CLEANUP, arguments, plan={"trigger_rule": TriggerRule.NONE_FAILED})
    chain(sense, *cleanup)
    # Beside the rest from the start, so that it fills the time of waiting for a cause, and nothing that
    # deletes ever waits for it.
    chain(*_tasks(cycle.AHEAD, arguments), cleanup[-1])


def requested_cleanup(store: ConfiguredStore, *, request: str) -> None:
    """Clean up because a person asks for it.

    :param request: fields of a PlanRequest as JSON text (templated).
    """
    chain(*_tasks(cycle.CLEANUP, store.task_arguments, plan={"request": request}))


def _tasks(
    steps: tuple[Callable[..., object], ...],
    arguments: Mapping[str, Any],
    plan: Mapping[str, Any] | None = None,
) -> list[StoreOperator]:
    """Make the tasks of a cycle.

    :param arguments: of every task.
    :param plan: of the task that plans.
    """
    own: dict[Callable[..., object], Mapping[str, Any]] = {cycle.plan: plan or {}}
    own |= {step: {"trigger_rule": TriggerRule.ALL_DONE} for step in WHATEVER_FAILED}
    return [OPERATORS[step](task_id=step.__name__, **{**arguments, **own.get(step, {})}) for step in steps]
