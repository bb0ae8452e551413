"""Compiled property blocks → text, and the three properties that have columns of their own."""

from __future__ import annotations

import numpy as np

from storage_engine.native import (
    inlined,
    int64,
    load_le_u64,
    load_u8,
    not_ascii_64,
    separators_64,
    set_word,
    store_i32,
    store_u8,
    trailing_zeros,
    word,
)
from storage_engine.rocketmq.codec.decode_columns import (
    HAS_KEYS,
    HAS_PROPERTIES,
    HAS_TAGS,
    HAS_UNIQUE_KEY,
    KEYS,
    KEYS_END,
    KEYS_OFFSETS,
    PROPERTIES,
    PROPERTIES_END,
    PROPERTIES_OFFSETS,
    TAGS,
    TAGS_END,
    TAGS_OFFSETS,
    UNIQUE_KEY,
    UNIQUE_KEY_END,
    UNIQUE_KEY_OFFSETS,
)
from storage_engine.rocketmq.codec.frame import PROPERTY_SEPARATOR
from storage_engine.rocketmq.codec.text_kernels import copy_long_words, is_utf8

_KEYS = int.from_bytes(b"KEYS", "little")
_TAGS = int.from_bytes(b"TAGS", "little")
_UNIQUE_KEY = int.from_bytes(b"UNIQ_KEY", "little")


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
