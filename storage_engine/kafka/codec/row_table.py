"""Columns that the kernels have written → an Arrow table. Nothing is copied but the headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.memory import address_of
from storage_engine.core.java_text import java_text
from storage_engine.kafka.codec import record_kernels
from storage_engine.kafka.codec import row_columns as columns
from storage_engine.kafka.codec.record_schema import CONTROL_TYPES, FILE_SCHEMA
from storage_engine.kafka.codec.row_columns import RowColumns

_SHARED = {
    "producer_id": columns.PRODUCER_ID,
    "producer_epoch": columns.PRODUCER_EPOCH,
    "leader_epoch": columns.LEADER_EPOCH,
    "base_offset": columns.BASE_OFFSET,
    "base_timestamp": columns.BASE_TIMESTAMP,
    "attributes": columns.ATTRIBUTES,
}
"""What a batch's rows have in common."""
_OWN = {
    "last_offset_delta": columns.LAST_OFFSET_DELTA,
    "max_timestamp": columns.MAX_TIMESTAMP,
    "base_sequence": columns.BASE_SEQUENCE,
    "record_count": columns.RECORD_COUNT,
    "batch_size": columns.BATCH_SIZE,
    "crc": columns.CRC,
}
"""What only the row of a batch has."""


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """Memory that keys, values and raw bytes lie in.

    :param begin: of the part of the segment that the table is of.
    :param origin: position of the segment's first byte.
    :param expanded: records that were decompressed.
    """

    segment: npt.NDArray[np.uint8]
    begin: int
    end: int
    origin: int
    expanded: pa.Buffer

    @property
    def buffers(self) -> list[pa.Buffer]:
        return [pa.py_buffer(self.segment[self.begin : self.end].data), self.expanded]


def table_of(memory: RowColumns, state: npt.NDArray[np.int64], content: Content) -> pa.Table:
    """Return the rows that were written.

    :param state: of the kernel.
    """
    rows = int(state[record_kernels.ROWS])
    buffers = content.buffers

    def fixed(name: str, column: int, valid: int | None) -> pa.Array[Any]:
        kind = FILE_SCHEMA.field(name).type
        bits = None if valid is None else memory.bits(valid, rows)
        values = memory.buffer(column, rows * kind.bit_width // 8)
        return pa.Array.from_buffers(kind, rows, [bits, values])

    def views(column: int, valid: int) -> pa.Array[Any]:
        found: Any = [memory.bits(valid, rows), memory.buffer(column, rows * columns.VIEW_BYTES), *buffers]
        return pa.Array.from_buffers(pa.binary_view(), rows, found)

    in_batch = columns.IN_BATCH if state[record_kernels.OTHERS] else None
    headers, spoiled = _headers(memory, state)
    if spoiled is not None:
        address = address_of(content.segment)
        record_kernels.view_whole(
            address,
            address + len(content.segment),
            content.begin,
            content.origin,
            spoiled,
            address_of(memory.addresses),
        )
    has_raw = spoiled is not None or state[record_kernels.RAWS] > 0
    if has_raw:
        record_kernels.clear_views(rows, address_of(memory.addresses))
    transactional = [
        None if in_batch is None else memory.bits(in_batch, rows),
        memory.bits(columns.IS_TRANSACTIONAL, rows),
    ]
    found: dict[str, pa.Array[Any]] = {
        "physical_offset": fixed("physical_offset", columns.PHYSICAL_OFFSET, None),
        "size": fixed("size", columns.SIZE, None),
        "kind": _kinds(memory, rows),
        "offset": fixed("offset", columns.OFFSET, None if in_batch is None else columns.HAS_OFFSET),
        "timestamp": fixed("timestamp", columns.TIMESTAMP, columns.HAS_TIMESTAMP),
        "timestamp_delta": fixed("timestamp_delta", columns.TIMESTAMP_DELTA, columns.HAS_DELTA)
        if state[record_kernels.DELTAS]
        else _nulls("timestamp_delta", rows),
        "record_attributes": fixed("record_attributes", columns.RECORD_ATTRIBUTES, columns.IS_RECORD),
        "control": _control(memory, rows) if state[record_kernels.MARKERS] else _nulls("control", rows),
        "key": views(columns.KEY, columns.HAS_KEY),
        "value": views(columns.VALUE, columns.HAS_VALUE),
        "headers": headers,
        "transactional": pa.Array.from_buffers(pa.bool_(), rows, transactional),
        "raw": views(columns.RAW, columns.HAS_RAW) if has_raw else _nulls("raw", rows),
    }
    found |= {name: fixed(name, column, in_batch) for name, column in _SHARED.items()}
    found |= {name: fixed(name, column, columns.IS_OWN) for name, column in _OWN.items()}
    return pa.Table.from_arrays([found[name] for name in FILE_SCHEMA.names], schema=FILE_SCHEMA)


def _kinds(memory: RowColumns, rows: int) -> pa.Array[Any]:
    ends = memory.array(columns.KIND_END, rows + 1, np.int32)
    texts = memory.buffer(columns.KIND_TEXT, int(ends[rows]))
    offsets = memory.buffer(columns.KIND_END, 4 * (rows + 1))
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, texts])


def _control(memory: RowColumns, rows: int) -> pa.Array[Any]:
    types = memory.array(columns.CONTROL_TYPE, rows, np.int8)
    known = np.minimum(types, len(CONTROL_TYPES) - 1)
    bits = np.packbits(types >= 0, bitorder="little")
    numbers = pa.Array.from_buffers(pa.int8(), rows, [pa.py_buffer(bits.data), pa.py_buffer(known.data)])
    words: pa.Array[Any] = cast("Any", CONTROL_TYPES).take(numbers)
    return words


def _nulls(name: str, rows: int) -> pa.Array[Any]:
    return without_values(FILE_SCHEMA.field(name).type, rows)


def without_values(kind: pa.DataType, rows: int) -> pa.Array[Any]:
    """Return a column without a value, in memory that is all zero and shared by all of them."""
    zeros = columns.zeros(columns.VIEW_BYTES * (rows + 1))
    return pa.Array.from_buffers(kind, rows, [zeros] * kind.num_buffers, null_count=rows)


def _headers(
    memory: RowColumns, state: npt.NDArray[np.int64]
) -> tuple[pa.Array[Any], npt.NDArray[np.int64] | None]:
    """Return the records' headers, and the rows that have a name that is no UTF-8; None: no row has one."""
    rows, headers = int(state[record_kernels.ROWS]), int(state[record_kernels.HEADERS])
    kind = FILE_SCHEMA.field("headers").type
    starts: Any = memory.buffer(columns.HEADER_START, 4 * (rows + 1))
    valid: Any = memory.bits(columns.IS_RECORD, rows)
    spoiled = None
    if not headers:
        entries: Any = kind.value_type
        return pa.Array.from_buffers(kind, rows, [valid, starts], children=[pa.nulls(0, entries)]), None
    names, values = _header_texts(memory, state)
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid:
        # Kafka's clients give such a name with U+FFFD; the row's raw bytes have it as it is.
        coded = names.dictionary_encode()
        known = [java_text(name) for name in coded.dictionary.to_pylist()]
        texts = pa.array(known, pa.string()).take(coded.indices)
        bad = pc.not_equal(texts.cast(pa.binary()), names).to_numpy(zero_copy_only=False)
        places = memory.array(columns.HEADER_START, rows + 1, np.int32)
        spoiled = np.unique(np.searchsorted(places, np.flatnonzero(bad), side="right") - 1)
    entries = pa.StructArray.from_arrays([texts, values], fields=list(kind.value_type))
    return pa.Array.from_buffers(kind, rows, [valid, starts], children=[entries]), spoiled


def _header_texts(memory: RowColumns, state: npt.NDArray[np.int64]) -> tuple[Any, pa.Array[Any]]:
    """Return names and values of all headers, as bytes.

    :raises ValueError: the segment was written to meanwhile.
    """
    rows, headers = int(state[record_kernels.ROWS]), int(state[record_kernels.HEADERS])
    name_bytes, value_bytes = (
        int(state[place]) for place in (record_kernels.NAME_BYTES, record_kernels.HEADER_VALUE_BYTES)
    )
    name_ends, value_ends = np.empty(headers + 1, np.int32), np.empty(headers + 1, np.int32)
    names, values = np.empty(name_bytes, np.uint8), np.empty(value_bytes, np.uint8)
    has_value = np.empty(headers, np.uint8)
    same = record_kernels.copy_headers(
        rows,
        address_of(memory.addresses),
        name_ends,
        address_of(names),
        name_bytes,
        value_ends,
        address_of(values),
        value_bytes,
        has_value,
    )
    if not same:
        raise ValueError("expected a segment that nobody writes to, found other headers than a moment before")
    bits = None if has_value.all() else pa.py_buffer(np.packbits(has_value, bitorder="little").data)
    buffers = [bits, pa.py_buffer(value_ends.data), pa.py_buffer(values.data)]
    of_names = [None, pa.py_buffer(name_ends.data), pa.py_buffer(names.data)]
    return (
        pa.Array.from_buffers(pa.binary(), headers, of_names),
        pa.Array.from_buffers(pa.binary(), headers, buffers),
    )
