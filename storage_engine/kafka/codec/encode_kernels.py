"""Compiled code that turns rows into a segment's bytes. It writes nothing outside the buffer."""

from __future__ import annotations

from typing import Final

import numpy as np

from storage_engine.kafka.codec.batch_kernels import Ints64
from storage_engine.kafka.format import batch_headers as header
from storage_engine.native import (
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    store_be_i16,
    store_be_i32,
    store_be_i64,
    store_u8,
    word,
)

# Places in the table of column addresses. 32-bit integers:
SIZE: Final = 0
ATTRIBUTES: Final = 1
LEADER_EPOCH: Final = 2
PRODUCER_EPOCH: Final = 3
RECORD_ATTRIBUTES: Final = 4
LAST_OFFSET_DELTA: Final = 5
BASE_SEQUENCE: Final = 6
RECORD_COUNT: Final = 7
BATCH_SIZE: Final = 8
CRC: Final = 9
# 64-bit integers:
PHYSICAL_OFFSET: Final = 10
OFFSET: Final = 11
TIMESTAMP: Final = 12
TIMESTAMP_DELTA: Final = 13
BASE_OFFSET: Final = 14
BASE_TIMESTAMP: Final = 15
MAX_TIMESTAMP: Final = 16
PRODUCER_ID: Final = 17
# One byte a row:
IS_BATCH: Final = 18
IS_RECORD: Final = 19
HAS_RAW: Final = 20
HAS_KEY: Final = 21
HAS_VALUE: Final = 22
HAS_DELTA: Final = 23
# Binary views, then the addresses of the buffers that they point into:
KEY: Final = 24
VALUE: Final = 25
RAW: Final = 26
KEY_BUFFERS: Final = 27
VALUE_BUFFERS: Final = 28
RAW_BUFFERS: Final = 29
# Where each row's headers begin; of each header its name, its value, and whether it has one:
HEADER_STARTS: Final = 30
NAME_OFFSETS: Final = 31
NAMES: Final = 32
HEADER_VALUE_OFFSETS: Final = 33
HEADER_VALUES: Final = 34
HAS_HEADER_VALUE: Final = 35
COLUMNS: Final = 36

ENCODED: Final = 0
FAULT_OUTSIDE: Final = 1
FAULT_RAW_SIZE: Final = 2
FAULT_INCOMPLETE: Final = 3
FAULT_TIMESTAMP: Final = 4
FAULT_LENGTHS: Final = 5


@inlined
def varint_bytes(value: int) -> int:
    """Return the length in bytes of a number as a zigzag varint (7 bits a byte)."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        size += 1
    return size


@inlined
def write_varint(at: int, value: int) -> int:
    """Write a number as a zigzag varint (7 bits a byte).

    :return: the address after it.
    """
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest >= np.uint64(0x80):
        store_u8(at, int64(rest & np.uint64(0x7F)) | 0x80)
        rest >>= np.uint64(7)
        at += 1
    store_u8(at, int64(rest))
    return at + 1


@inlined
def int_at(columns: int, column: int, i: int) -> int:
    """Return element ``i`` of a column of 32-bit integers."""
    return load_i32(word(columns, column) + 4 * i)


@inlined
def long_at(columns: int, column: int, i: int) -> int:
    """Return element ``i`` of a column of 64-bit integers."""
    return load_i64(word(columns, column) + 8 * i)


@inlined
def flag_at(columns: int, column: int, i: int) -> bool:
    """Return element ``i`` of a column of flags."""
    return load_u8(word(columns, column) + i) != 0


@inlined
def view_size(columns: int, column: int, i: int) -> int:
    """Return the length of a binary view's bytes."""
    return load_i32(word(columns, column) + 16 * i)


@inlined
def copy_view(at: int, columns: int, column: int, buffers: int, i: int, size: int) -> int:
    """Copy a binary view's bytes. :return: the address after the copy."""
    view = word(columns, column) + 16 * i
    source = view + 4
    if size > 12:
        source = word(word(columns, buffers), load_i32(view + 8)) + load_i32(view + 12)
    copy_bytes(at, source, size)
    return at + size


@inlined
def write_batch_header(at: int, columns: int, i: int) -> None:
    """Write the header of a batch whose records have their own rows."""
    store_be_i64(at + header.BASE_OFFSET_AT, long_at(columns, BASE_OFFSET, i))
    store_be_i32(at + header.LENGTH_AT, int_at(columns, BATCH_SIZE, i) - header.LENGTH_OVERHEAD)
    store_be_i32(at + header.LEADER_EPOCH_AT, int_at(columns, LEADER_EPOCH, i))
    store_u8(at + header.MAGIC_AT, header.MAGIC)
    store_be_i32(at + header.CRC_AT, int_at(columns, CRC, i))
    store_be_i16(at + header.ATTRIBUTES_AT, int_at(columns, ATTRIBUTES, i))
    store_be_i32(at + header.LAST_OFFSET_DELTA_AT, int_at(columns, LAST_OFFSET_DELTA, i))
    store_be_i64(at + header.BASE_TIMESTAMP_AT, long_at(columns, BASE_TIMESTAMP, i))
    store_be_i64(at + header.MAX_TIMESTAMP_AT, long_at(columns, MAX_TIMESTAMP, i))
    store_be_i64(at + header.PRODUCER_ID_AT, long_at(columns, PRODUCER_ID, i))
    store_be_i16(at + header.PRODUCER_EPOCH_AT, int_at(columns, PRODUCER_EPOCH, i))
    store_be_i32(at + header.BASE_SEQUENCE_AT, int_at(columns, BASE_SEQUENCE, i))
    store_be_i32(at + header.RECORD_COUNT_AT, int_at(columns, RECORD_COUNT, i))


@inlined
def write_record(at: int, columns: int, i: int, size: int) -> int:
    """Write a record of exactly ``size`` bytes.

    :return: ENCODED, or the fault of the record.
    """
    timestamp = long_at(columns, TIMESTAMP, i)
    if flag_at(columns, HAS_DELTA, i):
        timestamp_delta = long_at(columns, TIMESTAMP_DELTA, i)
    else:
        if timestamp % 1000 != 0:
            return FAULT_TIMESTAMP
        timestamp_delta = timestamp // 1000 - long_at(columns, BASE_TIMESTAMP, i)
    offset_delta = long_at(columns, OFFSET, i) - long_at(columns, BASE_OFFSET, i)
    has_key = flag_at(columns, HAS_KEY, i)
    has_value = flag_at(columns, HAS_VALUE, i)
    key_size = view_size(columns, KEY, i) if has_key else 0
    value_size = view_size(columns, VALUE, i) if has_value else 0
    first = int_at(columns, HEADER_STARTS, i)
    last = int_at(columns, HEADER_STARTS, i + 1)
    body = 1 + varint_bytes(timestamp_delta) + varint_bytes(offset_delta) + varint_bytes(last - first)
    body += varint_bytes(key_size if has_key else -1) + key_size
    body += varint_bytes(value_size if has_value else -1) + value_size
    for h in range(first, last):
        name_size = int_at(columns, NAME_OFFSETS, h + 1) - int_at(columns, NAME_OFFSETS, h)
        content = int_at(columns, HEADER_VALUE_OFFSETS, h + 1) - int_at(columns, HEADER_VALUE_OFFSETS, h)
        body += varint_bytes(name_size) + name_size
        body += varint_bytes(content if flag_at(columns, HAS_HEADER_VALUE, h) else -1) + content
    if varint_bytes(body) + body != size:
        return FAULT_LENGTHS
    at = write_varint(at, body)
    store_u8(at, int_at(columns, RECORD_ATTRIBUTES, i))
    at = write_varint(at + 1, timestamp_delta)
    at = write_varint(at, offset_delta)
    at = write_varint(at, key_size if has_key else -1)
    at = copy_view(at, columns, KEY, KEY_BUFFERS, i, key_size)
    at = write_varint(at, value_size if has_value else -1)
    at = copy_view(at, columns, VALUE, VALUE_BUFFERS, i, value_size)
    at = write_varint(at, last - first)
    for h in range(first, last):
        name = int_at(columns, NAME_OFFSETS, h)
        name_size = int_at(columns, NAME_OFFSETS, h + 1) - name
        at = write_varint(at, name_size)
        copy_bytes(at, word(columns, NAMES) + name, name_size)
        content = int_at(columns, HEADER_VALUE_OFFSETS, h)
        content_size = int_at(columns, HEADER_VALUE_OFFSETS, h + 1) - content
        at = write_varint(at + name_size, content_size if flag_at(columns, HAS_HEADER_VALUE, h) else -1)
        copy_bytes(at, word(columns, HEADER_VALUES) + content, content_size)
        at += content_size
    return ENCODED


@kernel
def encode_rows(
    out: int, out_length: int, first_position: int, rows: int, columns: int, failed: Ints64
) -> int:
    """Write the bytes that rows own.

    :param columns: address of a table with the address of each column's memory.
    :return: ENCODED, or the fault of row ``failed[0]``.
    """
    for i in range(rows):
        failed[0] = i
        position = long_at(columns, PHYSICAL_OFFSET, i)
        size = int_at(columns, SIZE, i)
        if size == 0:
            continue
        outside = size < 0 or size > out_length or position < first_position
        if outside or position - first_position > out_length - size:
            return FAULT_OUTSIDE
        at = out + (position - first_position)
        if flag_at(columns, HAS_RAW, i):
            if view_size(columns, RAW, i) != size:
                return FAULT_RAW_SIZE
            copy_view(at, columns, RAW, RAW_BUFFERS, i, size)
        elif flag_at(columns, IS_BATCH, i):
            if size != header.HEADER_BYTES:
                return FAULT_LENGTHS
            write_batch_header(at, columns, i)
        elif flag_at(columns, IS_RECORD, i):
            fault = write_record(at, columns, i, size)
            if fault != ENCODED:
                return fault
        else:
            return FAULT_INCOMPLETE
    return ENCODED
