"""A log with transactions on real brokers: written, read back whole, and held against what was archived."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from demo.brokers.kafka import watermarks
from storage_engine.exceptions import RestoreError
from storage_engine.kafka.format.checkpoints import LeaderEpoch
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.model.proof.receipt import Receipt
from tests.integration.kafka_broker import SECONDS, admin_of, messages_of
from tests.kafka.lakes import STORE
from tests.services.restoring import restore

TOPIC = "payments"
NAME = f"{TOPIC}-0"
SEGMENT_BYTES = 6_000
SUFFIXES = (".log", ".txnindex", ".snapshot")

Records = list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]


LEVELS = ("read_committed", "read_uncommitted")


def write(address: str, rounds: int) -> None:
    """Write transactions of two producers that overlap; some are aborted. And records outside of any.

    Now and then there is no transaction for a whole segment.
    """
    chance = random.Random(rounds)
    common = {"bootstrap.servers": address, "linger.ms": 0, "log_level": 0}
    outer = Producer({**common, "transactional.id": "outer", "compression.type": "lz4"})
    inner = Producer({**common, "transactional.id": "inner"})
    plain = Producer({**common, "enable.idempotence": True, "compression.type": "zstd"})
    for producer in (outer, inner):
        producer.init_transactions(SECONDS)
    for number in range(rounds):
        outer.begin_transaction()
        send(outer, chance, f"outer-{number}", 4)
        if number % 3 == 0:
            inner.begin_transaction()
        send(plain, chance, f"plain-{number}", 2)
        if number % 3 < 2:
            send(inner, chance, f"inner-{number}", 2)
        (outer.abort_transaction if number % 4 == 1 else outer.commit_transaction)(SECONDS)
        if number % 3 == 1:
            (inner.abort_transaction if number % 2 else inner.commit_transaction)(SECONDS)
        for place in range(6 if number % 9 == 8 else 0):
            send(plain, chance, f"between-{number}-{place}", 5)
    if (rounds - 1) % 3 == 0:
        inner.commit_transaction(SECONDS)


def send(producer: Producer, chance: random.Random, key: str, count: int) -> None:
    for place in range(count):
        value = None if chance.random() < 0.1 else chance.randbytes(200)
        headers = [("n", str(place).encode()), ("n", b"again")]
        producer.produce(TOPIC, value, f"{key}-{place}", 0, headers=headers)
    assert producer.flush(SECONDS) == 0


def consumed(address: str, level: str) -> Records:
    """Return all that a consumer gets, from the log's start to its end."""
    return [
        (one.offset(), one.timestamp()[1], one.key(), one.value(), tuple(one.headers() or ()))
        for one in messages_of(address, TOPIC, level)
    ]


def limits(address: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "looker", "log_level": 0})
    try:
        start, end = watermarks(consumer, TopicPartition(TOPIC, 0), SECONDS)
        return start, end
    finally:
        consumer.close()


def in_force(epochs: tuple[LeaderEpoch, ...], first: int, end: int) -> list[LeaderEpoch]:
    begun = [one for one in epochs if one.start_offset <= first][-1:]
    behind = [one for one in epochs if first < one.start_offset < end]
    return [*(LeaderEpoch(one.epoch, first) for one in begun), *behind]


def forget(address: str, setting: str) -> None:
    """Take a setting of its own from the topic."""
    operation = ConfigEntry(setting, None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[operation])
    admin = admin_of(address)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(SECONDS)


def last_end(lake: Lake, receipts: Sequence[Receipt], serving: Sequence[Path], target: Path) -> int:
    """Return up to where a broker can serve it, as the refusal says: the active segment may have a marker."""
    try:
        restore(lake, STORE, target, serving=serving)
    except RestoreError as error:
        (hint,) = re.findall(r"--log payments-0 --to-offset (\d+)", str(error))
        end = int(hint)
    else:
        end = receipts[-1].end
    assert end in [row.end for row in receipts[len(receipts) // 2 :]]
    return end
