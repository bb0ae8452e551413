"""Three real nodes of Kafka, brokers and controllers, on one machine: logs with several replicas.

``with running_cluster(tmp_path) as cluster`` starts them. ``cluster.nodes[1]`` is one of them, which can be
stopped, killed, frozen and started again (demo.brokers.kafka). Leaders move only as a test says.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaException, TopicCollection, TopicPartitionInfo

from demo.brokers.jvm import HOST
from demo.brokers.kafka import Kafka, new_cluster_id
from tests.integration.jars import JAVA_PROJECTS
from tests.integration.kafka_broker import SECONDS, VERSIONS, admin_of, kafka_jars

NODES = (1, 2, 3)
_PORTS = 2
"""Of a node: its clients' and its controller's."""
_ANSWER_SECONDS = 3.0
_SHARED: Mapping[str, object] = {
    "default.replication.factor": len(NODES),
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": len(NODES),
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.replication.factor": len(NODES),
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 2,
    # Who is gone is found gone within seconds.
    "broker.session.timeout.ms": 6_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 6_000,
    # With it, the last node waits for a controller that most of the others have taken with them.
    "controlled.shutdown.enable": "false",
    "auto.leader.rebalance.enable": "false",
}


class Cluster:
    """The nodes by their ids; which of them run, a test decides.

    :param directory: receives a directory for each, ``node-1`` and so on.
    :param settings: of all of them; a text's ``{node}`` is the node's directory.
    """

    def __init__(self, directory: Path, version: str, settings: Mapping[str, object]) -> None:
        self._directory, self._version, self._settings = directory, version, settings
        self._id = new_cluster_id()
        self._first_port = _free_ports(len(NODES) * _PORTS)
        self.nodes = self._made({})

    @property
    def address(self) -> str:
        """Return the addresses of all, for clients."""
        return ",".join(node.address for node in self.nodes.values())

    def start(self, ids: Collection[int] = NODES) -> None:
        """Start some nodes at once, and wait until they serve."""
        for number in ids:
            self.nodes[number].launch()
        for number in ids:
            self.nodes[number].wait_until_serving()

    def stop(self, ids: Collection[int] = NODES) -> None:
        """Stop some nodes cleanly, at once."""
        for number in ids:
            self.nodes[number].ask()
        for number in ids:
            self.nodes[number].stop()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def add_log_directories(self, directories: Mapping[int, Path]) -> None:
        """Append a log directory to those of each node named. They have to be stopped."""
        self.nodes = self._made(directories)

    def partition(self, topic: str, partition: int = 0) -> TopicPartitionInfo:
        """Return what the cluster says of a partition: leader, replicas and those in sync."""
        deadline = time.monotonic() + SECONDS
        # A node that is frozen doesn't answer, and may pass for the controller: the next one is asked then.
        for node in cycle(self.nodes.values()):
            admin = admin_of(node.address)
            asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_SECONDS)
            try:
                found: TopicPartitionInfo = asked[topic].result().partitions[partition]
                return found
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)
        raise AssertionError("there is a node")

    def leader(self, topic: str, partition: int = 0) -> int | None:
        leader = self.partition(topic, partition).leader
        return None if leader is None else leader.id

    def wait_for_isr(self, topic: str, ids: Collection[int] = NODES, partition: int = 0) -> None:
        """Wait until exactly these replicas are in sync, and one of them leads."""

        def reached() -> bool:
            found = self.partition(topic, partition)
            in_sync = {node.id for node in found.isr}
            return in_sync == set(ids) and found.leader is not None and found.leader.id in in_sync

        wait_until(reached, f"{topic}-{partition} in sync on {sorted(ids)}")

    def move_leader(self, topic: str, to: int, partition: int = 0) -> None:
        """Have a replica that is in sync elected, and wait until it leads."""
        program = str(JAVA_PROJECTS / "kafka_broker" / "MoveLeader.java")
        self.nodes[to].run_class(program, self.nodes[to].address, topic, str(partition), str(to))
        wait_until(lambda: self.leader(topic, partition) == to, f"{topic}-{partition} led by {to}")

    def _made(self, more: Mapping[int, Path]) -> Mapping[int, Kafka]:
        ports = {number: self._first_port + place * _PORTS for place, number in enumerate(NODES)}
        voters = ",".join(f"{number}@{HOST}:{port + 1}" for number, port in ports.items())
        made = {}
        for number, port in ports.items():
            directory = self._directory / f"node-{number}"
            own = {"log.dirs": directory / "data", **_SHARED, **self._settings}
            own = {key: str(value).replace("{node}", str(directory)) for key, value in own.items()}
            if number in more:
                own["log.dirs"] += f",{more[number]}"
            own |= {"node.id": str(number), "controller.quorum.voters": voters}
            jars = kafka_jars(self._version)
            made[number] = Kafka(directory, jars, own, first_port=port, cluster_id=self._id)
        return made


@contextmanager
def running_cluster(
    directory: Path,
    version: str = VERSIONS[-1],
    settings: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[Cluster]:
    """Run the nodes for the duration of the block; all are killed in the end."""
    cluster = Cluster(directory, version, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def wait_until(reached: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"expected {what} within {seconds:.0f} s"
        time.sleep(0.1)


def _free_ports(count: int) -> int:
    """Return the first of some ports that no outgoing connection is given: nodes come back to them."""
    while True:
        first = random.randrange(16_000, 32_000 - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0
