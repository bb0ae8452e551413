"""Runs a project's Airflow until a person stops it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import psutil
import requests

from storage_engine.core.durable import make_dirs, write_file
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.project.init import Project, init_project
from storage_engine.resources import project_path

_TIMEOUT_SECONDS = 30


class ApiError(StorageEngineError):
    """Airflow's API refused a call, or could not be reached.

    :param status: HTTP status, or None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class AirflowApi:
    """A client of one API server. ``token`` is None for the few public calls."""

    address: str
    token: str | None

    @classmethod
    def log_in(cls, address: str, user: str, password: str) -> Self:
        """Log in as ``user``, and return a client with the token.

        :raises ApiError: the server refuses the login, or can't be reached.
        """
        answer = cls(address, None).post("/auth/token", {"username": user, "password": password})
        return cls(address, answer["access_token"])

    def get_once(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("POST", path, body)

    def add_connection(self, conn_id: str, definition: dict[str, Any]) -> None:
        """Create a connection. An existing one stays unchanged, because a person may have edited it."""
        try:
            self.post("/api/v2/connections", {"connection_id": conn_id, **definition})
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

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


_COMPONENTS = {
    "api-server": ["api-server", "--host", "127.0.0.1"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
_READY_SECONDS = 180.0


class Interrupted(BaseException):
    """A person or the system asked this process to end. This is no error, and must not be caught as one."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` at the first Ctrl-C, SIGTERM or SIGHUP. Later ones don't interrupt the clean-up."""
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
    """The four components of one project's Airflow. This context manager stops them, however its block ends.

    :param port: a free port of the loopback address. It wins over the port in the project's settings.
    """

    def __init__(self, project: Project, port: int, say: Callable[[str], None]) -> None:
        self.project = project
        self.address = f"http://127.0.0.1:{port}"
        self.user = "admin"
        self.password = _password(project.passwords_file, self.user)
        self._say = say
        self._tree = ProcessTree()
        self._environment = component_environment(project) | {
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.address,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
        }

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._tree.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._say("stopping Airflow")
        self._tree.stop()

    def wait(self) -> None:
        """Keep watch over the components until the caller is interrupted."""
        while True:
            self.check_alive()
            time.sleep(1)

    def check_alive(self) -> None:
        """Check that all components run. If one has ended, raise StorageEngineError with its log's end."""
        for name in self._tree.ended():
            raise StorageEngineError(
                f"Airflow's {name} ended unexpectedly. Its log {self._log(name)} ends:\n"
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
        api = AirflowApi.log_in(self.address, self.user, self.password)
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
    """Return the environment for a project's Airflow: the caller's, without variables for another Airflow.

    The interpreter's own scripts come first on PATH, so ``spark-submit`` is the one of this installation.
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
"""Variables that are removed. PYTHONDONTWRITEBYTECODE would make each process compile the same modules again.
That takes a third of a demo's processor time if the packages aren't compiled.
"""

_AIRFLOW = [sys.executable, "-m", "airflow"]


def _password(passwords_file: Path, user: str) -> str:
    """Return the password of ``user``. It is chosen at random the first time."""
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


RESERVED_HOURS = 72
_ARCHIVE = ("sample/rocketmq-store.tar.xz", "tests/fixtures/rocketmq/clean-stop.tar.xz")
"""Paths of the sample in the wheel and in a checkout."""
_OLD_SEGMENTS = 5
_DAYS_OLD = 10


@dataclass(frozen=True, slots=True)
class SampleStore:
    """An unpacked sample.

    :param root: the sample's storePathRootDir.
    :param old: segments older than the reserved time, oldest first.
    """

    root: Path
    broker_conf: Path
    old: tuple[Path, ...]


def unpack_sample_store(directory: Path) -> SampleStore:
    """Unpack the sample into ``directory/store``, and make its oldest segments older.

    Only modification times are changed, because a broker computes a segment's age from nothing else. The
    broker's bytes stay as they are. The other segments get the present time.
    """
    with tarfile.open(project_path(*_ARCHIVE)) as archive:
        archive.extractall(directory, filter="data")
    (unpacked,) = (path for path in directory.iterdir() if (path / "commitlog").is_dir())
    root = unpacked.rename(directory / "store")
    segments = sorted((root / "commitlog").iterdir())
    old = segments[:_OLD_SEGMENTS]
    now = time.time()
    for path in segments:
        modified = now - _DAYS_OLD * 86400 if path in old else now
        os.utime(path, (modified, modified))
    broker_conf = directory / "broker.conf"
    # Each hour is a deleteWhen hour, so the sample's window is always open.
    hours = ";".join(f"{hour:02}" for hour in range(24))
    broker_conf.write_text(
        "brokerClusterName=DefaultCluster\n"
        "brokerName=broker-a\n"
        "brokerId=0\n"
        f"storePathRootDir={root}\n"
        f"deleteWhen={hours}\n"
        f"fileReservedTime={RESERVED_HOURS}\n"
    )
    return SampleStore(root=root, broker_conf=broker_conf, old=tuple(old))


LOCK_FILE = ".storage-engine.lock"


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Lock ``directory`` for this block. A missing directory is created. A killed process loses its lock.

    :raises BadInputError: another process has locked it.
    """
    make_dirs(directory)
    with (directory / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(
                f"{directory}: expected an idle project, found another demo or up running in it. Stop that "
                "process first, or name another directory."
            ) from None
        yield


_PREFERRED_PORT = 8080


def up(directory: Path, say: Callable[[str], None]) -> int:
    """Start Airflow for the project in ``directory``, and wait for Ctrl-C.

    If the project is missing, it is created with the sample store and its connection. An existing project is
    started again with all changes that were made in it.

    :param say: function that gets progress messages. When Airflow is ready, it also gets address and login.
    :return: exit status: 0 after Ctrl-C, 128 + signal number after another signal.
    :raises StorageEngineError: Airflow doesn't start, or one of its components ends.
    """
    try:
        with interruptible(), directory_lock(directory):
            project = _project(directory)
            with LocalAirflow(project, free_port(), say) as airflow:
                say(f"address   {airflow.address}")
                say(f"user      {airflow.user}")
                say(f"password  {airflow.password}")
                say(f"store     {project.store_root}")
                say(f"console   {airflow.address}/plugin/storage-engine")
                say("Press Ctrl-C to stop.")
                airflow.wait()
    except Interrupted as interrupted:
        say("stopped; nothing is left running")
        return 0 if interrupted.signal_number == signal.SIGINT else interrupted.exit_status
    return 0


def free_port(preferred: int = _PREFERRED_PORT) -> int:
    """Return a free port of the loopback address: ``preferred`` if it is free, otherwise any port."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # A port that an ended server left in TIME_WAIT is free; one that is listened on is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise BadInputError(
        "127.0.0.1: expected a free port, found none. Nothing was started. Stop a program that listens there."
    )


def _project(directory: Path) -> Project:
    project = Project(directory.resolve())
    if project.settings_file.exists():
        return project
    make_dirs(directory)
    sample = unpack_sample_store(directory.resolve())
    # All work runs in Spark here, however small, so that a person can look at Spark's jobs.
    fields = {"spark_from": "0"}
    return init_project(directory, store_root=sample.root, broker_conf=sample.broker_conf, fields=fields)


MARK = "STORAGE_ENGINE_PROCESS_TREE"

# Without it, a process that sets its title overwrites its environment, and with it the mark.
_KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}

_ASK_SECONDS = 8.0
"""Seconds in which a component has to end by itself. A scheduler would wait for its running tasks."""
_KILL_SECONDS = 10.0


class ProcessTree:
    """Processes that we started, with all their descendants."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start ``command`` in its own session, so that a terminal's Ctrl-C reaches only us."""
        with log.open("ab") as output:
            self._started[name] = subprocess.Popen(
                command,
                env={**environment, **_KEEP_ENVIRONMENT, MARK: self._mark},
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._started[name]

    def wait(self, name: str) -> int:
        """Wait for a started process that ends by itself, and return its exit status."""
        return self._started.pop(name).wait()

    def ended(self) -> tuple[str, ...]:
        """Return the names of started processes that no longer run."""
        return tuple(name for name, process in self._started.items() if process.poll() is not None)

    def living(self) -> list[psutil.Process]:
        """Return every running process with our mark, whatever its present parent is."""
        processes = []
        for pid in psutil.pids():
            if pid == os.getpid():
                continue
            try:
                # Not process_iter, which keeps facts of an earlier process with the same id.
                process = psutil.Process(pid)
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except (psutil.Error, OSError):
                # Gone in the meantime, or another user's and so not ours.
                continue
        return processes

    def ask(self) -> None:
        """Ask the processes that we started to end, but not their descendants."""
        for process in self._started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    def stop(self, *, politely: bool = True) -> None:
        """End every process of the tree. Ask the started processes, then kill the rest.

        :param politely: give the started processes time to end by themselves.
        """
        self.ask()
        self._wait_for_started(_ASK_SECONDS if politely else 0)
        deadline = time.monotonic() + _KILL_SECONDS
        while (living := self.living()) and time.monotonic() < deadline:
            for orphan in living:
                try:
                    orphan.kill()
                except psutil.NoSuchProcess:
                    continue
            # Reaps our own children; others are reaped by their new parent.
            self._wait_for_started(0.5)
        self._started.clear()

    def _wait_for_started(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(p.poll() is None for p in self._started.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
