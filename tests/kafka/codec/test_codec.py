"""Segments as rows and back, against Kafka's own classes and a second parser."""

from __future__ import annotations

import pickle
import struct
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record import MemoryRecords

from storage_engine.crc import crc32c_of
from storage_engine.exceptions import ProofError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.model.broker.codec import Damage
from tests.kafka import batches
from tests.kafka_fixture import digest_of, truth

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def decoded(data: bytes, **how: int) -> tuple[pa.Table, tuple[Damage, ...]]:
    parts = list(CODEC.decode(memoryview(data), 0, **how))
    tables = [rows for rows, _ in parts]
    for table in tables:
        table.validate(full=True)
    table = pa.concat_tables(tables) if tables else CODEC.schema.empty_table()
    return table, tuple(damage for _, damages in parts for damage in damages)


def encoded(rows: pa.Table, size: int) -> bytes:
    out = bytearray(size)
    assert CODEC.encode(rows, memoryview(out), 0) == size
    return bytes(out)


def batches_of(rows: pa.Table) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield the row of each batch with those of its records."""
    batch: dict[str, Any] | None = None
    records: list[dict[str, Any]] = []
    for row in rows.to_pylist():
        if row["kind"] != "batch":
            records.append(row)
            continue
        if batch is not None:
            yield batch, records
        batch, records = row, []
    if batch is not None:
        yield batch, records


def timestamp_ms(row: dict[str, Any]) -> int:
    return -1 if row["timestamp"] is None else (row["timestamp"] - EPOCH) // timedelta(milliseconds=1)


def test_every_batch_and_record_is_what_kafka_reads(node: Path) -> None:
    rows_of: dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]] = {}
    for log in truth()["log"]:
        rows, damages = decoded((node / log["file"]).read_bytes())
        assert not damages
        rows_of[log["file"]] = list(batches_of(rows))
    expected: dict[str, list[dict[str, Any]]] = {name: [] for name in rows_of}
    for batch in truth()["batch"]:
        expected[batch["file"]].append(batch)
    markers: Counter[str] = Counter()
    seen = 0
    for name, found in rows_of.items():
        for (batch, records), true in zip(found, expected[name], strict=True):
            by_append = bool(batch["attributes"] & 8)
            assert {
                "pos": batch["physical_offset"],
                "size": batch["batch_size"],
                "base": batch["base_offset"],
                "last": batch["base_offset"] + batch["last_offset_delta"],
                "crc": batch["crc"] & 0xFFFFFFFF,
                "codec": CODECS[batch["attributes"] & 7],
                "tstype": "LogAppendTime" if by_append else "CreateTime",
                "txn": batch["transactional"],
                "control": bool(batch["attributes"] & 32),
                "pid": batch["producer_id"],
                "epoch": batch["producer_epoch"],
                "bseq": batch["base_sequence"],
                "maxts": batch["max_timestamp"],
                "ple": batch["leader_epoch"],
                "count": batch["record_count"],
                "delhz": batch["base_timestamp"] if batch["attributes"] & 64 else None,
            } == {
                key: true.get(key)
                for key in (
                    "pos",
                    "size",
                    "base",
                    "last",
                    "crc",
                    "codec",
                    "tstype",
                    "txn",
                    "control",
                    "pid",
                    "epoch",
                    "bseq",
                    "maxts",
                    "ple",
                    "count",
                    "delhz",
                )
            }
            assert len(records) == true["count"]
            assert digest_of({**row, "timestamp_ms": timestamp_ms(row)} for row in records) == true["records"]
            for row in records:
                assert row["kind"] == ("control" if true["control"] else "message")
                assert row["producer_id"] == true["pid"]
                assert row["transactional"] == true["txn"]
                markers[row["control"]] += 1
            seen += 1
    assert seen == len(truth()["batch"]) > 3000
    assert (markers["commit"], markers["abort"]) == (144, 96)


def test_every_segment_comes_back_byte_for_byte(node: Path) -> None:
    for log in truth()["log"]:
        data = (node / log["file"]).read_bytes()
        rows, _ = decoded(data)
        assert encoded(rows, len(data)) == data
        in_parts, _ = decoded(data, chunk_bytes=3000)
        assert in_parts.equals(rows)


def test_any_part_of_a_segment_comes_back(node: Path) -> None:
    data = (node / "logs/plain-0/00000000000000000000.log").read_bytes()
    rows, _ = decoded(data)
    begin, end = rows.num_rows // 3, rows.num_rows // 2
    part = rows.slice(begin, end - begin)
    first = part["physical_offset"][0].as_py()
    last = part["physical_offset"][-1].as_py() + part["size"][-1].as_py()
    out = bytearray(last - first)
    assert CODEC.encode(part, memoryview(out), first) == len(out)
    assert bytes(out) == data[first:last]


def test_raw_bytes_are_kept_of_compressed_batches_alone(node: Path) -> None:
    for log in truth()["log"]:
        for batch, records in batches_of(decoded((node / log["file"]).read_bytes())[0]):
            compressed = bool(batch["attributes"] & 7)
            assert (batch["raw"] is not None) == compressed
            assert {row["size"] == 0 for row in records} <= {compressed}
            assert all(row["raw"] is None for row in records)


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_a_second_parser_reads_the_same(node: Path, codec: int) -> None:
    compared = 0
    for log in truth()["log"]:
        if not log["size"]:
            continue
        data = (node / log["file"]).read_bytes()
        found = [one for one in batches_of(decoded(data)[0]) if one[0]["attributes"] & 7 == codec]
        for batch, records in found[:20]:
            begin = batch["physical_offset"]
            other = MemoryRecords(data[begin : begin + batch["batch_size"]]).next_batch()
            assert other is not None
            assert other.validate_crc()
            read = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in other]
            assert [
                (
                    row["offset"],
                    timestamp_ms(row),
                    row["key"],
                    row["value"],
                    [(header["key"], header["value"]) for header in row["headers"]],
                )
                for row in records
            ] == read
            compared += 1
    assert compared > 10


def test_a_batch_of_any_kind_comes_back() -> None:
    first = batches.batch(
        [
            batches.Record(0, b"key", b"value", [("a", b"1"), ("a", None), ("ü", b"")]),
            batches.Record(1_795_180_288_633, None, None),
            batches.Record(-62_135_596_800_001, b"", b""),
            batches.Record(1, b"x" * 20, b"y" * 2000, attributes=-128),
        ],
        base_offset=7,
    )
    append = batches.batch([batches.Record(5, None, b"v")], base_offset=11, attributes=8, max_timestamp=99)
    empty = batches.batch([], base_offset=12, last_offset_delta=30)
    none = batches.batch([batches.Record(-1, None, b"v")], base_offset=43)
    data = first + append + empty + none
    rows, damages = decoded(data)
    assert not damages
    assert encoded(rows, len(data)) == data
    assert rows["raw"].null_count == rows.num_rows
    records = [row for row in rows.to_pylist() if row["kind"] == "message"]
    assert [row["offset"] for row in records] == [7, 8, 9, 10, 11, 43]
    assert [timestamp_ms(row) for row in records] == [0, 1_795_180_288_633, -1, 1, 99, -1]
    assert [header["key"] for header in records[0]["headers"]] == ["a", "a", "ü"]
    assert records[1]["headers"] == []
    assert (records[3]["record_attributes"], records[4]["timestamp_delta"]) == (-128, 0)


@pytest.mark.parametrize(
    "record",
    [
        batches.Record(1, b"key", b"value", padded=True),
        batches.Record(1, b"key", b"value", [(b"\xff", b"1"), ("good", b"2")]),
    ],
    ids=["a number longer than needed", "a header's name that is no text"],
)
def test_what_columns_would_not_give_back_keeps_its_bytes(record: batches.Record) -> None:
    data = batches.batch(
        [batches.Record(1, b"a", b"b", [("n", None)]), record, batches.Record(2, None, b"c")]
    )
    rows, damages = decoded(data)
    assert not damages
    assert encoded(rows, len(data)) == data
    assert [row["raw"] is not None for row in rows.to_pylist()] == [False, False, True, False]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_older_formats_are_kept_as_bytes(magic: int) -> None:
    data = batches.legacy(magic, 5, b"key", b"value") + batches.batch(
        [batches.Record(1, None, b"v")], base_offset=6
    )
    rows, damages = decoded(data)
    assert not damages
    assert encoded(rows, len(data)) == data
    assert rows["kind"].to_pylist() == ["legacy", "batch", "message"]
    assert rows["offset"].to_pylist() == [5, 6, 6]
    assert rows["raw"][0].as_py() == data[: rows["size"][0].as_py()]


WHOLE = batches.batch([batches.Record(1, b"k", b"v")], base_offset=3)
AFTER = batches.batch([batches.Record(1, b"k", b"w")], base_offset=4)


def spoiled(at: int, value: bytes, *, crc: bool = False) -> bytes:
    data = WHOLE[:at] + value + WHOLE[at + len(value) :]
    return batches.with_crc(data) if crc else data


CRC_OF_SPOILED = crc32c_of(spoiled(61, b"\x7f")[21:])


@pytest.mark.parametrize(
    ("data", "expected", "found", "goes_on"),
    [
        (spoiled(61, b"\x7f"), f"CRC-32C {WHOLE[17:21].hex()}", f"{CRC_OF_SPOILED:08x}", True),
        (spoiled(16, b"\x07"), "magic 0, 1 or 2", "magic 7", True),
        (spoiled(57, struct.pack(">i", 9), crc=True), "records that fit", "a count of 9", True),
        (spoiled(61, b"\x08", crc=True), "1 whole records", "one that isn't", True),
        (spoiled(21, b"\x00\x07", crc=True), "a compression type from 0 to 4", "7", True),
        (spoiled(21, b"\x00\x04", crc=True), "compressed by zstd", "", True),
        (spoiled(21, b"\x00\x01", crc=True), "a gzip header", "100000", True),
        (spoiled(8, struct.pack(">i", 3)), "a batch of at least 61 bytes", "says 15", False),
        (spoiled(8, struct.pack(">i", 2**31 - 20)), "a batch of", "up to the end of the file", False),
    ],
)
def test_bytes_that_are_no_batch_are_damage_and_come_back(
    data: bytes, expected: str, found: str, goes_on: bool
) -> None:
    whole = AFTER + data + AFTER
    rows, damages = decoded(whole)
    (damage,) = damages
    assert damage.offset == len(AFTER)
    assert damage.size_bytes == (len(data) if goes_on else len(data) + len(AFTER))
    assert expected in damage.expected
    assert found in damage.found
    assert encoded(rows, len(whole)) == whole
    kinds = ["batch", "message", "undecodable"] + ["batch", "message"] * goes_on
    assert rows["kind"].to_pylist() == kinds


def test_a_torn_tail_is_damage() -> None:
    for size in (1, 16, 30, len(AFTER) - 1):
        rows, (damage,) = decoded(WHOLE + AFTER[:size])
        assert (damage.offset, damage.size_bytes) == (len(WHOLE), size)
        assert f"{size} bytes up to the end of the file" in damage.found
        assert rows["kind"].to_pylist() == ["batch", "message", "undecodable"]


def test_a_long_run_comes_in_pieces_and_is_one_damage() -> None:
    data = WHOLE + bytes(5 << 20)
    rows, damages = decoded(data)
    assert max(rows["size"].to_pylist()) == 1 << 20
    assert [(d.offset, d.size_bytes) for d in damages[:1]] == [(len(WHOLE), 5 << 20)]
    assert encoded(rows, len(data)) == data


def test_rows_that_overlap_or_lack_something_prove_nothing() -> None:
    rows, _ = decoded(WHOLE)
    out = memoryview(bytearray(len(WHOLE)))
    with pytest.raises(ProofError, match="overlap"):
        CODEC.encode(pa.concat_tables([rows, rows]), out, 0)
    with pytest.raises(ProofError, match="to lie inside"):
        CODEC.encode(rows, out[:-1], 0)
    with pytest.raises(ProofError, match="to lie inside"):
        CODEC.encode(rows, out, 1)
    for name in ("crc", "headers", "base_offset"):
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(name)
        without = rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))
        with pytest.raises(ProofError, match="expected raw bytes, or a value"):
            CODEC.encode(without, out, 0)
    other = rows.set_column(
        rows.schema.get_field_index("value"),
        rows.schema.field("value"),
        pa.array([None, b"long"], pa.binary_view()),
    )
    with pytest.raises(ProofError, match="fields whose lengths add up to its size"):
        CODEC.encode(other, out, 0)


def test_the_codec_can_be_sent_to_a_worker() -> None:
    assert pickle.loads(pickle.dumps(CODEC)) == CODEC


@pytest.mark.parametrize("attributes", [0, 1, 7])
def test_a_batch_that_says_it_has_no_records_is_not_looked_into(attributes: int) -> None:
    data = spoiled(57, bytes(4))
    rows, damages = decoded(
        AFTER + batches.with_crc(data[:21] + struct.pack(">h", attributes) + data[23:]) + AFTER
    )
    assert not damages
    assert [row["record_count"] for row in rows.to_pylist() if row["kind"] == "batch"] == [1, 0, 1]
