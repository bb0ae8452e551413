"""Compiled record batches → columns of records. Reads only batches that ``batch_kernels.scan`` found whole.

Must never read outside a batch, whatever its records contain. Writes each row once, directly into the memory
that Arrow reads.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.memory import Arena
from storage_engine.crc import crc32c
from storage_engine.kafka.codec.batch_kernels import (
    BATCH,
    FAULT_CRC,
    FAULT_MORE,
    FAULT_NONE,
    FAULT_RECORD,
    LEGACY,
    UNDECODABLE,
    Bytes,
    Ints32,
    Ints64,
)
from storage_engine.kafka.format import batch_headers as header
from storage_engine.native import (
    LITTLE_ENDIAN,
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i8,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    store_i32,
    store_i32_8,
    store_i64,
    store_i64_4,
    store_u8,
    word,
)

# Places in the table of addresses. A value a row:
PHYSICAL_OFFSET: Final = 0
OFFSET: Final = 1
TIMESTAMP: Final = 2
PRODUCER_ID: Final = 3
BASE_OFFSET: Final = 4
BASE_TIMESTAMP: Final = 5
SIZE: Final = 6
PRODUCER_EPOCH: Final = 7
LEADER_EPOCH: Final = 8
ATTRIBUTES: Final = 9
RECORD_ATTRIBUTES: Final = 10
HEADER_START: Final = 11
KIND_END: Final = 12
# Binary views, and the text of the kinds:
KEY: Final = 13
VALUE: Final = 14
KIND_TEXT: Final = 15
# Written in a few rows alone, so that most of their memory is never touched:
TIMESTAMP_DELTA: Final = 16
MAX_TIMESTAMP: Final = 17
LAST_OFFSET_DELTA: Final = 18
BASE_SEQUENCE: Final = 19
RECORD_COUNT: Final = 20
BATCH_SIZE: Final = 21
CRC: Final = 22
HEADER_PLACE: Final = 23
# Without a value in most rows, but read in all:
RAW: Final = 24
CONTROL_TYPE: Final = 25
# Bitmaps that begin with all bits set:
HAS_OFFSET: Final = 26
HAS_TIMESTAMP: Final = 27
HAS_KEY: Final = 28
HAS_VALUE: Final = 29
IS_RECORD: Final = 30
IN_BATCH: Final = 31
# Bitmaps that begin with none:
HAS_RAW: Final = 32
HAS_DELTA: Final = 33
IS_OWN: Final = 34
IS_TRANSACTIONAL: Final = 35
COLUMNS: Final = 36

VIEW_BYTES: Final = 16

# Places in an arena: of all columns together, and of decompressed records.
ARENA_COLUMNS: Final = 0
ARENA_EXPANDED: Final = 1

_WIDTHS: Final = (*[8] * 6, *[4] * 7, 16, 16, 11, 8, 8, *[4] * 5, 8, 16, 1)
_LINE_BYTES: Final = 64
_OVERRUN_BYTES: Final = 32
"""Extra bytes after each column: the kernels write several values at a time, and may write past the end."""

_zeros = np.zeros(0, np.uint8)


def zeros(size_bytes: int) -> pa.Buffer:
    """Return read-only memory that is all zero. It is kept for the next call."""
    global _zeros
    if len(_zeros) < size_bytes:
        _zeros = np.zeros(size_bytes + size_bytes // 4, np.uint8)
        _zeros.flags.writeable = False
    return pa.py_buffer(_zeros.data)


class RowColumns:
    """Columns with room for a fixed number of rows.

    An array made from one column keeps the memory of all columns.
    """

    def __init__(self, rows: int, arena: Arena) -> None:
        sizes = [width * (rows + 2) + _OVERRUN_BYTES for width in _WIDTHS]
        sizes += [rows // 8 + 1] * (COLUMNS - len(sizes))
        places, used = [], 0
        for size in sizes:
            places.append(used)
            used += -(-size // _LINE_BYTES) * _LINE_BYTES
        self.memory: Any = arena.buffer(ARENA_COLUMNS, used)
        self.addresses = np.array(places, np.int64) + self.memory.address
        self._places = places
        bytes_of = np.frombuffer(memoryview(self.memory), np.uint8)
        bytes_of[places[HAS_OFFSET] : places[HAS_RAW]] = 0xFF
        bytes_of[places[HAS_RAW] :] = 0
        bytes_of[places[CONTROL_TYPE] : places[CONTROL_TYPE] + rows] = 0xFF
        for column in (HEADER_START, KIND_END):
            bytes_of[places[column] : places[column] + 4] = 0

    def buffer(self, column: int, size_bytes: int) -> pa.Buffer:
        """Return the first bytes of a column."""
        part: pa.Buffer = self.memory.slice(self._places[column], size_bytes)
        return part

    def bits(self, column: int, rows: int) -> pa.Buffer:
        """Return the bitmap of a column."""
        return self.buffer(column, rows // 8 + 1)

    def array(self, column: int, rows: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
        """Return the values of a column."""
        values: npt.NDArray[Any] = np.frombuffer(self.memory, dtype, rows, self._places[column])
        return values


# What has been written so far, between calls: places in the state array.
ROWS: Final = 0
HEADERS: Final = 1
NAME_BYTES: Final = 2
HEADER_VALUE_BYTES: Final = 3
OTHERS: Final = 4
"""Count of rows that are neither a batch nor a record of a batch."""
DELTAS: Final = 5
RAWS: Final = 6
MARKERS: Final = 7
STATE_SIZE: Final = 8

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Years 1 to 9999: the range that every reader of the lake can represent."""

CONTROL_KEY_BYTES: Final = 4
"""Length of a marker's key: version and type, 16 bits each."""
VIEW_INLINE_BYTES: Final = 12

# The words of the kinds, as numbers of 8 bytes.
MESSAGE_WORD: Final = int.from_bytes(b"message\0", sys.byteorder)
CONTROL_WORD: Final = int.from_bytes(b"control\0", sys.byteorder)
_BATCH: Final = int.from_bytes(b"batch\0\0\0", sys.byteorder)
_LEGACY: Final = int.from_bytes(b"legacy\0\0", sys.byteorder)
_UNDECODABLE: Final = int.from_bytes(b"undecoda", sys.byteorder)
_UNDECODABLE_END: Final = int.from_bytes(b"ble\0", sys.byteorder)


@kernel
def decode_batches(
    segment: int,
    segment_end: int,
    begin: int,
    base_position: int,
    expanded: int,
    expanded_end: int,
    crc_function: int,
    crc_table: int,
    first: int,
    last: int,
    positions: Ints64,
    sizes: Ints32,
    kinds: Bytes,
    faults: Bytes,
    counts: Ints32,
    payloads: Ints64,
    payload_sizes: Ints64,
    columns: int,
    state: Ints64,
) -> None:
    """Write a row for each of the batches [first, last), and one for each of its records.

    A damaged batch becomes one undecodable row, and its kind and fault are written. The CRC of an
    uncompressed batch is checked here, so that its bytes are read from memory only once.

    :param segment: address of the segment.
    :param begin: position in the segment at which the views' first buffer begins.
    :param base_position: position of the segment's first byte.
    :param expanded: address of the views' second buffer, which contains decompressed records.
    :param payloads: position in that buffer of each batch's records; -1: they are in the segment.
    :param columns: address of a table with the columns' addresses. At the start all bits are set, except in
        the bitmaps of raw bytes, deltas, batches and transactions, where no bit is set. There is room for a
        row for each batch and each record.
    :param state: counts of the values written so far.
    """
    row_positions = word(columns, PHYSICAL_OFFSET)
    row_sizes = word(columns, SIZE)
    kind_end = word(columns, KIND_END)
    kind_text = word(columns, KIND_TEXT)
    offsets = word(columns, OFFSET)
    timestamps = word(columns, TIMESTAMP)
    record_attributes = word(columns, RECORD_ATTRIBUTES)
    keys = word(columns, KEY)
    values = word(columns, VALUE)
    header_starts = word(columns, HEADER_START)
    row = state[ROWS]
    headers = state[HEADERS]
    name_bytes = state[NAME_BYTES]
    header_value_bytes = state[HEADER_VALUE_BYTES]
    for b in range(first, last):
        at = segment + positions[b]
        size = int64(sizes[b])
        kind = int64(kinds[b])
        compressed = payloads[b] >= 0
        first_row = row
        first_header = headers
        first_name_byte = name_bytes
        first_header_value_byte = header_value_bytes
        fault = FAULT_NONE
        if kind == BATCH and not compressed:
            crc = crc32c(crc_function, crc_table, at + header.ATTRIBUTES_AT, size - header.ATTRIBUTES_AT)
            if crc != load_be_u32(at + header.CRC_AT):
                fault = FAULT_CRC
        if kind == BATCH and fault == FAULT_NONE:
            attributes = load_be_i16(at + header.ATTRIBUTES_AT)
            base_offset = load_be_i64(at + header.BASE_OFFSET_AT)
            base_timestamp = load_be_i64(at + header.BASE_TIMESTAMP_AT)
            append_timestamp = load_be_i64(at + header.MAX_TIMESTAMP_AT)
            by_append = attributes & header.LOG_APPEND_TIME != 0
            control = attributes & header.CONTROL != 0
            word_of_kind = CONTROL_WORD if control else MESSAGE_WORD
            if counts[b] == 0 and payload_sizes[b] > 0:
                # Kafka doesn't look at what is there, compressed or not.
                write_own_row(columns, row, kind, at, size, segment_end, positions[b] - begin, headers)
                state[RAWS] += 1
                place = at + size - payload_sizes[b]
            elif compressed:
                place = expanded + payloads[b]
                shift = expanded
                limit = expanded_end
                write_own_row(columns, row, kind, at, size, segment_end, positions[b] - begin, headers)
                state[RAWS] += 1
            else:
                place = at + size - payload_sizes[b]
                shift = segment + begin
                limit = segment_end
                write_own_row(columns, row, kind, at, size - payload_sizes[b], segment_end, -1, headers)
            store_i32(word(columns, BATCH_SIZE) + 4 * row, size)
            store_i64(row_positions + 8 * row, base_position + positions[b])
            text_at = load_i32(kind_end + 4 * row + 4)
            row += 1
            end = place + payload_sizes[b]
            # What most records have in common is written several rows at a time.
            fill_32(record_attributes, row, row + counts[b], 0)
            fill_32(header_starts + 4, row, row + counts[b], headers)
            if compressed:
                fill_64(row_positions, row, row + counts[b], base_position + positions[b])
                fill_32(row_sizes, row, row + counts[b], 0)
            for _ in range(counts[b]):
                start = place
                length, place, exact = read_varint(place, end, 5)
                record_end = place + length
                if place == 0 or length < 6 or record_end > end:
                    fault = FAULT_RECORD
                    break
                own_attributes = load_i8(place)
                if own_attributes != 0:
                    store_i32(record_attributes + 4 * row, own_attributes)
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
                if place == 0 or key_size > record_end - place:
                    fault = FAULT_RECORD
                    break
                key = place
                if key_size < 0:
                    exact &= key_size == -1
                    clear_bit(word(columns, HAS_KEY), row)
                write_view(keys, row, place, limit, max(key_size, 0), int64(compressed), place - shift)
                place += max(key_size, 0)
                value_size, place, ok = read_varint(place, record_end, 5)
                exact &= ok
                if place == 0 or value_size > record_end - place:
                    fault = FAULT_RECORD
                    break
                if value_size < 0:
                    exact &= value_size == -1
                    clear_bit(word(columns, HAS_VALUE), row)
                write_view(values, row, place, limit, max(value_size, 0), int64(compressed), place - shift)
                place += max(value_size, 0)
                header_count, place, ok = read_varint(place, record_end, 5)
                exact &= ok
                if place == 0 or header_count < 0 or 2 * header_count > record_end - place:
                    fault = FAULT_RECORD
                    break
                if header_count > 0:
                    store_i64(word(columns, HEADER_PLACE) + 8 * row, place)
                for _ in range(header_count):
                    part, place, ok = read_varint(place, record_end, 5)
                    exact &= ok
                    if place == 0 or part < 0 or part > record_end - place:
                        fault = FAULT_RECORD
                        break
                    name_bytes += part
                    part, place, ok = read_varint(place + part, record_end, 5)
                    exact &= ok
                    if place == 0 or part > record_end - place:
                        fault = FAULT_RECORD
                        break
                    exact &= part >= -1
                    part = max(part, 0)
                    header_value_bytes += part
                    place += part
                    headers += 1
                if fault != FAULT_NONE or place != record_end:
                    fault = FAULT_RECORD
                    break
                if headers != first_header:
                    store_i32(header_starts + 4 * row + 4, headers)
                if not compressed:
                    store_i64(row_positions + 8 * row, base_position + (start - segment))
                    store_i32(row_sizes + 4 * row, record_end - start)
                store_i64(kind_text + text_at, word_of_kind)
                text_at += 7
                store_i32(kind_end + 4 * row + 4, text_at)
                store_i64(offsets + 8 * row, base_offset + offset_delta)
                timestamp = append_timestamp if by_append else base_timestamp + timestamp_delta
                valid = timestamp != header.NO_TIMESTAMP and MIN_TIMESTAMP_MS <= timestamp <= MAX_TIMESTAMP_MS
                store_i64(timestamps + 8 * row, timestamp * 1000)
                if by_append or not valid:
                    if not valid:
                        clear_bit(word(columns, HAS_TIMESTAMP), row)
                    set_bit(word(columns, HAS_DELTA), row)
                    store_i64(word(columns, TIMESTAMP_DELTA) + 8 * row, timestamp_delta)
                    state[DELTAS] += 1
                if control:
                    if key_size >= CONTROL_KEY_BYTES:
                        type_of = load_be_i16(key + 2)
                        store_u8(word(columns, CONTROL_TYPE) + row, min(max(type_of, -1), 0x7F))
                    state[MARKERS] += 1
                if exact == 0 and not compressed:
                    set_bit(word(columns, HAS_RAW), row)
                    raw_place = start - segment - begin
                    write_view(word(columns, RAW), row, start, limit, record_end - start, 0, raw_place)
                    state[RAWS] += 1
                row += 1
            if fault == FAULT_NONE and place != end and counts[b] > 0:
                fault = FAULT_MORE
            if fault == FAULT_NONE:
                write_shared(columns, first_row, row, at, attributes)
                continue
            take_back(columns, first_row, row + 1)
            row = first_row
            headers = first_header
            name_bytes = first_name_byte
            header_value_bytes = first_header_value_byte
        if fault != FAULT_NONE:
            faults[b] = fault
            kinds[b] = UNDECODABLE
            kind = int64(kinds[b])
        write_own_row(columns, row, kind, at, size, segment_end, positions[b] - begin, headers)
        store_i64(row_positions + 8 * row, base_position + positions[b])
        state[OTHERS] += 1
        state[RAWS] += 1
        row += 1
    state[ROWS] = row
    state[HEADERS] = headers
    state[NAME_BYTES] = name_bytes
    state[HEADER_VALUE_BYTES] = header_value_bytes


@kernel
def copy_headers(
    rows: int,
    columns: int,
    name_offsets: Ints32,
    names: int,
    name_bytes: int,
    value_offsets: Ints32,
    values: int,
    value_bytes: int,
    has_value: Bytes,
) -> bool:
    """Copy the names and values of all headers, which ``decode_batches`` has checked and counted.

    :return: False if they no longer take the same room: another process has changed their bytes.
    """
    starts = word(columns, HEADER_START)
    places = word(columns, HEADER_PLACE)
    name_offsets[0] = 0
    value_offsets[0] = 0
    name_at = 0
    value_at = 0
    for row in range(rows):
        header = load_i32(starts + 4 * row)
        end = load_i32(starts + 4 * row + 4)
        if header == end:
            continue
        place = load_i64(places + 8 * row)
        while header < end:
            size, place, _ = read_varint(place, place + 5, 5)
            if place == 0 or size < 0 or size > name_bytes - name_at:
                return False
            copy_bytes(names + name_at, place, size)
            name_at += size
            name_offsets[header + 1] = name_at
            size, place, _ = read_varint(place + size, place + size + 5, 5)
            if place == 0 or size > value_bytes - value_at:
                return False
            has_value[header] = size >= 0
            size = max(size, 0)
            copy_bytes(values + value_at, place, size)
            value_at += size
            value_offsets[header + 1] = value_at
            place += size
            header += 1
    return name_at == name_bytes and value_at == value_bytes


@kernel
def view_whole(
    segment: int, segment_end: int, begin: int, base_position: int, rows: Ints64, columns: int
) -> None:
    """Also keep the exact bytes of these rows, if they own any bytes."""
    for row in rows:
        size = load_i32(word(columns, SIZE) + 4 * row)
        if size > 0:
            position = load_i64(word(columns, PHYSICAL_OFFSET) + 8 * row) - base_position
            raw = word(columns, RAW)
            write_view(raw, row, segment + position, segment_end, size, 0, position - begin)
            set_bit(word(columns, HAS_RAW), row)


@kernel
def clear_views(rows: int, columns: int) -> None:
    """Write an empty view where a row has no raw bytes: unwritten memory contains random values."""
    bits, views = word(columns, HAS_RAW), word(columns, RAW)
    for row in range(rows):
        if load_u8(bits + (row >> 3)) & (1 << (row & 7)) == 0:
            store_i64(views + VIEW_BYTES * row, 0)
            store_i64(views + VIEW_BYTES * row + 8, 0)


@inlined
def read_varint(at: int, end: int, longest: int) -> tuple[int, int, int]:
    """Read a zigzag varint (7 bits a byte).

    :param longest: its largest length in bytes: 5 for 32 bits, 10 for 64.
    :return: the value; the address after it, or 0 if it doesn't end; and 1 if no shorter form has the same
        value.
    """
    if at >= end:
        return 0, 0, 0
    low = load_u8(at)
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1, 1
    if at + 1 < end:
        high = load_u8(at + 1)
        if high < 0x80:
            low = low & 0x7F | high << 7
            return (low >> 1) ^ -(low & 1), at + 2, 1 if high != 0 else 0
    value = np.uint64(low & 0x7F)
    shift = np.uint64(7)
    place = at + 1
    while place < end and place - at < longest:
        byte = load_u8(place)
        value |= np.uint64(byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            exact = 1 if byte != 0 else 0
            # Kafka drops the bits that a number has no place for.
            if longest == 5 and value > np.uint64(0xFFFFFFFF):
                value &= np.uint64(0xFFFFFFFF)
                exact = 0
            if place - at == 10 and byte > 1:
                exact = 0
            return int64(value >> np.uint64(1)) ^ -int64(value & np.uint64(1)), place, exact
        shift += np.uint64(7)
    return 0, 0, 0


@inlined
def write_view(views: int, i: int, source: int, limit: int, size: int, buffer: int, place: int) -> None:
    """Write an Arrow binary view.

    It contains a short value itself; for a long value, it contains a buffer and a position.

    :param limit: memory before this address may be read.
    """
    view = views + VIEW_BYTES * i
    if size > VIEW_INLINE_BYTES:
        if LITTLE_ENDIAN:
            store_i64(view, size | load_u32(source) << 32)
            store_i64(view + 8, buffer | place << 32)
        else:
            store_i32(view, size)
            store_i32(view + 4, load_i32(source))
            store_i32(view + 8, buffer)
            store_i32(view + 12, place)
    elif LITTLE_ENDIAN and source + VIEW_INLINE_BYTES <= limit:
        low = load_i64(source)
        high = load_u32(source + 8)
        if size < 8:
            low &= (1 << (size << 3)) - 1
            high = 0
        elif size < 12:
            high &= (1 << ((size - 8) << 3)) - 1
        store_i64(view, size | low << 32)
        store_i64(view + 8, ((low >> 32) & 0xFFFFFFFF) | high << 32)
    else:
        store_i64(view + 8, 0)
        store_i64(view, 0)
        store_i32(view, size)
        copy_bytes(view + 4, source, size)


@inlined
def set_bit(bits: int, i: int) -> None:
    """Set bit ``i`` of a bitmap."""
    at = bits + (i >> 3)
    store_u8(at, load_u8(at) | 1 << (i & 7))


@inlined
def clear_bit(bits: int, i: int) -> None:
    """Clear bit ``i`` of a bitmap."""
    at = bits + (i >> 3)
    store_u8(at, load_u8(at) & ~(1 << (i & 7)))


@inlined
def fill_32(column: int, first: int, last: int, value: int) -> None:
    """Write one value to the rows [first, last).

    May also write to up to seven rows after them, which must not be written yet.
    """
    for i in range(first, last, 8):
        store_i32_8(column + 4 * i, value)


@inlined
def fill_64(column: int, first: int, last: int, value: int) -> None:
    """Write one value to the rows [first, last).

    May also write to up to three rows after them, which must not be written yet.
    """
    for i in range(first, last, 4):
        store_i64_4(column + 8 * i, value)


@inlined
def write_own_row(
    columns: int, row: int, kind: int, at: int, size: int, limit: int, place: int, headers: int
) -> None:
    """Write the row of a batch, or of bytes that are no batch. Its bits must still have their first values.

    :param size: the number of bytes that the row owns: only the header's if the batch's records own their
        bytes.
    :param place: position of these bytes in the views' first buffer; -1: they aren't kept.
    """
    kind_end = word(columns, KIND_END)
    text_at = load_i32(kind_end + 4 * row)
    text = word(columns, KIND_TEXT) + text_at
    if kind == BATCH:
        store_i64(text, _BATCH)
        text_at += 5
    elif kind == LEGACY:
        store_i64(text, _LEGACY)
        text_at += 6
    else:
        store_i64(text, _UNDECODABLE)
        store_i32(text + 8, _UNDECODABLE_END)
        text_at += 11
    store_i32(kind_end + 4 * row + 4, text_at)
    store_i32(word(columns, SIZE) + 4 * row, size)
    offset = 0
    if kind == UNDECODABLE:
        clear_bit(word(columns, HAS_OFFSET), row)
    else:
        offset = load_be_i64(at + header.BASE_OFFSET_AT)
    store_i64(word(columns, OFFSET) + 8 * row, offset)
    clear_bit(word(columns, HAS_TIMESTAMP), row)
    clear_bit(word(columns, HAS_KEY), row)
    clear_bit(word(columns, HAS_VALUE), row)
    clear_bit(word(columns, IS_RECORD), row)
    for column in (KEY, VALUE):
        view = word(columns, column) + VIEW_BYTES * row
        store_i64(view, 0)
        store_i64(view + 8, 0)
    store_i32(word(columns, HEADER_START) + 4 * row + 4, headers)
    if place >= 0:
        set_bit(word(columns, HAS_RAW), row)
        write_view(word(columns, RAW), row, at, limit, size, 0, place)
    if kind != BATCH:
        clear_bit(word(columns, IN_BATCH), row)
        return
    set_bit(word(columns, IS_OWN), row)
    store_i32(word(columns, LAST_OFFSET_DELTA) + 4 * row, load_be_i32(at + header.LAST_OFFSET_DELTA_AT))
    store_i64(word(columns, MAX_TIMESTAMP) + 8 * row, load_be_i64(at + header.MAX_TIMESTAMP_AT))
    store_i32(word(columns, BASE_SEQUENCE) + 4 * row, load_be_i32(at + header.BASE_SEQUENCE_AT))
    store_i32(word(columns, RECORD_COUNT) + 4 * row, load_be_i32(at + header.RECORD_COUNT_AT))
    store_i32(word(columns, CRC) + 4 * row, load_be_i32(at + header.CRC_AT))


@inlined
def write_shared(columns: int, first: int, last: int, at: int, attributes: int) -> None:
    """Write the columns that all rows of a batch share."""
    fill_64(word(columns, PRODUCER_ID), first, last, load_be_i64(at + header.PRODUCER_ID_AT))
    fill_32(word(columns, PRODUCER_EPOCH), first, last, load_be_i16(at + header.PRODUCER_EPOCH_AT))
    fill_32(word(columns, LEADER_EPOCH), first, last, load_be_i32(at + header.LEADER_EPOCH_AT))
    fill_64(word(columns, BASE_OFFSET), first, last, load_be_i64(at + header.BASE_OFFSET_AT))
    fill_64(word(columns, BASE_TIMESTAMP), first, last, load_be_i64(at + header.BASE_TIMESTAMP_AT))
    fill_32(word(columns, ATTRIBUTES), first, last, attributes)
    if attributes & header.TRANSACTIONAL != 0:
        for row in range(first, last):
            set_bit(word(columns, IS_TRANSACTIONAL), row)


@inlined
def take_back(columns: int, first: int, last: int) -> None:
    """Set the bits of the rows [first, last) back to their first values."""
    for row in range(first, last):
        for column in (HAS_OFFSET, HAS_TIMESTAMP, HAS_KEY, HAS_VALUE, IS_RECORD, IN_BATCH):
            set_bit(word(columns, column), row)
        for column in (HAS_RAW, HAS_DELTA, IS_OWN, IS_TRANSACTIONAL):
            clear_bit(word(columns, column), row)
        store_u8(word(columns, CONTROL_TYPE) + row, 0xFF)
