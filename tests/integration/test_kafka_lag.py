"""Lag of real groups, by the running cluster and, once it has stopped, by the records on its disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from demo.brokers.kafka import Kafka
from storage_engine.core.clock import clock_ms
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    make_topics,
    produce,
    running_kafka,
    small,
)
from tests.rounds import again_but
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.again]

RECORD = b"x" * 1000
MINUTE_MS = 60_000
RETENTION_MS = 60 * MINUTE_MS
SETTINGS = {"log.initial.task.delay.ms": 3_600_000, "offsets.topic.num.partitions": 3}


@pytest.fixture(scope="module", params=again_but(VERSIONS, VERSIONS[-1]))
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A node whose topic has a record a minute, 100 of them, and groups of each kind."""
    with running_kafka(tmp_path_factory.mktemp("kafka-lag"), request.param, SETTINGS) as node:
        make_topics(node.address, "orders", partitions=2, retention_ms=RETENTION_MS, **small(request.param))
        now_ms = clock_ms()
        for minutes in range(100, 0, -1):
            produce(node.address, "orders", [RECORD], timestamp_ms=now_ms - minutes * MINUTE_MS)
        commit(node.address, "classic", 40)
        transactional_commit(node.address, "exactly-once", 70, commits=True)
        transactional_commit(node.address, "exactly-once", 90, commits=False)
        if not request.param.startswith("3."):
            commit(node.address, "next-generation", 100, **{"group.protocol": "consumer"})
        yield node


def commit(address: str, group: str, offset: int, **settings: str) -> None:
    """Commit as a member that was assigned the partitions, so that the group is one of its kind."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0, **settings})
    assigned: list[object] = []
    consumer.subscribe(["orders"], on_assign=lambda _, parts: assigned.extend(parts))
    while not assigned:
        consumer.poll(0.2)
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def transactional_commit(address: str, group: str, offset: int, *, commits: bool) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": group, "log_level": 0})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    members = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition("orders", 0, offset)], members, SECONDS)
    (producer.commit_transaction if commits else producer.abort_transaction)(SECONDS)
    consumer.close()


def lag_rows(kafka: Kafka, *words: str) -> tuple[dict[tuple[str, int], dict[str, Any]], dict[str, Any]]:
    done = run_command("lag", kafka.server_properties, "--json", *words)
    assert done.exit_code == 0, done.err + done.out
    said = json.loads(done.out)
    return {(row["group"], row["queue_id"]): row for row in said["rows"]}, said["source"]


def end_of(admin: AdminClient, partition: int) -> int:
    asked = {TopicPartition("orders", partition): OffsetSpec.latest()}
    (found,) = admin.list_offsets(asked).values()
    return int(found.result(SECONDS).offset)


def test_lag_is_told_by_the_cluster_and_by_the_disk_alike(kafka: Kafka) -> None:
    live, source = lag_rows(kafka, "--broker", kafka.address)
    assert source["positions"] == "broker"
    assert source["notices"] == []
    end = end_of(admin_of(kafka.address), 0)
    assert end == 100
    classic, once = live["classic", 0], live["exactly-once", 0]
    assert (classic["committed_offset"], classic["lag_messages"], classic["lag_ms"]) == (
        40,
        60,
        59 * MINUTE_MS,
    )
    assert once["committed_offset"] == 70
    assert live["classic", 1]["lag_messages"] is None
    # 60 batches of one record.
    assert 60 * len(RECORD) < classic["lag_bytes"] < 60 * (len(RECORD) + 100)
    # Record 40 is 60 minutes old and younger ones share its segment: it goes when the last of them expires.
    assert classic["time_to_loss_ms"] is not None
    assert classic["at_risk"] == (classic["time_to_loss_ms"] == 0)
    assert once["time_to_loss_ms"] > 20 * MINUTE_MS
    if ("next-generation", 0) in live:
        caught_up = live["next-generation", 0]
        assert (caught_up["lag_messages"], caught_up["lag_bytes"], caught_up["lag_ms"]) == (0, 0, 0)
        assert caught_up["time_to_loss_ms"] is None

    kafka.stop()
    try:
        offline, source = lag_rows(kafka)
    finally:
        kafka.start()
    assert source["positions"] == "files"
    assert source["notices"] == []
    moving = ("time_to_loss_ms",)
    for there, row in live.items():
        assert {name: value for name, value in offline[there].items() if name not in moving} == {
            name: value for name, value in row.items() if name not in moving
        }
    assert offline.keys() == live.keys()


def test_what_a_person_sees_names_groups_bytes_and_time(kafka: Kafka) -> None:
    done = run_command("lag", kafka.server_properties, "--broker", kafka.address, "--group", "classic")
    assert done.exit_code == 0, done.err
    assert "classic" in done.out
    assert "59 min" in done.out
    assert "KiB" in done.out
    assert "the next message is in a segment that the broker deletes now" in done.out
    assert "Positions: from the running broker." in done.out


def test_lag_of_a_log_directory_alone_says_what_is_not_known(kafka: Kafka) -> None:
    directory = Path(kafka.server_properties).parent / "data"
    done = run_command("lag", directory, "--json")
    assert done.exit_code == 0, done.err
    (notice,) = json.loads(done.out)["source"]["notices"]
    assert "of __consumer_offsets this node has 3 partitions; how many there are isn't known" in notice
