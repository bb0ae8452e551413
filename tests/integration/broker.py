"""A real RocketMQ 5.3.3 name server and broker on a store directory, started and stopped for a test.

Needs Java (8 or newer) and Maven, which brings the jars (tests/java/pom.xml). The broker never deletes
anything by itself here: whatever is missing afterwards is our doing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerError, NotOnBrokerError
from storage_engine.rocketmq.remoting.connection import Access
from storage_engine.rocketmq.remoting.masters import NameServers
from tests.integration.jvm import java_command, write_properties
from tests.integration.remoting import RemotingClient
from tests.integration.server import free_port, free_ports

START_SECONDS = 180
STOP_SECONDS = 60

ACCESS = Access()

BROKER_MAIN = "ServesAtOnce"
"""The broker as it is; its name server knows it when it has started, not 10 s later."""
CLEANS_AT_ONCE = "CleansAtOnce"
"""The same broker, whose cleaning begins when it has started, not a minute later."""

VERSIONS = (None, pytest.param("4.9.7", marks=pytest.mark.again))
"""Brokers that are held and release: that of the tests' own classes, and the oldest."""

LOGBACK = """<configuration>
  <appender name="store" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/logs/rocketmqlogs/store.log</file>
    <encoder><pattern>%d %m%n</pattern></encoder>
  </appender>
  <logger name="RocketmqStore" level="INFO"><appender-ref ref="store"/></logger>
</configuration>
"""
"""What releases before 5.0 write down, where later ones do so by themselves."""

FIXTURE_SIZES: Mapping[str, int] = {
    "mappedFileSizeCommitLog": 1048576,
    "mappedFileSizeConsumeQueue": 6000,
    "mappedFileSizeTimerLog": 1048576,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
"""Settings that the fixture stores were written with and can't be read without."""

BROKER_CONF: Mapping[str, object] = {
    **FIXTURE_SIZES,
    "timerWheelEnable": True,
    # Writing the wheel each second takes a quarter of a processor.
    "timerFlushIntervalMs": 3600000,
    "enableLmq": True,
    "enableMultiDispatch": True,
    # The broker deletes nothing: neither by age, nor at its hour, nor for want of space.
    "fileReservedTime": 100000,
    "deleteWhen": "99",
    "cleanFileForciblyEnable": False,
    "diskMaxUsedSpaceRatio": 95,
    # Nor does it rewrite undecided half messages within a test.
    "transactionCheckInterval": 3600000,
    # One broker alone on loopback, that creates no topic behind a test's back.
    "brokerClusterName": "integration",
    "brokerName": "broker-integration",
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": False,
}


CONTROLLED: Mapping[str, object] = {"enableControllerMode": True, "brokerId": -1, "brokerRole": "SLAVE"}
"""Settings of a broker that becomes the master when a controller says so."""


class BrokerStartError(Exception):
    """A process ended, or did not serve in time; the message ends with what it last said."""


@dataclass
class JavaProcess:
    """A running Java main class whose home directory and working directory is ``home``."""

    main_class: str
    home: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls,
        main_class: str,
        arguments: Sequence[str],
        home: Path,
        jvm_options: Sequence[str] = (),
        version: str | None = None,
    ) -> JavaProcess:
        home.mkdir(parents=True, exist_ok=True)
        command = java_command(home, main_class, arguments, jvm_options, version)
        if setpriv := shutil.which("setpriv"):
            # Even a test run that is killed leaves no broker behind.
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (home / "console.log").open("wb") as console:
            process = subprocess.Popen(
                command,
                stdout=console,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=home,
                env={**os.environ, "ROCKETMQ_HOME": str(home)},
            )
        return cls(main_class, home, process)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Poll ``ready`` until it is true.

        :raises BrokerStartError: when the process ends, or START_SECONDS pass.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise BrokerStartError(
                    f"{self.main_class} ended with {self.process.returncode}:\n{self.said()}"
                )
            try:
                if ready():
                    return
            except (BrokerError, NotOnBrokerError):
                pass
            time.sleep(0.1)
        raise BrokerStartError(f"{self.main_class} does not serve after {START_SECONDS} s:\n{self.said()}")

    def said(self) -> str:
        """The end of the console and of each log, without logback's account of its own setup."""
        logs = [self.home / "console.log", *sorted(self.home.glob("logs/rocketmqlogs/**/*.log"))]
        parts = []
        for log in logs:
            lines = [line for line in log.read_text(errors="replace").splitlines() if "|-INFO" not in line]
            parts.append("\n".join([f"--- {log.name}", *lines[-15:]]))
        return "\n".join(parts)

    def stop(self) -> None:
        """Ask it to end, as an operator would, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """End it now, as a power cut would."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)


@contextmanager
def name_server(work: Path) -> Iterator[int]:
    """Run a name server for the duration of the block; yields its port."""
    port = free_port()
    conf = work / "namesrv.conf"
    write_properties(conf, {"listenPort": port, "bindAddress": "127.0.0.1"})
    server = JavaProcess.start(
        "org.apache.rocketmq.namesrv.NamesrvStartup", ["-c", str(conf)], work / "namesrv"
    )
    try:
        server.wait_until(lambda: NameServers(f"127.0.0.1:{port}").cluster_info() is not None)
        yield port
    finally:
        server.kill()


@contextmanager
def controller(work: Path) -> Iterator[tuple[int, int]]:
    """Run a name server with a controller in it; yields the ports of both."""
    port, peer = free_ports(2), free_ports(1)
    conf = work / "namesrv.conf"
    write_properties(
        conf,
        {
            "listenPort": port,
            "bindAddress": "127.0.0.1",
            "enableControllerInNamesrv": True,
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-127.0.0.1:{peer}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": work / "controller",
            "scanNotActiveBrokerInterval": 1000,
        },
    )
    server = JavaProcess.start(
        "org.apache.rocketmq.namesrv.NamesrvStartup", ["-c", str(conf)], work / "namesrv"
    )
    try:
        server.wait_until(lambda: NameServers(f"127.0.0.1:{port}").cluster_info() is not None)
        yield port, peer
    finally:
        server.kill()


@dataclass
class Broker:
    """A broker that serves ``store``.

    :param version: None: that of the tests' own classes.
    """

    store: Path
    port: int
    access: Access
    version: str | None = None
    client: RemotingClient = field(init=False)
    java: JavaProcess = field(init=False)

    def __post_init__(self) -> None:
        self.client = RemotingClient(self.port, self.access)

    def stop(self) -> None:
        """Stop cleanly: the store is flushed and ``abort`` removed. Takes 15 to 20 s."""
        self.client.close()
        self.java.stop()


def start_broker(
    store: Path,
    work: Path,
    name_server_port: int,
    overrides: Mapping[str, object] | None = None,
    *,
    access: Access = ACCESS,
    jvm_options: Sequence[str] = (),
    main_class: str = BROKER_MAIN,
    version: str | None = None,
) -> Broker:
    """Start a broker on a store directory and wait until it serves and is registered.

    :param work: directory for its config, home and logs; created.
    :param overrides: keys of broker.conf beyond those of the fixture stores.
    :param access: how this broker wants to be spoken to.
    :param version: of the broker; None: that of the tests' own classes.
    :raises BrokerStartError: when it ends before it serves; the process is gone then.
    """
    work.mkdir(parents=True, exist_ok=True)
    first = free_ports(4)
    port = first + 2
    conf = work / "broker.conf"
    write_properties(
        conf,
        {
            **BROKER_CONF,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "namesrvAddr": f"127.0.0.1:{name_server_port}",
            # The broker takes listenPort - 2 for its fast port.
            "listenPort": port,
            "haListenPort": port + 1,
            **(overrides or {}),
        },
    )
    return _launch(Broker(store, port, access, version), work, name_server_port, jvm_options, main_class)


def start_again(
    broker: Broker,
    work: Path,
    name_server_port: int,
    *,
    jvm_options: Sequence[str] = (),
    main_class: str = BROKER_MAIN,
) -> None:
    """Start a broker that was stopped or killed, at the same port and with its broker.conf as it left it.

    :raises BrokerStartError: when it ends before it serves; the process is gone then.
    """
    _launch(broker, work, name_server_port, jvm_options, main_class)


def _launch(
    broker: Broker,
    work: Path,
    name_server_port: int,
    jvm_options: Sequence[str],
    main_class: str,
) -> Broker:
    arguments = ["-c", str(work / "broker.conf")]
    version = broker.version
    if version is not None:
        # The older ones don't start without it.
        (work / "broker" / "conf").mkdir(parents=True, exist_ok=True)
        (work / "broker" / "conf" / "logback_broker.xml").write_text(LOGBACK)
    broker.java = process = JavaProcess.start(main_class, arguments, work / "broker", jvm_options, version)
    try:
        name_servers = NameServers(f"127.0.0.1:{name_server_port}")
        # First what costs it nothing: asked how it is, a broker walks its whole timer wheel.
        process.wait_until(lambda: _is_registered(name_servers, broker))
        process.wait_until(lambda: bool(broker.client.runtime_info().values))
        # What was registered may have been the one before it.
        process.wait_until(lambda: _is_registered(name_servers, broker))
        return broker
    except BaseException:
        process.kill()
        raise


@contextmanager
def running_broker(
    store: Path,
    work: Path,
    name_server_port: int,
    overrides: Mapping[str, object] | None = None,
    *,
    access: Access = ACCESS,
    jvm_options: Sequence[str] = (),
    main_class: str = BROKER_MAIN,
    version: str | None = None,
) -> Iterator[Broker]:
    """A broker for the duration of the block. It is killed at the end unless the block stopped it."""
    broker = start_broker(
        store,
        work,
        name_server_port,
        overrides,
        access=access,
        jvm_options=jvm_options,
        main_class=main_class,
        version=version,
    )
    try:
        yield broker
    finally:
        broker.client.close()
        broker.java.kill()


def _is_registered(name_servers: NameServers, broker: Broker) -> bool:
    address = f"127.0.0.1:{broker.port}"
    return any(
        address in members.addresses.values() for members in name_servers.cluster_info().brokers.values()
    )
