"""The DAGs on a real store, in a real Airflow task runner, with real Spark jobs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine import cycle
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import DIRECTORY
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.acts import act_files
from storage_engine.lake.acts.act_files import read_acts
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.housekeeping.kept_forecasts import read_forecasts
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.steps import make_plan, sense
from storage_engine.sensors.cleanup import StorageEngineDueSensor
from tests.services.command_line import run_command
from tests.services.toy import KINDS, LINES, lose_index, make_store

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

ALL_HOURS = ";".join(str(hour) for hour in range(24))
NEVER = "99"
STORE = "storage_engine_default"
STEPS = [step.__name__ for step in cycle.CLEANUP]


@pytest.fixture(autouse=True)
def _airflow(airflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = {"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": "spark-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))


def age(root: Path, segments: int) -> list[Path]:
    """Date the oldest segments back past their reserved time, and the others to now."""
    files = sorted((root / "commitlog").iterdir())
    now = time.time()
    for index, path in enumerate(files):
        modified = now - 10 * 86400 if index < segments else now
        os.utime(path, (modified, modified))
    return files[:segments]


def content(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.parent.name != DIRECTORY
    }


@pytest.fixture
def run(load_dag: Any) -> Callable[..., tuple[str, dict[str, str]]]:
    """Run a DAG to its end; gives the run's state, and each task's by its name without the group."""

    def run_dag(file: str, conf: dict[str, Any] | None = None) -> tuple[str, dict[str, str]]:
        dag = load_dag(file)
        for task in dag.tasks:
            task.retries = 0
            if isinstance(task, StorageEngineDueSensor):
                task.timeout = 0
        dag_run = dag.test(run_conf=conf)
        states = {ti.task_id.rpartition(".")[2]: str(ti.state) for ti in dag_run.get_task_instances()}
        return str(dag_run.state), states

    return run_dag


def report(reports: Path) -> dict[str, Any]:
    """The newest report of the store."""
    newest = max((reports / STORE).glob("*/report.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def archived(directory: Path) -> list[int]:
    lake = open_lake(LakeConfig.local(directory / "lake"))
    (store,) = list_stores(lake)
    return sorted(row.base_offset for row in receipts(lake, store.store_id))


IN_PROCESS_AND_ON_SPARK = [None, pytest.param("spark_default", marks=pytest.mark.again)]
"""Connections to Spark; the demo is a DAG run that submits to it, too."""


@pytest.mark.parametrize("spark", IN_PROCESS_AND_ON_SPARK)
def test_retention_archives_proves_and_deletes_what_has_expired(
    spark: str | None, store_connection: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spark is None:
        # No Spark can be started.
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "http"}))
    extra = {"spark_conn_id": spark, "spark_from": 0}
    store = store_connection(STORE, extra=extra, deleteWhen=ALL_HOURS)
    old = age(store.root, 5)
    state, tasks = run("storage_retention.py")
    assert state == "success", tasks
    assert set(tasks.values()) == {"success"}
    assert not any(path.exists() for path in old)
    assert len(list((store.root / "commitlog").iterdir())) == 3
    assert archived(store.directory) == [int(path.name) for path in old]
    written = report(store.reports)
    assert written["ok"] is True
    assert written["outcome"] == "done"
    assert written["lag"]["groups"] > 0
    assert written["validation"]["checks"]
    assert not list(store.reports.glob(".spark-job-*"))
    from storage_engine.hooks.storage_engine import StorageEngineHook
    from storage_engine.retention.store.managed_store import archive_threads_of

    threads = archive_threads_of(StorageEngineHook(STORE).managed_store, 1 << 20)
    places = (
        ("in process, 1 thread", f"in process, {threads} threads")
        if spark is None
        else ("in Spark at local[2]",) * 2
    )
    assert written["ran"] == [f"Consumer lag {places[0]}", f"Archive {places[1]}"]

    # Cleared and run again, the lag's task finds its segments gone, and what it found before on record.
    from storage_engine.operators.spark_job import StorageEngineConsumerLagOperator

    dag_id, _, run_id = written["run_key"].partition("/")
    again = StorageEngineConsumerLagOperator(task_id="again", storage_engine_conn_id=STORE)
    context: Any = {"dag_run": SimpleNamespace(dag_id=dag_id, run_id=run_id)}
    assert again.execute(context) == written["lag"]

    # What consumers lose is in the XCom of each task that a person reads.
    from storage_engine.operators.retention import StorageEngineReleaseOperator

    released = StorageEngineReleaseOperator(task_id="again", storage_engine_conn_id=STORE).execute(context)
    assert released["unread_messages"] == 37
    assert released["unread"] == written["unread_lines"]
    assert "are only in the lake now; to get them: storage-engine export" in released["unread"][0]


@pytest.mark.again
def test_with_nothing_expired_the_rest_is_skipped_and_the_report_says_why(
    store_connection: Any, run: Any
) -> None:
    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    age(store.root, 0)
    before = content(store.root)
    state, tasks = run("storage_retention.py")
    assert state == "success"
    assert (tasks["plan"], tasks["report"]) == ("success",) * 2
    assert {name for name, found in tasks.items() if found == "skipped"} == {
        "consumer_lag",
        "archive",
        "release",
        "clean_dependents",
        "flush_checkpoint",
        "validate",
    }
    written = report(store.reports)
    assert written["outcome"] == "nothing-to-do"
    assert {segment["reason"] for segment in written["segments"]} == {"not-expired", "active"}
    assert content(store.root) == before


@pytest.mark.again
def test_an_unreachable_lake_keeps_every_segment_and_the_run_is_red_with_a_report(
    store_connection: Any, tmp_path: Path, run: Any
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the lake's directory should be")
    extra = {"lake_directory": str(blocked / "lake")}
    store = store_connection(STORE, extra=extra, deleteWhen=ALL_HOURS)
    age(store.root, 3)
    before = content(store.root)
    state, tasks = run("storage_retention.py")
    assert state == "failed"
    assert "failed" in tasks.values()
    assert tasks["release"] == "upstream_failed"
    assert content(store.root) == before


@pytest.mark.again
def test_a_waived_plan_goes_though_its_lake_is_unreachable(store_connection: Any, run: Any) -> None:
    from storage_engine.hooks.storage_engine import StorageEngineHook

    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    old = age(store.root, 2)
    managed = StorageEngineHook(STORE).managed_store
    sense(managed)
    plan = preview(managed, PlanRequest()).plan
    shutil.rmtree(store.directory / "lake" / "warehouse")
    (store.directory / "lake" / "catalog.db").write_bytes(b"what is left of it" * 100)
    Journal(managed.journal_url).waive(plan.digest, "ann", "lake burnt down")
    state, tasks = run("storage_retention.py")
    done = ("plan", "consumer_lag", "archive", "release", "clean_dependents", "flush_checkpoint")
    assert {tasks[name] for name in done} == {"success"}
    assert not any(path.exists() for path in old)
    assert {row["proof"] for row in report(store.reports)["segments"] if row["planned"]} == {"waived"}
    # Whether nothing is lost can't be told without the lake, so the run is red all the same.
    assert (state, tasks["validate"]) == ("failed", "failed")


@pytest.mark.again
def test_policy_archive_off_deletes_without_a_lake(store_connection: Any, run: Any) -> None:
    store = store_connection(STORE, extra={"archive": "off"}, make_lake=False, deleteWhen=ALL_HOURS)
    old = age(store.root, 2)
    state, tasks = run("storage_retention.py")
    assert state == "success", tasks
    assert set(tasks.values()) == {"success"}
    assert not any(path.exists() for path in old)
    assert not (store.directory / "lake").exists()
    assert {row["proof"] for row in report(store.reports)["segments"] if row["planned"]} == {"archive-off"}


@pytest.mark.again
def test_a_held_store_is_left_alone_and_the_report_says_so(store_connection: Any, run: Any) -> None:
    from storage_engine.rocketmq.format.broker_config import load_broker_config
    from storage_engine.rocketmq.format.layout import resolve_layout
    from storage_engine.rocketmq.store.store_lock import lock

    store = store_connection(STORE, deleteWhen=ALL_HOURS, cleanFileForciblyEnable="true")
    age(store.root, 1)
    before = content(store.root)
    with lock(resolve_layout(load_broker_config(None, {}, root=store.root))):
        state, tasks = run("storage_forced_cleanup.py", {"reason": "a test", "segments": 1, "dry_run": False})
    assert state == "failed"
    assert (tasks["archive"], tasks["release"], tasks["report"]) == ("success", "failed", "failed")
    assert content(store.root) == before
    assert any("StoreBusyError" in step["error"] for step in report(store.reports)["steps"])


def test_forced_cleanup_is_a_dry_run_by_default_and_says_what_consumers_would_lose(
    store_connection: Any, run: Any
) -> None:
    store = store_connection(STORE, deleteWhen=NEVER)
    age(store.root, 0)
    before = content(store.root)
    state, tasks = run("storage_forced_cleanup.py", {"reason": "disk is filling", "segments": 5})
    assert state == "success"
    assert tasks == {
        "plan": "success",
        "consumer_lag": "success",
        "report": "success",
        **dict.fromkeys(STEPS[2:-1], "skipped"),
    }
    written = report(store.reports)
    assert (written["outcome"], written["ok"], written["freed_bytes"]) == ("dry-run", True, 0)
    assert written["lag"]["groups"] > 0
    assert "37 unread messages of cg_orders" in written["unread_lines"][0]
    assert [s["base_offset"] for s in written["segments"] if s["planned"]] == [n << 20 for n in range(5)]
    assert written["request"]["reason"] == "disk is filling"
    assert content(store.root) == before
    lake = open_lake(LakeConfig.local(store.directory / "lake"))
    assert list_stores(lake) == ()


@pytest.mark.again
def test_forced_cleanup_lets_so_many_go_whatever_their_age(store_connection: Any, run: Any) -> None:
    store = store_connection(STORE, deleteWhen=NEVER)
    age(store.root, 0)
    conf = {"reason": "it's {{ full }}", "segments": 2, "dry_run": False}
    state, tasks = run("storage_forced_cleanup.py", conf)
    assert state == "success", tasks
    assert min(path.name for path in (store.root / "commitlog").iterdir()) == "00000000000002097152"
    assert archived(store.directory) == [0, 1048576]
    written = report(store.reports)
    assert written["request"]["reason"] == "it's {{ full }}"
    assert {segment["reason"] for segment in written["segments"] if segment["fate"] == "deleted"} == {
        "forced"
    }


@pytest.mark.again
@pytest.mark.parametrize("spark", IN_PROCESS_AND_ON_SPARK)
def test_what_is_sealed_is_archived_ahead_and_a_forced_cleanup_then_starts_no_spark(
    spark: str | None, store_connection: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"archive_when": "seal", "archive_budget_bytes": 3 << 20, "spark_conn_id": spark, "spark_from": 0}
    store = store_connection(STORE, extra=extra, deleteWhen=ALL_HOURS, cleanFileForciblyEnable="true")
    age(store.root, 0)
    state, tasks = run("storage_archive.py")
    assert (state, tasks) == ("success", {"archive_sealed": "success", "report": "success"})
    assert archived(store.directory) == [0, 1 << 20, 2 << 20]
    written = report(store.reports)
    assert (written["archived_ahead"], written["outcome"]) == (3, "done")
    assert not list(store.reports.glob(".spark-job-*"))

    # The store is one that archives on Spark, and no Spark can be started.
    variable = f"AIRFLOW_CONN_{STORE.upper()}"
    connection = json.loads(os.environ[variable])
    connection["extra"]["spark_conn_id"] = "spark_default"
    monkeypatch.setenv(variable, json.dumps(connection))
    unreachable = {"conn_type": "spark", "host": "spark://127.0.0.1:1"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(unreachable))
    # Consumer lag is below it, and nothing is left to archive.
    connection["extra"]["spark_from"] = "0B"
    monkeypatch.setenv(variable, json.dumps(connection))
    conf = {"reason": "it's {{ full }}", "segments": 3, "dry_run": False}
    state, tasks = run("storage_forced_cleanup.py", conf)
    assert state == "success", tasks
    assert set(tasks.values()) == {"success"}
    assert min(path.name for path in (store.root / "commitlog").iterdir()) == f"{3 << 20:020d}"
    written = report(store.reports)
    assert written["request"]["reason"] == "it's {{ full }}"
    deleted = [segment for segment in written["segments"] if segment["fate"] == "deleted"]
    assert {(segment["reason"], segment["proof"]) for segment in deleted} == {("forced", "proven")}


def test_where_nothing_is_archived_ahead_by_policy_such_a_run_does_nothing(
    store_connection: Any, run: Any
) -> None:
    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    assert run("storage_archive.py") == ("success", {"archive_sealed": "skipped", "report": "skipped"})
    assert not store.reports.exists()


def test_an_archive_lag_above_its_threshold_fails_the_monitor_and_the_cleanup_is_due_all_the_same(
    store_connection: Any, run: Any
) -> None:
    store = store_connection(STORE, extra={"archive_lag_alarm_bytes": 2 << 20}, deleteWhen=ALL_HOURS)
    age(store.root, 1)
    state, tasks = run("storage_monitor.py")
    assert (state, tasks) == ("failed", {"monitor": "failed", "sense": "success"})
    (known,) = Journal(f"sqlite:///{store.directory / 'journal.db'}").all_stores()
    found = JournalReader(f"sqlite:///{store.directory / 'journal.db'}").findings(known.store_id)
    assert found is not None
    assert [alarm[:27] for alarm in found.found["alarms"]] == ["archive lag: expected at mo"]


@pytest.fixture
def toy_store(
    toy_broker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[Path, ...]]:
    """Make a store of the toy broker, which the default connection leads to; its old files by log."""
    root = tmp_path / "toy"
    old = make_store(root)
    fields = {
        "root": str(root),
        "broker_type": "toy",
        "lake_directory": str(tmp_path / "managed" / "lake"),
        "journal_url": f"sqlite:///{tmp_path}/managed/journal.db",
        "report_dir": str(tmp_path / "managed" / "reports"),
    }
    connection = {"conn_type": "storage_engine", "extra": fields}
    monkeypatch.setenv("AIRFLOW_CONN_STORAGE_ENGINE_DEFAULT", json.dumps(connection))
    make_lake(LakeConfig.local(tmp_path / "managed" / "lake"), "toy")
    return old


@pytest.mark.again
def test_a_store_of_another_package_s_broker_goes_through_the_dag(
    toy_store: dict[str, tuple[Path, ...]], tmp_path: Path, run: Any
) -> None:
    state, tasks = run("storage_retention.py")
    assert state == "success", tasks
    gone = [path.with_suffix(kind) for paths in toy_store.values() for path in paths for kind in KINDS]
    assert not any(path.exists() for path in gone)
    written = report(tmp_path / "managed" / "reports")
    assert (written["outcome"], written["ok"]) == ("done", True)
    assert written["validation"]["checks"]
    ends = [row["end_offset"] for row in written["validation"]["ranges"]]
    assert ends == [2 * LINES, 4 * LINES + 1, LINES, 2 * LINES + 1]
    assert archived(tmp_path / "managed") == sorted(
        int(p.stem) for paths in toy_store.values() for p in paths
    )


@pytest.mark.again
def test_a_run_that_refused_a_log_fails_in_its_last_task(
    toy_store: dict[str, tuple[Path, ...]], tmp_path: Path, run: Any
) -> None:
    (kept,) = toy_store["errors"]
    lose_index(kept)
    state, tasks = run("storage_retention.py")
    assert (state, tasks["report"]) == ("failed", "failed")
    following = ("archive", "release", "clean_dependents", "flush_checkpoint", "validate")
    assert {tasks[task] for task in following} == {"success"}
    assert [kept.exists(), *(path.exists() for path in toy_store["access"])] == [True, False, False]
    written = report(tmp_path / "managed" / "reports")
    assert (written["outcome"], written["ok"]) == ("released-in-part", False)
    assert [one["log"] for one in written["refused"]] == ["errors"]


@pytest.mark.again
def test_maintenance_lets_go_what_the_rules_of_a_lake_no_longer_keep(
    store_connection: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", STORE)
    extra = {"spark_conn_id": None, "spark_from": 0}
    store = store_connection(STORE, extra=extra, deleteWhen=ALL_HOURS)
    age(store.root, 4)
    state, tasks = run("storage_retention.py")
    assert state == "success", tasks
    with monkeypatch.context() as patch:
        ago_ms = clock_ms() - 2 * 86_400_000
        patch.setattr(act_files, "clock_ms", lambda: ago_ms)
        patch.setattr(act_files, "read_clock_at", lambda *_: ago_ms * 1_000_000)
        keep = run_command("lake", "keep", "--conn-id", STORE, "--keep", "0 days")
    assert keep.exit_code == 0, keep.err
    # The plan that deleted them lists them; a later one doesn't.
    managed = StorageEngineHook(STORE).managed_store
    make_plan(managed, "later", PlanRequest(manual=True))
    finish(managed, "later")
    state, tasks = run("storage_maintenance.py")
    assert (state, set(tasks.values())) == ("success", {"success"}), tasks
    lake = open_lake(LakeConfig.local(store.directory / "lake"))
    (found,) = list_stores(lake)
    states = [row.state for row in receipts(lake, found.store_id, with_ended=True)]
    assert states == ["expired"] * 4 + [None] * (len(states) - 4)
    assert "expire" in [it.act.decision.kind.value for it in read_acts(lake)]
    (kept,) = read_forecasts(JournalReader(managed.journal_url), found.store_id)
    assert kept.forecast.rules
    assert kept.forecast.topics
