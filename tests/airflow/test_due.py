"""What a store costs Airflow while nothing is due, and what its DAGs are told when something is."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from storage_engine import cycle
from storage_engine.assets import (
    archive_due,
    cleanup_due,
    lake_messages,
    segments_archived,
    segments_deleted,
)
from storage_engine.exceptions import StoreLayoutError
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.sensors.cleanup import StorageEngineDueSensor

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

ALL_HOURS = ";".join(str(hour) for hour in range(24))
NEVER = "99"
STORE = "storage_engine_default"
DAGS = Path(__file__).parents[2] / "dags"
EACH_TEN_MINUTES, EACH_HOUR = "*/10 * * * *", "@hourly"

Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def run(airflow_database: Path) -> Callable[..., tuple[dict[str, str], Events]]:
    """Run DAGs to their ends, each of which senses once; gives their tasks' states, and their events."""

    def run_dags(*dags: Any, conf: dict[str, Any] | None = None) -> tuple[dict[str, str], Events]:
        known = len(_events())
        states = {}
        for dag in dags:
            for task in dag.tasks:
                task.retries = 0
                if isinstance(task, StorageEngineDueSensor):
                    task.timeout = 0
            states |= {one.task_id: str(one.state) for one in dag.test(run_conf=conf).get_task_instances()}
        return states, _events()[known:]

    return run_dags


def _events() -> Events:
    """All events of assets, by URI, the oldest first."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(AssetEvent).order_by(AssetEvent.id))
        return [(event.asset.uri, dict(event.extra)) for event in found]


@pytest.fixture
def pause(airflow_database: Path) -> Iterator[Callable[[str, bool], None]]:
    """Pause the store's DAG of a kind, or not. In the end none is: tests of other files run them, too."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    touched: set[str] = set()

    def set_paused(kind: str, is_paused: bool) -> None:
        touched.add(kind)
        with create_session() as session:
            session.get(DagModel, f"storage_{kind}__{STORE}").is_paused = is_paused

    yield set_paused
    for kind in tuple(touched):
        set_paused(kind, False)


def dag_of(file: str) -> Any:
    bag = DagBag(str(DAGS / file), load_op_links=False)
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    return dag


def age(root: Path, segments: int) -> None:
    """Date the oldest segments back past their reserved time, and the others to now."""
    now = time.time()
    for index, path in enumerate(sorted((root / "commitlog").iterdir())):
        modified = now - 10 * 86400 if index < segments else now
        os.utime(path, (modified, modified))


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(ALL_HOURS, id="a cause, but nothing has expired"),
        pytest.param(NEVER, id="no cause", marks=pytest.mark.again),
    ],
)
def test_where_nothing_is_due_a_store_takes_three_task_instances_and_no_report(
    store_connection: Any, run: Any, window: str
) -> None:
    store = store_connection(STORE, deleteWhen=window)
    age(store.root, 0)
    files = sorted(path.name for path in DAGS.glob("*.py") if path.name != "storage_kafka_log_manager.py")
    dags = [dag_of(name) for name in files]
    by_clock = [dag for dag in dags if dag.schedule in (EACH_TEN_MINUTES, EACH_HOUR)]
    by_others = [dag.schedule for dag in dags if dag not in by_clock]
    assert by_others == [
        [archive_due(STORE)],
        None,
        "@daily",
        [cleanup_due(STORE)],
        None,
        [segments_archived(STORE)],
    ]
    states, events = run(*by_clock)
    assert states == {"monitor": "success", "sense": "skipped", "flush_checkpoint": "success"}
    assert events == []
    assert not store.reports.exists()
    journal = f"sqlite:///{store.directory / 'journal.db'}"
    (known,) = Journal(journal).all_stores()
    assert {row.outcome for row in JournalReader(journal).runs(known.store_id)} <= {None}


@pytest.mark.again
def test_what_is_due_is_told_again_until_it_is_done(store_connection: Any, run: Any) -> None:
    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    age(store.root, 3)
    for _ in range(2):
        states, events = run(dag_of("storage_monitor.py"))
        assert states == {"monitor": "success", "sense": "success"}
        ((uri, extra),) = events
        assert uri == cleanup_due(STORE).uri == "x-storage-engine://stores/storage_engine_default/cleanup-due"
        assert (extra["store"], extra["segments"], extra["causes"]) == (STORE, 3, ["time-up"])
        assert extra["why"] == ["3 segments, 3.0 MiB, would be deleted"]
    states, events = run(dag_of("storage_retention.py"))
    assert set(states.values()) == {"success"}
    assert [uri for uri, _ in events] == [
        segments_archived(STORE).uri,
        lake_messages().uri,
        segments_deleted(STORE).uri,
    ]
    assert [uri for uri, _ in run(dag_of("storage_monitor.py"))[1]] == []


@pytest.mark.again
def test_each_task_tells_its_story_in_at_most_five_lines(
    store_connection: Any, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    age(store.root, 2)
    capsys.readouterr()
    run(*(dag_of(f"storage_{kind}.py") for kind in ("monitor", "retention", "flush_checkpoint")))
    out = capsys.readouterr().out
    own = r"\[(?:info|warning) *\] (.*?) +\[airflow\.task\.operators\.storage_engine\S+\.StorageEngine(\w+)\]"
    lines: dict[str, list[str]] = {}
    for line, kind in re.findall(own, out):
        lines.setdefault(kind, []).append(line)
    assert "Loaded FileIO" not in out
    assert "Loaded Catalog" not in out
    # One operator for each task; flush_checkpoint is in two of the DAGs.
    flush = lines["FlushCheckpointOperator"]
    assert len(lines) == 2 + len(cycle.CLEANUP)
    assert {kind: said for kind, said in lines.items() if len(said) > 5 and said is not flush} == {}
    assert len(flush) <= 2 * 5
    assert lines["PlanOperator"][-2:] == [
        "2 segments to delete, 2.0 MiB: commitlog up to 2097152",
        "6 segments to keep: 5 not-expired, 1 active",
    ]
    for kind, told in {
        "ConsumerLagOperator": "5 groups, ",
        "ArchiveOperator": "2 segments archived and proven, 2.0 MiB, ",
        "ReleaseOperator": "2 segments deleted, 2.0 MiB freed; commitlog begins at 2097152",
        "CleanDependentsOperator": "files deleted",
        "FlushCheckpointOperator": "flushed; the checkpoint was read, not changed.",
        "ValidateOperator": "OK: checks ",
        "ReportOperator": "done; report: ",
    }.items():
        assert any(told in line for line in lines[kind]), lines[kind]


@pytest.mark.again
def test_events_say_how_much_went_and_from_where_to_where(store_connection: Any, run: Any) -> None:
    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    age(store.root, 2)
    _, events = run(dag_of("storage_retention.py"))
    archived, lake, deleted = (extra for _, extra in events)
    assert archived == lake
    assert {**deleted, "size_bytes": archived["size_bytes"]} == archived
    assert archived["run_key"].startswith(f"storage_retention__{STORE}/")
    assert (archived["segments"], archived["size_bytes"], archived["store"]) == (2, 2 << 20, STORE)
    assert archived["spans"] == [{"log": "commitlog", "first_offset": 0, "end_offset": 2 << 20}]
    assert archived["messages"] > 0
    assert 0 < archived["first_message_ms"] < archived["last_message_ms"]
    assert archived["lake"] == LakeConfig.local(store.directory / "lake").location
    # Nothing is left that may go.
    states, events = run(dag_of("storage_retention.py"))
    assert (states["plan"], states["archive"], events) == ("success", "skipped", [])


@pytest.mark.again
def test_a_dry_run_tells_nobody(store_connection: Any, run: Any) -> None:
    store = store_connection(STORE, deleteWhen=NEVER)
    age(store.root, 2)
    conf = {"manual": True, "dry_run": True}
    states, events = run(dag_of("storage_retention.py"), conf=conf)
    assert (states["consumer_lag"], states["archive"], events) == ("success", "skipped", [])


@pytest.mark.again
def test_what_is_to_be_archived_ahead_is_told_once_a_run_until_it_is(store_connection: Any, run: Any) -> None:
    extra = {"archive_when": "seal", "archive_budget_bytes": 4 << 20}
    store = store_connection(STORE, extra=extra, deleteWhen=NEVER)
    age(store.root, 0)
    for left in (7, 3):
        states, events = run(dag_of("storage_monitor.py"))
        assert (states["sense"], events) == (
            "success",
            [(archive_due(STORE).uri, {"store": STORE, "segments": left})],
        )
        states, events = run(dag_of("storage_archive.py"))
        assert states == {"archive_sealed": "success", "report": "success"}
        assert [uri for uri, _ in events] == [segments_archived(STORE).uri, lake_messages().uri]
        assert {extra["segments"] for _, extra in events} == {min(left, 4)}
    assert run(dag_of("storage_monitor.py")) == ({"monitor": "success", "sense": "skipped"}, [])


@pytest.mark.again
def test_a_run_that_is_there_already_is_told_nothing(
    store_connection: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    age(store.root, 0)
    run(dag_of("storage_retention.py"))
    age(store.root, 1)

    def set_state(state: DagRunState) -> None:
        with create_session() as session:
            of_dag = select(DagRun).where(DagRun.dag_id == f"storage_retention__{STORE}")
            (*_, last) = session.scalars(of_dag.order_by(DagRun.id))
            last.state = state

    set_state(DagRunState.RUNNING)
    assert run(dag_of("storage_monitor.py")) == ({"monitor": "success", "sense": "success"}, [])
    set_state(DagRunState.FAILED)
    assert len(run(dag_of("storage_monitor.py"))[1]) == 1


@pytest.mark.again
def test_what_is_due_for_a_dag_that_is_paused_fails_and_says_so(
    store_connection: Any, run: Any, pause: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_connection(STORE, extra={"archive_when": "seal"}, deleteWhen=ALL_HOURS)
    age(store.root, 1)
    run(dag_of("storage_retention.py"), dag_of("storage_archive.py"))
    age(store.root, 1)
    pause("retention", True)
    states, events = run(dag_of("storage_monitor.py"))
    # Its times were changed, so it is to be archived again.
    assert (states["sense"], [uri for uri, _ in events]) == ("success", [archive_due(STORE).uri])
    assert f"airflow dags unpause storage_retention__{STORE}." in capsys.readouterr().out
    pause("archive", True)
    states, events = run(dag_of("storage_monitor.py"))
    assert (states["sense"], events) == ("failed", [])
    assert f"airflow dags unpause storage_archive__{STORE}." in capsys.readouterr().out
    pause("retention", False)
    states, events = run(dag_of("storage_monitor.py"))
    assert (states["sense"], [uri for uri, _ in events]) == ("success", [cleanup_due(STORE).uri])


def test_what_cannot_be_planned_is_an_error_and_not_quiet(store_connection: Any) -> None:
    store = store_connection(STORE, deleteWhen=ALL_HOURS)
    age(store.root, 1)
    os.truncate(store.root / "commitlog" / f"{0:020d}", 20)
    with pytest.raises(StoreLayoutError, match=f"{0:020d}: expected"):
        StorageEngineDueSensor(task_id="sense", soft_fail=True).execute({})
