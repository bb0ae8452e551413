"""What doctor reads of Airflow: a store's DAGs, runs, waiting tasks and Airflow's own components."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from storage_engine.retention.doctor.pipeline_findings import ComponentFacts, PipelineFacts, QueueFacts
from tests.services.command_line import run_command

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture
def session(airflow_database: Path) -> Iterator[Any]:
    """Airflow's database, without DAGs or components at the end."""
    from airflow.jobs.job import Job
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.errors import ParseImportError
    from airflow.utils.session import create_session

    with create_session() as opened:
        yield opened
        for table in (DagRun, DagModel, Job, ParseImportError):
            opened.query(table).delete()


def add_dag(session: Any, dag_id: str, *, paused: bool = False, stale: bool = False) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel

    if session.get(DagBundleModel, "bundle") is None:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
    session.add(
        DagModel(dag_id=dag_id, bundle_name="bundle", is_paused=paused, is_stale=stale, fileloc="/d.py")
    )
    session.commit()


def add_run(session: Any, dag_id: str, run_id: str, state: str, began: datetime) -> None:
    from airflow.models.dagrun import DagRun

    run = DagRun(
        dag_id=dag_id,
        run_id=run_id,
        logical_date=began,
        run_after=began,
        start_date=began,
        run_type="scheduled",
        state=state,
    )
    run.end_date = began + timedelta(minutes=1)
    session.add(run)
    session.commit()


def add_component(session: Any, kind: str, heartbeat: datetime) -> None:
    from airflow.jobs.job import Job

    job = Job()
    job.job_type, job.latest_heartbeat, job.state = kind, heartbeat, "running"
    session.add(job)
    session.commit()


def facts_of(conn_id: str) -> PipelineFacts:
    from storage_engine.hooks.pipeline import read_pipeline

    found, retention = read_pipeline(conn_id)
    assert retention == f"storage_retention__{conn_id}"
    return found


def test_what_airflow_knows_of_a_store_is_read(session: Any) -> None:
    from airflow.models.errors import ParseImportError

    from storage_engine.hooks.pipeline import read_pipeline

    add_dag(session, "storage_retention__s", paused=True)
    add_run(session, "storage_retention__s", "older", "failed", NOW - timedelta(hours=2))
    add_run(session, "storage_retention__s", "stuck", "running", NOW - timedelta(hours=3))
    add_run(session, "storage_retention__s", "newer", "success", NOW - timedelta(hours=1))
    add_dag(session, "storage_monitor__s", stale=True)
    add_dag(session, "storage_retention__another")
    add_component(session, "SchedulerJob", NOW)
    add_component(session, "TriggererJob", NOW - timedelta(hours=1))
    for file in ("dags/storage_retention.py", "dags/somebodys.py"):
        session.add(ParseImportError(filename=file, bundle_name="bundle", stacktrace="x\nKeyError: 'a'\n"))
    session.commit()

    found = facts_of("s")
    assert found.error == ""
    dags = {dag.dag_id: dag for dag in found.dags}
    retention = dags["storage_retention__s"]
    assert (retention.known, retention.paused, retention.needed) == (True, True, True)
    assert retention.last is not None
    assert (retention.last.run_id, retention.last.state) == ("newer", "success")
    (stuck,) = retention.active
    began_ms = round((NOW - timedelta(hours=3)).timestamp() * 1000)
    assert (stuck.run_id, stuck.state, stuck.began_at_ms) == ("stuck", "running", began_ms)
    assert [dag.dag_id for dag in found.dags if dag.needed] == [
        "storage_retention__s",
        "storage_monitor__s",
    ]
    ahead, _ = read_pipeline("s", archives_ahead=True)
    assert [dag.dag_id for dag in ahead.dags if dag.needed][-1] == "storage_archive__s"
    assert not dags["storage_monitor__s"].known
    assert not dags["storage_forced_cleanup__s"].known
    written = {path.stem for path in DAGS.glob("storage_*.py")}
    # One DAG a lake, and one of the stores alone that an option lists.
    assert {dag_id.partition("__")[0] for dag_id in dags} == written - {
        "storage_maintenance",
        "storage_kafka_log_manager",
    }
    assert "storage_retention__another" not in dags
    beats = {one.name: one.heartbeat_ms for one in found.components}
    assert beats["scheduler"] == round(NOW.timestamp() * 1000)
    assert beats["triggerer"] is not None
    assert beats["dag-processor"] is None
    assert found.import_errors == (("dags/storage_retention.py", "KeyError: 'a'"),)


def test_a_dag_of_listed_stores_is_expected_of_those_alone(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__KAFKA_STORES", "node")
    tasks = {conn_id: f"storage_kafka_log_manager__{conn_id}" for conn_id in ("node", "s")}
    assert tasks["node"] in {dag.dag_id for dag in facts_of("node").dags}
    assert tasks["s"] not in {dag.dag_id for dag in facts_of("s").dags}


def test_a_connection_brings_store_lake_and_pipeline(
    store_connection: Any, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_JOBS", json.dumps({"conn_type": "spark", "host": "local[4]"}))
    store = store_connection(extra={"spark_conn_id": "jobs"})
    add_dag(session, "storage_retention__a_store")
    for kind in ("SchedulerJob", "TriggererJob", "DagProcessorJob"):
        add_component(session, kind, NOW)
    outcome = run_command("doctor", "--conn-id", "a_store", "--json")
    found = outcome.json
    assert found["store"] == str(store.root)
    assert found["figures"]["unproven_segments"] == 7
    assert outcome.exit_code == 1
    (missing,) = [one for one in found["findings"] if one["kind"] == "dag-missing"]
    assert "storage_monitor__a_store" in missing["what"]
    assert found["next"]["command"] == "airflow dags trigger storage_retention__a_store"
    assert not (store.directory / "journal.db").exists()
    assert found["runs"].startswith(
        "in Spark at local[4] from 2.0 GiB or 1000 segments, or 1000000 positions;"
    )
    shown = run_command("doctor", "--conn-id", "a_store")
    assert "runs archive and consumer lag in Spark at local[4] from" in " ".join(shown.out.split())
    assert "storage_retention__a_store: never ran" in " ".join(shown.out.split())


def test_where_nobody_can_approve_a_stores_plans_it_is_said(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_engine.hooks.pipeline import read_pipeline

    def told(entry: str, *, asks: bool = True) -> str:
        monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", f'[{{"conn_id": "s"{entry}}}]')
        return read_pipeline("s", asks=asks)[0].approval

    assert "names no approvers" in told("")
    assert told("", asks=False) == ""
    assert told(', "approvers": []') == ""
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ann:admin, bob:user")
    ghost = '{"id": "ghost", "name": "ghost"}'
    assert told(f', "approvers": [{ghost}]').endswith("is in simple_auth_manager_users: ghost")
    assert told(f', "approvers": [{ghost}, {ghost.replace("ghost", "bob")}]') == ""
    assert read_pipeline("s", asks=True)[0].unknown_approvers == ("ghost",)
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    assert "no user is a second person" in told(', "approvers": []')


def test_who_takes_a_stores_queue_is_read_of_edge_workers_alone(
    session: Any, store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.edge3.models.edge_worker import EdgeWorkerModel

    def queue(**entry: str) -> QueueFacts | None:
        monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", json.dumps([{"conn_id": "s", **entry}]))
        return facts_of("s").queue

    assert queue() is None
    assert queue(queue="broker-a", executor="CeleryExecutor") == QueueFacts("broker-a", None)
    EdgeWorkerModel.metadata.create_all(session.get_bind())
    for name, queues in (("db1", ["broker-a"]), ("db2", ["another"]), ("db3", None)):
        session.add(EdgeWorkerModel(name, "idle", queues, NOW, NOW))
    session.commit()
    at_ms = round(NOW.timestamp() * 1000)
    workers = tuple(ComponentFacts(name, at_ms, "idle") for name in ("db1", "db3"))
    assert queue(queue="broker-a", executor="EdgeExecutor") == QueueFacts("broker-a", workers)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor,far:airflow.providers.edge3.EdgeExecutor")
    assert queue(queue="broker-a", executor="far") == QueueFacts("broker-a", workers)
    there = {"conn_type": "storage_engine", "extra": {"root": "/not/here", "lake": "/no/lake"}}
    monkeypatch.setenv("AIRFLOW_CONN_S", json.dumps(there))
    shown = run_command("doctor", "--conn-id", "s")
    assert "/not/here" in shown.err
    assert "queue broker-a: db1 (idle, alive" in " ".join(shown.out.split())
    assert "URGENT     Airflow knows no DAG storage_retention__s" in shown.out
    known = run_command("doctor", "--conn-id", "s", "--json")
    told = json.loads(known.out)
    assert (shown.exit_code, known.exit_code, told["kind"], told["urgent"]) == (2, 2, "doctor", True)
    assert told["pipeline"]["queue"]["name"] == "broker-a"
    assert told["figures"] is None
    assert {"not-here", "dag-missing"} <= {one["kind"] for one in told["findings"]}
    here = {**there, "extra": {"root": str(store_copy("clean-stop"))}}
    monkeypatch.setenv("AIRFLOW_CONN_S", json.dumps(here))
    assert told.keys() == json.loads(run_command("doctor", "--conn-id", "s", "--json").out).keys()


def test_a_host_has_seen_a_store_where_a_task_left_its_result(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person may mark a task as a success that failed there, or that never ran."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import insert, select

    entry = {"conn_id": "s", "queue": "broker-a", "executor": "EdgeExecutor"}
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", json.dumps([entry]))
    dag_id = "storage_retention__s"
    add_dag(session, dag_id)
    for run_id, host, hours in (("first", "db1", 2), ("marked", "db2", 1)):
        ended = NOW - timedelta(hours=hours)
        add_run(session, dag_id, run_id, "success", ended)
        task = {"id": uuid4(), "dag_id": dag_id, "run_id": run_id, "task_id": "plan", "map_index": -1}
        more = {"state": "success", "hostname": host, "queue": "broker-a", "end_date": ended}
        must = {"try_number": 1, "max_tries": 0, "pool": "default_pool", "pool_slots": 1}
        session.execute(insert(TaskInstance.__table__).values(**task, **more, **must))
    key = select(DagRun.id).where(DagRun.run_id == "first").scalar_subquery()
    of_first = {"dag_run_id": key, "dag_id": dag_id, "run_id": "first", "task_id": "plan", "map_index": -1}
    session.execute(insert(XComModel.__table__).values(**of_first, key="return_value", timestamp=NOW))
    session.commit()
    found = facts_of("s").queue
    assert found is not None
    assert found.seen_by == "db1"
