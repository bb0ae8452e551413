"""Compiled record batches → columns of records. Reads only batches that ``batch_kernels.scan`` found whole.

Must never read outside a batch, whatever its records say.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from storage_engine.kafka.batch_header import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_TIMESTAMP_AT,
    CONTROL,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP,
    RECORD_COUNT_AT,
)
from storage_engine.kafka.batch_kernels import (
    BATCH,
    FAULT_MORE,
    FAULT_NONE,
    FAULT_RECORD,
    LEGACY,
    Bytes,
    Ints32,
    Ints64,
)
from storage_engine.native import (
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_i8,
    load_i32,
    load_u8,
    store_i32,
    store_i64,
)

# Kinds of rows; the first three are those of the walk.
ROW_MESSAGE: Final = 3
ROW_CONTROL: Final = 4

VIEW_BYTES: Final = 16
VIEW_INLINE_BYTES: Final = 12

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Years 1 to 9999, what every reader of the lake can represent."""

CONTROL_KEY_BYTES: Final = 4
"""Of a marker: version and type, 16 bits each."""


@inlined
def read_varint(at: int, end: int, longest: int) -> tuple[int, int, int]:
    """Read a number of 7 bits a byte, zigzag.

    :param longest: at most so many bytes: 5 for 32 bits, 10 for 64.
    :return: the value, where it ends (0: it doesn't), and 1 where no shorter form has the same value.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    place = at
    while place < end and place - at < longest:
        byte = load_u8(place)
        value |= np.uint64(byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            exact = 1 if byte != 0 or place - at == 1 else 0
            if longest == 5 and value > np.uint64(0xFFFFFFFF):
                return 0, 0, 0
            if place - at == 10 and byte > 1:
                return 0, 0, 0
            return int64(value >> np.uint64(1)) ^ -int64(value & np.uint64(1)), place, exact
        shift += np.uint64(7)
    return 0, 0, 0


@inlined
def write_view(views: int, i: int, source: int, size: int, buffer: int, place: int) -> None:
    """Write an Arrow binary view: a short value lies in it, of a long one its buffer and place."""
    view = views + VIEW_BYTES * i
    store_i32(view, size)
    store_i32(view + 4, 0)
    store_i64(view + 8, 0)
    if size <= VIEW_INLINE_BYTES:
        copy_bytes(view + 4, source, size)
    else:
        store_i32(view + 4, load_i32(source))
        store_i32(view + 8, buffer)
        store_i32(view + 12, place)


@kernel
def decode_batches(
    segment: int,
    begin: int,
    base_position: int,
    expanded: int,
    positions: Ints64,
    sizes: Ints32,
    kinds: Bytes,
    payloads: Ints64,
    payload_sizes: Ints64,
    faults: Bytes,
    row_positions: Ints64,
    row_sizes: Ints32,
    row_kinds: Bytes,
    row_batches: Ints32,
    offsets: Ints64,
    timestamps: Ints64,
    has_timestamp: Bytes,
    deltas: Ints64,
    has_delta: Bytes,
    record_attributes: Ints32,
    control_types: Ints32,
    key_views: int,
    has_key: Bytes,
    value_views: int,
    has_value: Bytes,
    raw_views: int,
    has_raw: Bytes,
    header_starts: Ints32,
    name_offsets: Ints32,
    names: int,
    header_value_offsets: Ints32,
    header_values: int,
    has_header_value: Bytes,
) -> tuple[int, int]:
    """Write a row a batch, and one for each of its records.

    A batch whose records don't fill it exactly becomes one undecodable row, and its fault is written.

    :param segment: address of the segment.
    :param begin: position in the segment where the views' first buffer begins.
    :param base_position: of the segment's first byte.
    :param expanded: address of the views' second buffer, which has decompressed records.
    :param payloads: where a batch's records begin in that buffer; -1: they lie in the segment.
    :return: number of rows, of headers.
    """
    row = 0
    headers = 0
    header_starts[0] = 0
    name_offsets[0] = 0
    header_value_offsets[0] = 0
    for b in range(len(positions)):
        at = segment + positions[b]
        kind = int64(kinds[b])
        compressed = payloads[b] >= 0
        first_row = row
        first_header = headers
        if kind == BATCH:
            attributes = load_be_i16(at + ATTRIBUTES_AT)
            base_offset = load_be_i64(at + BASE_OFFSET_AT)
            base_timestamp = load_be_i64(at + BASE_TIMESTAMP_AT)
            append_timestamp = load_be_i64(at + MAX_TIMESTAMP_AT)
            by_append = attributes & LOG_APPEND_TIME != 0
            count = load_be_i32(at + RECORD_COUNT_AT)
            control = attributes & CONTROL != 0
            row += 1
            header_starts[row] = headers
            if compressed:
                place = expanded + payloads[b]
                shift = expanded
            else:
                place = at + sizes[b] - payload_sizes[b]
                shift = segment + begin
            end = place + payload_sizes[b]
            fault = FAULT_NONE
            for _ in range(count):
                start = place
                length, place, exact = read_varint(place, end, 5)
                record_end = place + length
                if place == 0 or length < 6 or record_end > end:
                    fault = FAULT_RECORD
                    break
                record_attributes[row] = load_i8(place)
                timestamp_delta, place, ok = read_varint(place + 1, record_end, 10)
                exact &= ok
                if place == 0:
                    fault = FAULT_RECORD
                    break
                offset_delta, place, ok = read_varint(place, record_end, 5)
                exact &= ok
                if place == 0:
                    fault = FAULT_RECORD
                    break
                key_size, place, ok = read_varint(place, record_end, 5)
                exact &= ok
                if place == 0 or key_size < -1 or key_size > record_end - place:
                    fault = FAULT_RECORD
                    break
                has_key[row] = key_size >= 0
                key = place
                write_view(key_views, row, place, max(key_size, 0), int64(compressed), place - shift)
                place += max(key_size, 0)
                value_size, place, ok = read_varint(place, record_end, 5)
                exact &= ok
                if place == 0 or value_size < -1 or value_size > record_end - place:
                    fault = FAULT_RECORD
                    break
                has_value[row] = value_size >= 0
                write_view(value_views, row, place, max(value_size, 0), int64(compressed), place - shift)
                place += max(value_size, 0)
                header_count, place, ok = read_varint(place, record_end, 5)
                exact &= ok
                if place == 0 or header_count < 0 or 2 * header_count > record_end - place:
                    fault = FAULT_RECORD
                    break
                for _ in range(header_count):
                    size, place, ok = read_varint(place, record_end, 5)
                    exact &= ok
                    if place == 0 or size < 0 or size > record_end - place:
                        fault = FAULT_RECORD
                        break
                    copy_bytes(names + int64(name_offsets[headers]), place, size)
                    name_offsets[headers + 1] = name_offsets[headers] + size
                    size, place, ok = read_varint(place + size, record_end, 5)
                    exact &= ok
                    if place == 0 or size < -1 or size > record_end - place:
                        fault = FAULT_RECORD
                        break
                    has_header_value[headers] = size >= 0
                    size = max(size, 0)
                    copy_bytes(header_values + int64(header_value_offsets[headers]), place, size)
                    header_value_offsets[headers + 1] = header_value_offsets[headers] + size
                    place += size
                    headers += 1
                if fault != FAULT_NONE or place != record_end:
                    fault = FAULT_RECORD
                    break
                row_positions[row] = base_position + positions[b]
                row_sizes[row] = 0
                if not compressed:
                    row_positions[row] += start - at
                    row_sizes[row] = record_end - start
                row_kinds[row] = ROW_CONTROL if control else ROW_MESSAGE
                row_batches[row] = b
                offsets[row] = base_offset + offset_delta
                timestamp = append_timestamp if by_append else base_timestamp + timestamp_delta
                known = timestamp != NO_TIMESTAMP and MIN_TIMESTAMP_MS <= timestamp <= MAX_TIMESTAMP_MS
                has_timestamp[row] = known
                timestamps[row] = timestamp * 1000 if known else 0
                has_delta[row] = by_append or not known
                deltas[row] = timestamp_delta
                control_types[row] = -1
                if control and key_size >= CONTROL_KEY_BYTES:
                    control_types[row] = load_be_i16(key + 2)
                has_raw[row] = exact == 0 and not compressed
                if has_raw[row]:
                    write_view(raw_views, row, start, record_end - start, 0, start - segment - begin)
                row += 1
                header_starts[row] = headers
            if fault == FAULT_NONE and place != end:
                fault = FAULT_MORE
            if fault != FAULT_NONE:
                faults[b] = fault
                kind = int64(kinds[b]) + 2
                row = first_row
                headers = first_header
        # The row of the batch itself: its header alone where its records have their own bytes.
        whole = kind != BATCH or compressed
        size = int64(sizes[b]) if whole else int64(sizes[b]) - payload_sizes[b]
        row_positions[first_row] = base_position + positions[b]
        row_sizes[first_row] = size
        row_kinds[first_row] = kind
        row_batches[first_row] = b
        has_key[first_row] = 0
        has_value[first_row] = 0
        has_timestamp[first_row] = 0
        timestamps[first_row] = 0
        has_delta[first_row] = 0
        control_types[first_row] = -1
        store_i64(key_views + VIEW_BYTES * first_row, 0)
        store_i64(key_views + VIEW_BYTES * first_row + 8, 0)
        store_i64(value_views + VIEW_BYTES * first_row, 0)
        store_i64(value_views + VIEW_BYTES * first_row + 8, 0)
        offsets[first_row] = load_be_i64(at + BASE_OFFSET_AT) if kind in (BATCH, LEGACY) else 0
        has_raw[first_row] = whole
        if whole:
            write_view(raw_views, first_row, at, size, 0, positions[b] - begin)
        if kind != BATCH:
            row = first_row + 1
            header_starts[row] = headers
    return row, headers


@kernel
def view_whole(
    segment: int,
    begin: int,
    base_position: int,
    rows: Ints64,
    row_positions: Ints64,
    row_sizes: Ints32,
    raw_views: Ints64,
    has_raw: Bytes,
) -> None:
    """Keep the exact bytes of these rows too, where they own any."""
    views = raw_views.ctypes.data
    for row in rows:
        size = int64(row_sizes[row])
        if size > 0:
            position = row_positions[row] - base_position
            write_view(views, row, segment + position, size, 0, position - begin)
            has_raw[row] = 1
