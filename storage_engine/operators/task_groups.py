"""How the steps hang together; the DAG files only say when and for which stores."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule, chain

from storage_engine.hooks.configured_stores import ConfiguredStore
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
    plan = StorageEnginePlanOperator(
        task_id="plan",
        **arguments,
        trigger_rule=TriggerRule.NONE_FAILED,
    )
    chain(sense, plan)
    report = _after_plan(plan, arguments)
    # Beside the rest from the start, so that it fills the time of waiting for a cause, and nothing that
    # deletes ever waits for it.
    chain(
        StorageEngineArchiveSealedOperator(task_id="archive_sealed", **arguments),
        StorageEngineArchiveLagOperator(
            task_id="archive_lag", trigger_rule=TriggerRule.ALL_DONE, **arguments
        ),
        report,
    )


def requested_cleanup(store: ConfiguredStore, *, request: str, plan_only: str) -> None:
    """Clean up because a person asks for it.

    :param request: fields of a PlanRequest as JSON text (templated).
    :param plan_only: whether to stop after the plan (templated).
    """
    arguments = store.task_arguments
    plan = StorageEnginePlanOperator(task_id="plan", request=request, plan_only=plan_only, **arguments)
    _after_plan(plan, arguments)


def _after_plan(plan: StorageEnginePlanOperator, arguments: Mapping[str, Any]) -> StorageEngineReportOperator:
    report = StorageEngineReportOperator(task_id="report", trigger_rule=TriggerRule.ALL_DONE, **arguments)
    chain(
        plan,
        StorageEngineConsumerLagOperator(task_id="consumer_lag", **arguments),
        StorageEngineArchiveOperator(task_id="archive", **arguments),
        StorageEngineReleaseOperator(task_id="release", **arguments),
        StorageEngineCleanDependentsOperator(task_id="clean_dependents", **arguments),
        StorageEngineFlushCheckpointOperator(task_id="flush_checkpoint", **arguments),
        StorageEngineValidateOperator(task_id="validate", **arguments),
        report,
    )
    return report
