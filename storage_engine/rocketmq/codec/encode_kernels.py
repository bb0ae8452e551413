"""Compiled encoding of Arrow columns to frames. Writes nothing outside the row's own bytes."""

from __future__ import annotations

from typing import Final

import numpy as np

from storage_engine.native import (
    copy_16,
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_i32,
    load_i64,
    load_le_u64,
    load_u8,
    prefetch,
    set_word,
    store_be_i16,
    store_be_i32,
    store_be_i64,
    store_i32,
    store_u8,
    word,
)
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.frame_kernels import Ints32, Ints64, read_host, same_bytes

ENCODED: Final = 0
FAULT_RAW_SIZE: Final = 1
FAULT_INCOMPLETE: Final = 2
FAULT_MAGIC: Final = 3
FAULT_TIMESTAMP: Final = 4
FAULT_LENGTHS: Final = 5
FAULT_HOST: Final = 6
FAULT_OUTSIDE: Final = 7

# Places in the table of column addresses. 64-bit integers:
PHYSICAL_OFFSET: Final = 0
QUEUE_OFFSET: Final = 1
BORN_TIMESTAMP: Final = 2
STORE_TIMESTAMP: Final = 3
PREPARED_TRANSACTION_OFFSET: Final = 4
# 32-bit integers:
SIZE: Final = 5
MAGIC: Final = 6
QUEUE_ID: Final = 7
FLAG: Final = 8
SYS_FLAG: Final = 9
BODY_CRC: Final = 10
BORN_PORT: Final = 11
STORE_PORT: Final = 12
RECONSUME_TIMES: Final = 13
# One byte a row:
COMPLETE: Final = 14
HAS_RAW: Final = 15
# 32-bit offsets, then what they point into:
TOPIC_OFFSETS: Final = 16
BORN_HOST_OFFSETS: Final = 17
STORE_HOST_OFFSETS: Final = 18
PROPERTIES_OFFSETS: Final = 19
TOPIC: Final = 20
BORN_HOST: Final = 21
STORE_HOST: Final = 22
PROPERTIES: Final = 23
# Binary views, then tables of the addresses of the buffers that they point into:
BODY: Final = 24
RAW: Final = 25
BODY_BUFFERS: Final = 26
RAW_BUFFERS: Final = 27
# Memory to work in, zero at first:
HOSTS: Final = 28
COLUMNS: Final = 29

# Addresses that were met, so that each text is read only once. An address's place is given by its text's
# hash; an entry is the text's first and last eight bytes, its length and the address's width, where the
# text lies, the address.
HOST_SLOTS: Final = 256
HOST_ENTRY_BYTES: Final = 64
HOSTS_BYTES: Final = HOST_SLOTS * HOST_ENTRY_BYTES
_HOST_ADDRESS_AT: Final = 32

_AHEAD = 2
"""Number of frames to fetch ahead: memory of later frames is fetched while earlier ones are written."""


@inlined
def encode_host(target: int, ipv6: bool, texts: int, offsets: int, i: int, hosts: int) -> bool:
    """Write an address. :return: whether the text is an address of this width."""
    begin = load_i32(offsets + 4 * i)
    size = load_i32(offsets + 4 * (i + 1)) - begin
    source = texts + begin
    if size < 8:
        return read_host(target, source, size, ipv6)
    head = int64(load_le_u64(source))
    tail = int64(load_le_u64(source + size - 8))
    kind = size << 8 | (16 if ipv6 else 4)
    hashed = np.uint64((head << 1) ^ tail) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)
    entry = hosts + HOST_ENTRY_BYTES * int64(hashed)
    if (
        word(entry, 0) != head
        or word(entry, 1) != tail
        or word(entry, 2) != kind
        or (size > 16 and not same_bytes(word(entry, 3), source, size))
    ):
        set_word(entry, 2, 0)
        if not read_host(entry + _HOST_ADDRESS_AT, source, size, ipv6):
            return False
        set_word(entry, 0, head)
        set_word(entry, 1, tail)
        set_word(entry, 2, kind)
        set_word(entry, 3, source)
    store_i32(target, load_i32(entry + _HOST_ADDRESS_AT))
    if ipv6:
        copy_16(target, entry + _HOST_ADDRESS_AT)
    return True


@inlined
def view_size(views: int, i: int) -> int:
    """Return the length of a binary view's bytes."""
    return load_i32(views + 16 * i)


@inlined
def view_source(views: int, buffers: int, i: int, size: int) -> int:
    """Return the address of a binary view's bytes."""
    view = views + 16 * i
    if size <= 12:
        return view + 4
    return word(buffers, load_i32(view + 8)) + load_i32(view + 12)


@inlined
def encode_header(at: int, i: int, columns: int) -> int:
    """Write the fields before the body.

    :return: number of bytes by which the body begins later than with IPv4 hosts; -1: a bad host.
    """
    at_32 = 4 * i
    at_64 = 8 * i
    sys_flag = load_i32(word(columns, SYS_FLAG) + at_32)
    store_be_i32(at, load_i32(word(columns, SIZE) + at_32))
    store_be_i32(at + frame.MAGIC_AT, load_i32(word(columns, MAGIC) + at_32))
    store_be_i32(at + frame.BODY_CRC_AT, load_i32(word(columns, BODY_CRC) + at_32))
    store_be_i32(at + frame.QUEUE_ID_AT, load_i32(word(columns, QUEUE_ID) + at_32))
    store_be_i32(at + frame.FLAG_AT, load_i32(word(columns, FLAG) + at_32))
    store_be_i64(at + frame.QUEUE_OFFSET_AT, load_i64(word(columns, QUEUE_OFFSET) + at_64))
    store_be_i64(at + frame.PHYSICAL_OFFSET_AT, load_i64(word(columns, PHYSICAL_OFFSET) + at_64))
    store_be_i32(at + frame.SYS_FLAG_AT, sys_flag)
    store_be_i64(at + frame.BORN_TIMESTAMP_AT, load_i64(word(columns, BORN_TIMESTAMP) + at_64) // 1000)
    born_ipv6 = sys_flag & frame.BORN_HOST_IPV6 != 0
    if not encode_host(
        at + frame.BORN_HOST_AT,
        born_ipv6,
        word(columns, BORN_HOST),
        word(columns, BORN_HOST_OFFSETS),
        i,
        word(columns, HOSTS),
    ):
        return -1
    extra = frame.IPV6_EXTRA_BYTES if born_ipv6 else 0
    tail = at + extra
    store_be_i32(tail + frame.STORE_TIMESTAMP_AT - 4, load_i32(word(columns, BORN_PORT) + at_32))
    store_be_i64(tail + frame.STORE_TIMESTAMP_AT, load_i64(word(columns, STORE_TIMESTAMP) + at_64) // 1000)
    store_ipv6 = sys_flag & frame.STORE_HOST_IPV6 != 0
    if not encode_host(
        tail + frame.STORE_HOST_AT,
        store_ipv6,
        word(columns, STORE_HOST),
        word(columns, STORE_HOST_OFFSETS),
        i,
        word(columns, HOSTS),
    ):
        return -1
    if store_ipv6:
        extra += frame.IPV6_EXTRA_BYTES
        tail += frame.IPV6_EXTRA_BYTES
    store_be_i32(tail + frame.RECONSUME_TIMES_AT - 4, load_i32(word(columns, STORE_PORT) + at_32))
    store_be_i32(tail + frame.RECONSUME_TIMES_AT, load_i32(word(columns, RECONSUME_TIMES) + at_32))
    store_be_i64(
        tail + frame.PREPARED_TRANSACTION_OFFSET_AT,
        load_i64(word(columns, PREPARED_TRANSACTION_OFFSET) + at_64),
    )
    return extra


@kernel
def encode_rows(out: int, out_length: int, base_offset: int, rows: int, columns: int, failed: Ints64) -> int:
    """Write ``rows`` frames.

    :param columns: address of the table of addresses of the columns' memory.
    :return: ENCODED, or the code of the fault in row ``failed[0]``.
    """
    for i in range(rows):
        failed[0] = i
        if i + _AHEAD < rows:
            ahead = out + load_i64(word(columns, PHYSICAL_OFFSET) + 8 * (i + _AHEAD)) - base_offset
            prefetch(ahead)
            prefetch(ahead + 64)
            prefetch(ahead + 128)
        offset = load_i64(word(columns, PHYSICAL_OFFSET) + 8 * i)
        size = load_i32(word(columns, SIZE) + 4 * i)
        if size <= 0 or size > out_length or offset < base_offset or offset - base_offset > out_length - size:
            return FAULT_OUTSIDE
        at = out + (offset - base_offset)
        if load_u8(word(columns, HAS_RAW) + i):
            if view_size(word(columns, RAW), i) != size:
                return FAULT_RAW_SIZE
            copy_bytes(at, view_source(word(columns, RAW), word(columns, RAW_BUFFERS), i, size), size)
            continue
        if not load_u8(word(columns, COMPLETE) + i):
            return FAULT_INCOMPLETE
        magic = load_i32(word(columns, MAGIC) + 4 * i) & 0xFFFFFFFF
        if magic != frame.MAGIC_V1 and magic != frame.MAGIC_V2:
            return FAULT_MAGIC
        length_bytes = 1 if magic == frame.MAGIC_V1 else 2
        sys_flag = load_i32(word(columns, SYS_FLAG) + 4 * i)
        body_size = view_size(word(columns, BODY), i)
        topic = load_i32(word(columns, TOPIC_OFFSETS) + 4 * i)
        topic_size = load_i32(word(columns, TOPIC_OFFSETS) + 4 * (i + 1)) - topic
        block = load_i32(word(columns, PROPERTIES_OFFSETS) + 4 * i)
        block_size = load_i32(word(columns, PROPERTIES_OFFSETS) + 4 * (i + 1)) - block
        expected = frame.BODY_AT + body_size + length_bytes + topic_size + 2 + block_size
        if sys_flag & frame.BORN_HOST_IPV6:
            expected += frame.IPV6_EXTRA_BYTES
        if sys_flag & frame.STORE_HOST_IPV6:
            expected += frame.IPV6_EXTRA_BYTES
        if expected != size or block_size > 0x7FFF or topic_size > (0x7F if length_bytes == 1 else 0x7FFF):
            return FAULT_LENGTHS
        if (
            load_i64(word(columns, BORN_TIMESTAMP) + 8 * i) % 1000 != 0
            or load_i64(word(columns, STORE_TIMESTAMP) + 8 * i) % 1000 != 0
        ):
            return FAULT_TIMESTAMP

        extra = encode_header(at, i, columns)
        if extra < 0:
            return FAULT_HOST
        target = at + extra + frame.BODY_AT
        store_be_i32(target - 4, body_size)
        body = view_source(word(columns, BODY), word(columns, BODY_BUFFERS), i, body_size)
        copy_bytes(target, body, body_size)
        target += body_size
        if length_bytes == 1:
            store_u8(target, topic_size)
        else:
            store_be_i16(target, topic_size)
        target += length_bytes
        copy_bytes(target, word(columns, TOPIC) + topic, topic_size)
        target += topic_size
        store_be_i16(target, block_size)
        copy_bytes(target + 2, word(columns, PROPERTIES) + block, block_size)
    return ENCODED


@kernel
def first_overlap(order: Ints64, physical_offset: Ints64, sizes: Ints32) -> int:
    """Return the index into ``order`` of the first row that begins before the previous ends; -1: none."""
    for i in range(1, len(order)):
        before = order[i - 1]
        if physical_offset[before] + sizes[before] > physical_offset[order[i]]:
            return i
    return -1
