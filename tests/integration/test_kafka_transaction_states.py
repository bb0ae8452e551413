"""The records that are committed by a log's files are those that a consumer with read_committed is given."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.transaction_states import UncommittedTransactions, check_transaction_index
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.format.transaction_index import parse_transaction_index
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    any_segment_bytes,
    make_topics,
    produce,
    running_kafka,
)

pytestmark = [pytest.mark.integration, pytest.mark.again]

_END = 1 << 40
_TOPIC = "orders"


def transactional(address: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "log_level": 0})
    producer.init_transactions(SECONDS)
    return producer


def write_transactions(address: str) -> Producer:
    """Write what is committed, aborted and plain. :return: one whose transaction is open."""
    producers = [transactional(address, name) for name in ("a", "b", "c")]
    for turn in range(24):
        for producer in producers:
            producer.begin_transaction()
        for place in range(5):
            for number, producer in enumerate(producers):
                if (turn + number) % 4:
                    producer.produce(_TOPIC, f"{turn} {place} ".encode() + b"x" * 150, partition=0)
                    producer.flush(SECONDS)
        produce(address, _TOPIC, [b"plain"])
        for number, producer in enumerate(producers):
            if (turn * (number + 2)) % 3:
                producer.abort_transaction(SECONDS)
            else:
                producer.commit_transaction(SECONDS)
    last = producers[0]
    last.begin_transaction()
    last.produce(_TOPIC, b"open", partition=0)
    last.flush(SECONDS)
    produce(address, _TOPIC, [b"behind what is open"])
    return last


def consumed(address: str) -> tuple[list[int], int]:
    """Return the offsets that a consumer is given, and the last stable offset."""
    settings = {"bootstrap.servers": address, "group.id": "g", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "log_level": 0})
    place = TopicPartition(_TOPIC, 0, 0)
    consumer.assign([place])
    offsets: list[int] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error():
            break
        offsets.append(message.offset())
    _, stable = consumer.get_watermark_offsets(place, timeout=SECONDS)
    consumer.close()
    return offsets, stable


@pytest.mark.parametrize("version", VERSIONS)
def test_committed_is_what_a_consumer_is_given(version: str, tmp_path: Path) -> None:
    with running_kafka(tmp_path, version) as kafka:
        make_topics(kafka.address, _TOPIC, **{any_segment_bytes(version): 16_384})
        is_open = write_transactions(kafka.address)
        offsets, stable = consumed(kafka.address)
        kafka.stop()
        del is_open
        node = read_node(kafka.server_properties)
    (log,) = (log for _, log in node.logs if log.name.log == f"{_TOPIC}-0")
    files = [Path(segment.log.path) for segment in log.segments]
    assert len(files) > 3
    assert len(offsets) > 100

    entries, by_log = [], UncommittedTransactions.none(0)
    for file, end in zip(files, [*(int(one.stem) for one in files[1:]), _END], strict=True):
        by_log = by_log.continued(file.read_bytes(), end)
        index = file.with_suffix(".txnindex")
        found = parse_transaction_index(index.read_bytes(), str(index)) if index.exists() else ()
        check_transaction_index(found, by_log, int(file.stem), str(index))
        entries += found if file is not files[-1] else ()
    active = files[-1]
    producers = parse_producer_snapshot(active.with_suffix(".snapshot").read_bytes(), "the snapshot")
    by_files = UncommittedTransactions.of_files(entries, producers, int(active.stem))
    by_files = by_files.continued(active.read_bytes(), _END)

    rows = pa.concat_tables(table for file in files for table, _ in CODEC.decode(file.read_bytes(), 0))
    for known in (by_log, by_files):
        assert known.first_open_offset == stable
        states = known.state_column(rows).to_pylist()
        pairs = zip(rows["offset"].to_pylist(), states, strict=True)
        assert [offset for offset, state in pairs if state == "committed" and offset < stable] == offsets
        assert {"aborted", "open"} < set(states)
