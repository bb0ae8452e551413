"""A stopped node of Kafka in Airflow: its DAGs archive it, and delete in a run that a person starts alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.sensors.cleanup import StorageEngineDueSensor
from tests.kafka.stopped_nodes import LOGS, make_node
from tests.kafka_fixture import unpack

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]


def connect(root: Path, managed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the default connection lead to a node, and make its lake."""
    fields = {
        "root": str(root / "server.properties"),
        "broker_type": "kafka",
        "archive_when": "seal",
        "lake_directory": str(managed / "lake"),
        "journal_url": f"sqlite:///{managed}/journal.db",
        "report_dir": str(managed / "reports"),
    }
    connection = {"conn_type": "storage_engine", "extra": fields}
    monkeypatch.setenv("AIRFLOW_CONN_STORAGE_ENGINE_DEFAULT", json.dumps(connection))
    make_lake(LakeConfig.local(managed / "lake"), "kafka")


@pytest.fixture
def node(airflow_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a node that the default connection leads to, with few logs, as each takes its time."""
    root = tmp_path / "node"
    root.mkdir()
    unpack(root)
    for log in (root / "logs").iterdir():
        if log.is_dir() and log.name not in ("plain-0", "txn-0", "compacted-0"):
            shutil.rmtree(log)
    connect(root, tmp_path / "managed", monkeypatch)
    return root


@pytest.fixture
def expired_node(airflow_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a node that the default connection leads to and whose closed segments have expired."""
    root = make_node(tmp_path / "node").root
    connect(root, tmp_path / "managed", monkeypatch)
    return root


def ran(dag: Any) -> tuple[str, dict[str, str]]:
    for task in dag.tasks:
        task.retries = 0
        if isinstance(task, StorageEngineDueSensor):
            task.timeout = 0
    dag_run = dag.test()
    return str(dag_run.state), {ti.task_id: str(ti.state) for ti in dag_run.get_task_instances()}


def content(root: Path) -> dict[str, str]:
    """Return the digest of each file of a node, but for our stamps and the locks."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in (".lock", PLAIN_STAMP)
    }


def segments(root: Path, log: str) -> list[int]:
    return sorted(int(path.stem) for path in root.rglob(f"{log}/*.log"))


@pytest.mark.again
def test_its_dags_sample_and_archive_it_and_what_its_topics_keep_stays(
    node: Path, tmp_path: Path, load_dag: Any
) -> None:
    before = content(node)
    assert ran(load_dag("storage_monitor.py")) == ("success", {"monitor": "success", "sense": "success"})
    state, tasks = ran(load_dag("storage_archive.py"))
    assert (state, tasks) == ("success", {"archive_sealed": "success", "report": "success"})
    lake = open_lake(LakeConfig.local(tmp_path / "managed" / "lake"))
    (store,) = list_stores(lake)
    found = receipts(lake, store.store_id)
    sealed = {log: len(segments(node, log)) - 1 for log in ("plain-0", "txn-0")}
    assert {log: sum(one.log == log for one in found) for log in sealed} == sealed
    assert len(found) == sum(sealed.values())
    assert ran(load_dag("storage_monitor.py"))[1]["sense"] == "skipped"
    state, tasks = ran(load_dag("storage_retention.py"))
    assert state == "success"
    assert {task for task, found in tasks.items() if found == "success"} == {"plan", "report"}
    assert {tasks[task] for task in tasks.keys() - {"plan", "report"}} == {"skipped"}
    assert content(node) == before


@pytest.mark.again
def test_what_has_expired_goes_in_a_run_that_a_person_starts_and_no_dag_starts_one(
    expired_node: Path, load_dag: Any
) -> None:
    before = content(expired_node)
    assert ran(load_dag("storage_archive.py"))[0] == "success"
    assert ran(load_dag("storage_monitor.py")) == ("success", {"monitor": "success", "sense": "skipped"})
    assert content(expired_node) == before
    state, tasks = ran(load_dag("storage_retention.py"))
    assert state == "success", tasks
    assert set(tasks.values()) == {"success"}
    assert {log: segments(expired_node, log) for log in LOGS} == {log: [4] for log in LOGS}


@pytest.mark.again
def test_the_monitor_fails_where_a_log_is_gone(
    node: Path, load_dag: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    dag = load_dag("storage_monitor.py")
    assert ran(dag)[1]["monitor"] == "success"
    shutil.rmtree(node / "logs" / "plain-0")
    assert ran(dag)[1]["monitor"] == "failed"
    said = "".join(capfd.readouterr())
    assert "segment-gone: the log isn't on disk" in said
    assert "plain-0 [0, 3000) is LOST." in said


@pytest.mark.again
def test_its_brokers_tasks_are_looked_after_and_what_is_overdue_fails(
    node: Path, load_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__KAFKA_STORES", "storage_engine_default")
    dag = load_dag("storage_kafka_log_manager.py")
    state, tasks = ran(dag)
    assert state == "success"
    assert len(tasks) == 5
    assert set(tasks.values()) == {"success"}
    points = node / "logs" / "recovery-point-offset-checkpoint"
    points.write_text("0\n0\n")
    state, tasks = ran(dag)
    assert state == "failed"
    assert [task for task, found in tasks.items() if found != "success"] == [
        "checkpoint_log_recovery_offsets"
    ]
