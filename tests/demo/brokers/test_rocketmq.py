"""A broker of our own: what it takes, and that nothing of it is left."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from demo.brokers import rocketmq
from demo.brokers.jvm import Jars
from demo.brokers.rocketmq import RocketMQ, find_jars
from storage_engine.exceptions import BadInputError, StorageEngineError
from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.integration.jvm import class_archive_option
from tests.project.test_local_airflow import end, left_over, read_until, start_demo

SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20,
    # For so long after its start a broker keeps a processor busy; by itself 3 s.
    "transactionMetricFlushInterval": 300,
}
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dtls.server.mode=disabled"
"""For every JVM of a test, which lives for seconds."""


@contextmanager
def first_name_server_port_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let somebody listen, from just after it was found free, where the first name server would."""
    free = rocketmq.free_ports
    first = free(5)
    found = [first]
    monkeypatch.setattr(rocketmq, "free_ports", lambda size: found.pop() if found else free(size))
    with socket.create_server(("127.0.0.1", first + 4)):
        yield first + 4


def fake(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH, empty."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(directory))
    return directory


def test_without_a_jdk_it_says_what_to_install(only_path: Path, tmp_path: Path) -> None:
    fake(only_path, "java", "exit 0")
    with pytest.raises(BadInputError, match="expected javac on PATH, found none"):
        find_jars(tmp_path)


def test_a_java_home_without_a_compiler_is_named(
    only_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    with pytest.raises(BadInputError, match=f"expected {tmp_path}/jre/bin/javac, found none"):
        find_jars(tmp_path)


def test_without_maven_it_says_what_to_install(only_path: Path, tmp_path: Path) -> None:
    fake(only_path, "javac", "exit 0")
    with pytest.raises(BadInputError, match="expected mvn on PATH, found none"):
        find_jars(tmp_path)


def test_what_maven_said_is_told_when_it_fails(only_path: Path, tmp_path: Path) -> None:
    fake(only_path, "javac", "exit 0")
    fake(only_path, "mvn", "echo no route to the repository; exit 3")
    with pytest.raises(StorageEngineError, match=r"(?s)ended with status 3, expected 0.*no route to the rep"):
        find_jars(tmp_path)


@pytest.mark.again
@pytest.mark.integration
def test_clients_of_a_broker_write_down_what_they_did_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / f"rocketmq-of-{os.getpid()}-{time.monotonic_ns()}"
    directory.mkdir()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{QUICK} {class_archive_option()}")
    jars = Jars(java(), class_path(JAVA_PROJECTS))
    with first_name_server_port_taken(monkeypatch) as taken, RocketMQ(directory, jars, SETTINGS) as mq:
        assert not mq.name_servers.endswith(f":{taken}")
        load = mq.load("load", "topics=a", "rate=50", "group=g")
        load.wait_until_sending()
        while mq.max_offset() < 20_000:
            mq.check_alive()
            time.sleep(0.1)
        summary = load.stop()
        assert summary["failed"] == 0
        assert summary["sent"] == sum("sent" in record for record in load.records()) > 0
        assert summary["groups"]["g"]["failed"] == 0
        (broker,) = (pid for pid in psutil.pids() if _runs(pid, "BrokerStartup", str(directory)))
        psutil.Process(broker).kill()
        psutil.Process(broker).wait(30)
        with pytest.raises(StorageEngineError, match="RocketMQ's broker ended"):
            mq.check_alive()
    assert left_over(directory) == []


@pytest.mark.again
@pytest.mark.integration
def test_an_interrupted_live_demo_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / f"live-of-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK)
    process = start_demo("live", directory)
    read_until(process, "creating its database")
    status, output = end(process, 15)
    assert status == 128 + 15, output
    assert "nothing is left running" in output
    assert left_over(directory) == []
    shutil.rmtree(directory)


def _runs(pid: int, *words: str) -> bool:
    try:
        line = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
    return all(word in line for word in words)
