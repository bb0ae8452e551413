"""Commitlog → Arrow → commitlog: against Java's reading, against a plain one, and on hostile bytes."""

from __future__ import annotations

import hashlib
import pickle
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_engine.exceptions import ProofError
from storage_engine.rocketmq.codec import CODEC, default_chunk_bytes
from storage_engine.rocketmq.decode_columns import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from tests.rounds import later, rounds

STORES = ("clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames")
RELAXED = settings(
    max_examples=rounds("STORAGE_ENGINE_CODEC_EXAMPLES", 50, 150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

COPIED = pa.schema([f.with_type(pa.binary()) if pa.types.is_binary_view(f.type) else f for f in CODEC.schema])
"""Bodies and raw bytes as copies: Arrow can't sort views yet."""


def segments(root: Path) -> dict[str, bytes]:
    paths = [path for path in root.rglob("0*") if path.parent.name in ("commitlog", "cl1", "cl2")]
    return {path.name: path.read_bytes() for path in sorted(paths, key=lambda path: path.name)}


def decode(data: bytes, base_offset: int = 0, chunk_bytes: int | None = None) -> tuple[pa.Table, list[Any]]:
    tables, damages = [], []
    for table, found in CODEC.decode(memoryview(data), base_offset, chunk_bytes=chunk_bytes):
        table.validate(full=True)
        tables.append(table)
        damages.extend(found)
    rows = pa.concat_tables(tables) if tables else CODEC.schema.empty_table()
    return rows.cast(COPIED), damages


def encode(rows: pa.Table, size: int, base_offset: int = 0) -> bytes:
    out = bytearray(b"\xa5") * size
    assert CODEC.encode(rows, memoryview(out), base_offset) == size
    return bytes(out)


def by_offset(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows in file order, timestamps in ms, neighbouring pieces of one run joined."""
    for name in ("born_timestamp", "store_timestamp"):
        microseconds = rows.column(name).cast(pa.int64()).to_pylist()
        values = pa.array([None if value is None else value // 1000 for value in microseconds], pa.int64())
        rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    result: list[dict[str, Any]] = []
    for row in rows.sort_by("physical_offset").to_pylist():
        if row["kind"] != "message":
            assert len(row["raw"]) == row["size"]
            if result and result[-1]["kind"] == row["kind"] and row["magic"] is None:
                result[-1]["size"] += row["size"]
                continue
        result.append(row)
    return result


def assert_reads_as(rows: pa.Table, expected: list[dict[str, Any]]) -> None:
    found = by_offset(rows)
    assert [(r["physical_offset"], r["size"], r["kind"]) for r in found] == [
        (r["physical_offset"], r["size"], r["kind"]) for r in expected
    ]
    for row, reference in zip(found, expected, strict=True):
        if row["kind"] == "message":
            pairs = row["properties"]
            assert pairs is None or len(dict(pairs)) == len(pairs)
            row = {**row, "properties": None if pairs is None else dict(pairs)}
            assert {name: row[name] for name in reference} == reference


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


@RELAXED
@given(data=st.binary(max_size=2000), base_offset=st.integers(0, 1 << 62))
def test_garbage_is_undecodable_and_comes_back_identical(data: bytes, base_offset: int) -> None:
    rows, damages = decode(data, base_offset)
    assert set(rows.column("kind").to_pylist()) <= {"undecodable"}
    assert sum(damage.size_bytes for damage in damages) == len(data)
    assert encode(rows, len(data), base_offset) == data


def mutations(data: bytes) -> Iterator[bytes]:
    """A real segment with bytes flipped, cut, moved and zeroed, the same ones every time."""
    chance = random.Random(20260401)
    for _ in range(12):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 60)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        yield bytes(changed)
    for _ in range(6):
        at, size = chance.randrange(len(data)), chance.randrange(1, 20_000)
        yield data[:at] + data[at + size :]
        yield data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]
        yield data[:at] + chance.randbytes(chance.randrange(1, 200)) + data[at:]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["clean-stop", *later("kill9")])
def test_a_mutated_real_segment_reads_as_the_plain_reading(
    store: str, store_copy: Callable[[str], Path], reference_rows: Any
) -> None:
    name, data = next(iter(segments(store_copy(store)).items()))
    for changed in mutations(data[:120_000]):
        rows, damages = decode(changed, int(name))
        assert encode(rows, len(changed), int(name)) == changed
        expected = reference_rows(changed, int(name))
        assert_reads_as(rows, expected)
        assert bool(damages) == any(row["kind"] == "undecodable" for row in expected)


def test_a_flipped_bit_in_a_body_is_damage_of_that_frame_only(message: Any, build_frame: Any) -> None:
    frames, at = [], 0
    for i in range(3):
        frames.append(build_frame(message(body=b"%d" % i * 50), at))
        at += len(frames[-1])
    data = bytearray(b"".join(frames))
    data[len(frames[0]) + 100] ^= 4
    rows, (damage,) = decode(bytes(data))
    assert [row["kind"] for row in by_offset(rows)] == ["message", "undecodable", "message"]
    assert (damage.offset, damage.size_bytes) == (len(frames[0]), len(frames[1]))
    assert "CRC" in damage.expected


@pytest.mark.parametrize("position", [30, 60, -21, -5, -1])
def test_the_property_crc_guards_what_the_body_crc_does_not(
    position: int, message: Any, build_frame: Any
) -> None:
    frame = build_frame(message(property_crc=True), 0)
    assert decode(frame)[1] == []
    changed = bytearray(frame)
    changed[position] ^= 1
    rows, damages = decode(bytes(changed))
    assert encode(rows, len(changed)) == changed
    if position == -21:
        # What separates the CRC from the pair before it is gone: it is no CRC property any more.
        assert damages == []
    else:
        assert [damage.size_bytes for damage in damages] == [len(frame)]


def test_a_property_block_of_nothing_but_its_crc_is_checked(message: Any, build_frame: Any) -> None:
    frame = build_frame(message(properties=b"", property_crc=True), 0)
    rows, damages = decode(frame)
    assert damages == []
    assert [name for name, _ in rows.column("properties")[0].as_py()] == ["__CRC32#"]
    changed = frame.replace(b"__CRC32#\x01", b"__CRC32#\x01x")[: len(frame) - 1] + b"\x02"
    assert decode(changed)[1] != []


def test_only_rows_that_need_them_keep_raw_bytes(message: Any, build_frame: Any) -> None:
    plain = [
        message(),
        message(properties=b"a\x01b"),
        message(properties=b""),
        message(properties=b"a\x01b\x01c\x02"),
        message(born_address=bytes(10) + b"\xff\xff\x01\x02\x03\x04"),
    ]
    odd = [
        message(properties=b"a\x01\x02"),
        message(properties=b"\x01b\x02"),
        message(properties=b"a\x01b\x02\x02"),
        message(properties=b"a\x01b\x02a\x01c\x02"),
        message(properties=b"a\x01\xff\x02"),
        message(properties=b"nothing"),
        message(topic=b"\xc0\x80"),
        message(born_timestamp_ms=1 << 62),
        message(store_timestamp_ms=-(1 << 62)),
    ]
    for expected, group in ((False, plain), (True, odd)):
        for item in group:
            frame = build_frame(item, 0)
            rows, damages = decode(frame)
            assert damages == []
            assert (rows.column("raw")[0].as_py() is not None) is expected, item
            assert encode(rows, len(frame)) == frame


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
    kept = [(name.encode(), value.encode()) for name, value in rows.column("properties")[0].as_py()]
    if len(block) <= 32767:
        assert dict(kept) == dict(first + again)
        assert rows.column("keys")[0].as_py() == "y"
    assert len(dict(kept)) == len(kept)
    assert encode(rows, len(frame)) == frame


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


def test_a_blank_frame_that_does_not_reach_the_end_hides_nothing(message: Any, build_frame: Any) -> None:
    blank = struct.pack(">iI", 8, 0xCBD43194)
    data = blank + build_frame(message(), len(blank))
    rows, damages = decode(data)
    assert [row["kind"] for row in by_offset(rows)] == ["undecodable", "message"]
    assert [(damage.offset, damage.size_bytes) for damage in damages] == [(0, 8)]


def test_a_frame_of_another_place_is_no_frame(message: Any, build_frame: Any) -> None:
    data = build_frame(message(), 4096)
    rows, (damage,) = decode(data, 0)
    assert set(rows.column("kind").to_pylist()) == {"undecodable"}
    assert "physical offset 0" in damage.expected
    assert "4096" in damage.found


def test_damage_is_summed_up_beyond_a_thousand_runs(message: Any, build_frame: Any) -> None:
    parts, at = [], 0
    for _ in range(1500):
        parts += [b"?", build_frame(message(body=bytes(100)), at + 1)]
        at += 1 + len(parts[-1])
    data = b"".join(parts)
    ((table, damages),) = CODEC.decode(memoryview(data), 0, chunk_bytes=len(data))
    assert len(damages) == 1001
    assert sum(damage.size_bytes for damage in damages) == 1500
    assert "500 more runs" not in damages[0].found
    assert damages[-1].found.startswith("500 more runs")
    assert encode(table, len(data)) == data


def hostile_segments(size: int, message: Any, build_frame: Any) -> dict[str, bytes]:
    """Bytes that a careless reader would go over again and again."""
    frame = bytearray(build_frame(message(body=bytes(1000)), 0))
    nested = bytearray(size)
    for at in range(0, size - 200, 48):
        # Headers that all claim to reach to the same end, where one tail makes all of them well-formed.
        struct.pack_into(">iIiiiqqi", nested, at, size - at, 0xDAA320A7, 1, 0, 0, 0, at, 0)
    headers = struct.pack(">iI", 91, 0xDAA320A7) * (size // 8)
    names = b"".join(b"%05x\x01v\x02" % i for i in range(4095))
    duplicates = build_frame(message(properties=names[:16000] + names[:16000], body=b""), 0)
    repeated, at = bytearray(), 0
    while at < size:
        struct.pack_into(">q", frame_copy := bytearray(duplicates), 28, at)
        repeated += frame_copy
        at += len(frame_copy)
    queues, at = bytearray(), 0
    tiny = build_frame(message(body=b"", properties=b"", topic=b"12345678"), 0)
    while at < size:
        struct.pack_into(">q", copy := bytearray(tiny), 28, at)
        struct.pack_into(">i", copy, 12, at)
        copy[-10:-2] = b"%08x" % (at * 2654435761 % (1 << 32))
        queues += copy
        at += len(copy)
    return {
        "nested": bytes(nested),
        "headers": headers,
        "one magic": bytes(frame[4:8]) * (size // 4),
        "zeros": bytes(size),
        "duplicates": bytes(repeated),
        "a queue a message": bytes(queues),
    }


@pytest.mark.slow
def test_hostile_segments_take_time_in_proportion_to_their_size(message: Any, build_frame: Any) -> None:
    for name, data in hostile_segments(6 << 20, message, build_frame).items():
        began = time.process_time()
        rows, _ = decode(data)
        assert encode(rows, len(data)) == data, name
        assert time.process_time() - began < 20, name


def well_formed_all_the_way(size: int) -> bytes:
    """Frames that begin every 91 bytes, all well-formed, all reaching to one end, all with a wrong CRC."""
    data = bytearray(size)
    for at in range(0, size - 300, 91):
        body = size - at - 91
        struct.pack_into(">iIiiiqqi", data, at, size - at, 0xDAA320A7, 1, 0, 0, 0, at, 0)
        struct.pack_into(">i", data, at + 84, body)
    return bytes(data)


def test_nested_frames_with_bad_crcs_are_passed_over_once() -> None:
    data = well_formed_all_the_way(8 << 20)
    began = time.process_time()
    rows, (damage, *_) = decode(data)
    assert time.process_time() - began < 10
    assert encode(rows, len(data)) == data
    assert damage.offset == 0


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


def sample(message: Any, build_frame: Any, count: int = 5) -> bytes:
    data = b""
    for i in range(count):
        data += build_frame(message(queue_id=i % 2, body=b"%d" % i * (i + 1)), len(data))
    return data


def with_column(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    index = rows.schema.get_field_index(name)
    return rows.set_column(
        index, rows.schema.field(index), pa.chunked_array([values], rows.schema.field(index).type)
    )


def test_overlapping_rows_are_refused(message: Any, build_frame: Any) -> None:
    rows, _ = decode(sample(message, build_frame))
    with pytest.raises(ProofError, match="overlap"):
        CODEC.encode(pa.concat_tables([rows, rows.slice(2, 1)]), memoryview(bytearray(2000)), 0)


@pytest.mark.parametrize("shift", [-1, 1 << 40, -(1 << 62)])
def test_rows_outside_the_segment_are_refused(shift: int, message: Any, build_frame: Any) -> None:
    data = sample(message, build_frame)
    rows, _ = decode(data, 4096)
    offsets = rows.column("physical_offset").to_pylist()
    moved = with_column(
        rows, "physical_offset", [offsets[0] + shift if shift > 0 else 4095 + shift, *offsets[1:]]
    )
    with pytest.raises(ProofError, match="inside the segment"):
        CODEC.encode(moved, memoryview(bytearray(len(data))), 4096)
    with pytest.raises(ProofError, match="inside the segment"):
        CODEC.encode(rows, memoryview(bytearray(len(data) - 1)), 4096)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("topic", None, "every column"),
        ("topic", "longer", "make up its size"),
        ("magic", 7, "magic"),
        ("born_host", "localhost", "IP addresses"),
        ("born_host", "127.0.0.01", "IP addresses"),
        ("born_host", "127.0.0.256", "IP addresses"),
        ("store_host", "0:0:0:0:0:0:0:1", "IP addresses"),
        ("size", 0, "inside the segment"),
        ("raw", b"x", "raw bytes"),
    ],
)
def test_a_row_that_makes_no_frame_is_refused(
    column: str, value: Any, expected: str, message: Any, build_frame: Any
) -> None:
    data = sample(message, build_frame)
    rows, _ = decode(data)
    values = rows.column(column).to_pylist()
    with pytest.raises(ProofError, match=expected):
        CODEC.encode(with_column(rows, column, [value, *values[1:]]), memoryview(bytearray(len(data))), 0)


@pytest.mark.parametrize("missing", ["body", "raw", "physical_offset"])
def test_rows_without_a_needed_column_are_refused(missing: str, message: Any, build_frame: Any) -> None:
    rows, _ = decode(sample(message, build_frame))
    with pytest.raises(ProofError, match=missing):
        CODEC.encode(rows.drop_columns([missing]), memoryview(bytearray(2000)), 0)


def test_a_changed_value_changes_the_bytes(message: Any, build_frame: Any) -> None:
    data = sample(message, build_frame)
    rows, _ = decode(data)
    for column in rows.column_names:
        values = rows.column(column).to_pylist()
        if pa.types.is_integer(rows.schema.field(column).type) and column not in (
            "physical_offset",
            "size",
            "magic",
            "sys_flag",
        ):
            changed = with_column(rows, column, [values[0] + 1, *values[1:]])
            assert encode(changed, len(data)) != data, column


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
