"""A DAG's tasks: one operator for each step of :mod:`storage_engine.cycle`, in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule, chain

from storage_engine import cycle
from storage_engine.assets import store_alias
from storage_engine.hooks.configured_stores import ConfiguredStore, when_failed
from storage_engine.operators.base import StoreOperator
from storage_engine.operators.lake_jobs import (
    StorageEngineRetentionReportOperator,
    StorageEngineValidateRowsOperator,
)
from storage_engine.operators.retention import (
    StorageEngineArchiveLagOperator,
    StorageEngineCleanDependentsOperator,
    StorageEngineFlushCheckpointOperator,
    StorageEngineMonitorOperator,
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
from storage_engine.sensors.cleanup import StorageEngineDueSensor
from storage_engine.triggers.cleanup import DEFAULT_POLL_SECONDS

Step = Callable[[cycle.Cleanup], object]

OPERATORS: Mapping[Step, type[StoreOperator]] = {
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
"""A person's request from the params of a forced cleanup, in the form for :func:`cleanup`."""

REQUEST = """{{ {"manual": params.manual, "dry_run": params.dry_run} | tojson }}"""
"""A person's request from the params of a retention run, in the form for :func:`cleanup`."""


def monitored(store: ConfiguredStore, *, sense_for: timedelta) -> None:
    """Look after a store between its cleanups, and notify its other DAGs when there is work for them.

    The two tasks don't wait for each other. So an alarm for a person doesn't delay a cleanup.
    """
    StorageEngineMonitorOperator(task_id="monitor", **store.task_arguments, **when_failed())
    StorageEngineDueSensor(
        task_id="sense",
        **store.task_arguments,
        **when_failed(),
        timeout=sense_for,
        soft_fail=True,
        # On an edge worker the sensor keeps its slot: the triggerer doesn't see the store's disk.
        deferrable=store.executor is None,
        poke_interval=DEFAULT_POLL_SECONDS if store.executor is None else 60,
        cleanup_dag_id=f"storage_retention__{store.in_dag_ids}",
        archive_dag_id=f"storage_archive__{store.in_dag_ids}",
        outlets=[store_alias(store.conn_id)],
    )


def cleanup(store: ConfiguredStore, *, request: str | None = None) -> None:
    """Clean up at once, as the store's rules and a further request say.

    :param request: fields of a PlanRequest as JSON text (templated), or None for no request.
    """
    chain(*cleanup_tasks(store, plan={"request": request}))


def archived_ahead(store: ConfiguredStore) -> None:
    """Archive sealed segments before they are due for deletion."""
    report = {"trigger_rule": TriggerRule.NONE_SKIPPED, **when_failed()}
    extra: dict[Step, Mapping[str, Any]] = {cycle.report: report}
    chain(*_tasks(cycle.AHEAD, store, extra))


ROWS_SPAN = """{{ ([{
    "log": params.log,
    "first_offset": params.first_offset,
    "end_offset": params.end_offset,
}] if params.log else []) | tojson }}"""
"""The offsets whose rows a person wants to check."""


def rows_validated(store: ConfiguredStore) -> None:
    """Check the rows of newly archived segments, or of the offsets that a person names."""
    task_id = "validate_rows"
    rows = StorageEngineValidateRowsOperator(task_id=task_id, spans=ROWS_SPAN, **store.task_arguments)
    chain(rows, _make_report(store))


def usage_reported(store: ConfiguredStore) -> None:
    """Count the messages of some days in the store's lakes."""
    days = {name: f"{{{{ params.{name} or '' }}}}" for name in ("first_day", "last_day")}
    task_id = "retention_report"
    usage = StorageEngineRetentionReportOperator(task_id=task_id, **days, **store.task_arguments)
    chain(usage, _make_report(store))


def _make_report(store: ConfiguredStore) -> StorageEngineReportOperator:
    """Make the last task. It fails if an earlier task failed, and is skipped if the task before it was."""
    return StorageEngineReportOperator(
        task_id="report", trigger_rule=TriggerRule.NONE_SKIPPED, **store.task_arguments, **when_failed()
    )


def cleanup_tasks(store: ConfiguredStore, *, plan: Mapping[str, Any]) -> list[StoreOperator]:
    """Make the tasks of a cleanup, in their order.

    :param plan: further arguments of the planning task.
    """
    # The last task fails if an earlier one did, so a person is notified once for each run.
    report = {"trigger_rule": TriggerRule.ALL_DONE, **when_failed()}
    extra: dict[Step, Mapping[str, Any]] = {cycle.plan: plan, cycle.report: report}
    tasks = _tasks(cycle.CLEANUP, store, extra)
    if store.approvers is not None:
        # Imported only where it is used: DAG files are parsed again and again.
        from storage_engine.operators.approval import StorageEngineApprovalOperator

        users = [{"id": person.id, "name": person.name} for person in store.approvers]
        approve = StorageEngineApprovalOperator(
            task_id="approve", assigned_users=users or None, **store.task_arguments
        )
        tasks.insert(cycle.CLEANUP.index(cycle.release), approve)
    return tasks


def _tasks(
    steps: Sequence[Step], store: ConfiguredStore, extra: Mapping[Step, Mapping[str, Any]]
) -> list[StoreOperator]:
    outlets: dict[Step, Mapping[str, Any]] = {}
    # If a run's params name the connection, no alias can be named after it.
    if "{{" not in store.conn_id:
        alias = {"outlets": [store_alias(store.conn_id)]}
        archived = {**alias, "lake": store.lake}
        outlets = {cycle.archive: archived, cycle.archive_sealed: archived, cycle.release: alias}
    return [
        OPERATORS[step](
            task_id=step.__name__, **{**store.task_arguments, **outlets.get(step, {}), **extra.get(step, {})}
        )
        for step in steps
    ]
