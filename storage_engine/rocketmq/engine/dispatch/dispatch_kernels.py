"""Compiled reading of the fields that dispatch and recovery need from frames.

A frame is valid if the broker's CommitLog#checkMessageAndReturnSize accepts it. The archive's reader is
stricter: it also compares the offset in a frame's header with the frame's position.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from storage_engine.crc import crc32
from storage_engine.native import (
    held_kernel,
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
    store_be_i32,
    store_be_i64,
    word,
)
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.frame_kernels import Ints32, Ints64, body_position, hash_bytes, same_bytes
from storage_engine.rocketmq.codec.frame_layout import PROPERTY_CRC as CRC_NAME

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
"""Mark of a row with a text that isn't UTF-8. Python decodes such texts."""
MULTI_DISPATCH: Final = 2
"""Mark of a row whose message belongs to further queues."""
DELAYED: Final = 4
"""Mark of a row whose tags code is the time at which the message is due."""

# Which CRC is checked.
NO_CRC: Final = 0
BODY_CRC: Final = 1
PROPERTY_CRC: Final = 2

# Reasons for which reading ended.
ROOM: Final = 0
LIMIT: Final = 1
BLANK: Final = 2
BAD: Final = 3
BAD_LENGTHS: Final = 4

_SCHEDULE_TOPIC = tuple(frame.SCHEDULE_TOPIC.encode())
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
NO_NUMBER: Final = -(1 << 62)
"""Value for a text that is no number."""

# Positions of an index file's fields, and sizes of its parts.
BEGIN_MS_AT: Final = 0
END_MS_AT: Final = 8
BEGIN_OFFSET_AT: Final = 16
END_OFFSET_AT: Final = 24
USED_SLOTS_AT: Final = 32
NEXT_ENTRY_AT: Final = 36
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
INDEX_ENTRY_BYTES: Final = 20
_MAX_SECONDS = (1 << 31) - 1

QUEUE_ENTRY_BYTES: Final = 20

# Results of writing keys into an index file.
DONE: Final = 0
FULL: Final = 1
_ROW_BYTES: Final = 8 * FIELDS
_NONE: Final = -1
_CRC_NAME = tuple(CRC_NAME)
_CRC_MASK = 0x7FFFFFFF


@inlined
def read_properties(
    base: int, begin: int, length: int, delayed: bool, delays: int, levels: int, row: int
) -> bool:
    """Fill in a row's fields from the message's properties. Return False if the broker can't parse them.

    :param begin: start of the block, as a position in the buffer at ``base``.
    :param delayed: the message is in the topic of delayed messages.
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
            if byte == frame.PROPERTY_SEPARATOR:
                break
            if byte == frame.NAME_VALUE_SEPARATOR and kv < 0:
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
    """Fill in a row from the frame at a position. Return ROOM if the frame is valid, otherwise the reason."""
    remaining = end - position
    if remaining < frame.BLANK_HEADER_BYTES:
        return BAD
    at = base + position
    total = load_be_i32(at)
    if total > remaining:
        return BAD
    magic = load_be_u32(at + frame.MAGIC_AT)
    if magic == frame.MAGIC_BLANK:
        return BLANK
    if (magic != frame.MAGIC_V1 and magic != frame.MAGIC_V2) or total < 0 or remaining < frame.BODY_AT + 3:
        return BAD
    sys_flag = load_be_i32(at + frame.SYS_FLAG_AT)
    body_at = body_position(at)
    if remaining < body_at + 3:
        return BAD
    body_bytes = max(load_be_i32(at + body_at - 4), 0)
    if body_bytes > total or body_at + body_bytes + 3 > remaining:
        return BAD
    if check == BODY_CRC and body_bytes > 0:
        crc = crc32(function, table, at + body_at, body_bytes) & 0x7FFFFFFF
        if crc != load_be_i32(at + frame.BODY_CRC_AT):
            return BAD
    topic_at = body_at + body_bytes
    if magic == frame.MAGIC_V1:
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
    store_at = frame.STORE_TIMESTAMP_AT + (frame.IPV6_EXTRA_BYTES if sys_flag & frame.BORN_HOST_IPV6 else 0)
    queue_id = load_be_i32(at + frame.QUEUE_ID_AT)
    set_word(row, POSITION, position)
    set_word(row, PHYSICAL_OFFSET, load_be_i64(at + frame.PHYSICAL_OFFSET_AT))
    set_word(row, SIZE, total)
    set_word(row, STORE_MS, load_be_i64(at + store_at))
    set_word(row, QUEUE_OFFSET, load_be_i64(at + frame.QUEUE_OFFSET_AT))
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
    is_whole = total == properties_at + properties_bytes
    if check == PROPERTY_CRC and not (
        is_whole and has_property_crc(at, total, properties_at, properties_bytes, function, table)
    ):
        return BAD
    return ROOM if is_whole else BAD_LENGTHS


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
    """Read consecutive frames.

    :param end: end of the bytes that may be read.
    :param limit: end that no frame may exceed.
    :param check: which CRC is checked.
    :param rows: address of room for ``capacity`` rows.
    :param state: gets the position and the reason of the walk's end.
    :return: number of filled rows.
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
    """Hash ``topic#key`` of each indexed key: first the unique key, then the other keys in their order.

    :param starts: gets the position of each row's first hash. It has one element more than there are rows.
    :param hashes: gets the hashes; -1 for malformed text.
    :return: number of hashes; -1 if ``hashes`` has too little room.
    """
    keys = 0
    for i in range(count):
        row = rows + 8 * FIELDS * i
        starts[i] = keys
        if word(row, SYS_FLAG) & frame.TRANSACTION_MASK == frame.TRANSACTION_ROLLBACK:
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
                    if keys == len(hashes):
                        return -1
                    value = java_hash_of(base + begin, stop - begin, topic)
                    if malformed or value < 0:
                        hashes[keys] = -1
                    else:
                        value = signed_32(value)
                        hashes[keys] = 0 if value == -0x80000000 else abs(value)
                    keys += 1
                begin = stop + 1
    starts[count] = keys
    return keys


@inlined
def is_text(at: int, length: int, text: tuple[int, ...]) -> bool:
    """Return whether the bytes at an address are this text."""
    if length != len(text):
        return False
    same = True
    for i in range(length):
        same &= load_u8(at + i) == text[i]
    return same


@inlined
def java_hash_of(at: int, length: int, seed: int) -> int:
    """Continue String#hashCode from ``seed`` with UTF-8 text, as 32 bits. Return -1 if it isn't UTF-8."""
    value = seed
    i = 0
    while i < length:
        lead = load_u8(at + i)
        if lead < 0x80:
            value = (31 * value + lead) & 0xFFFFFFFF
            i += 1
            continue
        more = 0
        code = 0
        least = 0
        if 0xC2 <= lead <= 0xDF:
            more, code, least = 1, lead & 0x1F, 0x80
        elif 0xE0 <= lead <= 0xEF:
            more, code, least = 2, lead & 0x0F, 0x800
        elif 0xF0 <= lead <= 0xF4:
            more, code, least = 3, lead & 0x07, 0x10000
        if more == 0 or i + more >= length:
            return -1
        for k in range(1, more + 1):
            byte = load_u8(at + i + k)
            if byte & 0xC0 != 0x80:
                return -1
            code = code << 6 | (byte & 0x3F)
        if code < least or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return -1
        if code >= 0x10000:
            code -= 0x10000
            value = (31 * value + (0xD800 + (code >> 10))) & 0xFFFFFFFF
            value = (31 * value + (0xDC00 + (code & 0x3FF))) & 0xFFFFFFFF
        else:
            value = (31 * value + code) & 0xFFFFFFFF
        i += more + 1
    return value


@inlined
def signed_32(value: int) -> int:
    return value - 0x100000000 if value >= 0x80000000 else value


@inlined
def parse_number(at: int, length: int) -> int:
    """Parse a decimal number (Long#parseLong). Return NO_NUMBER for other text, or more than 18 digits."""
    i = 0
    negative = False
    if length > 0 and (load_u8(at) == 45 or load_u8(at) == 43):
        negative = load_u8(at) == 45
        i = 1
    if i == length or length - i > 18:
        return NO_NUMBER
    value = 0
    while i < length:
        digit = load_u8(at + i) - 48
        if digit < 0 or digit > 9:
            return NO_NUMBER
        value = value * 10 + digit
        i += 1
    return -value if negative else value


@inlined
def put_key(file: int, slots: int, hashed: int, offset: int, store_ms: int) -> None:
    """Write one entry into a file with room for it."""
    number = load_be_i32(file + NEXT_ENTRY_AT)
    slot = file + HEADER_BYTES + SLOT_BYTES * (hashed % slots)
    previous = load_be_i32(slot)
    if previous <= 0 or previous > number:
        previous = 0
    begin_ms = load_be_i64(file + BEGIN_MS_AT)
    seconds = 0
    if begin_ms > 0 and store_ms > begin_ms:
        seconds = min((store_ms - begin_ms) // 1000, _MAX_SECONDS)
    entry = file + HEADER_BYTES + SLOT_BYTES * slots + INDEX_ENTRY_BYTES * number
    store_be_i32(entry, hashed)
    store_be_i64(entry + 4, offset)
    store_be_i32(entry + 12, seconds)
    store_be_i32(entry + 16, previous)
    store_be_i32(slot, number)
    if number <= 1:
        store_be_i64(file + BEGIN_OFFSET_AT, offset)
        store_be_i64(file + BEGIN_MS_AT, store_ms)
    if previous == 0:
        store_be_i32(file + USED_SLOTS_AT, load_be_i32(file + USED_SLOTS_AT) + 1)
    store_be_i32(file + NEXT_ENTRY_AT, number + 1)
    store_be_i64(file + END_OFFSET_AT, offset)
    store_be_i64(file + END_MS_AT, store_ms)


@kernel
def put_rows(
    file: int, slots: int, capacity: int, rows: int, count: int, starts: Ints64, hashes: Ints32, state: Ints64
) -> int:
    """Write the entries of messages (IndexService#buildIndex).

    :param state: row to continue with, and its next hash; -1 if none of the row's entries was written yet.
    :return: FULL if another file is needed.
    """
    while state[0] < count:
        i = state[0]
        row = rows + 8 * FIELDS * i
        if state[1] < 0:
            if load_be_i32(file + NEXT_ENTRY_AT) >= capacity:
                return FULL
            if (
                word(row, PHYSICAL_OFFSET) < load_be_i64(file + END_OFFSET_AT)
                or word(row, SYS_FLAG) & frame.TRANSACTION_MASK == frame.TRANSACTION_ROLLBACK
            ):
                state[0] += 1
                continue
            state[1] = starts[i]
        while state[1] < starts[i + 1]:
            if load_be_i32(file + NEXT_ENTRY_AT) >= capacity:
                return FULL
            put_key(file, slots, hashes[state[1]], word(row, PHYSICAL_OFFSET), word(row, STORE_MS))
            state[1] += 1
        state[0] += 1
        state[1] = -1
    return DONE


@held_kernel
def group_by_queue(
    base: int, rows: int, count: int, table: int, slots: int, groups: int, order: int, begins: int
) -> tuple[int, int, int]:
    """Sort messages that have entries by their queues. Messages of one queue keep their order.

    :param base: address from which positions in the rows are counted.
    :param table: address of room for ``slots`` numbers, a power of two above ``count``.
    :param groups: address of room for ``count`` numbers.
    :param order: address of room for ``count`` numbers. Gets the numbers of the rows.
    :param begins: gets the positions in ``order`` at which the queues begin, and the last queue's end.
    :return: number of queues, all marks of the rows combined, and the last row with an entry.
    """
    marks = 0
    last = _NONE
    for slot in range(slots):
        set_word(table, slot, _NONE)
    queues = 0
    for i in range(count):
        row = rows + _ROW_BYTES * i
        marks |= word(row, MARKS)
        kind = word(row, SYS_FLAG) & frame.TRANSACTION_MASK
        if kind not in (frame.TRANSACTION_NOT, frame.TRANSACTION_COMMIT):
            set_word(groups, i, _NONE)
            continue
        last = i
        slot = word(row, QUEUE_KEY) & (slots - 1)
        while word(table, slot) != _NONE:
            first = rows + _ROW_BYTES * word(order, word(table, slot))
            if (
                word(row, QUEUE_KEY) == word(first, QUEUE_KEY)
                and word(row, QUEUE_ID) == word(first, QUEUE_ID)
                and word(row, TOPIC_BYTES) == word(first, TOPIC_BYTES)
                and same_bytes(
                    base + word(row, TOPIC_AT), base + word(first, TOPIC_AT), word(row, TOPIC_BYTES)
                )
            ):
                break
            slot = (slot + 1) & (slots - 1)
        queue = word(table, slot)
        if queue == _NONE:
            queue = queues
            queues += 1
            set_word(table, slot, queue)
            # Until all rows are counted, the order holds the first row of each queue.
            set_word(order, queue, i)
            set_word(begins, queue, 0)
        set_word(groups, i, queue)
        set_word(begins, queue, word(begins, queue) + 1)
    end = 0
    for queue in range(queues):
        size = word(begins, queue)
        set_word(begins, queue, end)
        end += size
    for i in range(count):
        queue = word(groups, i)
        if queue != _NONE:
            place = word(begins, queue)
            set_word(order, place, i)
            set_word(begins, queue, place + 1)
    for queue in range(queues, 0, -1):
        set_word(begins, queue, word(begins, queue - 1))
    set_word(begins, 0, 0)
    return queues, marks, last


@held_kernel
def next_entries(
    rows: int, chosen: int, count: int, max_physical: int, queue_offset: int, entries: int
) -> int:
    """Write the entries of one queue's messages (ConsumeQueue#putMessagePositionInfo).

    :param chosen: address of the numbers of their rows.
    :param max_physical: offset of the log up to which messages already have entries.
    :param queue_offset: required queue offset of the first message. The others must have the next offsets.
    :param entries: address of the room for the entries.
    :return: offset of the last message's end; 0 if a message has an entry already, or follows a gap.
    """
    end = 0
    for i in range(count):
        row = rows + _ROW_BYTES * word(chosen, i)
        end = word(row, PHYSICAL_OFFSET) + word(row, SIZE)
        if end <= max_physical or word(row, QUEUE_OFFSET) != queue_offset + i:
            return 0
        entry = entries + QUEUE_ENTRY_BYTES * i
        store_be_i64(entry, word(row, PHYSICAL_OFFSET))
        store_be_i32(entry + 8, word(row, SIZE))
        store_be_i64(entry + 12, word(row, TAGS_CODE))
    return end


@inlined
def _wrap_int(value: int) -> int:
    """Return the int that Java gets from a number by overflow."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@inlined
def has_property_crc(at: int, size: int, properties_at: int, length: int, function: int, table: int) -> bool:
    """Return whether a frame's CRC property matches the bytes before that property.

    As in the broker, the last CRC property counts, is parsed with int overflow, and has to be above 0.
    """
    expected = 0
    index = 0
    while index < length:
        kv = -1
        end = index
        while end < length:
            byte = load_u8(at + properties_at + end)
            if byte == frame.PROPERTY_SEPARATOR:
                break
            if byte == frame.NAME_VALUE_SEPARATOR and kv < 0:
                kv = end
            end += 1
        if (
            kv - index == len(_CRC_NAME)
            and kv < end - 1
            and is_text(at + properties_at + index, 8, _CRC_NAME)
        ):
            expected = 0
            for i in range(end - 1, kv, -1):
                expected = _wrap_int(expected * 10 + load_u8(at + properties_at + i) - 48)
        index = end + 1
    if expected <= 0 or size < frame.PROPERTY_CRC_BYTES:
        return False
    return crc32(function, table, at, size - frame.PROPERTY_CRC_BYTES) & _CRC_MASK == expected
