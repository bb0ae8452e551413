"""Records of a store's DAGs in Airflow's own database, which is read by Airflow's models, never written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from airflow.configuration import AIRFLOW_CONFIG
from airflow.providers.common.compat.sdk import (
    XCOM_RETURN_KEY,
    AirflowException,
    AirflowNotFoundException,
    BaseHook,
    conf,
)
from airflow.secrets.environment_variables import CONN_ENV_PREFIX
from sqlalchemy import and_, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from storage_engine.core.extras import EDGE
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.hooks.configured_stores import (
    DEFAULT_CONNECTION,
    DEFAULT_LAKE,
    ConfiguredStore,
    configured_stores,
    in_dag_ids,
)
from storage_engine.hooks.connection import managed_store, store_queue
from storage_engine.hooks.storage_engine import SPARK_TYPE, airflow_home, section_defaults
from storage_engine.project.init import SPARK_CONNECTION
from storage_engine.project.into_airflow import PAGE, SECTION, STORES, OwnAirflow, add_words
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
"""Names of options that list stores, each with the DAG that exists only for these stores."""
_OF_LAKE = "storage_maintenance"
_NEEDED = _OF_STORE[:2]
_COMPONENTS = {"SchedulerJob": "scheduler", "TriggererJob": "triggerer", "DagProcessorJob": "dag-processor"}
_LOOKING = ("plan", "monitor")
"""Tasks that can succeed only on a host with the store's disk."""
_KEY_OF_TASK = ("dag_id", "run_id", "task_id", "map_index")
_WAITING = ("deferred", "up_for_reschedule", "awaiting_input")
_MOST_WAITS = 20
_ACTIVE = ("queued", "running")
_MOST_ACTIVE = 5


def read_pipeline(
    conn_id: str, *, archives_ahead: bool = False, asks: bool = False
) -> tuple[PipelineFacts, str]:
    """Read Airflow's records of a store's DAGs.

    :param archives_ahead: whether the store's policy archives sealed segments, which needs a DAG of its own.
    :return: the records, and the id of the DAG that cleans the store.
    """
    name = in_dag_ids(conn_id)
    retention = f"{_OF_STORE[0]}__{name}"
    needed = (*_NEEDED, _AHEAD) if archives_ahead else _NEEDED
    dags = {f"{kind}__{name}": kind in needed for kind in _OF_STORE}
    for option, kind in _OF_LISTED.items():
        if any(store.conn_id == conn_id for store in configured_stores(option)):
            dags[f"{kind}__{name}"] = False
    store = next((store for store in configured_stores() if store.conn_id == conn_id), None)
    of_store = tuple(dags)
    if store is not None:
        dags[f"{_OF_LAKE}__{in_dag_ids(store.lake)}"] = False
    # This import sets up Airflow's database, which takes seconds.
    from airflow.utils.session import create_session

    try:
        with create_session() as session:
            facts = replace(_read(session, dags), queue=_queue(session, store, of_store))
            if asks:
                unknown = _unknown_approvers(store)
                facts = replace(facts, approval=_approval(conn_id, store, unknown), unknown_approvers=unknown)
            return facts, retention
    except SQLAlchemyError as error:
        return PipelineFacts(error=str(getattr(error, "orig", None) or error)), retention


def _queue(session: Any, store: ConfiguredStore | None, dag_ids: Sequence[str]) -> QueueFacts | None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel

    if store is None or store.queue is None:
        return None
    # A task that a person marked as successful left no result.
    of_task = (getattr(XComModel, column) == getattr(TaskInstance, column) for column in _KEY_OF_TASK)
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
    executors = [name.strip() for name in conf.get("core", "executor").split(",")]
    executor = store.executor or executors[0]
    # The executor may have an alias.
    executor = next((name for name in executors if name.startswith(f"{executor}:")), executor)
    is_edge = executor.rpartition(":")[2].rpartition(".")[2] == "EdgeExecutor"
    workers = _edge_workers(session, store.queue) if is_edge else None
    return QueueFacts(store.queue, workers, *((last.hostname or "", _ms(last.end_date)) if last else ()))


def _edge_workers(session: Any, queue: str) -> tuple[ComponentFacts, ...] | None:
    """Return the edge workers that take a queue's tasks; None if unknown. Workers without queues take all."""
    if not EDGE.is_installed or not inspect(session.connection()).has_table("edge_worker"):
        return None
    from airflow.providers.edge3.models.edge_worker import EdgeWorkerModel

    workers = session.scalars(select(EdgeWorkerModel).order_by(EdgeWorkerModel.worker_name)).all()
    return tuple(
        ComponentFacts(row.worker_name, _ms(row.last_update), str(getattr(row.state, "value", row.state)))
        for row in workers
        if not row.queues or queue in row.queues
    )


def _unknown_approvers(store: ConfiguredStore | None) -> tuple[str, ...]:
    """Return a store's approvers whom the simple auth manager doesn't know; empty with another manager."""
    if store is None or "SimpleAuthManager" not in conf.get("core", "auth_manager", fallback=""):
        return ()
    users = {user.partition(":")[0] for user in conf.getlist("core", "simple_auth_manager_users")}
    return tuple(person.id for person in store.approvers or () if person.id not in users)


def _approval(conn_id: str, store: ConfiguredStore | None, unknown: Sequence[str]) -> str:
    """Return why nobody can approve a store's plans in this Airflow, as a clause, or "" if a person can."""
    if store is None or store.approvers is None:
        return f"the entry of {conn_id} in the option stores names no approvers, so its DAGs ask no person"
    simple = "SimpleAuthManager" in conf.get("core", "auth_manager", fallback="")
    if simple and conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False):
        return "simple_auth_manager_all_admins makes all users the same, so no user is a second person"
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

    rows = {
        row.dag_id: row
        for row in session.execute(
            select(DagModel.dag_id, DagModel.is_paused, DagModel.is_stale).where(DagModel.dag_id.in_(dags))
        )
    }
    for dag_id, needed in dags.items():
        dag = rows.get(dag_id)
        if dag is None or dag.is_stale:
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
            paused=bool(dag.is_paused),
            last=last and DagRunFacts(last.run_id, str(last.state), _ms(last.start_date), _ms(last.end_date)),
            waits=tuple((task_id, _ms(since)) for task_id, since in waits),
            active=tuple(
                DagRunFacts(run.run_id, str(run.state), _ms(run.start_date or run.queued_at), None)
                for run in active
            ),
        )


def _is_of_stores(file: str | None, trace: str | None) -> bool:
    names = {f"{name}.py" for name in (*_OF_STORE, _OF_LAKE)}
    return PurePath(file or "").name in names or "storage_engine" in (trace or "")


def _last_line(trace: str | None) -> str:
    return next((line.strip() for line in reversed((trace or "").splitlines()) if line.strip()), "no reason")


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


_AIRFLOWS_EXTRA = {"queue": "root.default"}
"""Extra fields of the connection spark_default as Airflow creates it, with the host yarn."""
_LOCAL_BUNDLE = "LocalDagBundle"


def own_airflow(dags_folder: Path | None, *conn_ids: str) -> OwnAirflow:
    """Read the facts about the Airflow of this environment.

    :param dags_folder: directory for DAG files, or None for Airflow's own.
    :raises BadInputError: Airflow doesn't read DAGs from its DAGs folder.
    """
    return OwnAirflow(
        home=airflow_home(),
        settings_file=Path(AIRFLOW_CONFIG),
        dags_folder=dags_folder or _dags_folder(),
        stores=str(conf.get(SECTION, STORES, fallback=DEFAULT_CONNECTION) or ""),
        by_environment=frozenset(name for name in os.environ if name.startswith("AIRFLOW__")),
        may_test=conf.get("core", "test_connection", fallback="Disabled").strip().lower() == "enabled",
        connections=frozenset(filter(_connection_exists, {DEFAULT_CONNECTION, *conn_ids})),
        spark_connections=_spark_connections(),
        executor=conf.get("core", "executor"),
        has_edge=EDGE.is_installed,
        address=conf.get("api", "base_url", fallback="") or "",
        serves_edge=conf.getboolean("edge", "api_enabled", fallback=False),
    )


def dags_of(conn_id: str, lake: str = DEFAULT_LAKE) -> str:
    """Return a pattern for the ids of a store's DAGs and of its lake's DAG."""
    names = "|".join(re.escape(in_dag_ids(name)) for name in (conn_id, lake))
    return f"storage_.*__({names})$"


def check_fields(conn_id: str, extra: Mapping[str, Any]) -> None:
    """Make sure that a connection's fields can be used.

    :raises BadInputError: a field can't be used. The error names it.
    """
    managed_store(conn_id, extra, None, section_defaults())


def queue_of(conn_id: str) -> str | None:
    """Return the queue that an existing connection names, or None."""
    return store_queue(BaseHook.get_connection(conn_id).extra_dejson)


def add_connection(conn_id: str, definition: Mapping[str, Any]) -> None:
    """Add a connection by Airflow's own command.

    :raises StorageEngineError: Airflow refuses. The error has Airflow's message.
    """
    words = [sys.executable, "-m", *add_words(conn_id, definition)]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = (process.stdout + process.stderr).strip().splitlines()
        raise StorageEngineError(
            f"connection {conn_id}: expected 'airflow connections add' to add it, found status "
            f"{process.returncode}: {' '.join(lines[-3:])}"
        )


def _dags_folder() -> Path:
    bundles = conf.getjson("dag_processor", "dag_bundle_config_list", fallback=None)
    entries = bundles if isinstance(bundles, list) else []
    local = [bundle for bundle in entries if str(bundle.get("classpath", "")).endswith(_LOCAL_BUNDLE)]
    if entries and not local:
        names = ", ".join(str(bundle.get("name")) for bundle in entries)
        raise BadInputError(
            f"[dag_processor] dag_bundle_config_list: expected a bundle of the DAGs folder, found {names}. "
            "Nothing was changed. Name a directory from which a bundle gets its DAGs: --dags DIRECTORY.",
            page=PAGE,
        )
    paths = [(bundle.get("kwargs") or {}).get("path") for bundle in local]
    return Path(next(filter(None, paths), None) or conf.get("core", "dags_folder"))


def _spark_connections() -> frozenset[str]:
    """Return ids of connections of the type spark, without Airflow's own one if nobody has changed it."""
    from airflow.models import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        stored = session.scalars(select(Connection.conn_id).where(Connection.conn_type == SPARK_TYPE)).all()
    variable_ids = {
        name.removeprefix(CONN_ENV_PREFIX).lower() for name in os.environ if name.startswith(CONN_ENV_PREFIX)
    }
    return frozenset(conn_id for conn_id in variable_ids.union(stored) if _may_be_used(conn_id))


def _may_be_used(conn_id: str) -> bool:
    """Return whether a connection is a readable Spark connection that a person has set up."""
    try:
        conn = BaseHook.get_connection(conn_id)
    except (AirflowException, ValueError):
        return False
    other_fields = (conn.login, conn.password, conn.schema, conn.port)
    untouched = conn.host == "yarn" and not any(other_fields) and conn.extra_dejson in ({}, _AIRFLOWS_EXTRA)
    return conn.conn_type == SPARK_TYPE and not (conn.conn_id == SPARK_CONNECTION and untouched)


def _connection_exists(conn_id: str) -> bool:
    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return False
    return True
