"""Three real brokers that keep records for seconds, while producers write, and each node's store is archived.

Each record that a broker took is looked for in the end: in the lake, at the brokers, or in what is recorded
to have gone.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from demo.brokers.kafka import Kafka
from storage_engine.journal.journal import Journal
from storage_engine.model.hold import Drift
from storage_engine.retention.ranges.drift import recorded_gone
from tests.integration.kafka_broker import SECONDS, VERSIONS, make_topics, served, small
from tests.integration.kafka_cluster import Cluster, wait_until
from tests.integration.test_kafka_hold import change
from tests.integration.test_kafka_release import in_lake, start_of
from tests.rounds import rounds
from tests.services.command_line import Outcome, run_command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.again,
    pytest.mark.timeout(1_800),
    pytest.mark.usefixtures("plainly"),
]

ROUNDS = rounds("STORAGE_ENGINE_SHORT_RETENTION", 1, 4)
"""In each the store of each node is archived and cleaned."""
RETENTION_MS = 4_000
SETTINGS = {
    "log.retention.check.interval.ms": 250,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 0,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "auto.create.topics.enable": "false",
}
SLOWLY = ("--archive-bytes-per-second", 300_000)
"""So that a segment goes while a run is at work."""


@dataclass
class Producing:
    """Producers to topics of one partition each.

    :param taken: what the brokers have acknowledged, by topic and offset.
    """

    taken: dict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    failed: list[KafkaError] = field(default_factory=list)

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        topic, offset, value = message.topic(), message.offset(), message.value()
        assert topic is not None
        assert offset is not None
        assert value is not None
        self.taken[topic][offset] = value

    def wait_for(self, topics: Collection[str], count: int) -> None:
        """Wait until so many more records of each topic are taken."""
        wanted = {topic: len(self.taken[topic]) + count for topic in topics}
        wait_until(lambda: all(len(self.taken[topic]) >= wanted[topic] for topic in topics), "more records")


@contextmanager
def producing(address: str, *topics: str, per_second: int) -> Iterator[Producing]:
    """Write to topics until the block ends; then all of it is acknowledged.

    :param per_second: records of 1,000 bytes to each topic.
    """
    done, stop = Producing(), threading.Event()

    def write() -> None:
        producer = Producer(
            {"bootstrap.servers": address, "acks": "all", "batch.num.messages": 1, "log_level": 0}
        )
        number = 0
        while not stop.wait(1 / per_second):
            for topic in topics:
                producer.produce(topic, b"%d " % number + b"x" * 1000, b"k", 0, on_delivery=done.note)
            producer.poll(0)
            number += 1
        assert producer.flush(SECONDS) == 0

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield done
        finally:
            stop.set()
    writing.result()
    assert done.failed == []


class Stores:
    """The stores of the nodes, with one lake.

    :param live: how they are known, beyond their broker.
    """

    def __init__(self, cluster: Cluster, lake: Path, *live: object) -> None:
        self._cluster, self._lake, self._live = cluster, lake, live

    def run(self, node: Kafka, command: str, *words: object) -> Outcome:
        """Run a command on a node's store, which names what it records to have gone."""
        before = self.recorded()
        live = ("--broker", node.address, "--allow-same-disk", "--name", node.server_properties.parent.name)
        done = run_command(command, node.server_properties, "--lake", self._lake, *live, *self._live, *words)
        said = done.out + done.err
        assert "Traceback" not in said, said
        assert "Mend the package" not in said, said
        named = [(int(first), int(end)) for first, end in re.findall(r"\[(\d+), (\d+)\)", said)]
        for one in self.recorded() - before:
            # A loss that grows is recorded at each look, and named as it was at the last one.
            assert any(first <= one.start_offset and one.end_offset <= end for first, end in named), said
        return done

    def recorded(self) -> set[Drift]:
        journal = Journal(f"sqlite:///{self._lake}/journal.db")
        return {one for store in journal.all_stores() for one, _ in recorded_gone(journal, store)}

    def missing(self, producing: Producing, topic: str) -> set[int]:
        """Return which of the records that brokers took are in no lake, at no broker, and not on record."""
        archived, node = in_lake(self._lake, topic), self._cluster.nodes[1]
        there = served(node.address, topic, end=max(producing.taken[topic]) + 1)
        first = start_of(node, topic)
        on_record = [one for one in self.recorded() if one.log == f"{topic}-0"]
        missing = set()
        for offset, value in producing.taken[topic].items():
            found = [each[offset] for each in (archived, there) if offset in each]
            assert set(found) <= {value}, f"{topic} {offset}"
            if not found and not any(one.start_offset <= offset < one.end_offset for one in on_record):
                missing.add(offset)
        assert not [offset for offset in missing if offset >= first]
        return missing


def test_what_brokers_delete_while_it_is_archived_is_named_and_ends_no_run(
    cluster: Cluster, lake: Path, begins: dict[str, list[int]]
) -> None:
    topics = ("brief", "sized", "stays")
    small_topic = {"replicas": 3, **small(VERSIONS[-1])}
    make_topics(cluster.address, "brief", retention_ms=RETENTION_MS, **small_topic)
    make_topics(cluster.address, "sized", retention_ms=-1, retention_bytes=150_000, **small_topic)
    make_topics(cluster.address, "stays", retention_ms=-1, **small_topic)
    for topic in topics:
        cluster.wait_for_isr(topic)
    stores = Stores(cluster, lake)
    with producing(cluster.address, *topics, per_second=60) as done:
        done.wait_for(topics, 100)
        for _ in range(ROUNDS):
            for node in cluster.nodes.values():
                ended = stores.run(node, "archive", *SLOWLY)
                assert ended.exit_code == 0, ended.out + ended.err
                ended = stores.run(node, "clean")
                assert ended.exit_code == 2
                assert "Nothing was changed. Let the broker delete by its own rules" in ended.err
    # From here on nothing goes any more.
    change(cluster.nodes[1], "brief", "retention.ms", "-1")
    change(cluster.nodes[1], "sized", "retention.bytes", "-1")
    for node in cluster.nodes.values():
        assert stores.run(node, "archive").exit_code == 0
    gone = {one.log for one in stores.recorded()}
    assert gone, "expected segments that went meanwhile"
    assert "stays-0" not in gone
    for topic in topics:
        # What went before any run had looked, nobody knows.
        assert {at for at in stores.missing(done, topic) if at >= begins[f"{topic}-0"][0]} == set()
    assert stores.missing(done, "stays") == set()


def until_held(stores: Stores, nodes: Collection[Kafka]) -> None:
    for node in nodes:
        wait_until(lambda node=node: stores.run(node, "hold").exit_code == 0, "a hold")  # type: ignore[misc]


def test_beside_a_hold_what_goes_unproven_is_lost_and_all_else_goes_on(cluster: Cluster, lake: Path) -> None:
    topics = ("orders", "payments", "lost")
    small_topic = {"replicas": 3, **small(VERSIONS[-1])}
    make_topics(cluster.address, *topics, retention_ms=RETENTION_MS, **small_topic)
    for number, topic in enumerate(topics, 1):
        cluster.wait_for_isr(topic)
        if cluster.leader(topic) != number:
            cluster.move_leader(topic, number)
    stores, nodes = Stores(cluster, lake, "--deletes-us"), tuple(cluster.nodes.values())
    until_held(stores, nodes)
    with producing(cluster.address, *topics, per_second=10) as done:
        done.wait_for(topics, 100)
        for _ in range(ROUNDS):
            for node in nodes:
                for command in ("archive", "clean"):
                    ended = stores.run(node, command)
                    assert ended.exit_code == 0, ended.out + ended.err
        # By hand, and unproven: what a look has seen since the last archiving.
        archived = max(in_lake(lake, "lost"))
        done.wait_for(topics, 60)
        until_held(stores, nodes[:1])
        before = start_of(nodes[0], "orders")
        change(nodes[0], "lost", "retention.ms", "1")
        wait_until(lambda: start_of(nodes[0], "lost") > archived + 1, "records that went")
        ended = stores.run(nodes[0], "clean")
        assert ended.exit_code == 1, ended.out + ended.err
        assert re.search(r"lost-0 .*\[\d+, \d+\) is LOST", ended.out + ended.err)
        assert start_of(nodes[0], "orders") > before
    assert {one.log for one in stores.recorded()} == {"lost-0"}
    assert {topic: stores.missing(done, topic) for topic in topics} == {topic: set() for topic in topics}
