"""The demo: one whole cycle on the sample store in a real Airflow, then checked without trusting it.

Ends by itself. Whatever way it ends, no process that it started lives on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.project.airflow_api import AirflowApi, ApiError
from storage_engine.project.demo_checks import Check, check_outcome, segment_hashes
from storage_engine.project.directory_lock import directory_lock
from storage_engine.project.init import STORE_CONNECTION, Project, init_project
from storage_engine.project.local_airflow import Interrupted, LocalAirflow, interruptible
from storage_engine.project.sample import SampleStore, unpack_sample_store
from storage_engine.project.up import free_port

DAG_ID = "storage_retention"
_MARKER = ".storage-engine-demo"
_DAG_SECONDS = 120.0
_START_SECONDS = 60.0
_RUN_SECONDS = 600.0
_FINAL_STATES = ("success", "failed")

Say = Callable[[str], None]


def run_demo(directory: Path, say: Say, tell: Say) -> int:
    """Run the demo in ``directory``, afresh.

    :param say: receives progress, line by line.
    :param tell: receives the summary, line by line.
    :return: exit status: 0 if everything held, 1 if something did not, 128 + signal number when
        interrupted.
    :raises BadInputError: the directory holds something that is not an earlier demo.
    """
    try:
        with interruptible():
            _refuse_foreign(directory)
            with directory_lock(directory):
                return _run(directory.resolve(), say, tell)
    except Interrupted as interrupted:
        say(f"interrupted by {interrupted}; nothing is left running")
        return interrupted.exit_status


def _run(directory: Path, say: Say, tell: Say) -> int:
    started = time.monotonic()
    _clear(directory)
    sample = unpack_sample_store(directory)
    say(f"sample store, written by a real RocketMQ broker: {sample.root}")
    say(f"  {len(sample.old)} of its segments are dated back, past their reserved time")
    before = segment_hashes(sample.root)
    project = init_project(directory, store_root=sample.root, broker_conf=sample.broker_conf)
    with LocalAirflow(project, free_port(), say) as airflow:
        api = airflow.api()
        _wait_for_dag(api, airflow)
        run_id = _start(api, airflow)
        say(f"DAG run {run_id} of {DAG_ID}")
        state = _follow(api, airflow, run_id, say)
        result = _report(api, run_id)
    checks = check_outcome(project, sample, before, state, result)
    _sum_up(project, sample, result, checks, tell)
    tell(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if all(check.holds for check in checks) else 1


def _own_paths(directory: Path) -> list[Path]:
    project = Project(directory)
    return [*project.made_by_us(), *(directory / name for name in ("store", "broker.conf", "restored"))]


def _refuse_foreign(directory: Path) -> None:
    """A demo wipes what an earlier one left, and must not wipe anything else."""
    taken = [path for path in _own_paths(directory) if path.exists()]
    if taken and not (directory / _MARKER).exists():
        raise BadInputError(
            f"{directory}: expected an empty directory or an earlier demo's, found {taken[0].name} of "
            "something else. Nothing was changed. Name another directory."
        )


def _clear(directory: Path) -> None:
    (directory / _MARKER).write_text("Made by storage-engine demo, which makes it anew each time.\n")
    for path in _own_paths(directory):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _wait_for_dag(api: AirflowApi, airflow: LocalAirflow) -> None:
    deadline = time.monotonic() + _DAG_SECONDS
    while time.monotonic() < deadline:
        airflow.check_alive()
        if errors := api.get("/api/v2/importErrors")["import_errors"]:
            raise StorageEngineError(
                f"{errors[0]['filename']}: Airflow can't import it:\n{errors[0]['stack_trace']}"
            )
        try:
            api.get(f"/api/v2/dags/{DAG_ID}")
            return
        except ApiError as error:
            if error.status != 404:
                raise
        time.sleep(0.5)
    raise StorageEngineError(f"Airflow did not find the DAG {DAG_ID} within {_DAG_SECONDS:.0f} s.")


def _start(api: AirflowApi, airflow: LocalAirflow) -> str:
    """Switch the DAG on and find its first run: the scheduler makes one for the latest tick of its clock.

    :return: the run's id.
    """
    api.unpause(DAG_ID)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        airflow.check_alive()
        if run_id := api.first_run(DAG_ID):
            return run_id
        time.sleep(0.5)
    return api.trigger(DAG_ID)


def _follow(api: AirflowApi, airflow: LocalAirflow, run_id: str, say: Say) -> str:
    """Tell of each task as it goes, until the run has ended.

    :return: the run's final state.
    """
    deadline = time.monotonic() + _RUN_SECONDS
    known: dict[str, str | None] = {}
    while time.monotonic() < deadline:
        airflow.check_alive()
        state = api.run_state(DAG_ID, run_id)
        states = api.task_states(DAG_ID, run_id)
        for task_id, task_state in states.items():
            if task_state not in (None, "scheduled", "queued", known.get(task_id)):
                say(f"  {task_id.rpartition('.')[2]}: {task_state}")
        known = states
        if state in _FINAL_STATES:
            return state
        time.sleep(1)
    raise StorageEngineError(
        f"The DAG run {run_id} did not end within {_RUN_SECONDS:.0f} s; its tasks: {known}. "
        f"Logs are in {airflow.project.logs}."
    )


def _report(api: AirflowApi, run_id: str) -> dict[str, Any]:
    """What the report task gave: paths of the report; empty when it gave none."""
    try:
        result: dict[str, Any] = api.result(DAG_ID, run_id, f"{STORE_CONNECTION}.report")
        return result
    except ApiError as error:
        if error.status != 404:
            raise
        return {}


def _sum_up(
    project: Project, sample: SampleStore, result: dict[str, Any], checks: tuple[Check, ...], tell: Say
) -> None:
    if "report_text" in result:
        tell("")
        for line in Path(result["report_text"]).read_text().splitlines():
            tell(line)
    tell("")
    tell("Checked afterwards, from the files alone")
    for check in checks:
        tell(f"  {'ok  ' if check.holds else 'FAIL'} {check.text}")
    tell("")
    tell(f"Store    {sample.root}")
    tell(f"Lake     {project.lake}")
    tell(f"Report   {result.get('report_html', project.reports)}")
    tell(f"Logs     {project.logs}")
    verdict = "Everything held." if all(check.holds for check in checks) else "NOT everything held."
    tell(verdict)
