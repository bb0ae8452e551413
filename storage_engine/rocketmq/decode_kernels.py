"""Compiled frames → Arrow columns. Reads only frames that ``kernels.scan`` found to be whole."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.rocketmq.frame import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
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
from storage_engine.rocketmq.kernels import Bytes, Ints32, Ints64, hash_bytes, same_bytes
from storage_engine.rocketmq.native import (
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i32,
    load_i64,
    load_le_u64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
    trailing_zeros,
)
from storage_engine.rocketmq.text_kernels import copy_words, is_utf8, write_host

SLACK_BYTES: Final = 64
"""Every text buffer is so much longer than its content: short copies write whole words."""
TAIL_BYTES: Final = 2 * 0x8000
"""Longest topic and property block together, with their lengths."""

# Places in the table of column addresses. 32-bit integers:
SIZE: Final = 0
MAGIC: Final = 1
QUEUE_ID: Final = 2
FLAG: Final = 3
SYS_FLAG: Final = 4
BODY_CRC: Final = 5
BORN_PORT: Final = 6
STORE_PORT: Final = 7
RECONSUME_TIMES: Final = 8
# 64-bit integers:
PHYSICAL_OFFSET: Final = 9
QUEUE_OFFSET: Final = 10
BORN_TIMESTAMP: Final = 11
STORE_TIMESTAMP: Final = 12
PREPARED_TRANSACTION_OFFSET: Final = 13
# One byte a row, whether a value that can be missing in a message is there; and two booleans:
HAS_TOPIC: Final = 14
HAS_BORN_TIMESTAMP: Final = 15
HAS_STORE_TIMESTAMP: Final = 16
HAS_KEYS: Final = 17
HAS_TAGS: Final = 18
HAS_UNIQUE_KEY: Final = 19
HAS_PROPERTIES: Final = 20
TERMINATED: Final = 21
NEEDS_RAW: Final = 22
# 32-bit offsets of texts, then the texts in the same order:
TOPIC_OFFSETS: Final = 23
BORN_HOST_OFFSETS: Final = 24
STORE_HOST_OFFSETS: Final = 25
KEYS_OFFSETS: Final = 26
TAGS_OFFSETS: Final = 27
UNIQUE_KEY_OFFSETS: Final = 28
BODY_OFFSETS: Final = 29
NAME_OFFSETS: Final = 30
VALUE_OFFSETS: Final = 31
TOPIC: Final = 32
BORN_HOST: Final = 33
STORE_HOST: Final = 34
KEYS: Final = 35
TAGS: Final = 36
UNIQUE_KEY: Final = 37
BODY: Final = 38
NAMES: Final = 39
VALUES: Final = 40
# Where each row's property pairs begin, and memory to work in:
PAIR_OFFSETS: Final = 41
TAIL: Final = 42
COLUMNS: Final = 43

INT32_COLUMNS: Final = tuple(range(SIZE, PHYSICAL_OFFSET))
INT64_COLUMNS: Final = tuple(range(PHYSICAL_OFFSET, HAS_TOPIC))
FLAG_COLUMNS: Final = tuple(range(HAS_TOPIC, TOPIC_OFFSETS))

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
_SPACES = 0x2020202020202020
_KEEP = 1 << 31
_OFFSET = 0x7FFFFFFF
_FEW_NAMES = 24
_AHEAD = 2
"""Frames that lie far apart are fetched while the ones before them are decoded."""
_PREFETCHED_BYTES = 512

# Where the texts written so far end, and how many pairs there are: places in a kernel's own state.
PAIRS_END: Final = 0
NAMES_END: Final = 1
VALUES_END: Final = 2
KEYS_END: Final = 3
TAGS_END: Final = 4
UNIQUE_KEY_END: Final = 5
ENDS: Final = 6

# Of a host column: end of its texts, and the previous row's text length, address and width.
HOST_END: Final = 0
HOST_TEXT: Final = 1
HOST_SOURCE: Final = 2
HOST_WIDTH: Final = 3
HOST_STATE: Final = 4


@inlined
def decode_timestamp(source: int, values: int, valid: int, i: int) -> bool:
    """Write a timestamp in microseconds. :return: whether it can be represented."""
    value_ms = load_be_i64(source)
    fits = MIN_TIMESTAMP_MS <= value_ms <= MAX_TIMESTAMP_MS
    store_u8(valid + i, int64(fits))
    store_i64(values + 8 * i, value_ms * 1000 if fits else 0)
    return fits


@inlined
def decode_host(source: int, ipv6: bool, texts: int, offsets: int, ports: int, i: int, host: Ints64) -> int:
    """Write an address as text, and its port. :return: how many bytes the address has.

    Most rows have the address of the row before: its text is copied.
    """
    width = 16 if ipv6 else 4
    end = host[HOST_END]
    if host[HOST_WIDTH] == width and same_bytes(source, host[HOST_SOURCE], width):
        size = host[HOST_TEXT]
        copy_words(texts + end, texts + end - size, size)
    else:
        size = write_host(texts + end, source, ipv6)
        host[HOST_TEXT] = size
        host[HOST_SOURCE] = source
        host[HOST_WIDTH] = width
    host[HOST_END] = end + size
    store_i32(offsets + 4 * (i + 1), end + size)
    store_i32(ports + 4 * i, load_be_i32(source + width))
    return width


@inlined
def decode_header(at: int, i: int, columns: Ints64, born: Ints64, store: Ints64) -> int:
    """Write what lies before the body of the frame at address ``at``.

    :return: how much further than with IPv4 hosts the body lies.
    """
    at_32 = 4 * i
    at_64 = 8 * i
    sys_flag = load_be_i32(at + SYS_FLAG_AT)
    store_i32(columns[SIZE] + at_32, load_be_i32(at))
    store_i32(columns[MAGIC] + at_32, load_be_i32(at + MAGIC_AT))
    store_i32(columns[QUEUE_ID] + at_32, load_be_i32(at + QUEUE_ID_AT))
    store_i32(columns[FLAG] + at_32, load_be_i32(at + FLAG_AT))
    store_i32(columns[SYS_FLAG] + at_32, sys_flag)
    store_i32(columns[BODY_CRC] + at_32, load_be_i32(at + BODY_CRC_AT))
    store_i64(columns[PHYSICAL_OFFSET] + at_64, load_be_i64(at + PHYSICAL_OFFSET_AT))
    store_i64(columns[QUEUE_OFFSET] + at_64, load_be_i64(at + QUEUE_OFFSET_AT))
    fits = decode_timestamp(at + BORN_TIMESTAMP_AT, columns[BORN_TIMESTAMP], columns[HAS_BORN_TIMESTAMP], i)
    width = decode_host(
        at + BORN_HOST_AT,
        sys_flag & BORN_HOST_IPV6 != 0,
        columns[BORN_HOST],
        columns[BORN_HOST_OFFSETS],
        columns[BORN_PORT],
        i,
        born,
    )
    extra = width - 4
    fits &= decode_timestamp(
        at + extra + STORE_TIMESTAMP_AT, columns[STORE_TIMESTAMP], columns[HAS_STORE_TIMESTAMP], i
    )
    width = decode_host(
        at + extra + STORE_HOST_AT,
        sys_flag & STORE_HOST_IPV6 != 0,
        columns[STORE_HOST],
        columns[STORE_HOST_OFFSETS],
        columns[STORE_PORT],
        i,
        store,
    )
    extra += width - 4
    store_i32(columns[RECONSUME_TIMES] + at_32, load_be_i32(at + extra + RECONSUME_TIMES_AT))
    store_i64(
        columns[PREPARED_TRANSACTION_OFFSET] + at_64,
        load_be_i64(at + extra + PREPARED_TRANSACTION_OFFSET_AT),
    )
    store_u8(columns[NEEDS_RAW] + i, int64(not fits))
    return extra


@inlined
def write_optional(
    source: int, size: int, i: int, texts: int, offsets: int, valid: int, ends: Ints64, end: int
) -> None:
    """Write a text that may be missing (``source`` 0)."""
    store_u8(valid + i, int64(source != 0))
    if source != 0:
        copy_words(texts + ends[end], source, size)
        ends[end] += size
    store_i32(offsets + 4 * (i + 1), ends[end])


@inlined
def decode_properties(
    block: int, size: int, i: int, columns: Ints64, ends: Ints64, seed: np.uint64, name_table: Ints64
) -> bool:
    """Write the pairs of a property block, as MessageDecoder#string2messageProperties reads them.

    Looks for separators eight bytes at a time: ``controls`` has the high bit of each byte below 3.

    :return: whether the pairs alone, joined again, are the block.
    """
    names = columns[NAMES]
    values = columns[VALUES]
    end = block + size
    first_pair = ends[PAIRS_END]
    pairs = first_pair
    name_end = ends[NAMES_END]
    value_end = ends[VALUES_END]
    keys = 0
    keys_size = 0
    tags = 0
    tags_size = 0
    unique_key = 0
    unique_key_size = 0
    exact = True
    seen = np.uint64(0)
    maybe_duplicate = False
    not_ascii = np.uint64(0)
    start = block
    separator = 0
    cursor = block
    while cursor < end:
        word = load_le_u64(cursor)
        if cursor + 8 > end:
            word &= (np.uint64(1) << np.uint64(8 * (end - cursor))) - np.uint64(1)
            word |= np.uint64(_SPACES) << np.uint64(8 * (end - cursor))
        not_ascii |= word
        controls = ~(((word & np.uint64(_LOW_7)) + np.uint64(_ABOVE_2)) | word) & np.uint64(_HIGH)
        last_word = cursor + 8 >= end
        while controls or (last_word and start < end):
            if controls:
                here = cursor + (trailing_zeros(controls) >> 3)
                controls &= controls - np.uint64(1)
                control = load_u8(here)
                if control != PROPERTY_SEPARATOR:
                    if control == NAME_VALUE_SEPARATOR and separator == 0:
                        separator = here
                    continue
            else:
                here = end
            if separator > start and separator < here - 1:
                name_size = separator - start
                value = separator + 1
                value_size = here - value
                copy_words(names + name_end, start, name_size)
                copy_words(values + value_end, value, value_size)
                head = load_le_u64(start)
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
                if seen & mark:
                    maybe_duplicate |= seen_before(head, name_size, first_pair, pairs, columns)
                seen |= mark
                name_end += name_size
                value_end += value_size
                pairs += 1
                store_i32(columns[NAME_OFFSETS] + 4 * pairs, name_end)
                store_i32(columns[VALUE_OFFSETS] + 4 * pairs, value_end)
            else:
                exact = False
            start = here + 1
            separator = 0
        cursor += 8
    text = not_ascii & np.uint64(_HIGH) == np.uint64(0) or is_utf8(block, size)
    if text:
        if maybe_duplicate:
            kept = drop_duplicate_names(first_pair, pairs, columns, seed, name_table, i)
            exact &= kept == pairs
            pairs = kept
        ends[PAIRS_END] = pairs
        ends[NAMES_END] = load_i32(columns[NAME_OFFSETS] + 4 * pairs)
        ends[VALUES_END] = load_i32(columns[VALUE_OFFSETS] + 4 * pairs)
    else:
        keys = 0
        tags = 0
        unique_key = 0
    store_i32(columns[PAIR_OFFSETS] + 4 * (i + 1), ends[PAIRS_END])
    store_u8(columns[HAS_PROPERTIES] + i, int64(text and size > 0))
    store_u8(columns[TERMINATED] + i, int64(size > 0 and start == end))
    write_optional(
        keys, keys_size, i, columns[KEYS], columns[KEYS_OFFSETS], columns[HAS_KEYS], ends, KEYS_END
    )
    write_optional(
        tags, tags_size, i, columns[TAGS], columns[TAGS_OFFSETS], columns[HAS_TAGS], ends, TAGS_END
    )
    write_optional(
        unique_key,
        unique_key_size,
        i,
        columns[UNIQUE_KEY],
        columns[UNIQUE_KEY_OFFSETS],
        columns[HAS_UNIQUE_KEY],
        ends,
        UNIQUE_KEY_END,
    )
    return exact and text


@inlined
def seen_before(head: np.uint64, size: int, first: int, pairs: int, columns: Ints64) -> bool:
    """Whether one of pairs [first, pairs) may have the name that begins with ``head``.

    Looks at few: a block with many names goes through the table anyway.
    """
    if pairs - first > _FEW_NAMES:
        return True
    begin = load_i32(columns[NAME_OFFSETS] + 4 * first)
    for pair in range(first, pairs):
        end = load_i32(columns[NAME_OFFSETS] + 4 * (pair + 1))
        if end - begin == size:
            other = load_le_u64(columns[NAMES] + begin)
            if size < 8:
                other &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
            if other == head:
                return True
        begin = end
    return False


@inlined
def find_name(pair: int, first: int, columns: Ints64, seed: np.uint64, table: Ints64, row: int) -> np.uint64:
    """Slot of the pair's name in ``table``: the one that has it, or a free one."""
    names = columns[NAMES]
    offsets = columns[NAME_OFFSETS]
    begin = load_i32(offsets + 4 * pair) & _OFFSET
    size = (load_i32(offsets + 4 * (pair + 1)) & _OFFSET) - begin
    mask = np.uint64(len(table) - 1)
    slot = hash_bytes(names + begin, size, seed) & mask
    while table[slot] >> 14 == row + 1:
        at = offsets + 4 * (first + (table[slot] & 0x3FFF))
        other = load_i32(at) & _OFFSET
        other_size = (load_i32(at + 4) & _OFFSET) - other
        if other_size == size and same_bytes(names + other, names + begin, size):
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@inlined
def drop_duplicate_names(
    first: int, pairs: int, columns: Ints64, seed: np.uint64, table: Ints64, row: int
) -> int:
    """Keep the last of each name among pairs [first, pairs), as Java's map does.

    :param table: a slot has (row + 1) << 14 | pair - first, so it never needs to be cleared.
    :return: number of pairs afterwards.
    """
    duplicates = 0
    for pair in range(first, pairs):
        slot = find_name(pair, first, columns, seed, table, row)
        if table[slot] >> 14 == row + 1:
            # A slot that is already the pair's name: this later pair replaces it.
            duplicates += 1
        table[slot] = int64(row + 1) << 14 | (pair - first)
    if duplicates == 0:
        return pairs
    # Marked first, moved then: moving changes the offsets that the table's entries stand for.
    for pair in range(first, pairs):
        if table[find_name(pair, first, columns, seed, table, row)] & 0x3FFF == pair - first:
            address = columns[NAME_OFFSETS] + 4 * (pair + 1)
            store_i32(address, load_i32(address) | _KEEP)
    name_end = load_i32(columns[NAME_OFFSETS] + 4 * first)
    value_end = load_i32(columns[VALUE_OFFSETS] + 4 * first)
    name = name_end
    value = value_end
    kept = first
    for pair in range(first, pairs):
        marked = load_i32(columns[NAME_OFFSETS] + 4 * (pair + 1))
        next_name = marked & _OFFSET
        next_value = load_i32(columns[VALUE_OFFSETS] + 4 * (pair + 1))
        if marked & _KEEP:
            move_down(columns[NAMES] + name_end, columns[NAMES] + name, next_name - name)
            move_down(columns[VALUES] + value_end, columns[VALUES] + value, next_value - value)
            name_end += next_name - name
            value_end += next_value - value
            kept += 1
            store_i32(columns[NAME_OFFSETS] + 4 * kept, name_end)
            store_i32(columns[VALUE_OFFSETS] + 4 * kept, value_end)
        name = next_name
        value = next_value
    return kept


@inlined
def move_down(target: int, source: int, size: int) -> None:
    """Move bytes to a lower address; the ranges may overlap."""
    done = 0
    while source != target and done < size:
        piece = min(source - target, size - done)
        copy_bytes(target + done, source + done, piece)
        done += piece


@kernel
def decode_messages(
    address: int,
    length: int,
    messages: int,
    positions: Ints64,
    sizes: Ints32,
    codes: Ints32,
    topic_valid: Bytes,
    topic_lengths: Ints32,
    seed: np.uint64,
    name_table: Ints64,
    columns: Ints64,
) -> int:
    """Fill the columns of the first ``messages`` rows, which are in the order to write them in.

    :param name_table: NAME_TABLE_SLOTS zeros.
    :param columns: addresses of the columns' memory.
    :return: number of property pairs.
    """
    ends = np.zeros(ENDS, np.int64)
    born = np.zeros(HOST_STATE, np.int64)
    store = np.zeros(HOST_STATE, np.int64)
    topic_end = 0
    body_end = 0
    for column in range(TOPIC_OFFSETS, VALUE_OFFSETS + 1):
        store_i32(columns[column], 0)
    store_i32(columns[PAIR_OFFSETS], 0)
    for i in range(messages):
        if i + _AHEAD < messages:
            ahead = address + positions[i + _AHEAD]
            for offset in range(0, min(int64(sizes[i + _AHEAD]), _PREFETCHED_BYTES), 64):
                prefetch(ahead + offset)
        at = address + positions[i]
        size = int64(sizes[i])
        body = at + decode_header(at, i, columns, born, store) + BODY_AT
        body_length = load_be_i32(body - 4)
        exact = body_length >= 0
        body_length = max(body_length, 0)
        copy_bytes(columns[BODY] + body_end, body, body_length)
        body_end += body_length
        store_i32(columns[BODY_OFFSETS] + 4 * (i + 1), body_end)

        tail = body + body_length
        if address + length - (at + size) < SLACK_BYTES:
            # Whole words are read from the topic and the properties: not beyond the segment's end.
            copy_bytes(columns[TAIL], tail, at + size - tail)
            tail = columns[TAIL]
        tail += 1 if load_be_u32(at + MAGIC_AT) == MAGIC_V1 else 2
        code = codes[i]
        topic_length = int64(topic_lengths[code])
        if topic_valid[code]:
            copy_words(columns[TOPIC] + topic_end, tail, topic_length)
            topic_end += topic_length
        else:
            exact = False
        store_u8(columns[HAS_TOPIC] + i, int64(topic_valid[code]))
        store_i32(columns[TOPIC_OFFSETS] + 4 * (i + 1), topic_end)

        block = tail + topic_length + 2
        block_size = load_be_i16(block - 2)
        exact &= block_size >= 0
        exact &= decode_properties(block, max(block_size, 0), i, columns, ends, seed, name_table)
        if not exact:
            store_u8(columns[NEEDS_RAW] + i, 1)
    return int64(ends[PAIRS_END])


@kernel
def decode_others(
    base_offset: int,
    messages: int,
    rows: int,
    positions: Ints64,
    sizes: Ints32,
    blank_header: npt.NDArray[np.bool_],
    columns: Ints64,
) -> None:
    """Fill the rows behind the messages: blank and undecodable bytes, which are kept raw.

    :param blank_header: for each of these rows whether it begins a blank: that one has a magic.
    """
    for i in range(messages, rows):
        for column in INT32_COLUMNS:
            store_i32(columns[column] + 4 * i, 0)
        for column in INT64_COLUMNS:
            store_i64(columns[column] + 8 * i, 0)
        for column in FLAG_COLUMNS:
            store_u8(columns[column] + i, 0)
        for column in range(TOPIC_OFFSETS, NAME_OFFSETS):
            store_i32(columns[column] + 4 * (i + 1), load_i32(columns[column] + 4 * i))
        store_i32(columns[PAIR_OFFSETS] + 4 * (i + 1), load_i32(columns[PAIR_OFFSETS] + 4 * i))
        store_i32(columns[SIZE] + 4 * i, int64(sizes[i]))
        if blank_header[i - messages]:
            store_i32(columns[MAGIC] + 4 * i, MAGIC_BLANK)
        store_i64(columns[PHYSICAL_OFFSET] + 8 * i, base_offset + positions[i])
        store_u8(columns[NEEDS_RAW] + i, 1)


@kernel
def copy_raw(
    address: int, base_offset: int, columns: Ints64, rows: int, raw_offsets: Ints32, raw: int
) -> None:
    """Copy the exact bytes of every row that needs them."""
    end = 0
    raw_offsets[0] = 0
    for i in range(rows):
        if load_u8(columns[NEEDS_RAW] + i):
            size = load_i32(columns[SIZE] + 4 * i)
            copy_bytes(raw + end, address + load_i64(columns[PHYSICAL_OFFSET] + 8 * i) - base_offset, size)
            end += size
        raw_offsets[i + 1] = end


@kernel
def check_utf8(address: int, positions: Ints64, lengths: Ints32, count: int, valid: Bytes) -> None:
    """For each of ``count`` texts whether it is well-formed UTF-8."""
    for i in range(count):
        valid[i] = is_utf8(address + positions[i], int64(lengths[i]))
