"""Runs a project's Airflow on this machine, on the loopback address, and leaves no process behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import sysconfig
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import requests

from storage_engine.core.durable import make_dirs, write_file
from storage_engine.exceptions import StorageEngineError
from storage_engine.project.init import Project
from storage_engine.project.process_tree import ProcessTree

_TIMEOUT_SECONDS = 30
_GET_ATTEMPTS = 5


class ApiError(StorageEngineError):
    """Airflow's API could not be reached or refused a call.

    :param status: HTTP status; None when there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class AirflowApi:
    """A client of one API server; ``token`` is None for the few public calls."""

    address: str
    token: str | None

    @classmethod
    def log_in(cls, address: str, user: str, password: str) -> AirflowApi:
        """Get a token for ``user``.

        :raises ApiError: when the server refuses the login.
        """
        answer = cls(address, None).post("/auth/token", {"username": user, "password": password})
        return cls(address, answer["access_token"])

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

    def get_once(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("PATCH", path, body)

    def add_connection(self, conn_id: str, definition: dict[str, Any]) -> None:
        """Create a connection; one that is there already stays as it is, for a person may have edited it."""
        try:
            self.post("/api/v2/connections", {"connection_id": conn_id, **definition})
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run, by its schedule and by hand."""
        self.patch(f"/api/v2/dags/{dag_id}", {"is_paused": False})

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

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        url = self.address + path
        try:
            with requests.Session() as session:
                # A proxy that the user's environment names must not see calls to this machine.
                session.trust_env = False
                answer = session.request(method, url, json=body, headers=headers, timeout=_TIMEOUT_SECONDS)
            if not answer.ok:
                status = answer.status_code
                raise ApiError(f"{method} {path}: HTTP {status}: {answer.text}", status)
            return answer.json()
        except requests.RequestException as error:
            raise ApiError(f"{method} {url}: no usable answer: {error}") from error


def _quote(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")


_COMPONENTS = {
    "api-server": ["api-server", "--host", "127.0.0.1"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
_READY_SECONDS = 180.0


class Interrupted(BaseException):
    """A person or the system asked us to end; not an error, and not to be caught as one."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into `Interrupted`, once; later ones are ignored so
    that the clean-up which the first one starts is not itself torn."""
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in watched:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    previous = {number: signal.signal(number, interrupt) for number in watched}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class LocalAirflow:
    """The four components of one project; a context manager that stops them however it is left.

    :param port: a free port of the loopback address; wins over the one in the project's settings.
    :param is_edited: False: nobody changes its DAGs while it runs, so they are not parsed again and again. It
        runs for minutes, so its scheduler looks more often for the next task.
    """

    def __init__(
        self, project: Project, port: int, say: Callable[[str], None], *, is_edited: bool = True
    ) -> None:
        self.project = project
        self.address = f"http://127.0.0.1:{port}"
        self.user = "admin"
        self.password = _password(project.passwords_file, self.user)
        self._say = say
        self._tree = ProcessTree()
        self._is_done = False
        self._environment = component_environment(project) | {
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.address,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
        }
        if not is_edited:
            self._environment["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = "3600"
            self._environment["AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"] = "0.25"

    def __enter__(self) -> LocalAirflow:
        try:
            self._start()
        except BaseException:
            self._tree.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_done:
            self._say("stopping Airflow")
        self._tree.stop(politely=not self._is_done)

    def begin_stop(self) -> None:
        """Let the components end while the caller goes on; nothing that they do matters any more.

        Whatever is left of them at the end is killed.
        """
        self._say("stopping Airflow")
        self._is_done = True
        self._tree.ask()

    def api(self) -> AirflowApi:
        """An authenticated client of the running API server."""
        return AirflowApi.log_in(self.address, self.user, self.password)

    def wait(self) -> None:
        """Keep watch over the components until the caller is interrupted."""
        while True:
            self.check_alive()
            time.sleep(1)

    def check_alive(self) -> None:
        """Raise StorageEngineError, with the end of its log, if a component has ended."""
        for name in self._tree.ended():
            raise StorageEngineError(
                f"Airflow's {name} ended although it should run on. Its log {self._log(name)} ends:\n"
                f"{_tail(self._log(name))}"
            )

    def _start(self) -> None:
        make_dirs(self.project.logs)
        self._say("Airflow: creating its database")
        self._run_once("migrate", ["db", "migrate"])
        self._say(f"Airflow: starting {', '.join(_COMPONENTS)} on {self.address}")
        for name, arguments in _COMPONENTS.items():
            self._tree.start(name, [*_AIRFLOW, *arguments], self._environment, self._log(name))
        self._wait_until_ready()
        api = self.api()
        for name, definition in json.loads(self.project.connections_file.read_text()).items():
            api.add_connection(name, definition)

    def _run_once(self, name: str, arguments: list[str]) -> None:
        self._tree.start(name, [*_AIRFLOW, *arguments], self._environment, self._log(name))
        if status := self._tree.wait(name):
            raise StorageEngineError(
                f"`airflow {' '.join(arguments)}` ended with status {status}, expected 0. "
                f"Its log {self._log(name)} ends:\n{_tail(self._log(name))}"
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        missing = list(_COMPONENTS)
        while time.monotonic() < deadline:
            self.check_alive()
            missing = _unhealthy(self.address)
            if not missing:
                self._say("Airflow: ready")
                return
            time.sleep(0.5)
        raise StorageEngineError(
            f"Airflow was not ready within {_READY_SECONDS:.0f} s: still waiting for "
            f"{', '.join(missing)}. The logs are in {self.project.logs}."
        )

    def _log(self, name: str) -> Path:
        return self.project.logs / f"{name}.log"


def component_environment(project: Project) -> dict[str, str]:
    """The environment of a project's Airflow: the caller's, without anything meant for another Airflow.

    The interpreter's own scripts come first on PATH, so that ``spark-submit`` is the one that belongs
    to this installation.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "_AIRFLOW", "SPARK_")) and name not in _PYTHONS_OWN
    }
    environment["AIRFLOW_HOME"] = str(project.home)
    environment["PATH"] = os.pathsep.join(
        [sysconfig.get_path("scripts"), environment.get("PATH", os.defpath)]
    )
    # Calls to the loopback address must not go through a proxy.
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1,localhost"
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


_PYTHONS_OWN = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Without the latter, what one process compiles no other compiles again: a third of a demo's processor
time where the packages lie there uncompiled."""

_AIRFLOW = [sys.executable, "-m", "airflow"]


def _password(passwords_file: Path, user: str) -> str:
    """The password of ``user``, chosen at random the first time."""
    if passwords_file.exists():
        return str(json.loads(passwords_file.read_text())[user])
    password = secrets.token_urlsafe(12)
    write_file(passwords_file, (json.dumps({user: password}) + "\n").encode())
    return password


def _unhealthy(address: str) -> list[str]:
    try:
        health: dict[str, Any] = AirflowApi(address, None).get_once("/api/v2/monitor/health")
    except ApiError:
        return ["api-server"]
    return [name for name, state in health.items() if (state or {}).get("status") != "healthy"]


def _tail(path: Path, lines: int = 15) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
