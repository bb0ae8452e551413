"""Calls of the codec as its tests make them, and its rows beside those of a plain reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings

from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.codec.property_pairs import property_maps
from tests.rounds import rounds

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
    if "properties_text" in rows.column_names:
        at = rows.schema.get_field_index("properties")
        rows = rows.set_column(at, "properties", property_maps(rows["properties_text"]))
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
