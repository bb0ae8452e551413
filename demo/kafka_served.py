"""What a real broker serves of a restored log, against what the lake says of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from demo.brokers.jvm import Jars
from demo.brokers.kafka import Kafka, watermarks
from demo.checks import DemoCheck
from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file.scan import all_equal, read_rows
from storage_engine.lake.soundness.receipts import list_stores, receipts

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

_SECONDS = 60.0
_NEW_VALUE = b"written after the restore"

Record = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


def check_served(lake: Lake, node: Path, restored: Path, log: str, jars: Jars) -> tuple[DemoCheck, ...]:
    """Let a broker open a node's directories with a restored one, read a log, and write to it.

    :param node: has the node's directories ``first``, ``second`` and ``metadata``.
    :raises StorageEngineError: the broker doesn't serve.
    """
    (store,) = list_stores(lake)
    end = max(row.end for row in receipts(lake, store.store_id, log=log))
    expected = committed(lake, log)
    directories = ",".join(str(path) for path in (node / "first", node / "second", restored))
    settings = {"log.dirs": directories, "metadata.log.dir": node / "metadata", "log.retention.ms": -1}
    with Kafka(node, jars, settings) as kafka:
        before = consume(kafka.address, log)
        written_at = _produce(kafka.address, log)
        after = consume(kafka.address, log)
        kafka.stop()
    return (
        DemoCheck(
            before == expected,
            f"a broker serves the {len(expected)} committed records that the lake has, at the same offsets",
        ),
        DemoCheck(written_at == end, f"a new record went to offset {end}, behind the last restored one"),
        DemoCheck(after == [*expected, (end, None, _NEW_VALUE)], "and it is served behind them"),
    )


def committed(lake: Lake, log: str) -> list[Record]:
    """Read what a lake has of a log for a reader of committed records, by offset."""
    rows = read_rows(
        lake.messages(), all_equal({"log": log}), ["kind", "state", "offset", "key", "value"]
    ).to_pylist()
    found = [
        (row["offset"], row["key"], row["value"])
        for row in rows
        if (row["kind"], row["state"]) == ("message", "committed")
    ]
    return sorted(found, key=lambda record: record[0])


def consume(address: str, log: str) -> list[Record]:
    """Read what a reader of committed records gets, from the log's start to its end."""
    from confluent_kafka import TopicPartition

    place = _place(log)
    with _reader(address) as consumer:
        start, _ = watermarks(consumer, place, _SECONDS)
        consumer.assign([TopicPartition(place.topic, place.partition, start)])
        found: list[Record] = []
        while (message := consumer.poll(_SECONDS)) is not None:
            if message.error():
                return found
            found.append((message.offset() or 0, _bytes(message.key()), _bytes(message.value())))
    raise StorageEngineError(
        f"{log}: expected records within {_SECONDS:.0f} s, found {len(found)} and no end."
    )


def limits(address: str, log: str) -> tuple[int, int]:
    """Return where a broker begins to serve a log, and where it ends."""
    with _reader(address) as consumer:
        return watermarks(consumer, _place(log), _SECONDS)


@contextmanager
def _reader(address: str) -> Iterator[Consumer]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "demo",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _place(log: str) -> TopicPartition:
    from confluent_kafka import TopicPartition

    topic, _, partition = log.rpartition("-")
    return TopicPartition(topic, int(partition))


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _produce(address: str, log: str) -> int | None:
    """Write one record. :return: its offset; None: it wasn't taken."""
    from confluent_kafka import Producer

    place = _place(log)
    offsets: list[int | None] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0})
    producer.produce(
        place.topic,
        _NEW_VALUE,
        partition=place.partition,
        on_delivery=lambda error, message: offsets.append(None if error else message.offset()),
    )
    producer.flush(_SECONDS)
    return offsets[0] if offsets else None
