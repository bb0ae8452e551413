"""Rows that make no segment are refused, and each value of a row counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import ProofError
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.codec.frame_layout import FILLER_BYTES, FILLER_TOPIC, TRANSACTION_ROLLBACK
from tests.rocketmq.codec_calls import decode, encode
from tests.rocketmq.conftest import Message, make_frame


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


@given(st.lists(st.tuples(st.sampled_from([b"a", b"kept", b"orders"]), st.integers(0, 400)), min_size=1))
def test_filler_takes_the_room_of_messages_that_are_gone(frames: list[tuple[bytes, int]]) -> None:
    data, kept = b"", [np.empty((0, 2), np.int64)]
    for topic, body_bytes in frames:
        properties = b"" if body_bytes == 0 else b"KEYS\x01k\x02"
        frame = make_frame(Message(b"x" * body_bytes, topic, properties), 4096 + len(data))
        if topic == b"kept":
            kept.append(np.array([[len(data), len(data) + len(frame)]]))
        data += frame
    spans = np.concatenate(kept) + 4096
    begins, behind = np.append(4096, spans[:, 1]), np.append(spans[:, 0], 4096 + len(data))
    gaps = np.flatnonzero(begins < behind)
    out = memoryview(bytearray(data))
    rows = CODEC.filler(begins[gaps], behind[gaps], np.full(len(gaps), 1_700_000_000_000))
    assert CODEC.encode(rows, out, 4096) == int((behind - begins)[gaps].sum())
    for start, end in (spans - 4096).tolist():
        assert out[start:end] == data[start:end]
    # As whoever reads the log finds them.
    found, damage = decode(bytes(out), 4096)
    assert not damage
    filler = found.filter(pc.invert(pc.equal(found["topic"], "kept")))
    assert filler["kind"].unique().to_pylist() == (["message"] if len(gaps) else [])
    assert set(filler["sys_flag"].to_pylist()) <= {TRANSACTION_ROLLBACK}
    assert {name for name in filler["topic"].to_pylist() if not FILLER_TOPIC.startswith(name)} == set()
    assert found.num_rows == len(spans) + len(gaps)


def test_filler_of_much_room_has_frames_that_a_broker_reads_into_memory() -> None:
    size = 3 * FILLER_BYTES + 5
    out = memoryview(bytearray(size))
    rows = CODEC.filler(np.array([0]), np.array([size]), np.array([1]))
    assert CODEC.encode(rows, out, 0) == size
    found, damage = decode(bytes(out))
    assert (damage, sorted(found["size"].to_pylist())) == ([], sorted(rows["size"].to_pylist()))
    assert (found.num_rows, max(rows["size"].to_pylist()) <= FILLER_BYTES) == (4, True)


def test_where_no_message_was_no_filler_fits() -> None:
    with pytest.raises(ProofError, match="offset 7: expected room for a filler message, found 91 bytes"):
        CODEC.filler(np.array([7]), np.array([98]), np.array([1]))
