"""Archiving beside a real broker that goes on writing: nothing open, nothing twice, what a reader gets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from pyiceberg.expressions import AlwaysTrue

from demo.brokers.kafka import Kafka
from storage_engine.cycle import archive_here
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.file.scan import read_rows
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.model.broker.live import LiveBroker
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.steps import ArchiveResult
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    any_segment_bytes,
    make_topics,
    produce,
    running_kafka,
    served,
)

pytestmark = [pytest.mark.integration, pytest.mark.again]

CHECKPOINT_MS = 200
SETTINGS = {
    "replica.high.watermark.checkpoint.interval.ms": CHECKPOINT_MS,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
PLAIN, TXN = "plain", "txn"


@pytest.fixture(scope="module", params=VERSIONS)
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    version: str = request.param
    with running_kafka(tmp_path_factory.mktemp("kafka"), version, SETTINGS) as running:
        make_topics(running.address, PLAIN, TXN, **{any_segment_bytes(version): 16_384})
        yield running


def archived(store: ManagedStore, run: str) -> ArchiveResult:
    # The broker writes its checkpoints a moment later.
    time.sleep(5 * CHECKPOINT_MS / 1000)
    return archive_sealed(store, run, archive_here)


def end_in_lake(store: ManagedStore, log: str) -> int:
    lake = open_lake(store.lake)
    (known,) = list_stores(lake)
    return max((row.end for row in receipts(lake, known.store_id, log=log)), default=0)


def in_lake(store: ManagedStore, topic: str) -> dict[int, bytes]:
    columns = ["topic", "offset", "kind", "state", "value"]
    rows = read_rows(open_lake(store.lake).messages(), AlwaysTrue(), columns)
    wanted = pc.and_(
        pc.equal(rows["topic"], topic),
        pc.and_(pc.equal(rows["kind"], "message"), pc.equal(rows["state"], "committed")),
    )
    chosen = rows.filter(wanted)
    return dict(zip(chosen["offset"].to_pylist(), chosen["value"].to_pylist(), strict=True))


@pytest.mark.parametrize("asks", [False, True], ids=["files", "live"])
def test_beside_a_broker_only_what_has_ended_is_archived(kafka: Kafka, tmp_path: Path, asks: bool) -> None:
    store = ManagedStore.local("k", str(kafka.server_properties), tmp_path / "managed", broker="kafka")
    if asks:
        store = replace(store, live=LiveBroker(kafka.address, allow_same_disk=True))
    make_lake(store.lake, "kafka")
    names = {path.name for path in Path(kafka.server_properties).parent.rglob("*") if path.is_dir()}
    producer = Producer(
        {
            "bootstrap.servers": kafka.address,
            "transactional.id": f"t-{asks}",
            "batch.size": 4000,
            "log_level": 0,
        }
    )
    producer.init_transactions()
    produce(kafka.address, PLAIN, [b"p%d" % n + bytes(900) for n in range(100)], batch_size=8000)
    for turn in range(4):
        producer.begin_transaction()
        for n in range(20):
            producer.produce(TXN, b"t%d-%d" % (turn, n) + bytes(900), partition=0)
        producer.flush()
        (producer.abort_transaction if turn % 2 else producer.commit_transaction)(SECONDS)
    producer.begin_transaction()
    producer.produce(TXN, b"open" + bytes(900), partition=0)
    producer.flush()
    produce(kafka.address, TXN, [b"beside" + bytes(900) for _ in range(60)], batch_size=8000)

    first = archived(store, "first")
    assert not first.refused
    assert any("is open from offset" in one.why for one in first.kept_out)
    for topic in (PLAIN, TXN):
        end = end_in_lake(store, f"{topic}-0")
        assert end > 0
        assert in_lake(store, topic) == served(kafka.address, topic, "read_committed", end)
    assert archived(store, "again").receipts == ()

    producer.commit_transaction(SECONDS)
    second = archived(store, "second")
    assert {row.log for row in second.receipts} == {f"{TXN}-0"}
    end = end_in_lake(store, f"{TXN}-0")
    assert end > 100
    assert in_lake(store, TXN) == served(kafka.address, TXN, "read_committed", end)
    left = {path.name for path in Path(kafka.server_properties).parent.rglob("*") if path.is_dir()}
    assert left - names <= {"__transaction_state-0", "__consumer_offsets-0"}
