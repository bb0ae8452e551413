"""A store's DAGs, a team's own DAG and the report's link in an Airflow of four components, by its API."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.dag_run import DagRun, DemoAirflow, RunsApi
from storage_engine.project.init import STORE_CONNECTION, init_project
from storage_engine.project.up import free_port, unpack_sample_store
from tests.docs.code_blocks import ROOT, blocks_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.again]

RETENTION, ARCHIVE, MONITOR = (
    f"storage_{kind}__{STORE_CONNECTION}" for kind in ("retention", "archive", "monitor")
)
OWN = "settle_orders"
SECONDS = 300


def wait_for(found: Callable[[], Any], airflow: DemoAirflow) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline
        airflow.check_alive()
        time.sleep(0.5)
    return value


def ask(airflow: DemoAirflow, path: str, token: str | None) -> tuple[int, str]:
    """What the web server answers, and with which status."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(airflow.address + path, headers=headers)
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_dag_of_ones_own_runs_when_segments_are_archived_and_never_for_nothing(tmp_path: Path) -> None:
    sample = unpack_sample_store(tmp_path / "sample")
    project = init_project(
        tmp_path / "project",
        store_root=sample.root,
        broker_conf=sample.broker_conf,
        fields={"spark_conn_id": None},
    )
    example = next(block for block in blocks_of(ROOT / "docs" / "airflow.md") if "@dag" in block.text)
    (project.home / "dags" / "own.py").write_text(example.text.replace("orders_a", STORE_CONNECTION))
    with DemoAirflow(project, free_port(0), print) as airflow:
        api = airflow.api()
        runs = {name: DagRun(airflow, name, print) for name in (OWN, RETENTION, ARCHIVE, MONITOR)}
        # The one that tells, last: a DAG that is off is told nothing.
        for run in runs.values():
            run.switch_on()
        for name in (MONITOR, RETENTION, OWN):
            runs[name].start()
            assert runs[name].finish() == "success"
        said = "\n".join(path.read_text() for path in project.logs.glob(f"dag_id={OWN}/**/*.log"))
        assert re.search(rf"\d+ messages in {len(sample.old)} segments: file://", said)

        # The log of a task is its story, and no library's.
        for log in project.logs.glob(f"dag_id={RETENTION}/**/*.log"):
            own = [
                line for line in log.read_text().splitlines() if '"airflow.task.operators.storage_' in line
            ]
            assert 1 <= len(own) <= 5, log
            assert "Loaded FileIO" not in log.read_text()

        # Nothing is due any more: one look more, and nobody is woken.
        again = api.trigger(MONITOR)
        wait_for(lambda: task_state(api, MONITOR, again, "sense") in ("deferred", "skipped"), airflow)
        hourly = f"storage_flush_checkpoint__{STORE_CONNECTION}"
        assert count_runs(api, RETENTION) == count_runs(api, OWN) == 1
        assert count_runs(api, ARCHIVE) == count_runs(api, hourly) == 0

        # The link of a task that has run leads to the report, for who is logged in.
        run_id = api.first_run(RETENTION)
        assert run_id is not None
        task = f"/api/v2/dags/{RETENTION}/dagRuns/{run_id.replace('+', '%2B')}/taskInstances/release"
        link = api.get(f"{task}/links")["extra_links"]["Report"]
        status, page = ask(airflow, link, api.token)
        assert (status, run_id.partition("+")[0] in page) == (200, True)
        assert ask(airflow, link, None)[0] == 401
        other = link.replace(RETENTION, "storage_retention__other")
        assert ask(airflow, other, api.token)[0] in (200, 404)


def task_state(api: RunsApi, dag_id: str, run_id: str, task_id: str) -> str | None:
    return api.task_states(dag_id, run_id).get(task_id)


def count_runs(api: RunsApi, dag_id: str) -> int:
    return int(api.get(f"/api/v2/dags/{dag_id}/dagRuns?limit=1")["total_entries"])
