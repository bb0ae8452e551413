"""A real node of Kafka on the loopback address: broker and controller in one process, alone or of a cluster.

Its jars come by Maven. However it is left, the process doesn't live on.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from demo.brokers.jvm import (
    HOST,
    JAVA,
    Jars,
    free_ports,
    maven_jars,
    tail,
    write_properties,
)
from storage_engine.exceptions import StorageEngineError
from storage_engine.project.up import ProcessTree

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

VERSION = "4.3.1"
PLAIN = "PLAIN"
"""The listener of clients that nobody has to show anything."""
_CONTROLLER = "CONTROLLER"
_NODE = "node"
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_PORT_ATTEMPTS = 5
_PORT_TAKEN, _STARTED, _START_LINES = "Address already in use", "Kafka Server started", 60
_DUMP_SECONDS, _DUMPED = 10.0, "JNI global refs"
_FORMATTED = "meta.properties"

_JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # These say what a start waits for, and when it serves.
    *(
        f"-Dorg.slf4j.simpleLogger.log.kafka.server.{name}=info"
        for name in ("KafkaRaftServer", "ControllerServer", "BrokerServer", "BrokerLifecycleManager")
    ),
)
_ALONE: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "log.cleaner.dedupe.buffer.size": 16 << 20,
}
"""Settings of a node that is a cluster of its own, for seconds or minutes."""


def find_jars(directory: Path, version: str = VERSION) -> Jars:
    """Have Maven bring the jars of a broker.

    :param directory: receives the list of them.
    :raises BadInputError: no JDK or no Maven is installed.
    :raises StorageEngineError: Maven failed.
    """
    pom = JAVA / "kafka_broker" / "pom.xml"
    return maven_jars(pom, directory / f"kafka-{version}.txt", "Kafka", {"kafka.version": version})


class Kafka:
    """A node; a context manager that starts it, and kills it in the end unless it was stopped.

    :param directory: receives ``server.properties`` and, unless the settings say otherwise, logs in ``data``.
        Log directories that are there already are served as they are.
    :param settings: of the node, over those of a node alone on loopback.
    :param listeners: further ones by name, with their protocols, such as ``{"SASL": "SASL_PLAINTEXT"}``.
    :param first_port: of its listeners, one port each and the controller's last; None: some that are free.
    :param cluster_id: of directories that aren't formatted yet; None: one of its own.
    """

    def __init__(
        self,
        directory: Path,
        jars: Jars,
        settings: Mapping[str, object] = MappingProxyType({}),
        listeners: Mapping[str, str] = MappingProxyType({}),
        *,
        first_port: int | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.server_properties = directory / "server.properties"
        self.log = directory / "node.log"
        self._jars = jars
        self._protocols = {PLAIN: "PLAINTEXT", **listeners, _CONTROLLER: "PLAINTEXT"}
        self._settings = {**_ALONE, "log.dirs": directory / "data", **settings}
        self._tree = ProcessTree()
        self._cluster_id = cluster_id or new_cluster_id()
        self._first_port = first_port
        self.addresses: Mapping[str, str] = {}
        self._take_ports()

    @property
    def address(self) -> str:
        """Return where clients find it who show nothing."""
        return self.addresses[PLAIN]

    @property
    def controller_address(self) -> str:
        """Return where the cluster's other controllers find its own."""
        return self.addresses[_CONTROLLER]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self, format_options: Sequence[str] = ()) -> None:
        """Start it, at the ports that it had before if it has run, and wait until it serves.

        :param format_options: of Kafka's storage tool, where there are no log directories yet.
        :raises StorageEngineError: it ended, or doesn't serve in time.
        """
        try:
            for _ in range(_PORT_ATTEMPTS - 1):
                try:
                    self.launch(format_options)
                    self.wait_until_serving()
                    return
                except StorageEngineError:
                    if self._first_port is not None or _PORT_TAKEN not in tail(self.log, _START_LINES):
                        raise
                self.kill()
                self._take_ports()
            self.launch(format_options)
            self.wait_until_serving()
        except BaseException:
            self.kill()
            raise

    def launch(self, format_options: Sequence[str] = ()) -> None:
        """Start it and don't wait: a node of several serves when most of them run.

        It ends with the thread that calls this.
        """
        self.server_properties.parent.mkdir(parents=True, exist_ok=True)
        clients = [name for name in self.addresses if name != _CONTROLLER]
        values = {
            "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
            "advertised.listeners": ",".join(f"{name}://{self.addresses[name]}" for name in clients),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in self._protocols.items()),
            "inter.broker.listener.name": PLAIN,
            "controller.listener.names": _CONTROLLER,
            "controller.quorum.voters": f"{self._settings['node.id']}@{self.controller_address}",
            **self._settings,
        }
        write_properties(self.server_properties, values)
        self.log.unlink(missing_ok=True)
        first = Path(str(self._settings["log.dirs"]).split(",")[0])
        if not (first / _FORMATTED).exists():
            conf = str(self.server_properties)
            options = ("-t", self._cluster_id, "-c", conf, *format_options)
            self.run_class("kafka.tools.StorageTool", "format", *options)
        self._java(_NODE, ["kafka.Kafka", str(self.server_properties)], self.log)

    def wait_until_serving(self) -> None:
        """Wait until it serves.

        :raises StorageEngineError: it ended, or doesn't serve in time; its log then has what its threads do.
        """
        deadline = time.monotonic() + _START_SECONDS
        while _STARTED not in tail(self.log, _START_LINES):
            self.check_alive()
            if time.monotonic() > deadline:
                load = os.getloadavg()[0]
                late = self._failed(f"to serve within {_START_SECONDS:.0f} s, at load {load:.1f}")
                self._dump_threads()
                raise late
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it cleanly: logs are flushed and marked.

        :raises StorageEngineError: it doesn't end in time; it is killed then.
        """
        self.ask()
        deadline = time.monotonic() + _STOP_SECONDS
        while _NODE not in self._tree.ended():
            if time.monotonic() > deadline:
                self.kill()
                raise self._failed(f"to stop within {_STOP_SECONDS:.0f} s")
            time.sleep(0.05)
        self._tree.stop(politely=False)

    def ask(self) -> None:
        """Ask it to stop cleanly, and don't wait: a node of several may need the others for it."""
        self._tree.ask()

    def freeze(self) -> None:
        """Let none of its threads run on, until :meth:`thaw`."""
        for process in self._tree.living():
            process.suspend()

    def thaw(self) -> None:
        """Let it run on."""
        for process in self._tree.living():
            process.resume()

    def kill(self) -> None:
        """End it now, as a power cut would."""
        self._tree.stop(politely=False)

    def check_alive(self) -> None:
        """Raise StorageEngineError, with the end of its log, if it has ended."""
        if self._tree.ended():
            raise self._failed("to run on")

    def run_class(self, main_class: str, *arguments: str) -> str:
        """Run a class of Kafka's own and return what it prints.

        :raises StorageEngineError: it failed.
        """
        log = self.log.with_name("tool.log")
        log.unlink(missing_ok=True)
        self._java(main_class, [main_class, *arguments], log)
        if self._tree.wait(main_class) != 0:
            raise StorageEngineError(f"{main_class}: expected it to succeed. It said:\n{tail(log)}")
        return log.read_text(errors="replace")

    def _take_ports(self) -> None:
        first = self._first_port or free_ports(len(self._protocols))
        self.addresses = {name: f"{HOST}:{first + i}" for i, name in enumerate(self._protocols)}

    def _java(self, name: str, command: Sequence[str], log: Path) -> None:
        launch = [self._jars.java, *_JVM_OPTIONS, f"-Duser.home={log.parent}", "-cp", self._jars.class_path]
        if setpriv := shutil.which("setpriv"):
            # Even where we are killed it doesn't live on.
            launch = [setpriv, "--pdeathsig", "KILL", *launch]
        self._tree.start(name, [*launch, *command], dict(os.environ), log)

    def _dump_threads(self) -> None:
        """Have a JVM that may hang append to its log what each of its threads does."""
        for process in self._tree.living():
            process.send_signal(signal.SIGQUIT)
        deadline = time.monotonic() + _DUMP_SECONDS
        while _DUMPED not in tail(self.log, _START_LINES) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _failed(self, expected: str) -> StorageEngineError:
        return StorageEngineError(
            f"Kafka's node: expected it {expected}, found otherwise. {self.log} ends:\n{tail(self.log)}"
        )


def new_cluster_id() -> str:
    """Make up an id; Kafka's tools take one that begins with a hyphen for an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return made


def watermarks(consumer: Consumer, place: TopicPartition, seconds: float) -> tuple[int, int]:
    """Return where a partition begins and ends, once its leader is elected: a node that has just started may
    answer that it isn't yet, or that another one is.
    """
    from confluent_kafka import KafkaError, KafkaException

    no_leader = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    deadline = time.monotonic() + seconds
    while True:
        try:
            first, end = consumer.get_watermark_offsets(place, seconds)
            return first, end
        except KafkaException as error:
            # The client doesn't call a leader's absence retriable: it would ask again by itself.
            passing = error.args[0].retriable() or error.args[0].code() in no_leader
            if not passing or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
