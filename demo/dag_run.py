"""Following one run of a DAG in a project's Airflow, from when the DAG is known to what it reports."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any

from storage_engine.exceptions import StorageEngineError
from storage_engine.project.init import Project
from storage_engine.project.up import AirflowApi, ApiError, LocalAirflow

_DAG_SECONDS = 120.0
_START_SECONDS = 180.0
_RUN_SECONDS = 600.0
_FINAL_STATES = ("success", "failed")

_GET_ATTEMPTS = 5

Say = Callable[[str], None]
States = Mapping[str, str | None]
"""Of every task; None before it is scheduled."""


class RunsApi(AirflowApi):
    """A client that follows runs of DAGs."""

    __slots__ = ()

    def get(self, path: str) -> Any:
        """Ask; again for a while if the server is too busy to answer, since asking changes nothing."""
        for _ in range(_GET_ATTEMPTS - 1):
            try:
                return self.get_once(path)
            except ApiError as error:
                if error.status is not None and error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
            time.sleep(1)
        return self.get_once(path)

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run, by its schedule and by hand."""
        self.patch(f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("PATCH", path, body)

    def first_run(self, dag_id: str) -> str | None:
        """The id of a DAG's first run; None before there is one."""
        runs = self.get(f"/api/v2/dags/{dag_id}/dagRuns?order_by=run_after&limit=1")["dag_runs"]
        return str(runs[0]["dag_run_id"]) if runs else None

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Create a run by hand.

        :return: its id.
        """
        run = self.post(f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf or {}})
        return str(run["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.get(f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}")["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """State of every task of a run; None before it is scheduled."""
        instances = self.get(f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances?limit=200")
        return {task["task_id"]: task["state"] for task in instances["task_instances"]}

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return what a task returned.

        :raises ApiError: with status 404 when it returned nothing.
        """
        path = f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances/{_quote(task_id)}"
        return self.get(f"{path}/xcomEntries/return_value?deserialize=true")["value"]


def _quote(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")


class DemoAirflow(LocalAirflow):
    """A project's Airflow whose DAGs nobody edits while it runs, so they are not parsed again and again. It
    runs for minutes, so its scheduler looks more often for the next task."""

    def __init__(self, project: Project, port: int, say: Say) -> None:
        super().__init__(project, port, say)
        self._is_done = False
        self._environment["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = "3600"
        self._environment["AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"] = "0.25"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_done:
            self._tree.stop(politely=False)
        else:
            super().__exit__(kind, error, trace)

    def begin_stop(self) -> None:
        """Let the components end while the caller goes on; nothing that they do matters any more.

        Whatever is left of them at the end is killed.
        """
        self._say("stopping Airflow")
        self._is_done = True
        self._tree.ask()

    def api(self) -> RunsApi:
        """An authenticated client of the running API server."""
        return RunsApi.log_in(self.address, self.user, self.password)


class DagRun:
    """The first run of a DAG.

    :param dag_id: of a DAG that nobody has switched on before.
    :param say: receives progress, line by line.
    """

    def __init__(self, airflow: DemoAirflow, dag_id: str, say: Say) -> None:
        self._airflow = airflow
        self._api = airflow.api()
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
