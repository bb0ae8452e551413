"""Compiled frames → Arrow columns. Reads only frames that ``kernels.scan`` found to be whole."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.rocketmq.frame import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MAGIC_V1,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET_AT,
    PREPARED_TRANSACTION_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    STORE_HOST_AT,
    STORE_HOST_IPV6,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from storage_engine.rocketmq.kernels import Bytes, Ints32, Ints64, hash_bytes, same_bytes
from storage_engine.rocketmq.native import (
    copy_bytes,
    inlined,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_le_u64,
    load_u8,
    prefetch,
    trailing_zeros,
)
from storage_engine.rocketmq.text_kernels import copy_text, is_utf8, write_host

SLACK_BYTES: Final = 64
"""Every text buffer is so much longer than its content: short copies write whole words."""

# Rows of the 32-bit column matrix.
SIZE: Final = 0
MAGIC: Final = 1
QUEUE_ID: Final = 2
FLAG: Final = 3
SYS_FLAG: Final = 4
BODY_CRC: Final = 5
BORN_PORT: Final = 6
STORE_PORT: Final = 7
RECONSUME_TIMES: Final = 8
INT32_COLUMNS: Final = 9

# Rows of the 64-bit column matrix.
PHYSICAL_OFFSET: Final = 0
QUEUE_OFFSET: Final = 1
BORN_TIMESTAMP: Final = 2
STORE_TIMESTAMP: Final = 3
PREPARED_TRANSACTION_OFFSET: Final = 4
INT64_COLUMNS: Final = 5

# Rows of the offsets matrix and of the addresses of the texts behind it.
TOPIC: Final = 0
BORN_HOST: Final = 1
STORE_HOST: Final = 2
KEYS: Final = 3
TAGS: Final = 4
UNIQUE_KEY: Final = 5
BODY: Final = 6
TEXT_COLUMNS: Final = 7
NAMES: Final = 7
VALUES: Final = 8
TEXT_ADDRESSES: Final = 9

# Rows of the flags matrix: validity of what can be null in a message, and two booleans.
HAS_TOPIC: Final = 0
HAS_BORN_TIMESTAMP: Final = 1
HAS_STORE_TIMESTAMP: Final = 2
HAS_KEYS: Final = 3
HAS_TAGS: Final = 4
HAS_UNIQUE_KEY: Final = 5
HAS_PROPERTIES: Final = 6
TERMINATED: Final = 7
NEEDS_RAW: Final = 8
FLAG_COLUMNS: Final = 9

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Years 1 to 9999, what every reader of the lake can represent."""

NAME_TABLE_SLOTS: Final = 1 << 14
"""Twice as many as names fit into a property block of 32,767 bytes."""

_KEYS = int.from_bytes(b"KEYS", "little")
_TAGS = int.from_bytes(b"TAGS", "little")
_UNIQUE_KEY = int.from_bytes(b"UNIQ_KEY", "little")
_LOW_7 = 0x7F7F7F7F7F7F7F7F
_ABOVE_2 = 0x7D7D7D7D7D7D7D7D
_HIGH = 0x8080808080808080
_AHEAD = 4

Flags = npt.NDArray[np.uint8]


@inlined
def drop_duplicate_names(
    first: int,
    pairs: int,
    name_offsets: Ints32,
    value_offsets: Ints32,
    names: int,
    values: int,
    seed: np.uint64,
    table: Ints64,
    row: int,
) -> int:
    """Keep the last of each name among pairs [first, pairs), as Java's map does.

    :param table: for each slot (row + 1) << 14 | pair - first; so it never needs to be cleared.
    :return: number of pairs afterwards.
    """
    mask = np.uint64(len(table) - 1)
    stamp = np.int64(row + 1) << 14
    duplicates = 0
    for pair in range(first, pairs):
        begin = name_offsets[pair]
        size = name_offsets[pair + 1] - begin
        slot = hash_bytes(names + begin, size, seed) & mask
        while True:
            entry = table[slot]
            if entry >> 14 != row + 1:
                table[slot] = stamp | (pair - first)
                break
            other = first + (entry & 0x3FFF)
            other_begin = name_offsets[other]
            if name_offsets[other + 1] - other_begin == size and same_bytes(
                names + other_begin, names + begin, size
            ):
                duplicates += 1
                table[slot] = stamp | (pair - first)
                break
            slot = (slot + np.uint64(1)) & mask
    if duplicates == 0:
        return pairs
    kept = first
    name_end = name_offsets[first]
    value_end = value_offsets[first]
    name_begin = name_end
    value_begin = value_end
    for pair in range(first, pairs):
        next_name = name_offsets[pair + 1]
        next_value = value_offsets[pair + 1]
        size = next_name - name_begin
        slot = hash_bytes(names + name_begin, size, seed) & mask
        last = False
        while True:
            entry = table[slot]
            if entry >> 14 != row + 1:
                break
            if first + (entry & 0x3FFF) == pair:
                last = True
                break
            slot = (slot + np.uint64(1)) & mask
        if last:
            move_down(names + name_end, names + name_begin, size)
            move_down(values + value_end, values + value_begin, next_value - value_begin)
            name_end += size
            value_end += next_value - value_begin
            kept += 1
            name_offsets[kept] = name_end
            value_offsets[kept] = value_end
        name_begin = next_name
        value_begin = next_value
    return kept


@inlined
def move_down(target: int, source: int, size: int) -> None:
    """Move bytes to a lower address; the ranges may overlap."""
    if source - target >= size:
        copy_bytes(target, source, size)
        return
    if source == target:
        return
    gap = source - target
    done = 0
    while done < size:
        piece = min(gap, size - done)
        copy_bytes(target + done, source + done, piece)
        done += piece


@kernel
def decode_messages(
    address: int,
    length: int,
    messages: int,
    order: Ints32,
    positions: Ints64,
    codes: Ints32,
    topic_valid: Bytes,
    queue_topic_length: Ints32,
    seed: np.uint64,
    name_table: Ints64,
    ints32: npt.NDArray[np.int32],
    ints64: npt.NDArray[np.int64],
    flags: Flags,
    offsets: npt.NDArray[np.int32],
    texts: Ints64,
    pair_offsets: Ints32,
    name_offsets: Ints32,
    value_offsets: Ints32,
) -> int:
    """Fill the columns of the first ``messages`` rows of ``order``.

    :return: number of property pairs.
    """
    topics = texts[TOPIC]
    born_hosts = texts[BORN_HOST]
    store_hosts = texts[STORE_HOST]
    names = texts[NAMES]
    values = texts[VALUES]
    topic_end = 0
    born_host_end = 0
    store_host_end = 0
    keys_end = 0
    tags_end = 0
    unique_key_end = 0
    body_end = 0
    name_end = 0
    value_end = 0
    pairs = 0
    born_host_size = 0
    store_host_size = 0
    previous_born = 0
    previous_store = 0
    previous_born_ipv6 = False
    previous_store_ipv6 = False
    pair_offsets[0] = 0
    name_offsets[0] = 0
    value_offsets[0] = 0
    for column in range(TEXT_COLUMNS):
        offsets[column, 0] = 0
    for i in range(messages):
        if i + _AHEAD < messages:
            ahead = address + positions[order[i + _AHEAD]]
            prefetch(ahead)
            prefetch(ahead + 64)
        row = order[i]
        position = positions[row]
        at = address + position
        size = load_be_i32(at)
        slack = length - position - size >= 16
        needs_raw = False
        magic = load_be_u32(at + MAGIC_AT)
        sys_flag = load_be_i32(at + SYS_FLAG_AT)
        ints32[SIZE, i] = size
        ints32[MAGIC, i] = load_be_i32(at + MAGIC_AT)
        ints32[QUEUE_ID, i] = load_be_i32(at + QUEUE_ID_AT)
        ints32[FLAG, i] = load_be_i32(at + FLAG_AT)
        ints32[SYS_FLAG, i] = sys_flag
        ints32[BODY_CRC, i] = load_be_i32(at + BODY_CRC_AT)
        ints64[PHYSICAL_OFFSET, i] = load_be_i64(at + PHYSICAL_OFFSET_AT)
        ints64[QUEUE_OFFSET, i] = load_be_i64(at + QUEUE_OFFSET_AT)

        born_ms = load_be_i64(at + BORN_TIMESTAMP_AT)
        fits = MIN_TIMESTAMP_MS <= born_ms <= MAX_TIMESTAMP_MS
        flags[HAS_BORN_TIMESTAMP, i] = fits
        ints64[BORN_TIMESTAMP, i] = born_ms * 1000 if fits else 0
        needs_raw |= not fits

        born_ipv6 = sys_flag & BORN_HOST_IPV6 != 0
        host = at + BORN_HOST_AT
        host_bytes = 16 if born_ipv6 else 4
        if previous_born and born_ipv6 == previous_born_ipv6 and same_bytes(host, previous_born, host_bytes):
            copy_text(
                born_hosts + born_host_end, born_hosts + born_host_end - born_host_size, born_host_size, True
            )
        else:
            born_host_size = write_host(born_hosts + born_host_end, host, born_ipv6)
            previous_born = host
            previous_born_ipv6 = born_ipv6
        born_host_end += born_host_size
        offsets[BORN_HOST, i + 1] = born_host_end
        ints32[BORN_PORT, i] = load_be_i32(host + host_bytes)
        tail = at + (IPV6_EXTRA_BYTES if born_ipv6 else 0)

        store_ms = load_be_i64(tail + STORE_TIMESTAMP_AT)
        fits = MIN_TIMESTAMP_MS <= store_ms <= MAX_TIMESTAMP_MS
        flags[HAS_STORE_TIMESTAMP, i] = fits
        ints64[STORE_TIMESTAMP, i] = store_ms * 1000 if fits else 0
        needs_raw |= not fits

        store_ipv6 = sys_flag & STORE_HOST_IPV6 != 0
        host = tail + STORE_HOST_AT
        host_bytes = 16 if store_ipv6 else 4
        if (
            previous_store
            and store_ipv6 == previous_store_ipv6
            and same_bytes(host, previous_store, host_bytes)
        ):
            copy_text(
                store_hosts + store_host_end,
                store_hosts + store_host_end - store_host_size,
                store_host_size,
                True,
            )
        else:
            store_host_size = write_host(store_hosts + store_host_end, host, store_ipv6)
            previous_store = host
            previous_store_ipv6 = store_ipv6
        store_host_end += store_host_size
        offsets[STORE_HOST, i + 1] = store_host_end
        ints32[STORE_PORT, i] = load_be_i32(host + host_bytes)
        if store_ipv6:
            tail += IPV6_EXTRA_BYTES

        ints32[RECONSUME_TIMES, i] = load_be_i32(tail + RECONSUME_TIMES_AT)
        ints64[PREPARED_TRANSACTION_OFFSET, i] = load_be_i64(tail + PREPARED_TRANSACTION_OFFSET_AT)

        body_length = load_be_i32(tail + 84)
        if body_length < 0:
            body_length = 0
            needs_raw = True
        copy_bytes(texts[BODY] + body_end, tail + 88, body_length)
        body_end += body_length
        offsets[BODY, i + 1] = body_end

        topic = tail + 88 + body_length + (1 if magic == MAGIC_V1 else 2)
        code = codes[row]
        topic_length = queue_topic_length[code]
        flags[HAS_TOPIC, i] = topic_valid[code]
        if topic_valid[code]:
            copy_text(topics + topic_end, topic, topic_length, slack)
            topic_end += topic_length
        else:
            needs_raw = True
        offsets[TOPIC, i + 1] = topic_end

        block = topic + topic_length + 2
        block_size = load_be_i16(block - 2)
        if block_size < 0:
            block_size = 0
            needs_raw = True
        end = block + block_size
        first_pair = pairs
        name_begin = name_end
        value_begin = value_end
        keys = 0
        keys_size = 0
        tags = 0
        tags_size = 0
        unique_key = 0
        unique_key_size = 0
        seen = np.uint64(0)
        maybe_duplicate = False
        not_ascii = np.uint64(0)
        start = block
        separator = 0
        cursor = block
        while cursor < end:
            if cursor + 8 <= end:
                word = load_le_u64(cursor)
                controls = ~(((word & np.uint64(_LOW_7)) + np.uint64(_ABOVE_2)) | word) & np.uint64(_HIGH)
                not_ascii |= word
            else:
                word = np.uint64(0)
                for k in range(end - cursor):
                    word |= np.uint64(load_u8(cursor + k)) << np.uint64(8 * k)
                controls = ~(((word & np.uint64(_LOW_7)) + np.uint64(_ABOVE_2)) | word) & np.uint64(_HIGH)
                controls &= (np.uint64(1) << np.uint64(8 * (end - cursor))) - np.uint64(1)
                not_ascii |= word
            while controls or (cursor + 8 >= end and start < end):
                if controls:
                    bit = trailing_zeros(controls)
                    controls &= controls - np.uint64(1)
                    here = cursor + (bit >> 3)
                    control = load_u8(here)
                    if control == NAME_VALUE_SEPARATOR:
                        if separator == 0:
                            separator = here
                        continue
                    if control == 0:
                        continue
                else:
                    here = end
                if separator > start and separator < here - 1:
                    name_size = separator - start
                    value = separator + 1
                    value_size = here - value
                    copy_text(names + name_end, start, name_size, slack)
                    copy_text(values + value_end, value, value_size, slack)
                    head = load_le_u64(names + name_end)
                    if name_size < 8:
                        head &= (np.uint64(1) << np.uint64(8 * name_size)) - np.uint64(1)
                        if name_size == 4:
                            if head == np.uint64(_KEYS):
                                keys = value
                                keys_size = value_size
                            elif head == np.uint64(_TAGS):
                                tags = value
                                tags_size = value_size
                    elif name_size == 8 and head == np.uint64(_UNIQUE_KEY):
                        unique_key = value
                        unique_key_size = value_size
                    mark = np.uint64(1) << (
                        ((head ^ np.uint64(name_size)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(58)
                    )
                    maybe_duplicate |= seen & mark != np.uint64(0)
                    seen |= mark
                    name_end += name_size
                    value_end += value_size
                    pairs += 1
                    name_offsets[pairs] = name_end
                    value_offsets[pairs] = value_end
                else:
                    needs_raw = True
                start = here + 1
                separator = 0
            cursor += 8
        text_ok = not_ascii & np.uint64(_HIGH) == np.uint64(0) or is_utf8(block, block_size)
        if not text_ok:
            needs_raw = True
            pairs = first_pair
            name_end = name_begin
            value_end = value_begin
            keys = 0
            tags = 0
            unique_key = 0
        elif maybe_duplicate:
            kept = drop_duplicate_names(
                first_pair, pairs, name_offsets, value_offsets, names, values, seed, name_table, i
            )
            if kept != pairs:
                needs_raw = True
                pairs = kept
                name_end = name_offsets[pairs]
                value_end = value_offsets[pairs]
        pair_offsets[i + 1] = pairs
        flags[HAS_PROPERTIES, i] = block_size > 0 and text_ok
        flags[TERMINATED, i] = block_size > 0 and start == end
        flags[HAS_KEYS, i] = keys != 0
        if keys:
            copy_text(texts[KEYS] + keys_end, keys, keys_size, slack)
            keys_end += keys_size
        offsets[KEYS, i + 1] = keys_end
        flags[HAS_TAGS, i] = tags != 0
        if tags:
            copy_text(texts[TAGS] + tags_end, tags, tags_size, slack)
            tags_end += tags_size
        offsets[TAGS, i + 1] = tags_end
        flags[HAS_UNIQUE_KEY, i] = unique_key != 0
        if unique_key:
            copy_text(texts[UNIQUE_KEY] + unique_key_end, unique_key, unique_key_size, slack)
            unique_key_end += unique_key_size
        offsets[UNIQUE_KEY, i + 1] = unique_key_end
        flags[NEEDS_RAW, i] = needs_raw
    return pairs


@kernel
def decode_others(
    base_offset: int,
    messages: int,
    rows: int,
    order: Ints32,
    positions: Ints64,
    sizes: Ints32,
    ints32: npt.NDArray[np.int32],
    ints64: npt.NDArray[np.int64],
    flags: Flags,
    offsets: npt.NDArray[np.int32],
    pair_offsets: Ints32,
) -> None:
    """Fill the rows behind the messages: blank and undecodable bytes, which are kept raw."""
    for i in range(messages, rows):
        row = order[i]
        for column in range(INT32_COLUMNS):
            ints32[column, i] = 0
        for column in range(INT64_COLUMNS):
            ints64[column, i] = 0
        for column in range(FLAG_COLUMNS):
            flags[column, i] = 0
        for column in range(TEXT_COLUMNS):
            offsets[column, i + 1] = offsets[column, i]
        pair_offsets[i + 1] = pair_offsets[i]
        ints32[SIZE, i] = sizes[row]
        ints64[PHYSICAL_OFFSET, i] = base_offset + positions[row]
        flags[NEEDS_RAW, i] = 1


@kernel
def copy_raw(
    address: int,
    base_offset: int,
    ints64: npt.NDArray[np.int64],
    ints32: npt.NDArray[np.int32],
    flags: Flags,
    rows: int,
    raw_offsets: Ints32,
    raw: int,
) -> None:
    """Copy the exact bytes of every row that needs them."""
    end = 0
    raw_offsets[0] = 0
    for i in range(rows):
        if flags[NEEDS_RAW, i]:
            size = ints32[SIZE, i]
            copy_bytes(raw + end, address + ints64[PHYSICAL_OFFSET, i] - base_offset, np.int64(size))
            end += size
        raw_offsets[i + 1] = end


@kernel
def check_utf8(address: int, positions: Ints64, lengths: Ints32, count: int, valid: Bytes) -> None:
    """For each of ``count`` texts whether it is well-formed UTF-8."""
    for i in range(count):
        valid[i] = is_utf8(address + positions[i], np.int64(lengths[i]))
