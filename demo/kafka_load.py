"""Clients of a real Kafka broker in a demo: producers, a group that keeps up, one that lags, a transaction.

Each record that the broker acknowledges is written down, so that it can be looked for in the end.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from storage_engine.exceptions import StorageEngineError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

CLICKS, ORDERS, PAYMENTS = TOPICS = ("clicks", "orders", "payments")
KEEPS_UP, LAGS = "dashboard", "billing"
"""Groups: the one reads clicks, the other one orders."""
_RECORDS_PER_SECOND = 240
"""To each topic."""
_VALUE_BYTES = 1024
_ROUND_SECONDS = 0.05
_FLUSH_SECONDS = 30.0
_TRANSACTION_TIMEOUT_MS = 600_000
_IN_TRANSACTION = 50


@dataclass(frozen=True, slots=True)
class ClientsSaw:
    """What became of records.

    :param acknowledged: SHA-256 of each value that the broker took, by topic and offset.
    :param kept_up: offsets that the group which keeps up has read, in order.
    :param failed: what went wrong.
    """

    acknowledged: Mapping[tuple[str, int], str]
    kept_up: Sequence[int]
    failed: Sequence[str]


class KafkaLoad:
    """Clients of a broker, until :meth:`stop`; each topic has one partition."""

    def __init__(self, address: str) -> None:
        self._client = {"bootstrap.servers": address, "log_level": 0}
        self._acknowledged: dict[tuple[str, int], str] = {}
        self._kept_up: list[int] = []
        self._failed: list[str] = []
        self._lagging_position = 0
        self._ending = threading.Event()
        self._transaction: Any = None
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._produce, self._keep_up)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> ClientsSaw:
        """End the producers, and the group that keeps up once it has read all.

        :raises StorageEngineError: they don't end.
        """
        self._ending.set()
        for thread in self._threads:
            thread.join(2 * _FLUSH_SECONDS)
            if thread.is_alive():
                raise StorageEngineError(
                    f"The demo's clients: expected them to end within {2 * _FLUSH_SECONDS:.0f} s."
                )
        return ClientsSaw(self._acknowledged, self._kept_up, self._failed)

    def begin_transaction(self) -> int:
        """Write to payments in a transaction that stays open. :return: the offset of its first record."""
        self._transaction = self._producer(
            **{"transactional.id": "demo", "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS}
        )
        self._transaction.init_transactions(_FLUSH_SECONDS)
        self._transaction.begin_transaction()
        offsets: list[int] = []
        for number in range(_IN_TRANSACTION):
            self._send(self._transaction, PAYMENTS, b"in a transaction %d " % number, offsets)
        self._transaction.flush(_FLUSH_SECONDS)
        if len(offsets) != _IN_TRANSACTION:
            raise StorageEngineError(
                f"A transaction: expected {_IN_TRANSACTION} records taken, found {len(offsets)}."
            )
        return min(offsets)

    def commit_transaction(self) -> None:
        self._transaction.commit_transaction(_FLUSH_SECONDS)

    def read_orders(self, records: int | None = None) -> int:
        """Let the group that lags read on, and commit. :return: its position.

        :param records: so many, waiting for them if need be; or all that are there.
        """
        from confluent_kafka import TopicPartition

        with self._consumer(LAGS) as consumer:
            goal = self._lagging_position + (records or 0)
            if records is None:
                _, goal = consumer.get_watermark_offsets(TopicPartition(ORDERS, 0), _FLUSH_SECONDS)
            consumer.assign([TopicPartition(ORDERS, 0, self._lagging_position)])
            while self._lagging_position < goal:
                for message in consumer.consume(min(1000, goal - self._lagging_position), _FLUSH_SECONDS):
                    if message.error():
                        raise StorageEngineError(f"Group {LAGS}: expected records, found {message.error()}.")
                    self._lagging_position = (message.offset() or 0) + 1
            position = TopicPartition(ORDERS, 0, self._lagging_position)
            consumer.commit(offsets=[position], asynchronous=False)
        return self._lagging_position

    def _produce(self) -> None:
        """Send to all topics at a steady rate."""
        producer = self._producer()
        for number in count():
            for topic in TOPICS:
                for _ in range(int(_RECORDS_PER_SECOND * _ROUND_SECONDS)):
                    self._send(producer, topic, b"%d " % number)
            producer.poll(0)
            if self._ending.wait(_ROUND_SECONDS):
                break
        if left := producer.flush(_FLUSH_SECONDS):
            self._failed.append(f"{left} records without an answer")

    def _send(self, producer: Any, topic: str, text: bytes, offsets: list[int] | None = None) -> None:
        value = text + os.urandom(_VALUE_BYTES)

        def answered(error: object, message: Any) -> None:
            if error:
                self._failed.append(str(error))
                return
            self._acknowledged[topic, message.offset()] = hashlib.sha256(value).hexdigest()
            if offsets is not None:
                offsets.append(message.offset())

        producer.produce(topic, value, partition=0, on_delivery=answered)

    def _keep_up(self) -> None:
        with self._consumer(KEEPS_UP) as consumer:
            consumer.subscribe([CLICKS])
            while True:
                messages = consumer.consume(1000, 1.0)
                if not messages and not self._threads[0].is_alive():
                    return
                self._kept_up += [one.offset() or 0 for one in messages if not one.error()]
                self._failed += [str(one.error()) for one in messages if one.error()]
                if messages:
                    consumer.commit(asynchronous=True)

    def _producer(self, **settings: object) -> Any:
        from confluent_kafka import Producer

        return Producer({**self._client, "acks": "all", "linger.ms": 5, **settings})

    @contextmanager
    def _consumer(self, group: str) -> Iterator[Consumer]:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                **self._client,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()


def make_topics(address: str, settings: dict[str, str], topics: Collection[str] = TOPICS) -> None:
    """Make topics of one partition each."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    made = admin.create_topics([NewTopic(topic, 1, 1, config=settings) for topic in topics])
    for future in made.values():
        future.result(_FLUSH_SECONDS)


def retention_of(
    address: str, topics: Collection[str] = TOPICS
) -> Mapping[str, Mapping[str, tuple[str, bool]]]:
    """Return by which settings a cluster expires records of topics.

    :return: by topic and setting its value, and whether the topic has it itself.
    """
    from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    asked = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics])
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        resource.name: {
            name: (entry.value, entry.source == own)
            for name, entry in answer.result(_FLUSH_SECONDS).items()
            if name.startswith("retention.")
        }
        for resource, answer in asked.items()
    }
