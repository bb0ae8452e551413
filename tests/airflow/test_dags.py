"""The DAG files: what they consist of, and that parsing them stays cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError

DAGS = Path(__file__).parents[2] / "dags"
STEPS = [
    "plan",
    "consumer_lag",
    "archive",
    "release",
    "clean_dependents",
    "flush_checkpoint",
    "validate",
    "report",
]
HEAVY = ["numba", "pyspark", "great_expectations", "pyiceberg", "pyarrow", "pandas", "isal"]


def chain_of(dag: Any, first: str) -> list[str]:
    """Task ids from ``first`` on; every task has at most one successor."""
    ids = [first]
    while downstream := dag.get_task(ids[-1]).downstream_task_ids:
        (only,) = downstream
        ids.append(only)
    return ids


def check_params(form: Any, given: dict[str, Any]) -> None:
    """Validate what a person entered, as Airflow does when a run is created."""
    form.update(given)
    form.validate()


def test_each_configured_store_has_the_whole_cycle(load_dag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "one,other")
    dag = load_dag("storage_retention.py")
    for store in ("one", "other"):
        assert chain_of(dag, f"{store}.sense") == [f"{store}.{step}" for step in ("sense", *STEPS)]
        beside = [f"{store}.{step}" for step in ("archive_sealed", "archive_lag", "report")]
        assert chain_of(dag, f"{store}.archive_sealed") == beside
        assert {
            task.storage_engine_conn_id for task in dag.tasks if task.task_id.startswith(f"{store}.")
        } == {store}
    assert len(dag.tasks) == 2 * (3 + len(STEPS))


def test_no_deletion_waits_for_what_is_archived_ahead(load_dag: Any) -> None:
    dag = load_dag("storage_retention.py")
    group = "storage_engine_default"
    assert dag.get_task(f"{group}.archive_sealed").upstream_task_ids == set()
    upstream = dag.get_task(f"{group}.validate").get_flat_relative_ids(upstream=True)
    assert upstream.isdisjoint({f"{group}.archive_sealed", f"{group}.archive_lag"})


def test_tasks_run_on_the_queue_that_the_connection_names(
    load_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "one,other,third")
    for store, queue in (("one", "host-a"), ("other", "host-a"), ("third", "")):
        definition = {"conn_type": "storage_engine", "extra": {"root": "/s", "queue": queue}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{store.upper()}", json.dumps(definition))
    found = {(task.task_id.partition(".")[0], task.queue) for task in load_dag("storage_retention.py").tasks}
    assert found == {("one", "host-a"), ("other", "host-a"), ("third", "default")}
    by_hand = DagBag(str(DAGS / "storage_forced_cleanup.py"), load_op_links=False).dags
    assert {dag_id: {task.queue for task in dag.tasks} for dag_id, dag in by_hand.items()} == {
        "storage_forced_cleanup_host-a": {"host-a"},
        "storage_forced_cleanup": {"default"},
    }


def test_retention_is_scheduled_one_run_at_a_time_without_catching_up(load_dag: Any) -> None:
    dag = load_dag("storage_retention.py")
    assert (dag.max_active_runs, dag.catchup, dag.dag_id) == (1, False, "storage_retention")
    assert dag.schedule == "*/10 * * * *"


@pytest.mark.parametrize("file", ["storage_retention.py", "storage_forced_cleanup.py"])
def test_a_report_is_written_whatever_becomes_of_the_run(load_dag: Any, file: str) -> None:
    dag = load_dag(file)
    (last,) = dag.leaves
    assert last.task_id.endswith("report")
    assert last.trigger_rule == "all_done"


def test_stores_are_tended_every_ten_minutes_each_where_its_disk_is(
    load_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "near, far")
    for conn_id, extra in (("NEAR", {}), ("FAR", {"queue": "host-a"})):
        definition = {"conn_type": "storage_engine", "extra": {"root": "/store", **extra}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps(definition))
    dag = load_dag("storage_flush_checkpoint.py")
    assert {(task.task_id, task.queue) for task in dag.tasks} == {("near", "default"), ("far", "host-a")}
    assert (dag.schedule, dag.max_active_runs, dag.catchup) == ("*/10 * * * *", 1, False)


def test_each_lake_is_maintained_daily_its_stores_where_their_disks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "near, far, alone, other, nowhere, broken")
    for conn_id, extra in {
        "NEAR": {"lake_directory": "/data/orders"},
        "FAR": {"lake_directory": "/data/orders", "queue": "host-a"},
        "ALONE": {"lake_properties": {"type": "rest", "warehouse": "s3://bucket/warehouse"}},
        "OTHER": {"lake_directory": "/more/orders"},
        "BROKEN": {"lake_directory": "/data/orders", "lake_properties": {"type": "rest"}},
    }.items():
        definition = {"conn_type": "storage_engine", "extra": {"root": "/store", **extra}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps(definition))
    bag = DagBag(str(DAGS / "storage_maintenance.py"), load_op_links=False)
    assert bag.import_errors == {}
    found = {dag_id: {(task.task_id, task.queue) for task in dag.tasks} for dag_id, dag in bag.dags.items()}
    assert found.pop("storage_maintenance__bucket") == {("alone", "default")}
    # Two lakes of one name are told apart.
    assert sorted(found.values(), key=len) == [
        {("other", "default")},
        {("near", "default"), ("far", "host-a")},
    ]
    assert all(dag_id.startswith("storage_maintenance__orders-") for dag_id in found)
    assert {(dag.schedule, dag.max_active_runs, dag.catchup) for dag in bag.dags.values()} == {
        ("@daily", 1, False)
    }


def test_a_quiet_store_is_planned_too_so_that_the_report_can_say_why_all_stays(load_dag: Any) -> None:
    plan = load_dag("storage_retention.py").get_task("storage_engine_default.plan")
    assert plan.trigger_rule == "none_failed"


def test_forced_cleanup_is_by_hand_only(load_dag: Any) -> None:
    dag = load_dag("storage_forced_cleanup.py")
    assert chain_of(dag, "plan") == STEPS
    assert dag.schedule is None


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({}, "reason"),
        ({"reason": ""}, "too short|non-empty"),
        ({"reason": "disk", "store": "unknown"}, "unknown"),
        ({"reason": "disk", "segments": 0}, "minimum"),
        ({"reason": "disk", "segments": "3"}, "not of type"),
        ({"reason": "disk", "target_used_percent": 101}, "maximum"),
        ({"reason": "disk", "dry_run": "no"}, "not of type"),
    ],
)
def test_forced_cleanup_refuses_bad_params(load_dag: Any, params: dict[str, Any], fault: str) -> None:
    dag = load_dag("storage_forced_cleanup.py")
    with pytest.raises(ParamValidationError, match=fault):
        check_params(dag.params, params)


def test_forced_cleanup_only_looks_unless_told_otherwise(load_dag: Any) -> None:
    dag = load_dag("storage_forced_cleanup.py")
    assert dag.params["dry_run"] is True


@pytest.mark.slow
def test_parsing_imports_nothing_heavy() -> None:
    files = sorted(map(str, DAGS.glob("*.py")))
    assert len(files) == 4
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
