"""Offset, time and transaction indexes and producer snapshots, against Kafka's own classes."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest

from storage_engine.crc import crc32c_of
from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format.file_names import log_file
from storage_engine.kafka.format.offset_index import parse_offset_index
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.format.transaction_index import parse_transaction_index
from tests.kafka_fixture import truth


def base_offset(name: str) -> int:
    found = log_file(Path(name).name)
    assert found is not None
    return found.offset


def test_every_entry_is_what_kafka_reads(node: Path) -> None:
    entries = 0
    for row in truth()["index"]:
        found = parse_offset_index((node / row["file"]).read_bytes(), base_offset(row["file"]), row["file"])
        assert list(zip(found.offsets.tolist(), found.positions.tolist(), strict=True)) == [
            (offset, position) for offset, position in row["entries"]
        ]
        assert found.slots == row["slots"]
        entries += len(row["entries"])
    assert entries > 1000


def test_every_aborted_transaction_is_what_kafka_reads(node: Path) -> None:
    for row in truth()["txnindex"]:
        assert [
            (one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset)
            for one in parse_transaction_index((node / row["file"]).read_bytes(), row["file"])
        ] == [(e["pid"], e["first"], e["last"], e["lso"]) for e in row["entries"]]


def test_every_producer_is_what_kafka_reads(node: Path) -> None:
    seen = open_transactions = 0
    for row in truth()["snapshot"]:
        found = parse_producer_snapshot((node / row["file"]).read_bytes(), row["file"])
        without = {"txnFirst": -1}
        known = [{**without, **{k: v for k, v in e.items() if k != "firstSeq"}} for e in row["entries"]]
        assert [_as_truth(producer) for producer in found] == known
        seen += len(found)
        open_transactions += sum(producer.transaction_first_offset is not None for producer in found)
    assert seen > 100
    assert open_transactions


def _as_truth(producer: Any) -> dict[str, Any]:
    first = producer.transaction_first_offset
    return {
        "pid": producer.producer_id,
        "epoch": producer.epoch,
        "lastSeq": producer.last_sequence,
        "lastOffset": producer.last_offset,
        "delta": producer.offset_delta,
        "lastTs": producer.timestamp_ms,
        "cepoch": producer.coordinator_epoch,
        "txnFirst": -1 if first is None else first,
    }


def index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def transactions(*entries: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack(">hqqqq", *entry) for entry in entries)


def test_what_a_broker_has_preallocated_is_no_entry() -> None:
    found = parse_offset_index(index((3, 100), (9, 4000)) + bytes(80), 50, "x.index")
    assert (found.offsets.tolist(), found.positions.tolist(), found.slots) == ([53, 59], [100, 4000], 12)
    assert parse_offset_index(bytes(80), 0, "x.index").offsets.tolist() == []


def snapshot(count: int, entries: bytes, *, version: int = 1, crc: int | None = None) -> bytes:
    behind = struct.pack(">i", count) + entries
    return struct.pack(">hI", version, crc32c_of(behind) if crc is None else crc) + behind


@pytest.mark.parametrize(
    ("parse", "data", "at", "expected", "found"),
    [
        (parse_offset_index, index((1, 2)) + b"abc", 8, "entries of 8 bytes", "3 bytes"),
        (
            parse_offset_index,
            index((4, 9), (4, 10)),
            8,
            "in the entry before",
            "relative offset 4, position 10",
        ),
        (
            parse_offset_index,
            index((4, 9), (5, 9)),
            8,
            "in the entry before",
            "relative offset 5, position 9",
        ),
        (parse_offset_index, index((-4, 9)), 0, "in the entry before", "relative offset -4"),
        (parse_transaction_index, b"\0" * 33, 0, "entries of 34 bytes", "33 bytes"),
        (parse_transaction_index, transactions((0, 1, 2, 3, 4), (1, 1, 2, 3, 4)), 34, "version 0", "1"),
        (parse_transaction_index, transactions((0, 1, 5, 3, 4)), 0, "a range of offsets", "[5, 3]"),
        (parse_transaction_index, transactions((0, 1, 2, 3, 4), (0, 2, 2, 3, 4)), 34, "above 3", "3"),
        (parse_producer_snapshot, b"\0\1", 0, "a header of 10 bytes", "2 bytes"),
        (parse_producer_snapshot, snapshot(0, b"", version=2), 0, "version 1", "2"),
        (parse_producer_snapshot, snapshot(0, b"", crc=7), 2, "CRC-32C", "00000007"),
        (parse_producer_snapshot, snapshot(2, bytes(46)), 6, "2 entries of 46 bytes", "46 bytes"),
        (parse_producer_snapshot, snapshot(-1, b""), 6, "-1 entries", "0 bytes"),
    ],
)
def test_what_no_broker_writes_is_one_error(
    parse: Any, data: bytes, at: int, expected: str, found: str
) -> None:
    where = ("the/file",) if parse in (parse_transaction_index, parse_producer_snapshot) else (0, "the/file")
    message = rf"the/file: at byte {at} expected .*{re.escape(expected)}.*, found .*{re.escape(found)}"
    with pytest.raises(CorruptFileError, match=message):
        parse(data, *where)
