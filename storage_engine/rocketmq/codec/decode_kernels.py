"""Compiled decoding of frames to Arrow columns. Reads only frames that ``frame_kernels.scan`` found whole."""

from __future__ import annotations

from typing import Final

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
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.frame_kernels import (
    Bytes,
    Ints32,
    Ints64,
    copy_long_words,
    copy_words,
    is_utf8,
    write_host,
)

SLACK_BYTES: Final = 64
"""Extra bytes behind the content of every text buffer, since short copies write whole words."""
TAIL_BYTES: Final = 2 * 0x8000
"""Most bytes of a topic and a property block together, with their length fields."""

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
# 16 bytes a row, Arrow's binary views:
BODY: Final = 14
# One byte a row, whether a value that can be missing in a message is there; and a boolean:
HAS_TOPIC: Final = 15
HAS_BORN_TIMESTAMP: Final = 16
HAS_STORE_TIMESTAMP: Final = 17
HAS_KEYS: Final = 18
HAS_TAGS: Final = 19
HAS_UNIQUE_KEY: Final = 20
HAS_PROPERTIES: Final = 21
NEEDS_RAW: Final = 22
# 32-bit offsets of texts, then the texts in the same order:
TOPIC_OFFSETS: Final = 23
BORN_HOST_OFFSETS: Final = 24
STORE_HOST_OFFSETS: Final = 25
KEYS_OFFSETS: Final = 26
TAGS_OFFSETS: Final = 27
UNIQUE_KEY_OFFSETS: Final = 28
PROPERTIES_OFFSETS: Final = 29
TOPIC: Final = 30
BORN_HOST: Final = 31
STORE_HOST: Final = 32
KEYS: Final = 33
TAGS: Final = 34
UNIQUE_KEY: Final = 35
PROPERTIES: Final = 36
# Memory to work in:
TAIL: Final = 37
HOSTS: Final = 38
COLUMNS: Final = 39

INT32_COLUMNS: Final = tuple(range(SIZE, PHYSICAL_OFFSET))
INT64_COLUMNS: Final = tuple(range(PHYSICAL_OFFSET, BODY))
FLAG_COLUMNS: Final = tuple(range(HAS_TOPIC, TOPIC_OFFSETS))

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Limits of timestamps: the years 1 to 9999, which every reader of the lake can represent."""

# A binary view: its length, then the bytes themselves or their first four, buffer and place.
VIEW_BYTES: Final = 16
VIEW_INLINE_BYTES: Final = 12

# Texts of addresses that were met, so that each is made only once. An address's place is given by its
# hash; an entry is the address in two words, a word of its width and its text's length, the text.
HOST_SLOTS: Final = 256
HOST_ENTRY_BYTES: Final = 64
HOST_TEXT_AT: Final = 24
HOSTS_BYTES: Final = HOST_SLOTS * HOST_ENTRY_BYTES

# Where the texts written so far end: places in a kernel's own state.
KEYS_END: Final = 0
TAGS_END: Final = 1
UNIQUE_KEY_END: Final = 2
PROPERTIES_END: Final = 3
BORN_HOST_END: Final = 4
STORE_HOST_END: Final = 5
ENDS: Final = 6


_AHEAD = 2
"""Number of frames to fetch ahead, since frames may be far apart, while earlier ones are decoded."""
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
    """Write an address as text, and its port. Return the number of bytes of the address in the frame."""
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
    """Write an Arrow binary view: a short text itself, or a long text's place in the only buffer."""
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
    """Write the fields before the body of the frame at address ``at``.

    :return: number of bytes by which the body begins later than with IPv4 hosts.
    """
    at_32 = 4 * i
    at_64 = 8 * i
    sys_flag = load_be_i32(at + frame.SYS_FLAG_AT)
    store_i32(word(columns, SIZE) + at_32, load_be_i32(at))
    store_i32(word(columns, MAGIC) + at_32, load_be_i32(at + frame.MAGIC_AT))
    store_i32(word(columns, QUEUE_ID) + at_32, load_be_i32(at + frame.QUEUE_ID_AT))
    store_i32(word(columns, FLAG) + at_32, load_be_i32(at + frame.FLAG_AT))
    store_i32(word(columns, SYS_FLAG) + at_32, sys_flag)
    store_i32(word(columns, BODY_CRC) + at_32, load_be_i32(at + frame.BODY_CRC_AT))
    store_i64(word(columns, PHYSICAL_OFFSET) + at_64, load_be_i64(at + frame.PHYSICAL_OFFSET_AT))
    store_i64(word(columns, QUEUE_OFFSET) + at_64, load_be_i64(at + frame.QUEUE_OFFSET_AT))
    fits = decode_timestamp(
        at + frame.BORN_TIMESTAMP_AT, word(columns, BORN_TIMESTAMP), word(columns, HAS_BORN_TIMESTAMP), i
    )
    width = decode_host(
        at + frame.BORN_HOST_AT,
        sys_flag & frame.BORN_HOST_IPV6 != 0,
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
        at + extra + frame.STORE_TIMESTAMP_AT,
        word(columns, STORE_TIMESTAMP),
        word(columns, HAS_STORE_TIMESTAMP),
        i,
    )
    width = decode_host(
        at + extra + frame.STORE_HOST_AT,
        sys_flag & frame.STORE_HOST_IPV6 != 0,
        word(columns, STORE_HOST),
        word(columns, STORE_HOST_OFFSETS),
        word(columns, STORE_PORT),
        i,
        word(columns, HOSTS),
        ends,
        STORE_HOST_END,
    )
    extra += width - 4
    store_i32(word(columns, RECONSUME_TIMES) + at_32, load_be_i32(at + extra + frame.RECONSUME_TIMES_AT))
    store_i64(
        word(columns, PREPARED_TRANSACTION_OFFSET) + at_64,
        load_be_i64(at + extra + frame.PREPARED_TRANSACTION_OFFSET_AT),
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
    """Fill the columns of the first ``messages`` rows, which are in the order of writing.

    :param begin: position in the segment where the buffer of body views begins.
    :param ends: address of ``ENDS`` words, all zero.
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
        body = at + decode_header(at, i, columns, ends) + frame.BODY_AT
        body_length = load_be_i32(body - 4)
        exact = body_length >= 0
        body_length = max(body_length, 0)
        write_view(word(columns, BODY), i, body, body_length, body - address - begin)

        tail = body + body_length
        if address + length - (at + size) < SLACK_BYTES:
            # Whole words are read from the topic and the properties: not beyond the segment's end.
            copy_bytes(word(columns, TAIL), tail, at + size - tail)
            tail = word(columns, TAIL)
        tail += 1 if load_be_u32(at + frame.MAGIC_AT) == frame.MAGIC_V1 else 2
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
    """Fill the rows behind the messages. These are blank and undecodable bytes, which are kept raw.

    :param blank_header: for each of these rows, whether a blank begins with it; such a row has a magic.
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
            store_i32(word(columns, MAGIC) + 4 * i, frame.MAGIC_BLANK)
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
    """Check for each of ``count`` texts whether it is well-formed UTF-8."""
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
    reads them. A pair without a name or a value doesn't count. Of equal names the last one counts.

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
    terminated = size > 0 and load_u8(end - 1) == frame.PROPERTY_SEPARATOR
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
            if here != end and load_u8(here) != frame.PROPERTY_SEPARATOR:
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
