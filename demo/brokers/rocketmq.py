"""A real RocketMQ name server and broker on the loopback address, and clients that load them.

Their jars come by Maven. However it is left, no process that was started lives on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from demo.brokers.jvm import (
    HOST,
    JAVA,
    Jars,
    free_ports,
    maven_jars,
    tail,
    write_properties,
)
from demo.brokers.reading import ReadingAdmin
from storage_engine.exceptions import BrokerError, NotOnBrokerError, StorageEngineError
from storage_engine.project.up import ProcessTree
from storage_engine.rocketmq.remoting.masters import NameServers

BROKER_NAME = "broker-a"
_START_SECONDS = 120.0
_PORT_ATTEMPTS = 5
_PORT_TAKEN, _START_LINES = "Address already in use", 40
"""What a process says at its end when it can't listen, and so many lines of its log are of its end."""

_JVM_OPTIONS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "-XX:+IgnoreUnrecognizedVMOptions",
)

_BROKER_CONF: Mapping[str, object] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": BROKER_NAME,
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "bindAddress": HOST,
    "autoCreateTopicEnable": "false",
    "timerWheelEnable": "false",
}


def find_jars(directory: Path) -> Jars:
    """Have Maven bring the jars of broker, name server and client.

    :param directory: receives the list of them.
    :raises BadInputError: no JDK or no Maven is installed.
    :raises StorageEngineError: Maven failed.
    """
    return maven_jars(JAVA / "pom.xml", directory / "class-path.txt", "RocketMQ")


class RocketMQ:
    """A name server and a broker; a context manager.

    :param directory: receives the store in ``store``, logs and settings.
    :param settings: of the broker, beyond those that keep it on loopback.
    """

    def __init__(self, directory: Path, jars: Jars, settings: Mapping[str, object]) -> None:
        self.root = directory / "store"
        self.broker_conf = directory / "broker.conf"
        self._take_ports()
        self._name_server_conf = directory / "name-server.conf"
        self._home = directory / "rocketmq"
        self._jars = jars
        self._settings = settings
        self._tree = ProcessTree()

    def __enter__(self) -> Self:
        try:
            for _ in range(_PORT_ATTEMPTS - 1):
                try:
                    self._start()
                    return self
                except StorageEngineError:
                    if not self._lost_a_port():
                        raise
                self._tree.stop(politely=False)
                self._take_ports()
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
        # Closing a broker well takes 20 s, and what it wrote is thrown away.
        self._tree.stop(politely=False)

    def admin(self) -> ReadingAdmin:
        return ReadingAdmin(self.address)

    def min_offset(self) -> int:
        """Return where the log begins."""
        with self.admin() as admin:
            return admin.runtime_info().commitlog_min_offset

    def max_offset(self) -> int:
        """Return where the next message will begin."""
        with self.admin() as admin:
            return admin.runtime_info().commitlog_max_offset

    def check_alive(self) -> None:
        """Raise StorageEngineError, with the end of its log, if a process has ended."""
        for name in self._tree.ended():
            raise StorageEngineError(
                f"RocketMQ's {name} ended although it should run on. {self._log(name)} ends:\n"
                f"{tail(self._log(name))}"
            )

    def load(self, name: str, *options: str) -> Load:
        """Start producers and consumers.

        :param name: of its log and its record.
        :param options: of the Java program ``Load``.
        """
        record = self._home / f"{name}.jsonl"
        fixed = (f"name-server={self.name_servers}", f"broker={self.address}", f"record={record}")
        command = [str(JAVA / "Load.java"), *fixed, *options]
        process = self._java(name, command, ["-Xmx512m"], stdin=subprocess.PIPE)
        return Load(process, record, self._log(name))

    def _take_ports(self) -> None:
        first = free_ports(5)
        # The broker takes listenPort - 2 for its fast port.
        self.address = f"{HOST}:{first + 2}"
        self.name_servers = f"{HOST}:{first + 4}"

    def _lost_a_port(self) -> bool:
        """Return whether another process took a port between our look at it and the start."""
        ended = [tail(self._log(name), _START_LINES) for name in self._tree.ended()]
        return any(_PORT_TAKEN in said for said in ended)

    def _start(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        listen, name_server = (int(a.rpartition(":")[2]) for a in (self.address, self.name_servers))
        write_properties(self._name_server_conf, {"listenPort": name_server, "bindAddress": HOST})
        write_properties(
            self.broker_conf,
            {
                **_BROKER_CONF,
                "storePathRootDir": self.root,
                "storePathCommitLog": self.root / "commitlog",
                "namesrvAddr": self.name_servers,
                "listenPort": listen,
                "haListenPort": listen + 1,
                **self._settings,
            },
        )
        for name, main_class, conf in (
            ("name-server", "org.apache.rocketmq.namesrv.NamesrvStartup", self._name_server_conf),
            ("broker", "org.apache.rocketmq.broker.BrokerStartup", self.broker_conf),
        ):
            self._java(name, [main_class, "-c", str(conf)], _JVM_OPTIONS)
        self._wait(lambda: _is_registered(NameServers(self.name_servers), self.address))

    def _java(
        self, name: str, command: Sequence[str], options: Sequence[str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "ROCKETMQ_HOME": str(self._home)}
        launch = [self._jars.java, *options, f"-Duser.home={self._home}", "-cp", self._jars.class_path]
        return self._tree.start(name, [*launch, *command], environment, self._log(name), stdin)

    def _wait(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            self.check_alive()
            try:
                if ready():
                    return
            except (BrokerError, NotOnBrokerError):
                pass
            time.sleep(0.2)
        raise StorageEngineError(
            f"RocketMQ did not serve within {_START_SECONDS:.0f} s. {self._log('broker')} ends:\n"
            f"{tail(self._log('broker'))}"
        )

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"


class Load:
    """Producers and consumers that write down what became of each message; see ``Load.java``."""

    def __init__(self, process: subprocess.Popen[bytes], record: Path, log: Path) -> None:
        self.record = record
        self._process = process
        self._log = log

    def wait_until_sending(self) -> None:
        """
        :raises StorageEngineError: it ended, or doesn't send in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if "ready" in self._log.read_text(errors="replace"):
                return
            time.sleep(0.1)
        raise self._failed("to send")

    def stop(self) -> dict[str, Any]:
        """End it, and wait until it has.

        :return: its summary.
        :raises StorageEngineError: it failed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            raise self._failed("to end") from None
        if status != 0:
            raise self._failed("to end with status 0")
        for line in self.records():
            if "summary" in line:
                return dict(line["summary"])
        raise self._failed("a summary")

    def records(self) -> Iterator[dict[str, Any]]:
        """Every whole line of its record so far."""
        with self.record.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def _failed(self, expected: str) -> StorageEngineError:
        return StorageEngineError(
            f"The load: expected it {expected}, found otherwise. {self._log} ends:\n{tail(self._log)}"
        )


def _is_registered(name_servers: NameServers, address: str) -> bool:
    brokers = name_servers.cluster_info().brokers.values()
    return any(address in members.addresses.values() for members in brokers)
