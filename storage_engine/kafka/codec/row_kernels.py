"""Compiled pieces that the kernels of records write rows with."""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

from storage_engine.kafka.codec.batch_kernels import (
    BATCH,
    LEGACY,
    UNDECODABLE,
)
from storage_engine.kafka.codec.row_columns import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CONTROL_TYPE,
    CRC,
    HAS_DELTA,
    HAS_KEY,
    HAS_OFFSET,
    HAS_RAW,
    HAS_TIMESTAMP,
    HAS_VALUE,
    HEADER_START,
    IN_BATCH,
    IS_OWN,
    IS_RECORD,
    IS_TRANSACTIONAL,
    KEY,
    KIND_END,
    KIND_TEXT,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RAW,
    RECORD_COUNT,
    SIZE,
    VALUE,
    VIEW_BYTES,
)
from storage_engine.kafka.format.batch_header import (
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
)
from storage_engine.native import (
    LITTLE_ENDIAN,
    copy_bytes,
    inlined,
    int64,
    load_be_i16,
    load_be_i32,
    load_be_i64,
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

VIEW_INLINE_BYTES: Final = 12

# The words of the kinds, as numbers of 8 bytes.
MESSAGE_WORD: Final = int.from_bytes(b"message\0", sys.byteorder)
CONTROL_WORD: Final = int.from_bytes(b"control\0", sys.byteorder)
_BATCH: Final = int.from_bytes(b"batch\0\0\0", sys.byteorder)
_LEGACY: Final = int.from_bytes(b"legacy\0\0", sys.byteorder)
_UNDECODABLE: Final = int.from_bytes(b"undecoda", sys.byteorder)
_UNDECODABLE_END: Final = int.from_bytes(b"ble\0", sys.byteorder)


@inlined
def read_varint(at: int, end: int, longest: int) -> tuple[int, int, int]:
    """Read a number of 7 bits a byte, zigzag.

    :param longest: at most so many bytes: 5 for 32 bits, 10 for 64.
    :return: the value, where it ends (0: it doesn't), and 1 where no shorter form has the same value.
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
    """Write an Arrow binary view: a short value lies in it, of a long one its buffer and place.

    :param limit: what lies before it may be read.
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
    """Write one value to the rows [first, last), and to up to seven behind them, which aren't written yet."""
    for i in range(first, last, 8):
        store_i32_8(column + 4 * i, value)


@inlined
def fill_64(column: int, first: int, last: int, value: int) -> None:
    """Write one value to the rows [first, last), and to up to three behind them, which aren't written yet."""
    for i in range(first, last, 4):
        store_i64_4(column + 8 * i, value)


@inlined
def write_own_row(
    columns: int, row: int, kind: int, at: int, size: int, limit: int, place: int, headers: int
) -> None:
    """Write the row of a batch, or of what is none. Its bits are as they are at the beginning.

    :param size: of the bytes that it owns; of a batch whose records own theirs, its header's.
    :param place: of those bytes in the views' first buffer; -1: they aren't kept.
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
        offset = load_be_i64(at + BASE_OFFSET_AT)
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
    store_i32(word(columns, LAST_OFFSET_DELTA) + 4 * row, load_be_i32(at + LAST_OFFSET_DELTA_AT))
    store_i64(word(columns, MAX_TIMESTAMP) + 8 * row, load_be_i64(at + MAX_TIMESTAMP_AT))
    store_i32(word(columns, BASE_SEQUENCE) + 4 * row, load_be_i32(at + BASE_SEQUENCE_AT))
    store_i32(word(columns, RECORD_COUNT) + 4 * row, load_be_i32(at + RECORD_COUNT_AT))
    store_i32(word(columns, CRC) + 4 * row, load_be_i32(at + CRC_AT))


@inlined
def write_shared(columns: int, first: int, last: int, at: int, attributes: int) -> None:
    """Write what the rows of a batch have in common."""
    fill_64(word(columns, PRODUCER_ID), first, last, load_be_i64(at + PRODUCER_ID_AT))
    fill_32(word(columns, PRODUCER_EPOCH), first, last, load_be_i16(at + PRODUCER_EPOCH_AT))
    fill_32(word(columns, LEADER_EPOCH), first, last, load_be_i32(at + LEADER_EPOCH_AT))
    fill_64(word(columns, BASE_OFFSET), first, last, load_be_i64(at + BASE_OFFSET_AT))
    fill_64(word(columns, BASE_TIMESTAMP), first, last, load_be_i64(at + BASE_TIMESTAMP_AT))
    fill_32(word(columns, ATTRIBUTES), first, last, attributes)
    if attributes & TRANSACTIONAL != 0:
        for row in range(first, last):
            set_bit(word(columns, IS_TRANSACTIONAL), row)


@inlined
def take_back(columns: int, first: int, last: int) -> None:
    """Bring the bits of the rows [first, last) back to what they are at the beginning."""
    for row in range(first, last):
        for column in (HAS_OFFSET, HAS_TIMESTAMP, HAS_KEY, HAS_VALUE, IS_RECORD, IN_BATCH):
            set_bit(word(columns, column), row)
        for column in (HAS_RAW, HAS_DELTA, IS_OWN, IS_TRANSACTIONAL):
            clear_bit(word(columns, column), row)
        store_u8(word(columns, CONTROL_TYPE) + row, 0xFF)
