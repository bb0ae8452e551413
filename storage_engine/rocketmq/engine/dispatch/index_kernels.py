"""Compiled writing of index entries into a mapped index file (IndexFile#putKey)."""

from __future__ import annotations

from typing import Final

from storage_engine.native import (
    inlined,
    kernel,
    load_be_i32,
    load_be_i64,
    store_be_i32,
    store_be_i64,
    word,
)
from storage_engine.rocketmq.codec.frame import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from storage_engine.rocketmq.codec.frame_kernels import Ints32, Ints64
from storage_engine.rocketmq.engine.dispatch.dispatch_kernels import (
    FIELDS,
    PHYSICAL_OFFSET,
    STORE_MS,
    SYS_FLAG,
)

BEGIN_MS_AT: Final = 0
END_MS_AT: Final = 8
BEGIN_OFFSET_AT: Final = 16
END_OFFSET_AT: Final = 24
USED_SLOTS_AT: Final = 32
NEXT_ENTRY_AT: Final = 36
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20
_MAX_SECONDS = (1 << 31) - 1

DONE: Final = 0
FULL: Final = 1


@inlined
def put_key(file: int, slots: int, hashed: int, offset: int, store_ms: int) -> None:
    """Write one entry; the file has room for it."""
    number = load_be_i32(file + NEXT_ENTRY_AT)
    slot = file + HEADER_BYTES + SLOT_BYTES * (hashed % slots)
    previous = load_be_i32(slot)
    if previous <= 0 or previous > number:
        previous = 0
    begin_ms = load_be_i64(file + BEGIN_MS_AT)
    seconds = 0
    if begin_ms > 0 and store_ms > begin_ms:
        seconds = min((store_ms - begin_ms) // 1000, _MAX_SECONDS)
    entry = file + HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * number
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

    :param state: row to go on with, and its next hash; -1: the row was not begun.
    :return: FULL where another file is needed.
    """
    while state[0] < count:
        i = state[0]
        row = rows + 8 * FIELDS * i
        if state[1] < 0:
            if load_be_i32(file + NEXT_ENTRY_AT) >= capacity:
                return FULL
            if (
                word(row, PHYSICAL_OFFSET) < load_be_i64(file + END_OFFSET_AT)
                or word(row, SYS_FLAG) & TRANSACTION_MASK == TRANSACTION_ROLLBACK
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
