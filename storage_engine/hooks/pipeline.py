"""A store's DAGs as Airflow's own database has them: read only, by Airflow's models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import PurePath
from typing import Any

from airflow.providers.common.compat.sdk import XCOM_RETURN_KEY, conf
from sqlalchemy import and_, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from storage_engine.core.extras import EDGE
from storage_engine.hooks.configured_stores import ConfiguredStore, configured_stores, in_dag_ids
from storage_engine.retention.doctor.pipeline_findings import (
    ComponentFacts,
    DagFacts,
    DagRunFacts,
    PipelineFacts,
    QueueFacts,
)

_AHEAD = "storage_archive"
_OF_STORE = (
    "storage_retention",
    "storage_monitor",
    _AHEAD,
    "storage_flush_checkpoint",
    "storage_forced_cleanup",
    "storage_validate_rows",
    "storage_retention_report",
)
_OF_LISTED = {"kafka_stores": "storage_kafka_log_manager"}
"""DAGs of the stores alone that an option of their own lists."""
_OF_LAKE = "storage_maintenance"
_NEEDED = _OF_STORE[:2]
_COMPONENTS = {"SchedulerJob": "scheduler", "TriggererJob": "triggerer", "DagProcessorJob": "dag-processor"}
_LOOKING = ("plan", "monitor")
"""Tasks that succeed only where the store's disk is."""
_KEY_OF_TASK = ("dag_id", "run_id", "task_id", "map_index")
_WAITING = ("deferred", "up_for_reschedule", "awaiting_input")
_MOST_WAITS = 20
_ACTIVE = ("queued", "running")
_MOST_ACTIVE = 5


def read_pipeline(
    conn_id: str, *, archives_ahead: bool = False, asks: bool = False
) -> tuple[PipelineFacts, str]:
    """Read what Airflow knows of the DAGs of a store.

    :param archives_ahead: the store's policy archives what is sealed, so that its DAG for that is needed.
    :param asks: the store's policy asks for approval by a second person.
    :return: also the id of the DAG that cleans the store.
    """
    name = in_dag_ids(conn_id)
    retention = f"{_OF_STORE[0]}__{name}"
    needed = (*_NEEDED, _AHEAD) if archives_ahead else _NEEDED
    dags = {f"{one}__{name}": one in needed for one in _OF_STORE}
    for option, one in _OF_LISTED.items():
        if any(store.conn_id == conn_id for store in configured_stores(option)):
            dags[f"{one}__{name}"] = False
    store = next((one for one in configured_stores() if one.conn_id == conn_id), None)
    of_store = tuple(dags)
    if store is not None:
        dags[f"{_OF_LAKE}__{in_dag_ids(store.lake)}"] = False
    # Airflow's database is set up by this import, which takes seconds.
    from airflow.utils.session import create_session

    try:
        with create_session() as session:
            found = replace(_read(session, dags), queue=_queue(session, store, of_store))
            if asks:
                unknown = _unknown_approvers(store)
                found = replace(found, approval=_approval(conn_id, store, unknown), unknown_approvers=unknown)
            return found, retention
    except SQLAlchemyError as error:
        return PipelineFacts(error=str(getattr(error, "orig", None) or error)), retention


def _queue(session: Any, store: ConfiguredStore | None, dag_ids: Sequence[str]) -> QueueFacts | None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel

    if store is None or store.queue is None:
        return None
    # One that a person marked as a success left no result.
    of_task = (getattr(XComModel, it) == getattr(TaskInstance, it) for it in _KEY_OF_TASK)
    last = session.execute(
        select(TaskInstance.hostname, TaskInstance.end_date)
        .join(XComModel, and_(XComModel.key == XCOM_RETURN_KEY, *of_task))
        .where(
            TaskInstance.dag_id.in_(dag_ids),
            TaskInstance.task_id.in_(_LOOKING),
            TaskInstance.queue == store.queue,
            TaskInstance.state == "success",
        )
        .order_by(TaskInstance.end_date.desc())
        .limit(1)
    ).first()
    named = [it.strip() for it in conf.get("core", "executor").split(",")]
    executor = store.executor or named[0]
    # It may be called by an alias of its own.
    executor = next((it for it in named if it.startswith(f"{executor}:")), executor)
    is_edge = executor.rpartition(":")[2].rpartition(".")[2] == "EdgeExecutor"
    workers = _edge_workers(session, store.queue) if is_edge else None
    return QueueFacts(store.queue, workers, *((last.hostname or "", _ms(last.end_date)) if last else ()))


def _edge_workers(session: Any, queue: str) -> tuple[ComponentFacts, ...] | None:
    """Read the edge workers that take a queue, which one without queues does, too; None: nothing says."""
    if not EDGE.is_installed or not inspect(session.connection()).has_table("edge_worker"):
        return None
    from airflow.providers.edge3.models.edge_worker import EdgeWorkerModel

    found = session.scalars(select(EdgeWorkerModel).order_by(EdgeWorkerModel.worker_name)).all()
    return tuple(
        ComponentFacts(one.worker_name, _ms(one.last_update), str(getattr(one.state, "value", one.state)))
        for one in found
        if not one.queues or queue in one.queues
    )


def _unknown_approvers(store: ConfiguredStore | None) -> tuple[str, ...]:
    """Return the approvers of a store whom the simple auth manager doesn't know; other ones aren't asked."""
    if store is None or "SimpleAuthManager" not in conf.get("core", "auth_manager", fallback=""):
        return ()
    users = {it.partition(":")[0] for it in conf.getlist("core", "simple_auth_manager_users")}
    return tuple(one.id for one in store.approvers or () if one.id not in users)


def _approval(conn_id: str, store: ConfiguredStore | None, unknown: Sequence[str]) -> str:
    """Return why nobody can approve a store's plans in this Airflow, as a clause; "": somebody can."""
    if store is None or store.approvers is None:
        return f"the entry of {conn_id} in the option stores names no approvers, so its DAGs ask nobody"
    simple = "SimpleAuthManager" in conf.get("core", "auth_manager", fallback="")
    if simple and conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False):
        return "simple_auth_manager_all_admins makes all users one, so that none is a second person"
    if unknown and len(unknown) == len(store.approvers):
        return f"none of its approvers is in simple_auth_manager_users: {', '.join(unknown)}"
    return ""


def _read(session: Any, dags: Mapping[str, bool]) -> PipelineFacts:
    from airflow.jobs.job import Job
    from airflow.models.errors import ParseImportError

    beats = session.execute(
        select(Job.job_type, func.max(Job.latest_heartbeat))
        .where(Job.job_type.in_(_COMPONENTS))
        .group_by(Job.job_type)
    ).all()
    newest = {kind: _ms(at) for kind, at in beats}
    errors = session.execute(select(ParseImportError.filename, ParseImportError.stacktrace)).all()
    return PipelineFacts(
        dags=tuple(_dags(session, dags)),
        components=tuple(ComponentFacts(name, newest.get(kind)) for kind, name in _COMPONENTS.items()),
        import_errors=tuple(
            (file, _last_line(trace)) for file, trace in errors if _is_of_stores(file, trace)
        ),
    )


def _dags(session: Any, dags: Mapping[str, bool]) -> Iterator[DagFacts]:
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    known = {
        row.dag_id: row
        for row in session.execute(
            select(DagModel.dag_id, DagModel.is_paused, DagModel.is_stale).where(DagModel.dag_id.in_(dags))
        )
    }
    for dag_id, needed in dags.items():
        found = known.get(dag_id)
        if found is None or found.is_stale:
            yield DagFacts(dag_id, needed, known=False)
            continue
        last = session.execute(
            select(DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.end_date)
            .where(DagRun.dag_id == dag_id)
            .order_by(DagRun.run_after.desc(), DagRun.id.desc())
            .limit(1)
        ).first()
        waits = session.execute(
            select(TaskInstance.task_id, TaskInstance.start_date)
            .where(TaskInstance.dag_id == dag_id, TaskInstance.state.in_(_WAITING))
            .order_by(TaskInstance.start_date)
            .limit(_MOST_WAITS)
        ).all()
        active = session.execute(
            select(DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.queued_at)
            .where(DagRun.dag_id == dag_id, DagRun.state.in_(_ACTIVE))
            .order_by(DagRun.id)
            .limit(_MOST_ACTIVE)
        ).all()
        yield DagFacts(
            dag_id,
            needed,
            known=True,
            paused=bool(found.is_paused),
            last=last and DagRunFacts(last.run_id, str(last.state), _ms(last.start_date), _ms(last.end_date)),
            waits=tuple((task_id, _ms(since)) for task_id, since in waits),
            active=tuple(
                DagRunFacts(run.run_id, str(run.state), _ms(run.start_date or run.queued_at), None)
                for run in active
            ),
        )


def _is_of_stores(file: str | None, trace: str | None) -> bool:
    ours = {f"{name}.py" for name in (*_OF_STORE, _OF_LAKE)}
    return PurePath(file or "").name in ours or "storage_engine" in (trace or "")


def _last_line(trace: str | None) -> str:
    return next((line.strip() for line in reversed((trace or "").splitlines()) if line.strip()), "no reason")


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
