"""The DAG files: what they consist of."""

from __future__ import annotations

import configparser
import json
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError

from storage_engine.assets import archive_due, cleanup_due
from storage_engine.hooks.configured_stores import configured_stores, in_dag_ids, stores_by_lake
from storage_engine.project.init import init_project

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


LISTED = json.dumps(
    [
        {"conn_id": "near"},
        {"conn_id": "far", "queue": "host-a", "pool": "slow", "schedule": "@hourly", "lake": "orders"},
        {"conn_id": "shop (eu)", "lake": "orders"},
    ]
)


def dags_of(file: str) -> dict[str, Any]:
    """The DAGs of a file, by id, as the DAG processor finds them."""
    bag = DagBag(str(DAGS / file), load_op_links=False)
    assert bag.import_errors == {}
    return dict(bag.dags)


def test_each_store_has_dags_of_its_own_with_its_schedule_queue_and_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", LISTED)
    shop = in_dag_ids("shop (eu)")
    for kind in ("retention", "archive", "forced_cleanup", "monitor", "flush_checkpoint"):
        found = dags_of(f"storage_{kind}.py")
        assert set(found) == {f"storage_{kind}__{name}" for name in ("near", "far", shop)}
        near, far, other = (found[f"storage_{kind}__{name}"] for name in ("near", "far", shop))
        assert {(t.queue, t.pool, t.storage_engine_conn_id) for t in near.tasks} == {
            ("default", "default_pool", "near")
        }
        assert {(t.queue, t.pool, t.storage_engine_conn_id) for t in far.tasks} == {("host-a", "slow", "far")}
        assert {t.storage_engine_conn_id for t in other.tasks} == {"shop (eu)"}
        assert {dag.max_active_runs for dag in found.values()} == {1}
        if kind == "monitor":
            assert [dag.schedule for dag in (near, far)] == ["*/10 * * * *", "@hourly"]
        if kind in ("retention", "archive"):
            due = cleanup_due if kind == "retention" else archive_due
            assert [dag.schedule for dag in (near, other)] == [[due("near")], [due("shop (eu)")]]


def test_a_dag_file_of_ones_own_may_name_another_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the docs say, for more stores than one file is parsed for in time."""
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__MORE_STORES", LISTED)
    assert [store.conn_id for store in configured_stores("more_stores")] == ["near", "far", "shop (eu)"]
    found = {name: [one.conn_id for one in of] for name, of in stores_by_lake("more_stores").items()}
    assert found == {"lake": ["near"], "orders": ["far", "shop (eu)"]}


def test_the_tasks_of_a_store_with_an_executor_are_that_ones_and_look_where_its_disk_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = {"conn_id": "far", "queue": "host-a", "executor": "LocalExecutor"}
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", json.dumps([entry, {"conn_id": "near"}]))
    found = dags_of("storage_monitor.py")
    for name, executor in (("far", "LocalExecutor"), ("near", None)):
        dag = found[f"storage_monitor__{name}"]
        assert {task.executor for task in dag.tasks} == {executor}
        assert dag.get_task("sense").deferrable is (executor is None)


def test_connections_separated_by_commas_have_what_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", " one, other,one,")
    assert sorted(dags_of("storage_monitor.py")) == ["storage_monitor__one", "storage_monitor__other"]


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ('[{"conn_id": "a"}, {"queue": "q"}]', r"[storage_engine] stores[1]: expected the keys conn_id"),
        ('[{"conn_id": "a", "quue": "q"}]', r"[storage_engine] stores[0]: expected only the keys conn_id"),
        ('[{"conn_id": "a"}, {"conn_id": "a"}]', "[storage_engine] stores: expected each conn_id once"),
        ('[{"conn_id": "a"}', "[storage_engine] stores: expected a JSON list of stores"),
        ('[{"conn_id": " "}]', "[storage_engine] stores[0].conn_id: expected the id of a connection"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch, listed: str, said: str
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", listed)
    (error,) = DagBag(str(DAGS / "storage_retention.py"), load_op_links=False).import_errors.values()
    assert said in error


def test_a_store_has_the_whole_cycle(load_dag: Any) -> None:
    dag = load_dag("storage_retention.py")
    assert chain_of(dag, "plan") == STEPS
    assert len(dag.tasks) == len(STEPS)


def test_no_deletion_waits_for_what_is_archived_ahead(load_dag: Any) -> None:
    assert chain_of(load_dag("storage_archive.py"), "archive_sealed") == ["archive_sealed", "report"]
    for task_id in ("validate_rows", "retention_report"):
        assert chain_of(load_dag(f"storage_{task_id}.py"), task_id) == [task_id, "report"]


def test_retention_runs_one_at_a_time_without_catching_up(load_dag: Any) -> None:
    dag = load_dag("storage_retention.py")
    assert (dag.max_active_runs, dag.catchup, dag.dag_id) == (
        1,
        False,
        "storage_retention__storage_engine_default",
    )


def test_a_retention_run_by_hand_goes_by_the_rules_unless_asked(load_dag: Any) -> None:
    dag = load_dag("storage_retention.py")
    assert dict(dag.params) == {"manual": False, "dry_run": False}


def test_an_alarm_keeps_no_cleanup_waiting(load_dag: Any) -> None:
    dag = load_dag("storage_monitor.py")
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {"monitor": set(), "sense": set()}


@pytest.mark.parametrize("file", ["storage_retention.py", "storage_forced_cleanup.py"])
def test_a_report_is_written_whatever_becomes_of_the_run(load_dag: Any, file: str) -> None:
    dag = load_dag(file)
    (last,) = dag.leaves
    assert last.task_id.endswith("report")
    assert last.trigger_rule == "all_done"


def test_each_lake_is_maintained_daily_its_stores_where_their_disks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", LISTED)
    found = dags_of("storage_maintenance.py")
    assert {dag_id: [task.queue for task in dag.tasks] for dag_id, dag in found.items()} == {
        "storage_maintenance__lake": ["default"],
        "storage_maintenance__orders": ["host-a", "default"],
    }
    assert {(dag.schedule, dag.max_active_runs, dag.catchup) for dag in found.values()} == {
        ("@daily", 1, False)
    }


def test_forced_cleanup_is_by_hand_only(load_dag: Any) -> None:
    dag = load_dag("storage_forced_cleanup.py")
    assert chain_of(dag, "plan") == STEPS
    assert dag.schedule is None


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({}, "reason"),
        ({"reason": ""}, "too short|non-empty"),
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


def at_one_time(dag: Any) -> int:
    """How many tasks of a run may run at one time: the most of which none waits for another."""
    before = {task.task_id: task.get_flat_relative_ids(upstream=True) for task in dag.tasks}
    return max(
        len(some)
        for count in range(1, len(before) + 1)
        for some in combinations(before, count)
        if all(before[task].isdisjoint(some) for task in some)
    )


def test_a_store_that_hangs_keeps_at_most_nine_slots_and_a_project_has_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "hanging, healthy")
    found = {dag_id: dag for file in DAGS.glob("*.py") for dag_id, dag in dags_of(file.name).items()}
    of_hanging = [
        dag
        for dag in found.values()
        if {task.storage_engine_conn_id for task in dag.tasks} & {"hanging"} and dag.max_active_runs == 1
    ]
    assert len(of_hanging) == 8
    slots = {dag.dag_id: at_one_time(dag) for dag in of_hanging}
    # Its tasks are one a store.
    assert slots.pop("storage_maintenance__lake") == 2
    assert 1 + sum(slots.values()) == 9
    settings = configparser.RawConfigParser()
    settings.read(init_project(tmp_path / "p").settings_file)
    assert settings.getint("core", "parallelism") > 9


def test_a_run_that_hangs_ends_before_others_wait_for_it() -> None:
    hour = timedelta(hours=1)
    for kind, at_most in (("monitor", hour), ("flush_checkpoint", hour), ("maintenance", 24 * hour)):
        (dag,) = dags_of(f"storage_{kind}.py").values()
        assert dag.dagrun_timeout <= at_most
