"""The few calls to Airflow's REST API that starting a run and following it takes."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from storage_engine.exceptions import StorageEngineError

_TIMEOUT_SECONDS = 30
_GET_ATTEMPTS = 5
# A proxy that the user's environment names must not see calls to this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise ApiError(f"{method} {path}: HTTP {error.code}: {text}", error.code) from error
        except (urllib.error.URLError, OSError, json.JSONDecodeError) as error:
            raise ApiError(f"{method} {self.address}{path}: no usable answer: {error}") from error


def _quote(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")
