"""Compiled property blocks → pairs, as MessageDecoder#string2messageProperties reads them."""

from __future__ import annotations

import numpy as np

from storage_engine.rocketmq.decode_columns import (
    HAS_KEYS,
    HAS_PROPERTIES,
    HAS_TAGS,
    HAS_UNIQUE_KEY,
    KEYS,
    KEYS_END,
    KEYS_OFFSETS,
    NAME_OFFSETS,
    NAMES,
    NAMES_END,
    PAIR_OFFSETS,
    PAIRS_END,
    TAGS,
    TAGS_END,
    TAGS_OFFSETS,
    TERMINATED,
    UNIQUE_KEY,
    UNIQUE_KEY_END,
    UNIQUE_KEY_OFFSETS,
    VALUE_OFFSETS,
    VALUES,
    VALUES_END,
)
from storage_engine.rocketmq.frame import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
)
from storage_engine.rocketmq.frame_kernels import (
    Ints64,
    hash_bytes,
    same_bytes,
)
from storage_engine.rocketmq.native import (
    copy_bytes,
    inlined,
    int64,
    load_i32,
    load_le_u64,
    load_u8,
    store_i32,
    store_u8,
    trailing_zeros,
)
from storage_engine.rocketmq.text_kernels import (
    copy_words,
    is_utf8,
)

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
