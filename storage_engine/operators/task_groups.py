"""How the steps hang together; the DAG files only say when and for which stores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule, chain

from storage_engine.hooks.storage_engine import queue_of
from storage_engine.operators.retention import (
    StorageEngineArchiveLagOperator,
    StorageEngineCleanDependentsOperator,
    StorageEngineFlushCheckpointOperator,
    StorageEngineMaintainOperator,
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


def sensed_cleanup(storage_engine_conn_id: str, *, sense_for: timedelta) -> None:
    """Wait for a cause and clean up; the report is written whether there was one or not.

    :param storage_engine_conn_id: connection of the store.
    :param sense_for: how long to wait for a cause. After that the plan still says why all stays.
    """
    store = _of_store(storage_engine_conn_id, queue_of(storage_engine_conn_id))
    sense = StorageEngineCleanupSensor(
        task_id="sense",
        **store,
        timeout=sense_for,
        soft_fail=True,
    )
    plan = StorageEnginePlanOperator(
        task_id="plan",
        **store,
        trigger_rule=TriggerRule.NONE_FAILED,
    )
    chain(sense, plan)
    report = _after_plan(plan, store)
    # Beside the rest from the start, so that it fills the time of waiting for a cause, and nothing that
    # deletes ever waits for it.
    chain(
        StorageEngineArchiveSealedOperator(task_id="archive_sealed", **store),
        StorageEngineArchiveLagOperator(task_id="archive_lag", trigger_rule=TriggerRule.ALL_DONE, **store),
        report,
    )


def requested_cleanup(
    storage_engine_conn_id: str, *, request: str, plan_only: str, queue: str | None = None
) -> None:
    """Clean up because a person asks for it.

    :param request: fields of a PlanRequest as JSON text (templated).
    :param plan_only: whether to stop after the plan (templated).
    :param queue: of the workers that see the store's disk; None: Airflow's default.
    """
    store = _of_store(storage_engine_conn_id, queue)
    plan = StorageEnginePlanOperator(task_id="plan", request=request, plan_only=plan_only, **store)
    _after_plan(plan, store)


def maintenance(stores: Sequence[str]) -> None:
    """Maintain one lake's stores: each one's reports and journal, where they are.

    :param stores: connections of stores that archive into the lake.
    """
    for storage_engine_conn_id in stores:
        StorageEngineMaintainOperator(
            task_id=storage_engine_conn_id,
            **_of_store(storage_engine_conn_id, queue_of(storage_engine_conn_id)),
        )


def _of_store(storage_engine_conn_id: str, queue: str | None) -> dict[str, Any]:
    """What every task of a store is made with."""
    store: dict[str, Any] = {"storage_engine_conn_id": storage_engine_conn_id}
    return store if queue is None else {**store, "queue": queue}


def _after_plan(plan: StorageEnginePlanOperator, store: dict[str, Any]) -> StorageEngineReportOperator:
    report = StorageEngineReportOperator(task_id="report", trigger_rule=TriggerRule.ALL_DONE, **store)
    chain(
        plan,
        StorageEngineConsumerLagOperator(task_id="consumer_lag", **store),
        StorageEngineArchiveOperator(task_id="archive", **store),
        StorageEngineReleaseOperator(task_id="release", **store),
        StorageEngineCleanDependentsOperator(task_id="clean_dependents", **store),
        StorageEngineFlushCheckpointOperator(task_id="flush_checkpoint", **store),
        StorageEngineValidateOperator(task_id="validate", **store),
        report,
    )
    return report
