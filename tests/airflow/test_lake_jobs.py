"""Jobs that look at a lake, as DAGs: in Spark alone, on what was archived or what a person names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.operators.lake_jobs import (
    StorageEngineRetentionReportOperator,
    StorageEngineValidateRowsOperator,
)
from storage_engine.retention.report.report import OffsetSpan
from storage_engine.retention.store.managed_store import USAGE_PAGE, USAGE_TABLE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

STORE = "storage_engine_default"


def run(load_dag: Any, file: str, conf: dict[str, Any] | None = None) -> tuple[str, dict[str, str]]:
    dag = load_dag(file)
    for task in dag.tasks:
        task.retries = 0
    dag_run = dag.test(run_conf=conf)
    return str(dag_run.state), {ti.task_id: str(ti.state) for ti in dag_run.get_task_instances()}


def test_without_a_spark_connection_these_tasks_are_skipped(
    airflow_database: Path, store_connection: Any, load_dag: Any
) -> None:
    store_connection(STORE)
    for task_id in ("validate_rows", "retention_report"):
        states = run(load_dag, f"storage_{task_id}.py")[1]
        assert states == {task_id: "skipped", "report": "skipped"}


@pytest.mark.again
def test_they_run_by_spark_submit_and_their_reports_say_so(
    airflow_database: Path, store_connection: Any, load_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = {"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": "spark-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    policy = {"archive_when": "seal"}
    store = store_connection(STORE, extra={"policy": policy})
    assert run(load_dag, "storage_archive.py")[0] == "success"
    fields = json.loads(os.environ[f"AIRFLOW_CONN_{STORE.upper()}"])
    fields["extra"]["spark_conn_id"] = "spark_default"
    monkeypatch.setenv(f"AIRFLOW_CONN_{STORE.upper()}", json.dumps(fields))
    span = {"log": "commitlog", "end_offset": 1 << 21}
    assert run(load_dag, "storage_validate_rows.py", span)[0] == "success"
    assert run(load_dag, "storage_retention_report.py", {"first_day": "2000-01-01"})[0] == "success"
    (report,) = (store.reports / STORE).glob("storage_validate_rows*/report.json")
    validation = json.loads(report.read_text())["validation"]
    assert (validation["scope"], {check["status"] for check in validation["checks"]}) == ("rows", {"OK"})
    (page,) = (store.reports / STORE).glob(f"storage_retention_report*/{USAGE_PAGE}")
    assert page.with_name(USAGE_TABLE).is_file()


def test_the_spans_are_those_of_the_events_else_those_that_a_person_names() -> None:
    named = {"log": "a", "first_offset": 1, "end_offset": 5}
    task = StorageEngineValidateRowsOperator(task_id="rows", spans=json.dumps([named]))

    def spans(*extras: dict[str, Any]) -> tuple[OffsetSpan, ...]:
        events = [SimpleNamespace(extra=extra) for extra in extras]
        context: Any = {"triggering_asset_events": {"archived": events}}
        return task._spans(context)

    assert spans() == (OffsetSpan("a", 1, 5),)
    told = {"spans": [{"log": "b", "first_offset": 0, "end_offset": 9}], "more_logs": 0}
    assert spans(told, told) == (OffsetSpan("b", 0, 9), OffsetSpan("b", 0, 9))
    # Of more logs than an event names, all are looked at.
    assert spans(told, {**told, "more_logs": 1}) == ()
    task.spans = "["
    with pytest.raises(BadInputError, match="expected a JSON list"):
        spans()


def test_a_day_that_is_none_is_named_before_anything_is_done() -> None:
    from storage_engine.operators.lake_jobs import _day_ms

    assert _day_ms("first_day", "1970-01-02") == 86_400_000
    assert _day_ms("first_day", "") is None
    with pytest.raises(BadInputError, match="found '2026-13-01'"):
        _day_ms("last_day", "2026-13-01")
    assert "last_day" in StorageEngineRetentionReportOperator.template_fields
