"""Compiled frames → Arrow columns. Reads only frames that ``frame_kernels.scan`` found to be whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_engine.native import (
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
    not_ascii_64,
    prefetch,
    separators_64,
    set_word,
    store_i32,
    store_i64,
    store_u8,
    trailing_zeros,
    word,
)
from storage_engine.rocketmq.codec.decode_columns import (
    BODY,
    BODY_CRC,
    BORN_HOST,
    BORN_HOST_END,
    BORN_HOST_OFFSETS,
    BORN_PORT,
    BORN_TIMESTAMP,
    FLAG,
    FLAG_COLUMNS,
    HAS_BORN_TIMESTAMP,
    HAS_KEYS,
    HAS_PROPERTIES,
    HAS_STORE_TIMESTAMP,
    HAS_TAGS,
    HAS_TOPIC,
    HAS_UNIQUE_KEY,
    HOST_ENTRY_BYTES,
    HOST_SLOTS,
    HOST_TEXT_AT,
    HOSTS,
    INT32_COLUMNS,
    INT64_COLUMNS,
    KEYS,
    KEYS_END,
    KEYS_OFFSETS,
    MAGIC,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    NEEDS_RAW,
    PHYSICAL_OFFSET,
    PREPARED_TRANSACTION_OFFSET,
    PROPERTIES,
    PROPERTIES_END,
    PROPERTIES_OFFSETS,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    SLACK_BYTES,
    STORE_HOST,
    STORE_HOST_END,
    STORE_HOST_OFFSETS,
    STORE_PORT,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TAGS,
    TAGS_END,
    TAGS_OFFSETS,
    TAIL,
    TOPIC,
    TOPIC_OFFSETS,
    UNIQUE_KEY,
    UNIQUE_KEY_END,
    UNIQUE_KEY_OFFSETS,
    VIEW_BYTES,
    VIEW_INLINE_BYTES,
)
from storage_engine.rocketmq.codec.frame import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
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
from storage_engine.rocketmq.codec.frame_kernels import (
    Bytes,
    Ints32,
    Ints64,
    copy_long_words,
    copy_words,
    is_utf8,
    write_host,
)

_AHEAD = 2
"""Frames that lie far apart are fetched while the ones before them are decoded."""
_TAIL_LINES = 4
_KEYS = int.from_bytes(b"KEYS", "little")
_TAGS = int.from_bytes(b"TAGS", "little")
_UNIQUE_KEY = int.from_bytes(b"UNIQ_KEY", "little")


@inlined
def decode_timestamp(source: int, values: int, valid: int, i: int) -> bool:
    """Write a timestamp in microseconds. :return: whether it can be represented."""
    value_ms = load_be_i64(source)
    fits = MIN_TIMESTAMP_MS <= value_ms <= MAX_TIMESTAMP_MS
    store_u8(valid + i, int64(fits))
    store_i64(values + 8 * i, value_ms * 1000 if fits else 0)
    return fits


@inlined
def decode_host(
    source: int, ipv6: bool, texts: int, offsets: int, ports: int, i: int, hosts: int, ends: int, end: int
) -> int:
    """Write an address as text, and its port. :return: how many bytes the address has."""
    width = 16 if ipv6 else 4
    low = int64(load_le_u64(source)) if ipv6 else load_be_u32(source)
    high = int64(load_le_u64(source + 8)) if ipv6 else 0
    hashed = np.uint64(low ^ high) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)
    entry = hosts + HOST_ENTRY_BYTES * int64(hashed)
    size = load_i64(entry + 16) - (width << 8)
    if load_i64(entry) != low or load_i64(entry + 8) != high or size < 0 or size > 0xFF:
        size = write_host(entry + HOST_TEXT_AT, source, ipv6)
        store_i64(entry, low)
        store_i64(entry + 8, high)
        store_i64(entry + 16, width << 8 | size)
    copy_words(texts + word(ends, end), entry + HOST_TEXT_AT, size)
    set_word(ends, end, word(ends, end) + size)
    store_i32(offsets + 4 * (i + 1), word(ends, end))
    store_i32(ports + 4 * i, load_be_i32(source + width))
    return width


@inlined
def write_view(views: int, i: int, source: int, size: int, place: int) -> None:
    """Write an Arrow binary view: a short text lies in it, of a long one the place in the only buffer."""
    view = views + VIEW_BYTES * i
    store_i32(view, size)
    store_i32(view + 4, 0)
    store_i64(view + 8, 0)
    if size <= VIEW_INLINE_BYTES:
        copy_bytes(view + 4, source, size)
    else:
        store_i32(view + 4, load_i32(source))
        store_i32(view + 12, place)


@inlined
def decode_header(at: int, i: int, columns: int, ends: int) -> int:
    """Write what lies before the body of the frame at address ``at``.

    :return: how much further than with IPv4 hosts the body lies.
    """
    at_32 = 4 * i
    at_64 = 8 * i
    sys_flag = load_be_i32(at + SYS_FLAG_AT)
    store_i32(word(columns, SIZE) + at_32, load_be_i32(at))
    store_i32(word(columns, MAGIC) + at_32, load_be_i32(at + MAGIC_AT))
    store_i32(word(columns, QUEUE_ID) + at_32, load_be_i32(at + QUEUE_ID_AT))
    store_i32(word(columns, FLAG) + at_32, load_be_i32(at + FLAG_AT))
    store_i32(word(columns, SYS_FLAG) + at_32, sys_flag)
    store_i32(word(columns, BODY_CRC) + at_32, load_be_i32(at + BODY_CRC_AT))
    store_i64(word(columns, PHYSICAL_OFFSET) + at_64, load_be_i64(at + PHYSICAL_OFFSET_AT))
    store_i64(word(columns, QUEUE_OFFSET) + at_64, load_be_i64(at + QUEUE_OFFSET_AT))
    fits = decode_timestamp(
        at + BORN_TIMESTAMP_AT, word(columns, BORN_TIMESTAMP), word(columns, HAS_BORN_TIMESTAMP), i
    )
    width = decode_host(
        at + BORN_HOST_AT,
        sys_flag & BORN_HOST_IPV6 != 0,
        word(columns, BORN_HOST),
        word(columns, BORN_HOST_OFFSETS),
        word(columns, BORN_PORT),
        i,
        word(columns, HOSTS),
        ends,
        BORN_HOST_END,
    )
    extra = width - 4
    fits &= decode_timestamp(
        at + extra + STORE_TIMESTAMP_AT, word(columns, STORE_TIMESTAMP), word(columns, HAS_STORE_TIMESTAMP), i
    )
    width = decode_host(
        at + extra + STORE_HOST_AT,
        sys_flag & STORE_HOST_IPV6 != 0,
        word(columns, STORE_HOST),
        word(columns, STORE_HOST_OFFSETS),
        word(columns, STORE_PORT),
        i,
        word(columns, HOSTS),
        ends,
        STORE_HOST_END,
    )
    extra += width - 4
    store_i32(word(columns, RECONSUME_TIMES) + at_32, load_be_i32(at + extra + RECONSUME_TIMES_AT))
    store_i64(
        word(columns, PREPARED_TRANSACTION_OFFSET) + at_64,
        load_be_i64(at + extra + PREPARED_TRANSACTION_OFFSET_AT),
    )
    store_u8(word(columns, NEEDS_RAW) + i, int64(not fits))
    return extra


@kernel
def decode_messages(
    address: int,
    length: int,
    begin: int,
    messages: int,
    positions: Ints64,
    sizes: Ints32,
    codes: Ints32,
    topic_valid: Bytes,
    topic_lengths: Ints32,
    ends: int,
    columns: int,
) -> None:
    """Fill the columns of the first ``messages`` rows, which are in the order to write them in.

    :param begin: position in the segment where the buffer of body views begins.
    :param ends: address of ENDS words of zeros.
    :param columns: address of the table of the columns' addresses.
    """
    for slot in range(HOST_SLOTS):
        store_i64(word(columns, HOSTS) + slot * HOST_ENTRY_BYTES + 16, 0)
    topic_end = 0
    for column in range(TOPIC_OFFSETS, PROPERTIES_OFFSETS + 1):
        store_i32(word(columns, column), 0)
    for i in range(messages):
        if i + _AHEAD < messages:
            ahead = address + positions[i + _AHEAD]
            prefetch(ahead)
            prefetch(ahead + 64)
            ahead += sizes[i + _AHEAD]
            for line in range(1, _TAIL_LINES + 1):
                prefetch(ahead - 64 * line)
        at = address + positions[i]
        size = int64(sizes[i])
        body = at + decode_header(at, i, columns, ends) + BODY_AT
        body_length = load_be_i32(body - 4)
        exact = body_length >= 0
        body_length = max(body_length, 0)
        write_view(word(columns, BODY), i, body, body_length, body - address - begin)

        tail = body + body_length
        if address + length - (at + size) < SLACK_BYTES:
            # Whole words are read from the topic and the properties: not beyond the segment's end.
            copy_bytes(word(columns, TAIL), tail, at + size - tail)
            tail = word(columns, TAIL)
        tail += 1 if load_be_u32(at + MAGIC_AT) == MAGIC_V1 else 2
        code = codes[i]
        topic_length = int64(topic_lengths[code])
        if topic_valid[code]:
            copy_words(word(columns, TOPIC) + topic_end, tail, topic_length)
            topic_end += topic_length
        else:
            exact = False
        store_u8(word(columns, HAS_TOPIC) + i, int64(topic_valid[code]))
        store_i32(word(columns, TOPIC_OFFSETS) + 4 * (i + 1), topic_end)

        block = tail + topic_length + 2
        block_size = load_be_i16(block - 2)
        exact &= block_size >= 0
        exact &= decode_properties(block, max(block_size, 0), i, columns, ends)
        if not exact:
            store_u8(word(columns, NEEDS_RAW) + i, 1)


@kernel
def decode_others(
    base_offset: int,
    messages: int,
    rows: int,
    positions: Ints64,
    sizes: Ints32,
    blank_header: npt.NDArray[np.bool_],
    columns: int,
) -> None:
    """Fill the rows behind the messages: blank and undecodable bytes, which are kept raw.

    :param blank_header: for each of these rows whether it begins a blank: that one has a magic.
    """
    for i in range(messages, rows):
        for column in INT32_COLUMNS:
            store_i32(word(columns, column) + 4 * i, 0)
        for column in INT64_COLUMNS:
            store_i64(word(columns, column) + 8 * i, 0)
        store_i64(word(columns, BODY) + VIEW_BYTES * i, 0)
        store_i64(word(columns, BODY) + VIEW_BYTES * i + 8, 0)
        for column in FLAG_COLUMNS:
            store_u8(word(columns, column) + i, 0)
        for column in range(TOPIC_OFFSETS, PROPERTIES_OFFSETS + 1):
            store_i32(word(columns, column) + 4 * (i + 1), load_i32(word(columns, column) + 4 * i))
        store_i32(word(columns, SIZE) + 4 * i, int64(sizes[i]))
        if blank_header[i - messages]:
            store_i32(word(columns, MAGIC) + 4 * i, MAGIC_BLANK)
        store_i64(word(columns, PHYSICAL_OFFSET) + 8 * i, base_offset + positions[i])
        store_u8(word(columns, NEEDS_RAW) + i, 1)


@kernel
def view_raw(address: int, begin: int, base_offset: int, columns: int, rows: int, views: int) -> None:
    """Write views of the exact bytes of every row that needs them; the others are null.

    :param begin: position in the segment where the views' buffer begins.
    """
    for i in range(rows):
        position = load_i64(word(columns, PHYSICAL_OFFSET) + 8 * i) - base_offset
        size = load_i32(word(columns, SIZE) + 4 * i) if load_u8(word(columns, NEEDS_RAW) + i) else 0
        write_view(views, i, address + position, size, position - begin)


@kernel
def check_utf8(address: int, positions: Ints64, lengths: Ints32, count: int, valid: Bytes) -> None:
    """For each of ``count`` texts whether it is well-formed UTF-8."""
    for i in range(count):
        valid[i] = is_utf8(address + positions[i], int64(lengths[i]))


@inlined
def write_optional(
    source: int, size: int, i: int, texts: int, offsets: int, valid: int, ends: int, end: int
) -> None:
    """Write a text that may be missing (``source`` 0)."""
    store_u8(valid + i, int64(source != 0))
    if source != 0:
        copy_long_words(texts + word(ends, end), source, size)
        set_word(ends, end, word(ends, end) + size)
    store_i32(offsets + 4 * (i + 1), word(ends, end))


@inlined
def decode_properties(block: int, size: int, i: int, columns: int, ends: int) -> bool:
    """Write a property block, and its keys, tags and unique key as MessageDecoder#string2messageProperties
    reads them: a pair without a name or a value doesn't count, of one name's values the last does.

    Looks for separators 64 bytes at a time.

    :return: whether the block is UTF-8.
    """
    end = block + size
    keys = 0
    keys_size = 0
    tags = 0
    tags_size = 0
    unique_key = 0
    unique_key_size = 0
    not_ascii = np.uint64(0)
    start = block
    separator = 0
    cursor = block
    terminated = size > 0 and load_u8(end - 1) == PROPERTY_SEPARATOR
    # What is not terminated ends as if a separator followed.
    last = end - 1 if terminated or size == 0 else end
    while cursor <= last:
        controls = separators_64(cursor)
        above = not_ascii_64(cursor)
        if end - cursor < 64:
            inside = (np.uint64(1) << np.uint64(end - cursor)) - np.uint64(1)
            controls &= inside
            above &= inside
            if not terminated:
                controls |= inside + np.uint64(1)
        not_ascii |= above
        while controls:
            here = cursor + trailing_zeros(controls)
            controls &= controls - np.uint64(1)
            if here != end and load_u8(here) != PROPERTY_SEPARATOR:
                if separator == 0:
                    separator = here
                continue
            name_size = separator - start
            if separator != 0 and (name_size == 4 or name_size == 8) and separator < here - 1:
                value = separator + 1
                head = int64(load_le_u64(start))
                if name_size == 8:
                    if head == _UNIQUE_KEY:
                        unique_key = value
                        unique_key_size = here - value
                elif head & 0xFFFFFFFF == _KEYS:
                    keys = value
                    keys_size = here - value
                elif head & 0xFFFFFFFF == _TAGS:
                    tags = value
                    tags_size = here - value
            start = here + 1
            separator = 0
        cursor += 64
    text = not_ascii == np.uint64(0) or is_utf8(block, size)
    if not text:
        keys = 0
        tags = 0
        unique_key = 0
    write_optional(
        block if text and size > 0 else 0,
        size,
        i,
        word(columns, PROPERTIES),
        word(columns, PROPERTIES_OFFSETS),
        word(columns, HAS_PROPERTIES),
        ends,
        PROPERTIES_END,
    )
    write_optional(
        keys,
        keys_size,
        i,
        word(columns, KEYS),
        word(columns, KEYS_OFFSETS),
        word(columns, HAS_KEYS),
        ends,
        KEYS_END,
    )
    write_optional(
        tags,
        tags_size,
        i,
        word(columns, TAGS),
        word(columns, TAGS_OFFSETS),
        word(columns, HAS_TAGS),
        ends,
        TAGS_END,
    )
    write_optional(
        unique_key,
        unique_key_size,
        i,
        word(columns, UNIQUE_KEY),
        word(columns, UNIQUE_KEY_OFFSETS),
        word(columns, HAS_UNIQUE_KEY),
        ends,
        UNIQUE_KEY_END,
    )
    return text
