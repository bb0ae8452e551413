"""Compiled property blocks → pairs, as MessageDecoder#string2messageProperties reads them."""

from __future__ import annotations

import numpy as np

from storage_engine.native import (
    copy_bytes,
    inlined,
    int64,
    load_i32,
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
    KNOWN_HEAD,
    KNOWN_NAMES,
    KNOWN_ROLE,
    KNOWN_SEEN,
    KNOWN_SIZE,
    KNOWN_TAIL,
    KNOWN_WORDS,
    MOST_KNOWN_NAMES,
    NAME_OFFSETS,
    NAME_TABLE_SLOTS,
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
from storage_engine.rocketmq.codec.frame import PROPERTY_SEPARATOR
from storage_engine.rocketmq.codec.frame_kernels import (
    hash_bytes,
    same_bytes,
)
from storage_engine.rocketmq.codec.text_kernels import (
    copy_long_words,
    copy_words,
    is_utf8,
)

_KEYS = int.from_bytes(b"KEYS", "little")
_TAGS = int.from_bytes(b"TAGS", "little")
_UNIQUE_KEY = int.from_bytes(b"UNIQ_KEY", "little")
_KEYS_ROLE = 1
_TAGS_ROLE = 2
_UNIQUE_KEY_ROLE = 3
_KEEP = 1 << 31
_OFFSET = 0x7FFFFFFF
_FEW_NAMES = 24


@inlined
def write_optional(
    source: int, size: int, i: int, texts: int, offsets: int, valid: int, ends: int, end: int
) -> None:
    """Write a text that may be missing (``source`` 0)."""
    store_u8(valid + i, int64(source != 0))
    if source != 0:
        copy_words(texts + word(ends, end), source, size)
        set_word(ends, end, word(ends, end) + size)
    store_i32(offsets + 4 * (i + 1), word(ends, end))


@inlined
def decode_properties(
    block: int,
    size: int,
    i: int,
    columns: int,
    ends: int,
    seed: np.uint64,
    name_table: int,
    known: int,
) -> bool:
    """Write the pairs of a property block, as MessageDecoder#string2messageProperties reads them.

    Looks for separators 64 bytes at a time. Rows that follow each other mostly have the same names:
    for them it is known already that none comes twice, and which ones are columns of their own.

    :param known: the first names of the row before, as many as ``ends`` says, all different.
    :return: whether the pairs alone, joined again, are the block.
    """
    names = word(columns, NAMES)
    values = word(columns, VALUES)
    end = block + size
    first_pair = word(ends, PAIRS_END)
    pairs = first_pair
    name_end = word(ends, NAMES_END)
    value_end = word(ends, VALUES_END)
    keys = 0
    keys_size = 0
    tags = 0
    tags_size = 0
    unique_key = 0
    unique_key_size = 0
    exact = True
    same_names = True
    entry = 0
    known_end = word(ends, KNOWN_NAMES) * KNOWN_WORDS
    seen = 0
    maybe_duplicate = False
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
            if separator > start and separator < here - 1:
                name_size = separator - start
                value = separator + 1
                value_size = here - value
                copy_words(names + name_end, start, name_size)
                copy_long_words(values + value_end, value, value_size)
                head = int64(load_le_u64(start))
                if name_size < 8:
                    head &= (1 << (8 * name_size)) - 1
                    tail = 0
                else:
                    tail = int64(load_le_u64(separator - 8))
                same_names &= (
                    entry < known_end
                    and word(known, entry + KNOWN_SIZE) == name_size
                    and word(known, entry + KNOWN_HEAD) == head
                    and word(known, entry + KNOWN_TAIL) == tail
                    and name_size <= 16
                )
                if same_names:
                    role = word(known, entry + KNOWN_ROLE)
                    seen = word(known, entry + KNOWN_SEEN)
                else:
                    role = 0
                    if name_size == 4 and head in (_KEYS, _TAGS):
                        role = _KEYS_ROLE if head == _KEYS else _TAGS_ROLE
                    elif name_size == 8 and head == _UNIQUE_KEY:
                        role = _UNIQUE_KEY_ROLE
                    mark = int64(
                        np.uint64(1)
                        << ((np.uint64(head ^ name_size) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(58))
                    )
                    if seen & mark:
                        maybe_duplicate |= seen_before(head, name_size, first_pair, pairs, columns)
                    seen |= mark
                    if entry < MOST_KNOWN_NAMES * KNOWN_WORDS:
                        set_word(known, entry + KNOWN_SIZE, name_size)
                        set_word(known, entry + KNOWN_HEAD, head)
                        set_word(known, entry + KNOWN_TAIL, tail)
                        set_word(known, entry + KNOWN_ROLE, role)
                        set_word(known, entry + KNOWN_SEEN, seen)
                        known_end = entry + KNOWN_WORDS
                entry += KNOWN_WORDS
                if role == _KEYS_ROLE:
                    keys = value
                    keys_size = value_size
                elif role == _TAGS_ROLE:
                    tags = value
                    tags_size = value_size
                elif role == _UNIQUE_KEY_ROLE:
                    unique_key = value
                    unique_key_size = value_size
                name_end += name_size
                value_end += value_size
                pairs += 1
                store_i32(word(columns, NAME_OFFSETS) + 4 * pairs, name_end)
                store_i32(word(columns, VALUE_OFFSETS) + 4 * pairs, value_end)
            else:
                exact = False
            start = here + 1
            separator = 0
        cursor += 64
    text = not_ascii == np.uint64(0) or is_utf8(block, size)
    if text:
        if maybe_duplicate:
            kept = drop_duplicate_names(first_pair, pairs, columns, seed, name_table, i)
            if kept != pairs:
                exact = False
                known_end = 0
            pairs = kept
            name_end = load_i32(word(columns, NAME_OFFSETS) + 4 * pairs)
            value_end = load_i32(word(columns, VALUE_OFFSETS) + 4 * pairs)
        set_word(ends, PAIRS_END, pairs)
        set_word(ends, NAMES_END, name_end)
        set_word(ends, VALUES_END, value_end)
    else:
        keys = 0
        tags = 0
        unique_key = 0
        if maybe_duplicate:
            known_end = 0
    set_word(ends, KNOWN_NAMES, known_end // KNOWN_WORDS)
    store_i32(word(columns, PAIR_OFFSETS) + 4 * (i + 1), word(ends, PAIRS_END))
    store_u8(word(columns, HAS_PROPERTIES) + i, int64(text and size > 0))
    store_u8(word(columns, TERMINATED) + i, int64(terminated))
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
    return exact and text


@inlined
def seen_before(head: int, size: int, first: int, pairs: int, columns: int) -> bool:
    """Whether one of pairs [first, pairs) may have the name that begins with ``head``.

    Looks at few: a block with many names goes through the table anyway.
    """
    if pairs - first > _FEW_NAMES:
        return True
    begin = load_i32(word(columns, NAME_OFFSETS) + 4 * first)
    for pair in range(first, pairs):
        end = load_i32(word(columns, NAME_OFFSETS) + 4 * (pair + 1))
        if end - begin == size:
            other = int64(load_le_u64(word(columns, NAMES) + begin))
            if size < 8:
                other &= (1 << (8 * size)) - 1
            if other == head:
                return True
        begin = end
    return False


@inlined
def find_name(pair: int, first: int, columns: int, seed: np.uint64, table: int, row: int) -> int:
    """Slot of the pair's name in ``table``: the one that has it, or a free one."""
    names = word(columns, NAMES)
    offsets = word(columns, NAME_OFFSETS)
    begin = load_i32(offsets + 4 * pair) & _OFFSET
    size = (load_i32(offsets + 4 * (pair + 1)) & _OFFSET) - begin
    slot = int64(hash_bytes(names + begin, size, seed)) & (NAME_TABLE_SLOTS - 1)
    while word(table, slot) >> 14 == row + 1:
        at = offsets + 4 * (first + (word(table, slot) & 0x3FFF))
        other = load_i32(at) & _OFFSET
        other_size = (load_i32(at + 4) & _OFFSET) - other
        if other_size == size and same_bytes(names + other, names + begin, size):
            break
        slot = (slot + 1) & (NAME_TABLE_SLOTS - 1)
    return slot


@inlined
def drop_duplicate_names(first: int, pairs: int, columns: int, seed: np.uint64, table: int, row: int) -> int:
    """Keep the last of each name among pairs [first, pairs), as Java's map does.

    :param table: a slot has (row + 1) << 14 | pair - first, so it never needs to be cleared.
    :return: number of pairs afterwards.
    """
    duplicates = 0
    for pair in range(first, pairs):
        slot = find_name(pair, first, columns, seed, table, row)
        if word(table, slot) >> 14 == row + 1:
            # A slot that is already the pair's name: this later pair replaces it.
            duplicates += 1
        set_word(table, slot, int64(row + 1) << 14 | (pair - first))
    if duplicates == 0:
        return pairs
    # Marked first, moved then: moving changes the offsets that the table's entries stand for.
    for pair in range(first, pairs):
        if word(table, find_name(pair, first, columns, seed, table, row)) & 0x3FFF == pair - first:
            address = word(columns, NAME_OFFSETS) + 4 * (pair + 1)
            store_i32(address, load_i32(address) | _KEEP)
    name_end = load_i32(word(columns, NAME_OFFSETS) + 4 * first)
    value_end = load_i32(word(columns, VALUE_OFFSETS) + 4 * first)
    name = name_end
    value = value_end
    kept = first
    for pair in range(first, pairs):
        marked = load_i32(word(columns, NAME_OFFSETS) + 4 * (pair + 1))
        next_name = marked & _OFFSET
        next_value = load_i32(word(columns, VALUE_OFFSETS) + 4 * (pair + 1))
        if marked & _KEEP:
            move_down(word(columns, NAMES) + name_end, word(columns, NAMES) + name, next_name - name)
            move_down(word(columns, VALUES) + value_end, word(columns, VALUES) + value, next_value - value)
            name_end += next_name - name
            value_end += next_value - value
            kept += 1
            store_i32(word(columns, NAME_OFFSETS) + 4 * kept, name_end)
            store_i32(word(columns, VALUE_OFFSETS) + 4 * kept, value_end)
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
