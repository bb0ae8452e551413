"""Whatever way up or the demo ends, every process that it started is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from demo.dag_run import DemoAirflow
from storage_engine.project.init import Project
from storage_engine.project.up import AirflowApi, ApiError, LocalAirflow, component_environment, up
from tests.rounds import some

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def start(command: str, directory: Path) -> subprocess.Popen[str]:
    """Run ``storage-engine COMMAND DIRECTORY`` as a shell does, in an environment with another Airflow."""
    return _start("-c", "from storage_engine.cli.main import main; main()", command, str(directory))


def start_demo(demo: str, directory: Path) -> subprocess.Popen[str]:
    """Run ``python -m demo DEMO DIRECTORY`` so."""
    return _start("-m", "demo", demo, str(directory))


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"AIRFLOW_HOME": "/elsewhere", "AIRFLOW__CORE__DAGS_FOLDER": "/elsewhere"},
    )


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read lines until one contains ``text``."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if text in line:
            return lines
    raise AssertionError(f"ended without saying {text!r}: {lines}")


def end(process: subprocess.Popen[str], signal_number: int) -> tuple[int, str]:
    process.send_signal(signal_number)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def left_over(directory: Path) -> list[str]:
    """Processes that know the directory from their environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            known = " ".join([*process.environ().values(), *process.cmdline()])
        except (psutil.Error, OSError):
            continue
        if str(directory) in known and process.pid != os.getpid():
            found.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    # A name that no other process has in its environment.
    return tmp_path / f"airflow-of-{os.getpid()}-{time.monotonic_ns()}"


ENDED_AT = ["starting api-server", "DAG run"]
"""What an ended demo said last; in the middle of a run in ``make test-all`` only."""


@pytest.mark.again
@pytest.mark.parametrize("after", ["creating its database", "Press Ctrl-C"])
def test_ctrl_c_ends_every_process_of_up(directory: Path, after: str) -> None:
    process = start("up", directory)
    said = "\n".join(read_until(process, after))
    if after == "Press Ctrl-C":
        address, password = re.search(r"address +(\S+)", said), re.search(r"password +(\S+)", said)
        assert address, said
        assert password, said
        assert_serves(directory, address[1], password[1])
    status, output = end(process, signal.SIGINT)
    assert status == 0, output
    assert left_over(directory) == []


def test_up_says_where_airflow_is_and_its_login(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalAirflow, "_start", lambda airflow: None)
    monkeypatch.setattr(LocalAirflow, "wait", lambda airflow: os.kill(os.getpid(), signal.SIGINT))
    said: list[str] = []
    assert up(directory, said.append) == 0
    login = json.loads(Project(directory).passwords_file.read_text())
    assert f"password  {login['admin']}" in said
    assert said[-1] == "stopped; nothing is left running"
    assert any(re.fullmatch(r"address   http://127\.0\.0\.1:\d+", line) for line in said)


@pytest.mark.again
def test_an_interrupted_demo_leaves_no_process_behind(directory: Path) -> None:
    process = start_demo("cycle", directory)
    read_until(process, "creating its database")
    status, output = end(process, signal.SIGINT)
    assert status == 128 + signal.SIGINT, output
    assert "nothing is left running" in output
    assert left_over(directory) == []


@pytest.mark.again
@pytest.mark.timeout(900)
@pytest.mark.parametrize("after", some(ENDED_AT, 1))
def test_a_demo_in_the_place_of_one_that_was_ended_runs_to_its_end(directory: Path, after: str) -> None:
    process = start_demo("cycle", directory)
    read_until(process, after)
    status, output = end(process, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM, output
    assert "nothing is left running" in output
    assert left_over(directory) == []
    tear(directory)
    process = start_demo("cycle", directory)
    said = "\n".join(read_until(process, "DAG run"))
    address = re.search(r"http://127\S+", said)
    assert address, said
    login = json.loads(Project(directory).passwords_file.read_text())
    assert_serves(directory, address[0], login["admin"])
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert "Everything held." in output
    assert left_over(directory) == []


def tear(directory: Path) -> None:
    """Leave what a demo may have done when it was ended in the middle of its run, each thing by half."""
    project = Project(directory)
    for segment in sorted((directory / "store" / "commitlog").iterdir())[:2]:
        segment.unlink()
    shutil.rmtree(next(path for path in (project.lake / "warehouse").rglob("metadata") if path.is_dir()))
    for name in ("airflow.db", "journal.db", "journal.db-wal", "connections.json"):
        (directory / name).write_bytes(b"cut off")
    for path in (project.reports / ".spark-job-x", directory / "restored" / "commitlog"):
        path.mkdir(parents=True)
        (path / "request.json").write_text("{")


def assert_serves(directory: Path, address: str, password: str) -> None:
    """Airflow takes this login, no other, on loopback only, and has the project's connections."""
    api = AirflowApi.log_in(address, "admin", password)
    connections = {c["connection_id"]: c for c in api.get_once("/api/v2/connections")["connections"]}
    assert set(connections) == {"storage_engine_default", "spark_default"}
    with pytest.raises(ApiError) as refused:
        AirflowApi.log_in(address, "admin", "guess")
    assert refused.value.status == 401
    assert password not in " ".join(_command_lines())
    assert _listening_addresses(directory) == {"127.0.0.1"}


def test_another_airflows_variables_do_not_reach_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIRFLOW_HOME", "AIRFLOW__CORE__EXECUTOR", "AIRFLOW_CONN_X", "PYTHONPATH", "SPARK_HOME"):
        monkeypatch.setenv(name, "/elsewhere")
    environment = component_environment(Project(tmp_path))
    assert [name for name in environment if name.startswith("AIRFLOW")] == ["AIRFLOW_HOME"]
    assert environment["AIRFLOW_HOME"] == str(tmp_path)
    assert "/elsewhere" not in environment.values()


def test_what_a_process_compiles_no_other_compiles_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in component_environment(Project(tmp_path))


def test_a_component_that_does_not_end_meanwhile_is_killed_at_the_end(tmp_path: Path) -> None:
    told: list[str] = []
    airflow = DemoAirflow(Project(tmp_path), 1, told.append)
    stubborn = "import signal, time; signal.signal(15, lambda *_: print('asked', flush=True))"
    code, log = f"{stubborn}; print('ready', flush=True); time.sleep(99); time.sleep(99)", tmp_path / "log"
    process = airflow._tree.start("stubborn", [sys.executable, "-c", code], os.environ, log)
    while "ready" not in log.read_text():
        time.sleep(0.02)
    airflow.begin_stop()
    while "asked" not in log.read_text():
        time.sleep(0.02)
    airflow.__exit__(None, None, None)
    assert (process.returncode, airflow._tree.living(), told) == (-signal.SIGKILL, [], ["stopping Airflow"])


@pytest.mark.parametrize(
    ("kind", "expected"), [(LocalAirflow, (None, None)), (DemoAirflow, ("3600", "0.25"))]
)
def test_dags_that_nobody_edits_are_not_parsed_again(
    tmp_path: Path, kind: type[LocalAirflow], expected: tuple[str | None, str | None]
) -> None:
    airflow = kind(Project(tmp_path), 1, lambda line: None)
    interval = airflow._environment.get("AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL")
    sleep = airflow._environment.get("AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME")
    assert (interval, sleep) == expected


def _command_lines() -> list[str]:
    lines = []
    for process in psutil.process_iter():
        try:
            lines += process.cmdline()
        except psutil.Error:
            continue
    return lines


def _listening_addresses(directory: Path) -> set[str]:
    found = set()
    for line in left_over(directory):
        try:
            connections = psutil.Process(int(line.partition(":")[0])).net_connections("inet")
        except psutil.Error:
            continue
        found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    return found
