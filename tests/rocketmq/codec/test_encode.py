"""Rows that make no segment are refused, and each value of a row counts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from storage_engine.exceptions import ProofError
from storage_engine.rocketmq.codec.codec import CODEC
from tests.rocketmq.codec_calls import decode, encode


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
