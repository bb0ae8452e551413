"""Commitlog → Arrow → commitlog: against Java's reading, a plain one, and at the edges of the format."""

from __future__ import annotations

import hashlib
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.arrow import row_groups
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.codec import CODEC, default_chunk_bytes
from storage_engine.rocketmq.codec.decode_kernels import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from storage_engine.rocketmq.codec.property_pairs import property_maps
from tests.rocketmq.codec_calls import COPIED, RELAXED, assert_reads_as, by_offset, decode, encode, segments

STORES = ("clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames")


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_every_field_of_every_frame_equals_what_java_reads(
    store: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], list[dict[str, Any]]]
) -> None:
    files = segments(store_copy(store))
    truth: dict[str, list[dict[str, Any]]] = {name: [] for name in files}
    for line in ground_truth(store, "commitlog"):
        truth[line["file"]].append(line)
    for name, data in files.items():
        base_offset = int(name)
        rows, damages = decode(data, base_offset)
        rebuilt = encode(rows, len(data), base_offset)
        assert rebuilt == data
        found = by_offset(rows)
        assert len(found) == len(truth[name])
        for row, java in zip(found, truth[name], strict=True):
            assert row["physical_offset"] == java["pos"]
            if java["kind"] == "end":
                assert (row["kind"], row["size"]) == ("undecodable", java["remaining"])
                assert [(d.offset, d.size_bytes) for d in damages] == [(java["pos"], java["remaining"])]
                continue
            assert row["kind"] == java["kind"]
            assert row["size"] == java["size"]
            assert f"{row['magic'] & 0xFFFFFFFF:08x}" == java["magic"]
            if java["kind"] == "blank":
                assert row["size"] == java["remaining"]
                continue
            frame = rebuilt[java["pos"] - base_offset :][: java["size"]]
            store_port = row["store_port"]
            assert hashlib.sha256(frame).hexdigest() == java["frameSha256"]
            assert hashlib.sha256(row["body"]).hexdigest() == java["bodySha256"]
            assert {
                "bodyCRC": row["body_crc"],
                "bodyCRCComputed": row["body_crc"],
                "queueId": row["queue_id"],
                "flag": row["flag"],
                "queueOffset": row["queue_offset"],
                "physicOffset": row["physical_offset"],
                "sysFlag": row["sys_flag"],
                "bornTimestamp": row["born_timestamp"],
                "bornHost": f"{row['born_host']}:{row['born_port']}",
                "storeTimestamp": row["store_timestamp"],
                "storeHost": f"{row['store_host']}:{store_port}",
                "reconsumeTimes": row["reconsume_times"],
                "preparedTransactionOffset": row["prepared_transaction_offset"],
                "topic": row["topic"],
                "bodyLength": len(row["body"]),
                "properties": None if row["properties"] is None else dict(row["properties"]),
            } == {name: java[name] for name in java if name in JAVA_FIELDS}
            properties = java["properties"] or {}
            assert row["keys"] == properties.get("KEYS")
            assert row["tags"] == properties.get("TAGS")
            assert row["unique_key"] == properties.get("UNIQ_KEY")
        if not any(line["kind"] == "end" for line in truth[name]):
            assert damages == []


JAVA_FIELDS = frozenset(
    [
        "bodyCRC",
        "bodyCRCComputed",
        "queueId",
        "flag",
        "queueOffset",
        "physicOffset",
        "sysFlag",
        "bornTimestamp",
        "bornHost",
        "storeTimestamp",
        "storeHost",
        "reconsumeTimes",
        "preparedTransactionOffset",
        "topic",
        "bodyLength",
        "properties",
    ]
)


@pytest.mark.parametrize("store", STORES)
def test_rows_of_a_chunk_are_clustered_by_topic_and_queue(
    store: str, store_copy: Callable[[str], Path]
) -> None:
    for name, data in segments(store_copy(store)).items():
        for table, _ in CODEC.decode(memoryview(data), int(name), chunk_bytes=300_000):
            assert table.schema == CODEC.schema
            rows = table.select(["kind", "topic", "queue_id", "physical_offset"]).to_pylist()
            keys = [
                (
                    row["kind"] != "message",
                    (row["topic"] or "").encode(),
                    row["queue_id"] or 0,
                    row["physical_offset"],
                )
                for row in rows
            ]
            assert keys == sorted(keys)


@pytest.mark.slow
@RELAXED
@given(source=st.data())
def test_any_segment_reads_as_the_plain_reading_and_comes_back_identical(
    source: st.DataObject, any_segment: Callable[[int], Any], reference_rows: Any
) -> None:
    base_offset = source.draw(st.sampled_from([0, 1 << 30, (1 << 62) + 12345]))
    data = source.draw(any_segment(base_offset))
    chunk_bytes = source.draw(st.sampled_from([None, 1, 100, 1000]))
    rows, damages = decode(data, base_offset, chunk_bytes)
    assert encode(rows, len(data), base_offset) == data
    expected = reference_rows(data, base_offset)
    assert_reads_as(rows, expected)
    assert sum(d.size_bytes for d in damages) == sum(
        r["size"] for r in expected if r["kind"] == "undecodable"
    )


@pytest.mark.slow
@RELAXED
@given(source=st.data())
def test_rows_of_an_older_lake_read_the_same_and_come_back_identical(
    source: st.DataObject, any_segment: Callable[[int], Any], reference_rows: Any
) -> None:
    data = source.draw(any_segment(0))
    tables = []
    for table, _ in CODEC.decode(
        memoryview(data), 0, chunk_bytes=source.draw(st.sampled_from([100, 10_000]))
    ):
        tables.append(CODEC.older_rows(table))
        tables[-1].validate(full=True)
    rows = pa.concat_tables(tables) if tables else CODEC.older_rows(CODEC.schema.empty_table())
    assert rows.schema.names == CODEC.schema.names[:-1]
    assert encode(rows, len(data)) == data
    expected = reference_rows(data, 0)
    for row in expected:
        row.pop("properties_text", None)
    assert_reads_as(rows.cast(pa.schema([COPIED.field(name) for name in rows.schema.names])), expected)


def test_only_rows_that_need_them_keep_raw_bytes(message: Any, build_frame: Any) -> None:
    plain = [
        message(),
        message(properties=b"a\x01b"),
        message(properties=b""),
        message(properties=b"a\x01b\x01c\x02"),
        message(born_address=bytes(10) + b"\xff\xff\x01\x02\x03\x04"),
    ]
    no_pairs = [
        message(properties=b"a\x01\x02"),
        message(properties=b"\x01b\x02"),
        message(properties=b"a\x01b\x02\x02"),
        message(properties=b"a\x01b\x02a\x01c\x02"),
        message(properties=b"nothing"),
    ]
    odd = [
        message(properties=b"a\x01\xff\x02"),
        message(topic=b"\xc0\x80"),
        message(born_timestamp_ms=1 << 62),
        message(store_timestamp_ms=-(1 << 62)),
    ]
    for needed, needed_by_older, group in (
        (False, False, plain),
        (False, True, no_pairs),
        (True, True, odd),
    ):
        for item in group:
            frame = build_frame(item, 0)
            rows, damages = decode(frame)
            assert damages == []
            older = CODEC.older_rows(rows)
            for found, expected in ((rows, needed), (older, needed_by_older)):
                assert (found.column("raw")[0].as_py() is not None) is expected, item
                assert encode(found, len(frame)) == frame


@pytest.mark.parametrize(("edge_ms", "outwards_ms"), [(MIN_TIMESTAMP_MS, -1), (MAX_TIMESTAMP_MS, 1)])
def test_a_time_at_the_calendars_edge_is_read_as_a_number(
    edge_ms: int, outwards_ms: int, message: Any, build_frame: Any
) -> None:
    """As docs/query.md says to."""
    for born_ms, expected in ((edge_ms, edge_ms), (edge_ms + outwards_ms, None)):
        rows, _ = decode(build_frame(message(born_timestamp_ms=born_ms), 0))
        with duckdb.connect() as duck:
            duck.register("messages", rows.select(["born_timestamp"]))
            assert duck.sql("SELECT epoch_ms(born_timestamp) FROM messages").fetchall() == [(expected,)]


@pytest.mark.parametrize("names_count", [2, 40, 3000])
def test_of_one_name_the_last_value_counts(names_count: int, message: Any, build_frame: Any) -> None:
    first = [(b"n%d" % i, b"old") for i in range(names_count)]
    again = [(b"n%d" % i, b"new-%d" % i) for i in range(0, names_count, 2)] + [
        (b"KEYS", b"x"),
        (b"KEYS", b"y"),
    ]
    block = b"".join(name + b"\x01" + value + b"\x02" for name, value in first + again)
    frame = build_frame(message(properties=block[:32767]), 0)
    rows, _ = decode(frame)
    pairs = CODEC.older_rows(rows).column("properties")[0].as_py()
    kept = [(name.encode(), value.encode()) for name, value in pairs]
    if len(block) <= 32767:
        assert dict(kept) == dict(first + again)
        assert rows.column("keys")[0].as_py() == "y"
    assert len(dict(kept)) == len(kept)
    assert encode(rows, len(frame)) == frame


def test_of_one_name_many_times_the_last_value_counts_beside_many_other_names(
    message: Any, build_frame: Any
) -> None:
    """Nine times 2^61 is 2^61 in 64 bits."""
    names = b"".join(b"n%d\x01v\x02" % i for i in range(62))
    frame = build_frame(message(properties=names), 0)
    frame += build_frame(message(properties=b"".join(b"n61\x01%d\x02" % i for i in range(9))), len(frame))
    rows, _ = decode(frame)
    older = CODEC.older_rows(rows)
    assert property_maps(rows["properties_text"])[1].as_py() == [("n61", "8")]
    assert older["properties"][1].as_py() == [("n61", "8")]
    assert encode(older, len(frame)) == frame


@pytest.mark.parametrize(("field", "value"), [(84, -5), (-2, -7)])
def test_a_negative_length_counts_as_zero_as_it_does_in_java(
    field: int, value: int, message: Any, build_frame: Any
) -> None:
    frame = bytearray(build_frame(message(body=b"", properties=b""), 0))
    struct.pack_into(">i" if field > 0 else ">h", frame, field if field > 0 else len(frame) - 2, value)
    rows, damages = decode(bytes(frame))
    assert damages == []
    assert rows.column("kind").to_pylist() == ["message"]
    assert encode(rows, len(frame)) == frame


def test_a_whole_segment_can_be_one_blank_frame_with_anything_behind_its_header() -> None:
    size = (3 << 20) + 17
    data = struct.pack(">iI", size, 0xCBD43194) + random.Random(1).randbytes(size - 8)
    rows, damages = decode(data, 5 << 30)
    assert damages == []
    assert rows.column("kind").to_pylist() == ["blank"] * 4
    assert rows.column("magic").to_pylist()[1:] == [None] * 3
    assert max(rows.column("size").to_pylist()) == 1 << 20
    assert encode(rows, size, 5 << 30) == data


@pytest.mark.slow
def test_every_prefix_of_a_segment_comes_back_identical(message: Any, build_frame: Any) -> None:
    data = b""
    for i in range(3):
        item = message(born_address=bytes(range(16)), property_crc=i == 1, version=1 + i % 2)
        data += build_frame(item, len(data))
    for size in range(len(data)):
        rows, _ = decode(data[:size])
        assert encode(rows, size) == data[:size]


def test_a_frame_longer_than_the_chunk_is_a_chunk_of_its_own(message: Any, build_frame: Any) -> None:
    big = message(body=bytes(3_000_000))
    data = build_frame(message(), 0)
    for item in (big, message(), big):
        data += build_frame(item, len(data))
    tables = [table for table, _ in CODEC.decode(memoryview(data), 0, chunk_bytes=10_000)]
    assert [table.num_rows for table in tables] == [1, 1, 1, 1]
    assert encode(pa.concat_tables(tables), len(data)) == data


def test_rows_survive_parquet_and_wide_types_and_slicing(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    for name, data in segments(store_copy("edge-frames")).items():
        rows, _ = decode(data, int(name))
        pq.write_table(rows, tmp_path / "rows.parquet", compression="zstd", row_group_size=100)
        read = pq.read_table(tmp_path / "rows.parquet")
        assert encode(read, len(data), int(name)) == data
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        large = pa.schema([pa.field(f.name, wide.get(f.type, f.type)) for f in rows.schema])
        properties = large.get_field_index("properties")
        large = large.set(properties, pa.field("properties", pa.map_(pa.large_string(), pa.large_string())))
        assert encode(rows.cast(large), len(data), int(name)) == data
        out = bytearray(len(data))
        written = sum(
            CODEC.encode(read.slice(at, 37), memoryview(out), int(name)) for at in range(0, read.num_rows, 37)
        )
        assert written == len(data)
        assert out == data


def test_nothing_gives_no_rows_and_encodes_to_nothing() -> None:
    assert list(CODEC.decode(memoryview(b""), 0)) == []
    assert CODEC.encode(CODEC.schema.empty_table(), memoryview(bytearray(10)), 0) == 0


def test_the_codec_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(CODEC)) == CODEC


def test_a_base_offset_that_no_file_can_have_is_refused() -> None:
    for base_offset in (-1, (1 << 63) - 1):
        with pytest.raises(ValueError, match="base offset"):
            list(CODEC.decode(memoryview(b"x" * 10), base_offset))


def test_default_chunks_stay_small_beside_their_segment() -> None:
    assert default_chunk_bytes(1 << 30) == 16 << 20
    assert default_chunk_bytes(32 << 20) == 8 << 20
    assert default_chunk_bytes(1 << 20) == 1 << 20


class _Room:
    """A segment of which only what was loaded is there: all else is poison."""

    def __init__(self, data: bytes) -> None:
        self._real = np.frombuffer(data, np.uint8)
        self.bytes = np.full(len(data), 0xA5, np.uint8)
        self.most = self.loads = 0

    def load(self, first: int, last: int) -> None:
        self.loads += 1
        self.bytes.fill(0xA5)
        self.bytes[first:last] = self._real[first:last]
        self.most = max(self.most, last - first)


def _segment_with_every_fault(message: Any, build_frame: Any) -> bytes:
    """Six megabytes: a frame of three, a run of zeros, wrong CRCs, an old frame, and a torn end."""
    parts, size = [], 0
    bodies = [b"a" * 700, b"b" * 3_000, b"c" * (3 << 20), b"d" * 900]
    for number in range(1500):
        body = bodies[2] if number == 400 else bodies[number % 2 * 3]
        sent = message(body=body, topic=b"topic%d" % (number % 7), queue_id=number % 3)
        made = bytearray(build_frame(sent, size))
        if number in (300, 301):
            made[200] ^= 1
        if number == 700:
            made = bytearray(1_600_000)
        if number == 900:
            made = bytearray(build_frame(message(body=body), 5))
        parts.append(bytes(made))
        size += len(made)
    return b"".join(parts) + parts[0][:333]


@pytest.mark.parametrize("chunk_bytes", [1, 1_100_000, 2_000_000, 16 << 20])
def test_a_part_of_a_segment_at_a_time_gives_the_row_groups_that_all_of_it_gives(
    chunk_bytes: int, message: Any, build_frame: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 300_000)
    data = _segment_with_every_fault(message, build_frame)
    if chunk_bytes == 1:
        data = data[: 1 << 20]
    expected_groups, expected_damages = [], []
    for rows, damages in CODEC.decode(memoryview(data), 0, chunk_bytes=chunk_bytes):
        expected_groups += [group.cast(COPIED) for group in row_groups.cut_rows(rows)]
        expected_damages += damages
    assert len(expected_damages) >= (4 if len(data) > 1 << 20 else 1)
    room, groups, found = _Room(data), [], []
    decoded = CODEC.decode_groups(room.bytes.data, 0, chunk_bytes=chunk_bytes, context="", load=room.load)
    for tables, damages in decoded:
        groups += [table.cast(COPIED) for table in tables]
        found += damages
    assert [group.num_rows for group in groups] == [group.num_rows for group in expected_groups]
    assert pa.concat_tables(groups) == pa.concat_tables(expected_groups)
    assert found == expected_damages
    assert room.most <= max(chunk_bytes + (1 << 20) + 64, (3 << 20) + 2 * chunk_bytes)


def test_bytes_that_look_like_frames_at_a_parts_end_have_it_walked_a_few_times() -> None:
    chunk_bytes = 2 << 20
    data = bytearray(5 << 20)
    data[chunk_bytes + 3 : chunk_bytes + 8003] = struct.pack(">iI", 1, frame.MAGIC_V1) * 1000
    room, rows = _Room(bytes(data)), 0
    for tables, _ in CODEC.decode_groups(
        room.bytes.data, 0, chunk_bytes=chunk_bytes, context="", load=room.load
    ):
        rows += sum(table.num_rows for table in tables)
    assert rows == 5
    assert room.loads <= 12
