"""A standalone Spark cluster of the installed pyspark, on loopback, and the processes of any Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from storage_engine.spark.session import spark_environment

PATIENCE_SECONDS = 180

SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

CLUSTER_SETTINGS = {
    "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Of a session whose executors are processes of their own, which reach the driver on loopback."""


@contextmanager
def standalone(
    directory: Path,
    workers: Sequence[Sequence[str]] = ((), ()),
    *,
    via: Sequence[str] = (),
    network: str = "127.0.0",
) -> Iterator[str]:
    """A master and workers of one core each; yields the master's URL when all have registered.

    Each worker has a loopback address of its own: Spark runs no two attempts at a task on one host.

    :param workers: for each the words of a command that runs the worker's in its turn; () runs it as it is.
    :param via: the same of the master.
    :param network: of whose addresses the master has number 1, and the workers those behind it.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    master = f"{network}.1"
    url = f"spark://{master}:{port}"
    with ExitStack() as stack:
        log = directory / "master.log"
        stack.enter_context(
            _started(
                log,
                "master.Master",
                *("--host", master, "--port", str(port), "--webui-port", "0"),
                via=via,
                address=master,
            )
        )
        wait_until(lambda: "I have been elected leader" in _text(log), f"a master at {url}")
        for number, command in enumerate(workers):
            host, work = f"{network}.{number + 2}", str(directory / f"worker-{number}")
            options = [
                "--host",
                host,
                "--webui-port",
                "0",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                work,
            ]
            stack.enter_context(
                _started(
                    directory / f"{number}.log", "worker.Worker", *options, url, via=command, address=host
                )
            )
        wait_until(lambda: _text(log).count("Registering worker") == len(workers), "all workers")
        yield url


@contextmanager
def _started(
    log: Path, name: str, *arguments: str, via: Sequence[str] = (), address: str = "127.0.0.1"
) -> Iterator[None]:
    environment = {
        **os.environ,
        **spark_environment("local[1]"),
        "SPARK_LOCAL_IP": address,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED_JVM,
        "PYSPARK_PYTHON": sys.executable,
    }
    spark_class = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-class")
    command = [*via, spark_class, f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        # A test may have killed it, and waited for its end.
        with suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
            for each in family:
                each.kill()
            psutil.wait_procs(family, timeout=30)
        process.wait()


def processes(word: str, *, root: psutil.Process | None = None) -> list[psutil.Process]:
    """Descendants of a process, of this one unless another is given, that have a word in their command."""
    found = []
    for each in (root or psutil.Process()).children(recursive=True):
        try:
            if any(word in part for part in each.cmdline()):
                found.append(each)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.005)


def _text(path: Path) -> str:
    return path.read_text(errors="replace")
