"""Bodies that Java clients compressed: all that the fixture stores have, against what Java made of them."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_engine.exceptions import CorruptBodyError
from storage_engine.rocketmq.codec.body import (
    decompress_bodies,
    decompress_bodies_or_null,
    decompressed_parts,
)
from storage_engine.rocketmq.codec.codec import CODEC

OLD_ZLIB, LZ4, ZSTD, ZLIB = 1, 257, 513, 769
PLAIN = b'{"order":"0000000042","note":"body"},' * 40
COMPRESSED = {
    OLD_ZLIB: zlib.compress(PLAIN),
    LZ4: pa.compress(PLAIN, "lz4", asbytes=True),
    ZSTD: pa.compress(PLAIN, "zstd", asbytes=True),
    ZLIB: zlib.compress(PLAIN),
}


def _flags(*flags: int | None) -> pa.Array[Any]:
    return pa.array(flags, pa.int32())


@pytest.fixture
def rows(store_copy) -> pa.Table:
    root: Path = store_copy("clean-stop")
    tables = [
        rows
        for path in sorted((root / "commitlog").iterdir())
        for rows, _ in CODEC.decode(memoryview(path.read_bytes()), int(path.name))
    ]
    rows = pa.concat_tables(tables)
    body = rows.schema.get_field_index("body")
    # As a reader of the lake has it.
    return rows.set_column(body, "body", rows["body"].cast(pa.binary()))


def test_every_body_is_what_java_decompresses_it_to(rows: pa.Table, ground_truth) -> None:
    truth = {
        frame["physicOffset"]: frame.get("bodyDecompressedSha256", frame["bodySha256"])
        for frame in ground_truth("clean-stop", "commitlog")
        if frame["kind"] == "message"
    }
    assert {LZ4, ZSTD, ZLIB} < set(rows["sys_flag"].to_pylist())
    bodies = decompress_bodies(rows["body"], rows["sys_flag"])
    assert bodies.type == rows["body"].type
    found = {
        offset: hashlib.sha256(body or b"").hexdigest()
        for offset, kind, body in zip(
            rows["physical_offset"].to_pylist(), rows["kind"].to_pylist(), bodies.to_pylist(), strict=True
        )
        if kind == "message"
    }
    assert found == truth


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_rows_keep_their_order_and_nulls_stay(kind: pa.DataType) -> None:
    bodies = [PLAIN, COMPRESSED[ZSTD], None, COMPRESSED[OLD_ZLIB], b"", COMPRESSED[LZ4], None]
    flags = _flags(0, ZSTD, ZLIB, OLD_ZLIB, LZ4, LZ4, None)
    chunked = pa.chunked_array([pa.array(bodies[:3], kind), pa.array(bodies[3:], kind)])
    found = decompress_bodies(chunked, flags)
    assert found.type == kind
    assert found.to_pylist() == [PLAIN, PLAIN, None, PLAIN, b"", PLAIN, None]


def test_a_slice_of_an_array_is_decompressed_as_such() -> None:
    bodies = pa.array([b"before", COMPRESSED[LZ4], PLAIN, COMPRESSED[ZLIB]], pa.binary()).slice(1)
    assert decompress_bodies(bodies, _flags(0, LZ4, 0, ZLIB).slice(1)).to_pylist() == [PLAIN] * 3


@pytest.mark.parametrize("flag", COMPRESSED)
@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros"])
def test_a_damaged_body_is_an_error_that_names_its_row(flag: int, damage: str) -> None:
    whole = COMPRESSED[flag]
    broken = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:1] + bytes([whole[1] ^ 0xFF]) + whole[2:],
        "zeros": bytes(len(whole)),
    }[damage]
    bodies, flags = pa.array([PLAIN, broken, whole], pa.binary()), _flags(0, flag, flag)
    with pytest.raises(CorruptBodyError, match=rf"row 1: expected a body of \d+ bytes .* sys_flag {flag}"):
        decompress_bodies(bodies, flags)
    assert decompress_bodies(bodies, flags, on_error="null").to_pylist() == [PLAIN, None, PLAIN]


@pytest.mark.parametrize("flag", COMPRESSED)
def test_a_body_that_expands_beyond_the_limit_is_an_error_and_takes_no_memory(flag: int) -> None:
    codec = {LZ4: "lz4", ZSTD: "zstd"}.get(flag)
    zeros = bytes(64 << 20)
    bomb = pa.compress(zeros, codec, asbytes=True) if codec else zlib.compress(zeros, 1)
    del zeros
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptBodyError, match="decompresses to more than 1048576 bytes"):
        decompress_bodies(pa.array([bomb], pa.binary()), _flags(flag), max_body_bytes=1 << 20)
    assert pa.total_allocated_bytes() == before
    exact = pa.array([COMPRESSED[flag]], pa.binary())
    assert decompress_bodies(exact, _flags(flag), max_body_bytes=len(PLAIN)).to_pylist() == [PLAIN]


def test_a_compression_that_no_client_has_is_an_error() -> None:
    with pytest.raises(CorruptBodyError, match="compression type 4"):
        decompress_bodies(pa.array([PLAIN], pa.binary()), _flags(0x401))


def test_bodies_and_flags_of_different_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="a sys_flag for each of 1 bodies, found 2"):
        decompress_bodies(pa.array([PLAIN]), _flags(0, 0))


def test_parts_hold_little_and_together_every_row() -> None:
    bodies = [PLAIN, COMPRESSED[LZ4], None, COMPRESSED[ZSTD][:9], COMPRESSED[ZLIB], COMPRESSED[ZSTD], b"x"]
    flags = _flags(0, LZ4, ZLIB, ZSTD, ZLIB, ZSTD, 0)
    parts = list(decompressed_parts(pa.array(bodies, pa.binary()), flags, part_bytes=2 * len(PLAIN)))
    assert [row for part in parts for row in part.to_pylist()] == [
        PLAIN, PLAIN, None, None, PLAIN, PLAIN, b"x"
    ]  # fmt: skip
    assert [len(part) for part in parts] == [5, 2]


def test_in_sql_the_largest_bodies_of_a_batch_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    large = zlib.compress(bytes(10 * len(PLAIN)))
    bodies = pa.array([PLAIN, COMPRESSED[ZLIB], large, large, COMPRESSED[LZ4]], pa.binary())
    flags = _flags(0, ZLIB, ZLIB, ZLIB, LZ4)
    monkeypatch.setattr("storage_engine.rocketmq.codec.body._MAX_SQL_BYTES", 13 * len(PLAIN))
    found = decompress_bodies_or_null(bodies, flags).to_pylist()
    assert sorted(map(bool, found[2:4])) == [False, True]
    assert [found[0], found[1], found[4]] == [PLAIN] * 3
    monkeypatch.setattr("storage_engine.rocketmq.codec.body._MAX_ARRAY_BYTES", 13 * len(PLAIN))
    assert decompress_bodies(bodies, flags, on_error="null").null_count == 1
    with pytest.raises(CorruptBodyError, match="Decompress fewer rows at a time"):
        decompress_bodies(bodies, flags)
