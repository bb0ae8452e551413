"""An Airflow whose components run on one host, and an edge worker that runs on another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.dag_run import RunsApi
from storage_engine.project.init import Project
from storage_engine.project.up import ApiError, ProcessTree, component_environment

PATIENCE_SECONDS = 900


@dataclass
class EdgeAirflow:
    """
    :param home: of an Airflow that has not been started before.
    :param host: where its API server listens.
    :param database: SQLAlchemy URL of its own database.
    :param settings: further ones, as environment variables, of each component and worker.
    :param via: the words of a command that runs each component in its turn.
    """

    home: Path
    host: str
    port: int
    database: str
    settings: Mapping[str, str]
    via: Sequence[str]
    tree: ProcessTree = field(default_factory=ProcessTree)

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def shell(self, *words: object, fails: bool = False) -> str:
        """Run a command where the components run, and return what it says."""
        program = Path(sysconfig.get_path("scripts"), str(words[0]))
        command = [*self.via, str(program), *map(str, words[1:])]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert bool(done.returncode) == fails, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def start(self) -> RunsApi:
        """Start the components, and return a client of the API."""
        self._passwords.write_text(json.dumps({"admin": "one password of the tests"}))
        self._start("api-server", "--host", self.host, "--port", str(self.port))
        self._start("scheduler", "--skip-serve-logs")
        self._start("triggerer", "--skip-serve-logs")
        self._start("dag-processor")
        self.eventually("Airflow is healthy", self._is_healthy)
        return RunsApi.log_in(self.address, "admin", "one password of the tests")

    @contextmanager
    def worker(
        self,
        name: str,
        queue: str,
        via: Sequence[str],
        environment: Mapping[str, str],
        user: str = "root",
    ) -> Iterator[None]:
        """Run an edge worker with a home of its own.

        :param environment: what ``init --edge`` says that it needs, and Spark's driver.
        :param user: whose that home is.
        """
        home, tree = self.home / name, ProcessTree()
        home.mkdir()
        shutil.chown(home, user)
        secret = "AIRFLOW__API_AUTH__JWT_SECRET"
        own = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            secret: self._environment[secret],
            **environment,
        }
        others = {key: value for key, value in self._environment.items() if not key.startswith("AIRFLOW__")}
        words = [*via, sys.executable, "-m", "airflow", "edge", "worker", "--queues", queue]
        all_of_it = {**others, **self._of_edge, **self.settings, **own}
        tree.start(name, [*words, "--edge-hostname", name], all_of_it, self._log(name))
        try:
            yield
        finally:
            tree.stop()

    def begin(self, api: RunsApi, dag_id: str, conf: dict[str, Any]) -> str:
        """Start a run of a DAG, once Airflow knows that."""
        self.eventually(f"{dag_id} is known", lambda: dag_id in json.dumps(api.get("/api/v2/dags")))
        api.unpause(dag_id)
        return api.trigger(dag_id, conf)

    def eventually(self, what: str, is_so: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            for name in self.tree.ended():
                raise AssertionError(self.log(name))
            assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s until {what}"
            time.sleep(1)

    def log(self, name: str) -> str:
        """Return the end of what a component has said."""
        return self._log(name).read_text(errors="replace")[-5000:]

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _start(self, name: str, *words: str) -> None:
        command = [*self.via, sys.executable, "-m", "airflow", name, *words]
        self.tree.start(name, command, self._environment, self._log(name))

    @property
    def _passwords(self) -> Path:
        return self.home / "passwords.json"

    @property
    def _of_edge(self) -> dict[str, str]:
        return {
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
            "AIRFLOW__EDGE__API_URL": f"{self.address}/edge_worker/v1/rpcapi",
            "AIRFLOW__EDGE__JOB_POLL_INTERVAL": "1",
            # Two processors serve all of this.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        }

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **component_environment(Project(self.home)),
            **self._of_edge,
            **self.settings,
            "AIRFLOW__API_AUTH__JWT_SECRET": "of the tests, and long enough for HS512 to take it as it is",
            "AIRFLOW__API__BASE_URL": self.address,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": self.database,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "NO_PROXY": f"{self.host},localhost,127.0.0.1",
            "no_proxy": f"{self.host},localhost,127.0.0.1",
        }

    def _is_healthy(self) -> bool:
        try:
            health = RunsApi(self.address, None).get_once("/api/v2/monitor/health")
        except ApiError:
            return False
        return all((state or {}).get("status") == "healthy" for state in health.values())
