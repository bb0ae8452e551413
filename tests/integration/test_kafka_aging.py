"""Archiving while a real broker's own retention takes what is being archived."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from demo.brokers.kafka import Kafka
from storage_engine.cycle import archive_here
from storage_engine.journal.journal import Journal
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.settings.store_settings import BROKER_DELETES, WE_DELETE
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.kafka_broker import SECONDS, VERSIONS, make_topics, produce, running_kafka
from tests.integration.test_kafka_hold import change
from tests.rounds import later

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.retention.check.interval.ms": 100,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 0,
    "replica.high.watermark.checkpoint.interval.ms": 100,
}
SMALL = {"internal_segment_bytes": 20_000}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_kafka(tmp_path_factory.mktemp("kafka-aging"), VERSIONS[-1], SETTINGS) as node:
        yield node


@pytest.mark.again
@pytest.mark.parametrize("deletes", [BROKER_DELETES, *later(WE_DELETE)])
def test_what_its_broker_deletes_meanwhile_keeps_nothing_out(
    kafka: Kafka, tmp_path: Path, deletes: str
) -> None:
    going, stays = f"{deletes}-goes", f"{deletes}-stays"
    make_topics(kafka.address, going, stays, **SMALL)
    for topic in (going, stays):
        produce(kafka.address, topic, [b"x" * 1000] * 100, batch_num_messages=1)
    store = ManagedStore.local("k", str(kafka.server_properties), tmp_path / "managed", broker="kafka")
    store = replace(store, live=LiveBroker(kafka.address, allow_same_disk=True, deletes=deletes))
    make_lake(store.lake, "kafka")
    turns: list[int] = []

    def overtaken(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
        if not turns:
            turns.append(len(jobs))
            change(kafka, going, "retention.ms", "1")
            deadline = time.monotonic() + SECONDS
            while any(Path(job.path).exists() for job in jobs if job.log == f"{going}-0"):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        return archive_here(jobs)

    done = archive_sealed(store, "aging", overtaken)
    archived = [row for row in done.receipts if row.log == f"{stays}-0"]
    assert len(archived) > 3
    assert archived[0].base_offset == 0
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    ((drift, _),) = recorded_gone(journal, record)
    assert (drift.log, drift.start_offset) == (f"{going}-0", 0)
    assert drift.end_offset > 50
    gone = f"[0, {drift.end_offset})"
    if deletes == BROKER_DELETES:
        assert done.refused == ()
        assert any(gone in one and "by its own rules" in one for one in done.notices)
    else:
        (refused,) = done.refused
        assert refused.log == f"{going}-0"
        assert f"{gone} on disk or in a lake, found them in neither: LOST." in refused.why
