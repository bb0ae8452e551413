"""Parsing the DAG files: what is left alone, and what keeps it cheap with many stores."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Airflow's Spark operator imports it, and it opens a socket then, to know whether there is IPv6.
import requests  # noqa: F401
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.common.compat.sdk import BaseHook, Connection
from airflow.serialization.serialized_objects import DagSerialization

from storage_engine.hooks.storage_engine import StorageEngineHook
from tests.services.watched_paths import looks_told

DAGS = Path(__file__).parents[2] / "dags"
OLDER = DAGS.parent / "older_dags" / "older_dag_ids.py"
HEAVY = ["numba", "pyspark", "great_expectations", "pyiceberg", "pyarrow", "pandas", "isal"]


@contextmanager
def watched(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note lookups of connections, sockets, databases and processes, and looks at paths below ``own``."""
    found: list[str] = []

    def note(event: str) -> None:
        if str(own) in event or event.startswith(("socket", "sqlite3", "subprocess")):
            found.append(event)

    with monkeypatch.context() as patched:
        for holder, name in ((BaseHook, "get_connection"), (Connection, "get")):
            patched.setattr(holder, name, lambda *who: found.append(f"connection {who[-1]}"))
        with looks_told(note, monkeypatch):
            yield found


def dags_of(file: Path) -> dict[str, Any]:
    bag = DagBag(str(file), load_op_links=False)
    assert bag.import_errors == {}
    return dict(bag.dags)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with all that two stores have; they are listed, and their connections are there."""
    for name in ("near", "far"):
        fields = {"root": str(tmp_path / name), "mode": "live", "broker_settings": {"broker": "127.0.0.1:9"}}
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "storage_engine", "extra": fields})
        )
    stores = [{"conn_id": "near"}, {"conn_id": "far", "queue": "host-a", "pool": "slow", "lake": "orders"}]
    section = {
        "STORES": json.dumps(stores),
        "KAFKA_STORES": json.dumps(stores),
        "JOURNAL_URL": f"sqlite:///{tmp_path}/journal.db",
        "LAKE": str(tmp_path / "lake"),
        "REPORT_DIR": str(tmp_path / "reports"),
    }
    for name, value in section.items():
        monkeypatch.setenv(f"AIRFLOW__STORAGE_ENGINE__{name}", value)
    return tmp_path


@pytest.mark.parametrize("file", sorted(DAGS.glob("*.py")), ids=lambda file: file.stem)
def test_no_connection_disk_or_network_is_touched(
    own: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(own, monkeypatch) as found:
        dags = dags_of(file)
        serialised = [DagSerialization.to_dict(dag) for dag in dags.values()]
    assert len(serialised) == 2
    assert found == []


def test_runs_in_flight_find_their_tasks_under_their_older_ids(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(own, monkeypatch) as found:
        dags = dags_of(OLDER)
    assert found == []
    cleanup = {"plan", "consumer_lag", "archive", "release", "clean_dependents"}
    cleanup |= {"flush_checkpoint", "validate", "report"}
    sensed = cleanup | {"sense", "archive_sealed", "archive_lag"}
    assert {name: set(dag.task_ids) for name, dag in dags.items()} == {
        "storage_retention": {f"{store}.{task}" for store in ("near", "far") for task in sensed},
        "storage_flush_checkpoint": {"near", "far"},
        "storage_forced_cleanup": cleanup,
        "storage_forced_cleanup_host-a": cleanup,
    }
    assert {dag.schedule for dag in dags.values()} == {None}
    assert dags["storage_retention"].get_task("far.release").queue == "host-a"
    (forced,) = {task.storage_engine_conn_id for task in dags["storage_forced_cleanup"].tasks}
    assert forced == "{{ params.store }}"


def test_what_is_touched_would_be_seen(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(own, monkeypatch) as found:
        sqlite3.connect(own / "journal.db").close()
        socket.socket().close()
        (own / "near").exists()
        StorageEngineHook("near").get_connection("near")
    assert [line.split()[0] for line in found] == [
        "sqlite3.connect",
        "sqlite3.connect/handle",
        "socket.__new__",
        "os.stat",
        "connection",
    ]


def test_a_form_is_the_dags_and_no_tasks_too() -> None:
    """With a copy in each of its eight tasks a DAG took Airflow eight times as long to serialise."""
    (dag,) = dags_of(DAGS / "storage_forced_cleanup.py").values()
    assert {task.task_id for task in dag.tasks if task.params} == set()
    serialised = DagSerialization.to_dict(dag)["dag"]
    assert [name for name, _ in serialised["params"]] == list(dag.params)
    assert list(dag.params) == ["segments", "target_used_percent", "reason", "dry_run"]


@pytest.mark.slow
def test_parsing_imports_nothing_heavy() -> None:
    files = sorted(map(str, DAGS.glob("*.py")))
    assert len(files) == 9
    code = f"""
import sys
import airflow.sdk, airflow.providers.apache.spark.operators.spark_submit, airflow.triggers.base
before = set(sys.modules)
import runpy
for file in {files!r}:
    runpy.run_path(file)
print(*sorted(set({HEAVY!r}) & (set(sys.modules) - before)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[-1:] in ([], [""]), done.stdout
