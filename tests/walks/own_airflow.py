"""An Airflow that somebody has already: its settings and components, and a browser for its pages."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from demo.dag_run import RunsApi
from storage_engine.project.up import ApiError, ProcessTree
from tests.services.newcomer import Newcomer

CHROMIUM = Path("/usr/bin/chromium")
_QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
_QUIET += ("--disable-background-networking", "--disable-component-update")
_COMPONENTS = (
    ("api-server", "--host", "127.0.0.1"),
    ("scheduler", "--skip-serve-logs"),
    ("dag-processor",),
    ("triggerer", "--skip-serve-logs"),
)
_PATIENCE_SECONDS = 300.0


def eventually(what: str, ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer that says something, and return it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if answer := ask():
                return answer
        except ApiError as error:
            if error.status not in (None, 404):
                raise
        time.sleep(1)
    raise AssertionError(f"{what}: not within {_PATIENCE_SECONDS:.0f} s")


class OwnAirflow:
    """:param owner: who has it; what sets it is in their environment from now on."""

    def __init__(self, owner: Newcomer) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.home = owner.home / "airflow"
        self._owner = owner
        owner.environment |= {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.address,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    @contextmanager
    def running(self) -> Iterator[RunsApi]:
        """Run the components, and yield a client of the API."""
        tree = ProcessTree()
        airflow = str(self._owner.venv / "bin" / "airflow")
        try:
            for words in _COMPONENTS:
                log = self.home / f"{words[0]}.log"
                tree.start(words[0], [airflow, *words], self._owner.environment, log)
            eventually("Airflow is healthy", self._is_healthy)
            yield RunsApi.log_in(self.address, "admin", self.password)
        finally:
            tree.stop()

    @property
    def password(self) -> str:
        """Return the password that Airflow made for its user admin."""
        file = self.home / "simple_auth_manager_passwords.json.generated"
        return str(json.loads(file.read_text())["admin"])

    def _is_healthy(self) -> bool:
        health = RunsApi(self.address, None).get_once("/api/v2/monitor/health")
        return all((state or {}).get("status") == "healthy" for state in health.values())

    @contextmanager
    def browser(self) -> Iterator[Page]:
        """Open a browser in which admin has logged in."""
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(_QUIET))
            try:
                page = chromium.new_page(viewport={"width": 1280, "height": 900})
                page.goto(self.address)
                page.locator("input[name=username]").fill("admin")
                page.locator("input[name=password]").fill(self.password)
                page.locator("button[type=submit]").click()
                page.get_by_role("link", name="Dags").first.wait_for()
                yield page
            finally:
                chromium.close()
