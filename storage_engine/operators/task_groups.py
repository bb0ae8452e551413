"""How the steps hang together; the DAG files only say when and for which stores."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule, chain

from storage_engine.operators.retention import (
    StorageEngineCleanDependentsOperator,
    StorageEngineFlushCheckpointOperator,
    StorageEnginePlanOperator,
    StorageEngineReleaseOperator,
    StorageEngineReportOperator,
    StorageEngineValidateOperator,
)
from storage_engine.operators.spark_job import StorageEngineArchiveOperator, StorageEngineConsumerLagOperator
from storage_engine.sensors.cleanup import StorageEngineCleanupSensor


def sensed_cleanup(storage_engine_conn_id: str, *, sense_for: timedelta) -> None:
    """Wait for a cause and clean up; the report is written whether there was one or not.

    :param storage_engine_conn_id: connection of the store.
    :param sense_for: how long to wait for a cause. After that the plan still says why all stays.
    """
    sense = StorageEngineCleanupSensor(
        task_id="sense",
        storage_engine_conn_id=storage_engine_conn_id,
        timeout=sense_for,
        soft_fail=True,
    )
    plan = StorageEnginePlanOperator(
        task_id="plan",
        storage_engine_conn_id=storage_engine_conn_id,
        trigger_rule=TriggerRule.NONE_FAILED,
    )
    chain(sense, plan)
    _after_plan(plan, storage_engine_conn_id)


def requested_cleanup(storage_engine_conn_id: str, *, request: str, plan_only: str) -> None:
    """Clean up because a person asks for it.

    :param request: fields of a PlanRequest as JSON text (templated).
    :param plan_only: whether to stop after the plan (templated).
    """
    plan = StorageEnginePlanOperator(
        task_id="plan", storage_engine_conn_id=storage_engine_conn_id, request=request, plan_only=plan_only
    )
    _after_plan(plan, storage_engine_conn_id)


def _after_plan(plan: StorageEnginePlanOperator, storage_engine_conn_id: str) -> None:
    store: dict[str, Any] = {"storage_engine_conn_id": storage_engine_conn_id}
    chain(
        plan,
        StorageEngineConsumerLagOperator(task_id="consumer_lag", **store),
        StorageEngineArchiveOperator(task_id="archive", **store),
        StorageEngineReleaseOperator(task_id="release", **store),
        StorageEngineCleanDependentsOperator(task_id="clean_dependents", **store),
        StorageEngineFlushCheckpointOperator(task_id="flush_checkpoint", **store),
        StorageEngineValidateOperator(task_id="validate", **store),
        StorageEngineReportOperator(task_id="report", trigger_rule=TriggerRule.ALL_DONE, **store),
    )
