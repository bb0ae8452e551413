"""What a plan says of a stopped node is what its broker does when it runs again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from demo.brokers.kafka import Kafka
from storage_engine.core.clock import clock_ms
from storage_engine.kafka.format.layout import PartitionLog, read_node
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.kafka.transactions import find_open
from storage_engine.model.plan import Plan, PlanRequest, Reason
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    any_segment_bytes,
    kafka_jars,
    make_topics,
    produce,
    running_kafka,
)

pytestmark = [pytest.mark.integration, pytest.mark.again]

HOUR_MS = 3_600_000
NEVER = {"log.retention.check.interval.ms": 24 * HOUR_MS, "log.initial.task.delay.ms": 24 * HOUR_MS}
OFTEN = {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 200}
VALUE = b"v" * 300


def fill(address: str, topic: str, count: int, timestamp_ms: int) -> None:
    """Produce records in batches of their own, so that segments hold few of them."""
    produce(address, topic, [VALUE] * count, timestamp_ms=timestamp_ms, key=b"k", batch_num_messages=1)


def written(kafka: Kafka, version: str) -> None:
    """Make topics that differ in why something of them goes or stays."""
    now_ms = clock_ms()
    small: dict[str, Any] = {
        any_segment_bytes(version): 2000,
        "message_timestamp_after_max_ms": 100 * HOUR_MS,
    }
    hour = {**small, "retention_ms": HOUR_MS}
    topics: dict[str, dict[str, Any]] = {
        "aged": hour,
        "gone": hour,
        "future": hour,
        "sized": {**small, "retention_ms": -1, "retention_bytes": 6000},
        "kept": {**small, "retention_ms": -1},
        "begun": {**small, "retention_ms": -1},
        "compacted": {**hour, "cleanup_policy": "compact", "min_compaction_lag_ms": 100 * HOUR_MS},
    }
    for name, config in topics.items():
        make_topics(kafka.address, name, **config)
        if name == "future":
            fill(kafka.address, name, 6, now_ms + 10 * HOUR_MS)
        fill(kafka.address, name, 20, now_ms - 2 * HOUR_MS)
        if name not in ("gone", "future"):
            fill(kafka.address, name, 10, now_ms)
    admin = admin_of(kafka.address)
    (begun,) = admin.delete_records([TopicPartition("begun", 0, 13)]).values()
    begun.result(SECONDS)


def left_open(address: str) -> None:
    """Write to a transaction and leave it open."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("kept", VALUE, partition=0)
    producer.flush(SECONDS)


def logs_of(kafka: Kafka) -> dict[str, PartitionLog]:
    found = {log.name.log: log for _, log in read_node(kafka.server_properties).logs}
    return {name: log for name, log in found.items() if not log.name.is_internal}


def bases_of(kafka: Kafka) -> dict[str, list[int]]:
    return {name: [one.base_offset for one in log.segments] for name, log in logs_of(kafka).items()}


def expected_of(plan: Plan) -> dict[str, list[int]]:
    """Return where the segments begin that a plan leaves; the broker closes an expired active one before."""
    left = {}
    for log in plan.logs:
        kept = [one.segment.base_offset for one in log.decisions if not one.deletes]
        *_, active = log.decisions
        all_goes = "it has expired" in active.detail
        left[log.log] = [active.segment.end_offset] if all_goes else kept
    return left


@pytest.fixture(params=VERSIONS)
def stopped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Kafka, str]]:
    """A node that has written topics, and was stopped before it looked for what expires."""
    version = str(request.param)
    with running_kafka(tmp_path, version, NEVER) as kafka:
        written(kafka, version)
        left_open(kafka.address)
        kafka.stop()
        yield kafka, version


def test_the_broker_deletes_what_the_plan_says_and_nothing_else(stopped: tuple[Kafka, str]) -> None:
    kafka, version = stopped
    store = KafkaStore(OpenNode(kafka.server_properties))
    now_ms = clock_ms()
    plan = store.plan(store.snapshot(now_ms), now_ms, PlanRequest())
    reasons = {log.log: log.decisions[0].reason for log in plan.logs}
    assert reasons == {
        "aged-0": Reason.EXPIRED,
        "begun-0": Reason.EXPIRED,
        "compacted-0": Reason.COMPACTED,
        "future-0": Reason.FUTURE_TIMESTAMP,
        "gone-0": Reason.EXPIRED,
        "kept-0": Reason.UNLIMITED,
        "sized-0": Reason.EXPIRED,
    }
    expected = expected_of(plan)
    before = bases_of(kafka)
    assert sum(map(len, before.values())) > sum(map(len, expected.values())) + 10
    with Kafka(kafka.server_properties.parent, kafka_jars(version), OFTEN) as again:
        deadline = time.monotonic() + SECONDS
        while bases_of(again) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
        # What it would delete beyond that, it does in its next passes.
        time.sleep(2)
        assert bases_of(again) == expected
        again.stop()
    assert bases_of(again) == expected


def test_a_transaction_that_was_left_open_is_found_with_its_producer(stopped: tuple[Kafka, str]) -> None:
    kafka, _ = stopped
    logs = logs_of(kafka)
    ends = {name: end_offset(log) for name, log in logs.items()}
    found = find_open(read_node(kafka.server_properties), ends)
    assert list(found.by_log) == ["kept-0"]
    (one,) = found.by_log["kept-0"]
    assert (one.first_offset, one.producer_id >= 0) == (ends["kept-0"] - 1, True)
    assert clock_ms() - one.written_ms < HOUR_MS
