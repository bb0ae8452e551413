"""The sample node of the Kafka demo; run as a module, a real broker writes it again.

Two log directories. ``orders`` has expired, ``payments`` has transactions and a bound of bytes, a record of
``clicks`` is of the future, and ``profiles`` is compacted.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from storage_engine.core.clock import clock_ms
from tests.integration.kafka_broker import SECONDS, admin_of, produce, running_kafka

SAMPLE = Path(__file__).parents[1] / "fixtures" / "kafka" / "demo-node.tar.xz"
_SEGMENT_BYTES = 16_384
_SMALL = {"internal.segment.bytes": str(_SEGMENT_BYTES)}
_TOPICS = {
    "orders": {**_SMALL, "retention.ms": "3600000"},
    "payments": {**_SMALL, "retention.ms": "-1", "retention.bytes": str(1 << 30)},
    "clicks": {**_SMALL, "retention.ms": "3600000", "message.timestamp.after.max.ms": str((1 << 63) - 1)},
    "profiles": {**_SMALL, "cleanup.policy": "compact"},
}
_FIVE_YEARS_MS = 5 * 365 * 86_400_000
_LEFT_OUT = ("bootstrap.checkpoint", ".lock")


def make_sample(work: Path) -> None:
    """Let a broker write the node below a directory, and pack it."""
    directories = [work / "node" / name for name in ("first", "second")]
    settings = {
        "log.dirs": ",".join(map(str, directories)),
        "metadata.log.dir": work / "node" / "metadata",
        "transaction.state.log.num.partitions": 1,
        "log.cleaner.enable": "true",
        "log.initial.task.delay.ms": 3_600_000,
    }
    (work / "node").mkdir()
    with running_kafka(work / "broker", settings=settings) as kafka:
        admin = admin_of(kafka.address)
        topics = [NewTopic(name, 2 if name == "orders" else 1, 1, config=c) for name, c in _TOPICS.items()]
        for made in admin.create_topics(topics).values():
            made.result(SECONDS)
        _write(kafka.address)
        kafka.stop()
    properties = kafka.server_properties.read_text().replace(str(work / "node"), "@DIR@")
    (work / "node" / "server.properties").write_text(properties)
    with tarfile.open(SAMPLE, "w:xz", preset=9) as archive:
        archive.add(work / "node", ".", filter=lambda one: None if one.name.endswith(_LEFT_OUT) else one)


def _write(address: str) -> None:
    slow = {"batch_num_messages": 10}
    for partition in (0, 1):
        values = [f'{{"order": {n}, "partition": {partition}}}'.encode() * 3 for n in range(600)]
        produce(address, "orders", values, partition=partition, key=b"customer", **slow)
    produce(address, "clicks", [b'{"page": "/"}'], timestamp_ms=clock_ms() + _FIVE_YEARS_MS)
    produce(address, "clicks", [b'{"page": "/cart"}' * 5] * 900, **slow)
    for n in range(40):
        produce(address, "profiles", [b"x" * 200] * 10, key=f"user-{n % 5}".encode())
    producer = Producer({"bootstrap.servers": address, "transactional.id": "billing", "linger.ms": 0})
    producer.init_transactions(SECONDS)
    for n in range(120):
        producer.begin_transaction()
        for step in range(4):
            producer.produce("payments", f'{{"payment": {n}, "step": {step}}}' * 4, f"payment-{n}", 0)
        (producer.abort_transaction if n % 5 == 3 else producer.commit_transaction)(SECONDS)
    # No transaction is open where the last closed segment ends.
    produce(address, "payments", [b'{"audit": true}' * 10] * 150, key=b"audit", **slow)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "broker").mkdir()
        make_sample(root)
