"""Following one run of a DAG in a project's Airflow, from when the DAG is known to what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from storage_engine.exceptions import StorageEngineError
from storage_engine.project.up import AirflowApi, ApiError, LocalAirflow

_DAG_SECONDS = 120.0
_START_SECONDS = 180.0
_RUN_SECONDS = 600.0
_FINAL_STATES = ("success", "failed")

Say = Callable[[str], None]
States = Mapping[str, str | None]
"""Of every task; None before it is scheduled."""


class DagRun:
    """The first run of a DAG.

    :param dag_id: of a DAG that nobody has switched on before.
    :param say: receives progress, line by line.
    """

    def __init__(self, airflow: LocalAirflow, dag_id: str, say: Say) -> None:
        self._airflow = airflow
        self._api: AirflowApi = airflow.api()
        self._dag_id = dag_id
        self._say = say
        self._run_id = ""
        self._known: States = {}

    @property
    def run_id(self) -> str:
        """Return the id of the run that is followed; empty before it has begun."""
        return self._run_id

    def switch_on(self) -> None:
        """Let the DAG run, by its schedule and by what others tell it.

        :raises StorageEngineError: Airflow can't import the DAG, or doesn't find it in time.
        """
        self._wait_for_dag()
        self._api.unpause(self._dag_id)

    def start(self) -> None:
        """Wait for the first run of a DAG that is on: of the latest tick of its clock, or once it is told.

        :raises StorageEngineError: there is none in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not self._run_id:
            if time.monotonic() > deadline:
                raise StorageEngineError(
                    f"No run of {self._dag_id} began within {_START_SECONDS:.0f} s. Logs are in "
                    f"{self._airflow.project.logs}."
                )
            self._airflow.check_alive()
            self._run_id = self._api.first_run(self._dag_id) or ""
            if not self._run_id:
                time.sleep(0.5)
        self._say(f"DAG run {self._run_id} of {self._dag_id}")

    def wait_until(self, task_id: str, state: str) -> None:
        """Follow the run until a task of it is in a state.

        :raises StorageEngineError: the run ended before, or it took too long.
        """
        ended = self._follow(lambda states: states.get(task_id) == state)
        if ended:
            raise StorageEngineError(
                f"The DAG run {self._run_id} ended ({ended}), expected {task_id} to be {state} before; its "
                f"tasks: {self._known}. Logs are in {self._airflow.project.logs}."
            )

    def finish(self, each_second: Callable[[States], None] = lambda states: None) -> str:
        """Tell of each task as it goes, until the run has ended.

        :param each_second: is shown the tasks' states meanwhile.
        :return: the run's final state.
        """

        def look(states: States) -> bool:
            each_second(states)
            return False

        return self._follow(look)

    def result(self, task_id: str) -> dict[str, Any]:
        """Return what a task gave; empty when it gave nothing."""
        try:
            result: dict[str, Any] = self._api.result(self._dag_id, self._run_id, task_id)
            return result
        except ApiError as error:
            if error.status != 404:
                raise
            return {}

    def _wait_for_dag(self) -> None:
        deadline = time.monotonic() + _DAG_SECONDS
        while time.monotonic() < deadline:
            self._airflow.check_alive()
            if errors := self._api.get("/api/v2/importErrors")["import_errors"]:
                raise StorageEngineError(
                    f"{errors[0]['filename']}: Airflow can't import it:\n{errors[0]['stack_trace']}"
                )
            try:
                self._api.get(f"/api/v2/dags/{self._dag_id}")
                return
            except ApiError as error:
                if error.status != 404:
                    raise
            time.sleep(0.5)
        raise StorageEngineError(f"Airflow did not find the DAG {self._dag_id} within {_DAG_SECONDS:.0f} s.")

    def _follow(self, enough: Callable[[States], bool]) -> str:
        """
        :return: the run's final state; "" when it was enough before.
        """
        deadline = time.monotonic() + _RUN_SECONDS
        while time.monotonic() < deadline:
            self._airflow.check_alive()
            state = self._api.run_state(self._dag_id, self._run_id)
            states = self._api.task_states(self._dag_id, self._run_id)
            for task_id, task_state in states.items():
                if task_state not in (None, "scheduled", "queued", self._known.get(task_id)):
                    self._say(f"  {task_id.rpartition('.')[2]}: {task_state}")
            self._known = states
            if state in _FINAL_STATES:
                return state
            if enough(states):
                return ""
            time.sleep(1)
        raise StorageEngineError(
            f"The DAG run {self._run_id} did not end within {_RUN_SECONDS:.0f} s; its tasks: {self._known}. "
            f"Logs are in {self._airflow.project.logs}."
        )
