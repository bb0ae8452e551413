"""Compiled Arrow columns → frames. Writes nothing outside the row's own bytes."""

from __future__ import annotations

from typing import Final

import numpy as np

from storage_engine.rocketmq.frame import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET_AT,
    PREPARED_TRANSACTION_OFFSET_AT,
    PROPERTY_SEPARATOR,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    STORE_HOST_AT,
    STORE_HOST_IPV6,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from storage_engine.rocketmq.kernels import Bytes, Ints32, Ints64, same_bytes
from storage_engine.rocketmq.native import (
    copy_bytes,
    inlined,
    kernel,
    store_be_i16,
    store_be_i32,
    store_be_i64,
    store_u8,
)
from storage_engine.rocketmq.text_kernels import copy_text, read_host

ENCODED: Final = 0
FAULT_RAW_SIZE: Final = 1
FAULT_INCOMPLETE: Final = 2
FAULT_MAGIC: Final = 3
FAULT_TIMESTAMP: Final = 4
FAULT_LENGTHS: Final = 5
FAULT_HOST: Final = 6
FAULT_OUTSIDE: Final = 7

# Places in the array of text addresses, sizes and of the tuple of offsets.
TOPIC: Final = 0
BORN_HOST: Final = 1
STORE_HOST: Final = 2
BODY: Final = 3
RAW: Final = 4
NAMES: Final = 5
VALUES: Final = 6
TEXTS: Final = 7


@inlined
def write_host(
    target: int, ipv6: bool, texts: Ints64, column: int, begin: int, end: int, previous: int, known: Ints64
) -> bool:
    """Write an address; the one written before is copied when the text is the same.

    :param known: text begin, text length, address written to and IPv6 of the previous row; length -1: none.
    """
    size = end - begin
    source = texts[column] + begin
    width = 16 if ipv6 else 4
    at = previous * 4
    if known[at + 1] == size and known[at + 3] == width and same_bytes(source, known[at], size):
        copy_bytes(target, known[at + 2], width)
        return True
    if not read_host(target, source, size, ipv6):
        known[at + 1] = -1
        return False
    known[at] = source
    known[at + 1] = size
    known[at + 2] = target
    known[at + 3] = width
    return True


@kernel
def encode_rows(
    out: int,
    out_length: int,
    base_offset: int,
    rows: int,
    physical_offset: Ints64,
    sizes: Ints32,
    complete: Bytes,
    has_raw: Bytes,
    magics: Ints32,
    queue_ids: Ints32,
    queue_offsets: Ints64,
    flags: Ints32,
    sys_flags: Ints32,
    body_crcs: Ints32,
    born_timestamps: Ints64,
    store_timestamps: Ints64,
    born_ports: Ints32,
    store_ports: Ints32,
    reconsume_times: Ints32,
    prepared_offsets: Ints64,
    terminated: Bytes,
    texts: Ints64,
    text_sizes: Ints64,
    topic_offsets: Ints32,
    born_host_offsets: Ints32,
    store_host_offsets: Ints32,
    body_offsets: Ints32,
    raw_offsets: Ints32,
    pair_offsets: Ints32,
    name_offsets: Ints32,
    value_offsets: Ints32,
    failed: Ints64,
) -> int:
    """Write ``rows`` frames. :return: ENCODED or what is wrong with row ``failed[0]``."""
    known = np.full(8, -1, np.int64)
    for i in range(rows):
        failed[0] = i
        offset = physical_offset[i]
        size = np.int64(sizes[i])
        position = offset - base_offset
        if size <= 0 or offset < base_offset or position > out_length - size:
            return FAULT_OUTSIDE
        at = out + position
        if has_raw[i]:
            begin = np.int64(raw_offsets[i])
            if raw_offsets[i + 1] - begin != size:
                return FAULT_RAW_SIZE
            copy_bytes(at, texts[RAW] + begin, size)
            continue
        if not complete[i]:
            return FAULT_INCOMPLETE
        magic = np.int64(magics[i]) & 0xFFFFFFFF
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            return FAULT_MAGIC
        length_bytes = 1 if magic == MAGIC_V1 else 2
        sys_flag = np.int64(sys_flags[i])
        born_ipv6 = sys_flag & BORN_HOST_IPV6 != 0
        store_ipv6 = sys_flag & STORE_HOST_IPV6 != 0
        body_begin = np.int64(body_offsets[i])
        body_size = body_offsets[i + 1] - body_begin
        topic_begin = np.int64(topic_offsets[i])
        topic_size = topic_offsets[i + 1] - topic_begin
        first = np.int64(pair_offsets[i])
        last = np.int64(pair_offsets[i + 1])
        block_size = np.int64(0)
        if last > first:
            block_size = (
                np.int64(name_offsets[last])
                - name_offsets[first]
                + value_offsets[last]
                - value_offsets[first]
                + 2 * (last - first)
                - (0 if terminated[i] else 1)
            )
        expected = BODY_AT + body_size + length_bytes + topic_size + 2 + block_size
        if born_ipv6:
            expected += IPV6_EXTRA_BYTES
        if store_ipv6:
            expected += IPV6_EXTRA_BYTES
        if expected != size or block_size > 0x7FFF or topic_size > (0x7F if length_bytes == 1 else 0x7FFF):
            return FAULT_LENGTHS
        if born_timestamps[i] % 1000 != 0 or store_timestamps[i] % 1000 != 0:
            return FAULT_TIMESTAMP

        store_be_i32(at, size)
        store_be_i32(at + MAGIC_AT, magic)
        store_be_i32(at + BODY_CRC_AT, np.int64(body_crcs[i]))
        store_be_i32(at + QUEUE_ID_AT, np.int64(queue_ids[i]))
        store_be_i32(at + FLAG_AT, np.int64(flags[i]))
        store_be_i64(at + QUEUE_OFFSET_AT, queue_offsets[i])
        store_be_i64(at + PHYSICAL_OFFSET_AT, offset)
        store_be_i32(at + SYS_FLAG_AT, sys_flag)
        store_be_i64(at + BORN_TIMESTAMP_AT, born_timestamps[i] // 1000)
        if not write_host(
            at + BORN_HOST_AT,
            born_ipv6,
            texts,
            BORN_HOST,
            np.int64(born_host_offsets[i]),
            np.int64(born_host_offsets[i + 1]),
            0,
            known,
        ):
            return FAULT_HOST
        tail = at + (IPV6_EXTRA_BYTES if born_ipv6 else 0)
        store_be_i32(tail + STORE_TIMESTAMP_AT - 4, np.int64(born_ports[i]))
        store_be_i64(tail + STORE_TIMESTAMP_AT, store_timestamps[i] // 1000)
        if not write_host(
            tail + STORE_HOST_AT,
            store_ipv6,
            texts,
            STORE_HOST,
            np.int64(store_host_offsets[i]),
            np.int64(store_host_offsets[i + 1]),
            1,
            known,
        ):
            return FAULT_HOST
        if store_ipv6:
            tail += IPV6_EXTRA_BYTES
        store_be_i32(tail + RECONSUME_TIMES_AT - 4, np.int64(store_ports[i]))
        store_be_i32(tail + RECONSUME_TIMES_AT, np.int64(reconsume_times[i]))
        store_be_i64(tail + PREPARED_TRANSACTION_OFFSET_AT, prepared_offsets[i])
        store_be_i32(tail + BODY_AT - 4, body_size)
        copy_bytes(tail + BODY_AT, texts[BODY] + body_begin, body_size)
        target = tail + BODY_AT + body_size
        if length_bytes == 1:
            store_u8(target, topic_size)
        else:
            store_be_i16(target, topic_size)
        target += length_bytes
        copy_bytes(target, texts[TOPIC] + topic_begin, topic_size)
        target += topic_size
        store_be_i16(target, block_size)
        target += 2
        end = target + block_size
        for pair in range(first, last):
            name = np.int64(name_offsets[pair])
            name_size = name_offsets[pair + 1] - name
            value = np.int64(value_offsets[pair])
            value_size = value_offsets[pair + 1] - value
            # Whole words may be copied where what they overwrite is this row's and written later.
            copy_text(
                target,
                texts[NAMES] + name,
                name_size,
                end - target >= name_size + 16 and text_sizes[NAMES] - name >= name_size + 16,
            )
            target += name_size
            store_u8(target, NAME_VALUE_SEPARATOR)
            target += 1
            copy_text(
                target,
                texts[VALUES] + value,
                value_size,
                end - target >= value_size + 16 and text_sizes[VALUES] - value >= value_size + 16,
            )
            target += value_size
            if target < end:
                store_u8(target, PROPERTY_SEPARATOR)
                target += 1
    return ENCODED


@kernel
def first_overlap(order: Ints64, physical_offset: Ints64, sizes: Ints32) -> int:
    """Index into ``order`` of the first row that begins before the one below it ends; -1: none."""
    for i in range(1, len(order)):
        before = order[i - 1]
        if physical_offset[before] + sizes[before] > physical_offset[order[i]]:
            return i
    return -1
