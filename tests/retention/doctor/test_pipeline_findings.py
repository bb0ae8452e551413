"""A pipeline that doesn't run is told by what keeps it from running."""

from __future__ import annotations

from dataclasses import replace

from storage_engine.model.report.diagnosis import Severity
from storage_engine.retention.doctor.pipeline_findings import (
    ComponentFacts,
    DagFacts,
    DagRunFacts,
    PipelineFacts,
    QueueFacts,
    dag_text,
    pipeline_findings,
)

NOW_MS = 1_800_000_000_000
RUN = DagRunFacts("scheduled__1", "success", NOW_MS - 600_000, NOW_MS - 540_000)
RETENTION = DagFacts("storage_retention__s", needed=True, known=True, last=RUN)
MONITOR = DagFacts("storage_monitor__s", needed=True, known=True, last=RUN)
FLUSH = DagFacts("storage_flush_checkpoint__s", needed=False, known=True)
WELL = PipelineFacts(
    (RETENTION, MONITOR, FLUSH), (ComponentFacts("scheduler", NOW_MS), ComponentFacts("triggerer", NOW_MS))
)


def told(found: PipelineFacts) -> list[tuple[str, Severity]]:
    return [(one.kind, one.severity) for one in pipeline_findings(found, NOW_MS)]


def test_one_that_is_well_has_nothing_to_tell() -> None:
    assert told(WELL) == []


def test_what_keeps_it_from_running_is_as_urgent_as_what_it_keeps() -> None:
    silent = (ComponentFacts("scheduler", NOW_MS - 600_000), ComponentFacts("triggerer", None))
    assert told(replace(WELL, components=silent)) == [("airflow-component", Severity.URGENT)] * 2
    missing = replace(WELL, dags=(replace(RETENTION, known=False), replace(FLUSH, known=False)))
    assert told(missing) == [("dag-missing", Severity.URGENT)]
    assert told(replace(WELL, dags=(replace(FLUSH, known=False),))) == [("dag-missing", Severity.WARNING)]
    paused = replace(WELL, dags=(RETENTION, replace(FLUSH, paused=True)))
    assert told(paused) == [("dag-paused", Severity.WARNING)]
    failed = replace(RETENTION, last=replace(RUN, state="failed"))
    assert told(replace(WELL, dags=(failed,))) == [("dag-failed", Severity.URGENT)]
    broken = replace(WELL, import_errors=(("/dags/storage_retention.py", "ModuleNotFoundError: x"),))
    assert told(broken) == [("dag-import", Severity.URGENT)]


def test_a_task_that_waits_for_hours_is_normal_and_for_days_is_told() -> None:
    waits = replace(RETENTION, waits=(("wait_for_cause", NOW_MS - 3_600_000),))
    assert told(replace(WELL, dags=(waits,))) == []
    long = replace(RETENTION, waits=(("wait_for_cause", NOW_MS - 2 * 86_400_000),))
    assert told(replace(WELL, dags=(long,))) == [("sensor-waits", Severity.NOTE)]


def test_where_nobody_can_approve_is_urgent_and_who_waits_for_a_person_is_not_stuck() -> None:
    assert told(replace(WELL, approval="all users are one")) == [("approval", Severity.URGENT)]
    assert told(replace(WELL, unknown_approvers=("ghost",))) == [("approver", Severity.WARNING)]
    run = DagRunFacts("manual__1", "running", NOW_MS - 11 * 3_600_000, None)
    asked = replace(RETENTION, active=(run,), waits=(("approve", NOW_MS - 10 * 3_600_000),))
    assert told(replace(WELL, dags=(asked,))) == []
    long = replace(run, began_at_ms=NOW_MS - 19 * 3_600_000)
    assert told(replace(WELL, dags=(replace(asked, active=(long,)),))) == [("run-stuck", Severity.URGENT)]


def test_a_queue_that_no_edge_worker_takes_is_urgent_and_an_unknown_one_is_not() -> None:
    def found(workers: tuple[ComponentFacts, ...] | None) -> list[tuple[str, Severity]]:
        return told(replace(WELL, queue=QueueFacts("q", workers)))

    idle = ComponentFacts("db1", NOW_MS - 20_000, "idle")
    away = replace(idle, name="db2", state="maintenance mode")
    assert found((away, idle)) == found(None) == []
    for workers in ((), (away,), (replace(idle, heartbeat_ms=NOW_MS - 600_000),)):
        assert found(workers) == [("edge-worker", Severity.URGENT)]
    lines = {
        QueueFacts("q", (idle,), "db1", NOW_MS - 60_000): (
            "q: db1 (idle, alive 20 s ago); db1 saw the store 1 min ago"
        ),
        QueueFacts("q", None): (
            "q: unknown which workers take it; it is unknown which host sees the store, because no task "
            "there has succeeded"
        ),
    }
    for queue, line in lines.items():
        assert list(PipelineFacts(queue=queue).lines(NOW_MS)) == [("queue", line)]


def test_a_run_that_does_not_get_on_is_named_with_what_to_do() -> None:
    def found(state: str, hours: float, *, paused: bool = False) -> list[str]:
        run = DagRunFacts("asset_triggered__1", state, NOW_MS - round(hours * 3_600_000), None)
        dag = replace(RETENTION, active=(run,), paused=paused)
        findings = pipeline_findings(replace(WELL, dags=(dag,)), NOW_MS)
        return [f"{one.what}: {one.advice}" for one in findings if one.kind == "run-stuck"]

    assert found("running", 3) == found("queued", 0.5) == []
    (slow,) = found("running", 7)
    assert slow.startswith(f"run asset_triggered__1 of {RETENTION.dag_id} has been running for 7 h")
    assert f"airflow tasks states-for-dag-run {RETENTION.dag_id} asset_triggered__1" in slow
    assert len(found("queued", 2)) == 1
    (paused,) = found("queued", 0.5, paused=True)
    assert paused.endswith(f"and its DAG is paused: airflow dags unpause {RETENTION.dag_id}")


def test_a_database_that_can_not_be_read_is_told_and_nothing_else_is() -> None:
    assert told(PipelineFacts(error="no such table: dag")) == [("airflow-unreachable", Severity.WARNING)]


def test_a_dag_is_told_in_a_line() -> None:
    assert dag_text(RETENTION, NOW_MS) == "success 9 min ago"
    assert dag_text(FLUSH, NOW_MS) == "never ran"
    waits = replace(RETENTION, paused=True, waits=(("sense", None),))
    assert dag_text(waits, NOW_MS) == "paused; success 9 min ago; waits: sense"
    assert dag_text(replace(FLUSH, known=False), NOW_MS) == "not there"
