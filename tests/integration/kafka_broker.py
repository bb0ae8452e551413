"""A real broker of Kafka for a test, of the version that it wants; its jars are resolved once.

``with running_kafka(tmp_path, "3.9.2") as kafka`` starts a node alone (demo.brokers.kafka).
``kafka.server_properties`` is STORE, ``kafka.address`` is for clients.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from demo.brokers.jvm import Jars
from demo.brokers.kafka import Kafka, find_jars
from tests.integration.jars import JAVA_PROJECTS, java

VERSIONS = ("3.9.2", "4.3.1")
"""With which each claim about a running broker is tried."""
SECONDS = 60.0


@cache
def kafka_jars(version: str) -> Jars:
    """The jars of a version; Maven is asked once in a checkout."""
    target = JAVA_PROJECTS / "kafka_broker" / "target"
    target.mkdir(exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = target / f"kafka-{version}.txt"
        pom = JAVA_PROJECTS / "kafka_broker" / "pom.xml"
        if listed.exists() and listed.stat().st_mtime >= pom.stat().st_mtime:
            class_path = listed.read_text().strip()
            if all(Path(jar).exists() for jar in class_path.split(os.pathsep)):
                return Jars(java(), class_path)
        return find_jars(target, version)


@contextmanager
def running_kafka(
    directory: Path,
    version: str = VERSIONS[-1],
    settings: Mapping[str, object] = MappingProxyType({}),
    listeners: Mapping[str, str] = MappingProxyType({}),
    format_options: Sequence[str] = (),
) -> Iterator[Kafka]:
    """Run a node for the duration of the block; it is killed in the end unless the block stopped it."""
    kafka = Kafka(directory, kafka_jars(version), settings, listeners)
    kafka.start(format_options)
    try:
        yield kafka
    finally:
        kafka.kill()


def admin_of(address: str, **client: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0, **client})


def make_topics(address: str, *names: str, partitions: int = 1, replicas: int = 1, **config: object) -> None:
    """Make topics, and wait until they are there.

    :param replicas: of each partition.
    :param config: of each, with ``_`` for ``.``, such as ``segment_bytes``.
    """
    settings = {name.replace("_", "."): str(value) for name, value in config.items()}
    topics = [NewTopic(name, partitions, replicas, config=settings) for name in names]
    admin = admin_of(address)
    for made in admin.create_topics(topics).values():
        made.result(SECONDS)


def produce(
    address: str,
    topic: str,
    values: Iterable[bytes],
    *,
    partition: int = 0,
    timestamp_ms: int | None = None,
    key: bytes | None = None,
    **client: Any,
) -> None:
    """Produce records and wait for their acks.

    :param client: further settings of the producer, with ``_`` for ``.``, such as ``batch_num_messages=1``.
    """
    settings = {name.replace("_", "."): value for name, value in client.items()}
    settings = {"bootstrap.servers": address, "linger.ms": 5, "acks": "all", "log_level": 0, **settings}
    producer = Producer(settings)
    failed: list[object] = []
    more = {} if timestamp_ms is None else {"timestamp": timestamp_ms}

    def delivered(error: object, _: object) -> None:
        if error:
            failed.append(error)

    for value in values:
        producer.produce(topic, value, key, partition, on_delivery=delivered, **more)
        producer.poll(0)
    left = producer.flush(SECONDS)
    assert (left, failed) == (0, [])


def any_segment_bytes(version: str) -> str:
    """Return the setting of a topic, as :func:`make_topics` takes it, by which segments have any size.

    From 4.0 on segment.bytes is at least 1 MiB; the other name is the broker's own tests'.
    """
    return "segment_bytes" if version.startswith("3.") else "internal_segment_bytes"


def small(version: str) -> dict[str, int]:
    """Return the setting of a topic with segments of 20,000 bytes."""
    return {any_segment_bytes(version): 20_000}


def messages_of(
    address: str, topic: str, level: str = "read_uncommitted", end: int | None = None
) -> Iterator[Message]:
    """Yield what a consumer gets of a topic's first partition, from its start to its end.

    :param level: of isolation.
    :param end: only below this offset.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        while (message := consumer.poll(SECONDS)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return
            if end is not None and (message.offset() or 0) >= end:
                return
            yield message
        raise AssertionError(f"nothing came for {SECONDS:.0f} s")
    finally:
        consumer.close()


def served(
    address: str, topic: str, level: str = "read_uncommitted", end: int | None = None
) -> dict[int, bytes | None]:
    """Return the values that :func:`messages_of` yields, by offset."""
    return {message.offset() or 0: message.value() for message in messages_of(address, topic, level, end)}
