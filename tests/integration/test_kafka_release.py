"""Proven records go from a real broker, and nothing else: through the gate, in one run, by its own call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from demo.brokers.kafka import Kafka
from demo.kafka_load import retention_of
from storage_engine.core.clock import clock_ms
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.scan import read_rows
from storage_engine.model.keep.keep_rules import Scope
from tests.archive_rules import record_rule_in
from tests.docs.code_blocks import ROOT, blocks_of, commands_of
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    make_topics,
    produce,
    running_kafka,
    served,
    small,
)
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("plainly")]

INTERVAL_MS = 1000
HOUR_MS = 3_600_000
SETTINGS = {
    "log.retention.check.interval.ms": INTERVAL_MS,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 1000,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def kafka(version: str, tmp_path: Path) -> Iterator[Kafka]:
    with running_kafka(tmp_path / "kafka", version, SETTINGS) as node:
        yield node


def values(first: int, count: int) -> list[bytes]:
    return [b"%d " % number + b"x" * 1000 for number in range(first, first + count)]


def old(kafka: Kafka, topic: str, first: int, count: int, age_ms: int = 2 * HOUR_MS) -> None:
    made_ms = clock_ms() - age_ms
    produce(kafka.address, topic, values(first, count), timestamp_ms=made_ms, key=b"k", batch_num_messages=1)


def in_lake(lake: Path, topic: str) -> dict[int, bytes]:
    from pyiceberg.expressions import AlwaysTrue

    rows = read_rows(
        open_lake(LakeConfig.local(lake)).messages(), AlwaysTrue(), ["topic", "offset", "kind", "value"]
    ).to_pylist()
    return {row["offset"]: row["value"] for row in rows if row["topic"] == topic and row["kind"] == "message"}


_LEADER_MOVES = {
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
}


def start_of(kafka: Kafka, topic: str) -> int:
    """Return where a topic begins by its leader; one that has just been elected is asked again."""
    deadline = time.monotonic() + SECONDS
    while True:
        # A client keeps the epoch that it has heard of, also once its leader refuses it.
        admin = admin_of(kafka.address)
        (found,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}).values()
        try:
            return int(found.result(SECONDS).offset)
        except KafkaException as error:
            if error.args[0].code() not in _LEADER_MOVES or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def command(kafka: Kafka, lake: Path, *words: object) -> Outcome:
    name, *rest = words
    live = ("--broker", kafka.address, "--deletes-us", "--allow-same-disk")
    return run_command(str(name), kafka.server_properties, "--lake", lake, *live, *rest)


def until_held(kafka: Kafka, lake: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while (done := command(kafka, lake, "hold", "--json")).exit_code:
        assert time.monotonic() < deadline, done.err + done.out
        time.sleep(INTERVAL_MS / 1000)


def said(done: Outcome) -> dict[str, Any]:
    assert done.exit_code == 0, done.err + done.out
    found: dict[str, Any] = done.json
    return found


def leave_to_broker(kafka: Kafka, lake: Path) -> None:
    """End the hold: only by a person's word, as the active segments have expired, and no lake has them."""
    topics = ("orders", "payments")
    held, starts = retention_of(kafka.address, topics), {topic: start_of(kafka, topic) for topic in topics}
    refused = command(kafka, lake, "unmanage")
    assert refused.exit_code == 1
    count = int(re.findall(r"--leave-unproven (\d+) --reason", refused.err)[0])
    assert f"{count} segments" in refused.err
    assert command(kafka, lake, "unmanage", "--leave-unproven", count - 1, "--reason", "why").exit_code == 1
    time.sleep(3 * INTERVAL_MS / 1000)
    assert retention_of(kafka.address, topics) == held
    assert {topic: start_of(kafka, topic) for topic in topics} == starts
    words = ("unmanage", "--leave-unproven", count, "--reason", "a test")
    assert said(command(kafka, lake, *words, "--json"))["status"]["held"] is False
    journal = Journal(f"sqlite:///{lake}/journal.db")
    (store,) = journal.all_stores()
    events = journal.store_events(store.store_id, Step.UNMANAGE)
    told = [(one.phase, one.payload["reason"], one.payload["segments"]) for one in events]
    assert told == [(Phase.INTENT, "a test", count), (Phase.RESULT, "a test", count)]
    assert retention_of(kafka.address, topics) != held


def wait_until_gone(files: list[Path]) -> None:
    deadline = time.monotonic() + SECONDS
    while left := [path for path in files if path.exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_what_is_proven_goes_and_all_else_is_served(kafka: Kafka, version: str, tmp_path: Path) -> None:
    make_topics(kafka.address, "orders", "payments", retention_ms=HOUR_MS + 30_000, **small(version))
    make_topics(kafka.address, "audit", cleanup_policy="compact", **small(version))
    # The first ones are not expired yet, or the broker would have them before they are held.
    for topic in ("orders", "payments"):
        old(kafka, topic, 0, 20, HOUR_MS)
    expired_ms = clock_ms() + 30_000
    old(kafka, "audit", 0, 60)
    lake = tmp_path / "lake"
    assert run_command("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0
    until_held(kafka, lake)
    old(kafka, "orders", 20, 80)
    producer = Producer(
        {
            "bootstrap.servers": kafka.address,
            "transactional.id": "t",
            "transaction.timeout.ms": 600_000,
            "batch.num.messages": 1,
            "log_level": 0,
        }
    )
    producer.init_transactions(SECONDS)
    old(kafka, "payments", 20, 50)
    producer.begin_transaction()
    for value in values(70, 50):
        producer.produce("payments", value, partition=0, timestamp=clock_ms() - 2 * HOUR_MS)
    producer.flush(SECONDS)
    before = {topic: served(kafka.address, topic) for topic in ("orders", "payments")}
    time.sleep(max(0, expired_ms + 1000 - clock_ms()) / 1000)
    files = sorted((Path(kafka.server_properties).parent / "data" / "orders-0").glob("*.log"))
    done = said(command(kafka, lake, "clean", "--json"))
    report = done["report"]
    assert report["outcome"] == "done", report
    assert start_of(kafka, "orders") == int(files[-1].stem)
    # Nothing from an open transaction on.
    assert 0 < start_of(kafka, "payments") <= 70
    assert start_of(kafka, "audit") == 0
    for topic, records in before.items():
        first = start_of(kafka, topic)
        assert served(kafka.address, topic) == {at: value for at, value in records.items() if at >= first}
        archived = in_lake(lake, topic)
        assert {at: archived[at] for at in records if at < first} == {
            at: value for at, value in records.items() if at < first
        }
    wait_until_gone(files[:-1])
    producer.commit_transaction(SECONDS)
    old(kafka, "payments", 121, 30)
    said(command(kafka, lake, "clean", "--json"))
    # The marker of the commit is of now, and keeps its segment; it may come behind some of the last records.
    assert 70 < start_of(kafka, "payments") <= 150
    assert said(command(kafka, lake, "validate", "--json"))
    leave_to_broker(kafka, lake)
    # It goes on writing, and its offsets go on.
    old(kafka, "orders", 100, 1, 0)
    assert max(served(kafka.address, "orders")) == 100


def test_a_log_under_a_rule_goes_without_a_copy_and_its_broker_goes_on(
    kafka: Kafka, version: str, tmp_path: Path
) -> None:
    topics = ("orders", "debug")
    make_topics(kafka.address, *topics, retention_ms=HOUR_MS + 30_000, **small(version))
    for topic in topics:
        old(kafka, topic, 0, 20, HOUR_MS)
    expired_ms = clock_ms() + 30_000
    lake = tmp_path / "lake"
    assert run_command("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0
    until_held(kafka, lake)
    journal_url = f"sqlite:///{lake}/journal.db"
    rule = record_rule_in([LakeConfig.local(lake)], journal_url, Scope(topic="de*"))
    for topic in topics:
        old(kafka, topic, 20, 40)
    before = {topic: served(kafka.address, topic) for topic in topics}
    time.sleep(max(0, expired_ms + 1000 - clock_ms()) / 1000)
    report = said(command(kafka, lake, "clean", "--json"))["report"]
    assert report["outcome"] == "done", report
    clause = f"not archived, by rule {rule.rule_id[:12]} of topic de*"
    proofs = {(it["log"], it["proof"]) for it in report["segments"] if it["fate"] == "deleted"}
    assert proofs == {("orders-0", "proven"), ("debug-0", "not-archived")}
    assert any(notice.endswith(clause) for notice in report["notices"])
    assert in_lake(lake, "debug") == {}
    for topic in topics:
        first = start_of(kafka, topic)
        assert first > 20
        assert served(kafka.address, topic) == {at: it for at, it in before[topic].items() if at >= first}
    ranges = said(command(kafka, lake, "validate", "--json"))["ranges"]
    assert next(it["where"] for it in ranges if it["log"] == "debug-0") == "NOT ARCHIVED"
    # It goes on writing, and its offsets go on.
    for topic in topics:
        old(kafka, topic, 60, 1, 0)
        assert max(served(kafka.address, topic)) == 60


def test_the_lines_of_the_docs_delete_one_after_the_other(kafka: Kafka, version: str, tmp_path: Path) -> None:
    """As they stand in docs/kafka-delete.md, but for places and for how long two rounds take."""
    lasts_ms, away = 48 * HOUR_MS + 60_000, Path(tempfile.mkdtemp(dir="/dev/shm"))
    make_topics(kafka.address, "orders", retention_ms=lasts_ms, **small(version))
    old(kafka, "orders", 0, 40, 48 * HOUR_MS)
    old(kafka, "orders", 40, 10, 0)
    expired_ms = clock_ms() + 60_000
    lake = away / "lake"
    assert run_command("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0
    mine = Path(__file__).name
    page = ROOT / "docs/kafka-delete.md"
    (block,) = [one for one in blocks_of(page) if mine in one.said.get("tested by", "")]
    places = {
        "/etc/kafka/server.properties": str(kafka.server_properties),
        "kafka-1:9092": kafka.address,
        "/mnt/lake/kafka": str(lake),
        "sleep 600": f"sleep {2 * INTERVAL_MS // 1000}",
    }
    ends = []
    try:
        for line in (one.line for one in commands_of(block)):
            for place, here in places.items():
                line = line.replace(place, here)
            if " clean " in line:
                # Meanwhile the first records expire, by the setting that the topic had.
                time.sleep(max(0, expired_ms + 1_000 - clock_ms()) / 1000)
                assert start_of(kafka, "orders") == 0
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            done = subprocess.run(
                ["bash", "-c", line],
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert "Traceback" not in done.stderr, done.stderr
            ends.append(done.returncode)
            if " clean " in line:
                begins = start_of(kafka, "orders")
                assert 0 < begins <= 40, done.stdout + done.stderr
                assert set(in_lake(lake, "orders")) >= set(range(begins))
        # A setting that the first one raised may count from a moment on, which it says by its exit code.
        assert ends in ([0, 0, 0, 0], [1, 0, 0, 0]), (ends, done.stdout, done.stderr)
        assert retention_of(kafka.address, ["orders"])["orders"]["retention.ms"] == (str(lasts_ms), True)
        assert min(served(kafka.address, "orders")) == begins
        assert max(served(kafka.address, "orders")) == 49
    finally:
        shutil.rmtree(away)
