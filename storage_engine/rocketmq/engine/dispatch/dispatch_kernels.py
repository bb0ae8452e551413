"""Compiled reading of frames for dispatch and recovery: what queues and index need of each message.

A frame counts as one where the broker's CommitLog#checkMessageAndReturnSize takes it for one. That is looser
than the archive's own reading: a header isn't held against the place where it lies.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from storage_engine.crc import crc32
from storage_engine.native import (
    inlined,
    int64,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i8,
    load_u8,
    set_word,
    word,
)
from storage_engine.rocketmq.codec.frame import (
    BLANK_HEADER_BYTES,
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_IPV6,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET_AT,
    PROPERTY_SEPARATOR,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SCHEDULE_TOPIC,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)
from storage_engine.rocketmq.codec.frame_kernels import Ints32, Ints64, body_position, hash_bytes
from storage_engine.rocketmq.engine.append.java_text_kernels import (
    NO_NUMBER,
    is_text,
    java_hash_of,
    parse_number,
    signed_32,
)
from storage_engine.rocketmq.engine.append.property_crc_kernels import has_property_crc

# Fields of a row, 64 bits each. Places are counted from the buffer's beginning.
POSITION: Final = 0
PHYSICAL_OFFSET: Final = 1
SIZE: Final = 2
TAGS_CODE: Final = 3
STORE_MS: Final = 4
QUEUE_OFFSET: Final = 5
QUEUE_ID: Final = 6
SYS_FLAG: Final = 7
TOPIC_AT: Final = 8
TOPIC_BYTES: Final = 9
KEYS_AT: Final = 10
KEYS_BYTES: Final = 11
UNIQUE_AT: Final = 12
UNIQUE_BYTES: Final = 13
TAGS_AT: Final = 14
TAGS_BYTES: Final = 15
INNER_BASE: Final = 16
INNER_NUM: Final = 17
PROPERTIES_AT: Final = 18
PROPERTIES_BYTES: Final = 19
QUEUE_KEY: Final = 20
MARKS: Final = 21
FIELDS: Final = 22

MALFORMED: Final = 1
"""Mark of a row with a text that is no UTF-8, which Python decodes."""
MULTI_DISPATCH: Final = 2
"""Mark of a row that belongs to further queues."""
DELAYED: Final = 4
"""Mark of a row whose tags code is the time at which it is due."""

# Which CRC is checked.
NO_CRC: Final = 0
BODY_CRC: Final = 1
PROPERTY_CRC: Final = 2

# Why a walk ended.
ROOM: Final = 0
LIMIT: Final = 1
BLANK: Final = 2
BAD: Final = 3
BAD_LENGTHS: Final = 4

_SCHEDULE_TOPIC = tuple(SCHEDULE_TOPIC.encode())
_KEYS = tuple(b"KEYS")
_TAGS = tuple(b"TAGS")
_UNIQUE = tuple(b"UNIQ_KEY")
_DELAY = tuple(b"DELAY")
_INNER_NUM = tuple(b"INNER_NUM")
_INNER_BASE = tuple(b"INNER_BASE")
_MULTI = tuple(b"INNER_MULTI_DISPATCH")
_MAX_LEVEL = (1 << 31) - 1
_MAX_SHORT = (1 << 15) - 1
_SPACE = 32
_HASH_SIGN = 35


@inlined
def read_properties(
    base: int, begin: int, length: int, delayed: bool, delays: int, levels: int, row: int
) -> bool:
    """Fill in what a row takes from its properties; False where the broker fails to read them.

    :param begin: of the block, as a place in the buffer at ``base``.
    :param delayed: the message lies in the topic of delayed ones.
    """
    at = base + begin
    index = 0
    level_at = 0
    level_bytes = 0
    num = NO_NUMBER
    inner_base = NO_NUMBER
    num_seen = False
    base_seen = False
    while index < length:
        kv = -1
        end = index
        while end < length:
            byte = load_u8(at + end)
            if byte == PROPERTY_SEPARATOR:
                break
            if byte == NAME_VALUE_SEPARATOR and kv < 0:
                kv = end
            end += 1
        if kv > index and kv < end - 1:
            name = at + index
            name_bytes = kv - index
            value = begin + kv + 1
            value_bytes = end - kv - 1
            if name_bytes == 4:
                if is_text(name, 4, _KEYS):
                    set_word(row, KEYS_AT, value)
                    set_word(row, KEYS_BYTES, value_bytes)
                elif is_text(name, 4, _TAGS):
                    set_word(row, TAGS_AT, value)
                    set_word(row, TAGS_BYTES, value_bytes)
            elif name_bytes == 8:
                if is_text(name, 8, _UNIQUE):
                    set_word(row, UNIQUE_AT, value)
                    set_word(row, UNIQUE_BYTES, value_bytes)
            elif name_bytes == 5:
                if delayed and is_text(name, 5, _DELAY):
                    level_at = value
                    level_bytes = value_bytes
            elif name_bytes == 9:
                if is_text(name, 9, _INNER_NUM):
                    num_seen = True
                    num = parse_number(base + value, value_bytes)
            elif name_bytes == 10:
                if is_text(name, 10, _INNER_BASE):
                    base_seen = True
                    inner_base = parse_number(base + value, value_bytes)
            elif name_bytes == 20 and is_text(name, 20, _MULTI):
                set_word(row, MARKS, word(row, MARKS) | MULTI_DISPATCH)
        index = end + 1
    if word(row, TAGS_BYTES) > 0:
        code = java_hash_of(base + word(row, TAGS_AT), word(row, TAGS_BYTES), 0)
        if code < 0:
            set_word(row, MARKS, word(row, MARKS) | MALFORMED)
        else:
            set_word(row, TAGS_CODE, signed_32(code))
    if level_bytes > 0:
        level = parse_number(base + level_at, level_bytes)
        if level < -_MAX_LEVEL - 1 or level > _MAX_LEVEL:
            return False
        level = min(level, levels)
        if level > 0:
            set_word(row, TAGS_CODE, word(row, STORE_MS) + word(delays, level - 1))
            set_word(row, MARKS, word(row, MARKS) | DELAYED)
    if num_seen and base_seen:
        if inner_base == NO_NUMBER or num < -_MAX_SHORT - 1 or num > _MAX_SHORT:
            return False
        set_word(row, INNER_BASE, inner_base)
        set_word(row, INNER_NUM, num)
    return True


@inlined
def read_frame(
    base: int,
    position: int,
    end: int,
    function: int,
    table: int,
    check: int,
    seed: np.uint64,
    delays: int,
    levels: int,
    row: int,
) -> int:
    """Fill in a row from the frame at a place of the buffer; ROOM, or what is there instead."""
    remaining = end - position
    if remaining < BLANK_HEADER_BYTES:
        return BAD
    at = base + position
    total = load_be_i32(at)
    if total > remaining:
        return BAD
    magic = load_be_u32(at + MAGIC_AT)
    if magic == MAGIC_BLANK:
        return BLANK
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or total < 0 or remaining < BODY_AT + 3:
        return BAD
    sys_flag = load_be_i32(at + SYS_FLAG_AT)
    body_at = body_position(at)
    if remaining < body_at + 3:
        return BAD
    body_bytes = max(load_be_i32(at + body_at - 4), 0)
    if body_bytes > total or body_at + body_bytes + 3 > remaining:
        return BAD
    if check == BODY_CRC and body_bytes > 0:
        crc = crc32(function, table, at + body_at, body_bytes) & 0x7FFFFFFF
        if crc != load_be_i32(at + BODY_CRC_AT):
            return BAD
    topic_at = body_at + body_bytes
    if magic == MAGIC_V1:
        topic_bytes = load_i8(at + topic_at)
        topic_at += 1
    else:
        topic_bytes = load_be_i16(at + topic_at)
        topic_at += 2
    if topic_bytes < 0 or topic_bytes > total or topic_at + topic_bytes + 2 > remaining:
        return BAD
    properties_at = topic_at + topic_bytes + 2
    properties_bytes = max(load_be_i16(at + properties_at - 2), 0)
    if properties_bytes > total or properties_at + properties_bytes > remaining:
        return BAD
    store_at = STORE_TIMESTAMP_AT + (IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_IPV6 else 0)
    queue_id = load_be_i32(at + QUEUE_ID_AT)
    set_word(row, POSITION, position)
    set_word(row, PHYSICAL_OFFSET, load_be_i64(at + PHYSICAL_OFFSET_AT))
    set_word(row, SIZE, total)
    set_word(row, STORE_MS, load_be_i64(at + store_at))
    set_word(row, QUEUE_OFFSET, load_be_i64(at + QUEUE_OFFSET_AT))
    set_word(row, QUEUE_ID, queue_id)
    set_word(row, SYS_FLAG, sys_flag)
    set_word(row, TOPIC_AT, position + topic_at)
    set_word(row, TOPIC_BYTES, topic_bytes)
    set_word(row, PROPERTIES_AT, position + properties_at)
    set_word(row, PROPERTIES_BYTES, properties_bytes)
    for field in (TAGS_CODE, KEYS_AT, KEYS_BYTES, UNIQUE_AT, UNIQUE_BYTES, TAGS_AT, TAGS_BYTES, MARKS):
        set_word(row, field, 0)
    # A single message is a batch of one (DispatchRequest#<init>).
    set_word(row, INNER_BASE, word(row, QUEUE_OFFSET))
    set_word(row, INNER_NUM, 1)
    hashed = hash_bytes(at + topic_at, topic_bytes, seed ^ np.uint64(queue_id & 0xFFFFFFFF))
    set_word(row, QUEUE_KEY, int64(hashed))
    delayed = is_text(at + topic_at, topic_bytes, _SCHEDULE_TOPIC)
    if not read_properties(base, position + properties_at, properties_bytes, delayed, delays, levels, row):
        return BAD
    whole = total == properties_at + properties_bytes
    if check == PROPERTY_CRC and not (
        whole and has_property_crc(at, total, properties_at, properties_bytes, function, table)
    ):
        return BAD
    return ROOM if whole else BAD_LENGTHS


@kernel
def read_frames(
    base: int,
    position: int,
    end: int,
    limit: int,
    function: int,
    table: int,
    check: int,
    seed: np.uint64,
    delays: int,
    levels: int,
    rows: int,
    capacity: int,
    state: Ints64,
) -> int:
    """Read frames one behind the other.

    :param end: of what may be read; ``limit``: no frame may reach beyond it.
    :param check: which CRC has to be right.
    :param rows: address of room for ``capacity`` rows.
    :param state: gets the place where the walk ended, and why.
    :return: how many rows were filled.
    """
    count = 0
    state[1] = ROOM
    while count < capacity:
        if position >= limit:
            state[1] = LIMIT
            break
        row = rows + 8 * FIELDS * count
        reason = read_frame(base, position, end, function, table, check, seed, delays, levels, row)
        if reason != ROOM:
            state[1] = reason
            break
        size = word(row, SIZE)
        if position + size > limit:
            state[1] = LIMIT
            break
        count += 1
        position += size
    state[0] = position
    return count


@kernel
def hash_keys(base: int, rows: int, count: int, starts: Ints64, hashes: Ints32) -> int:
    """Hash ``topic#key`` of each key that is indexed: the unique key, then the others in their order.

    :param starts: gets the place of each row's first hash; one more than rows.
    :param hashes: of malformed text are -1.
    :return: how many there are; -1: ``hashes`` has no room.
    """
    found = 0
    for i in range(count):
        row = rows + 8 * FIELDS * i
        starts[i] = found
        if word(row, SYS_FLAG) & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            continue
        topic = java_hash_of(base + word(row, TOPIC_AT), word(row, TOPIC_BYTES), 0)
        malformed = topic < 0
        topic = (31 * max(topic, 0) + _HASH_SIGN) & 0xFFFFFFFF
        for part in range(2):
            begin = word(row, KEYS_AT if part else UNIQUE_AT)
            end = begin + word(row, KEYS_BYTES if part else UNIQUE_BYTES)
            while begin < end:
                stop = begin
                if part:
                    while stop < end and load_u8(base + stop) != _SPACE:
                        stop += 1
                else:
                    stop = end
                if stop > begin:
                    if found == len(hashes):
                        return -1
                    value = java_hash_of(base + begin, stop - begin, topic)
                    if malformed or value < 0:
                        hashes[found] = -1
                    else:
                        value = signed_32(value)
                        hashes[found] = 0 if value == -0x80000000 else abs(value)
                    found += 1
                begin = stop + 1
    starts[count] = found
    return found
