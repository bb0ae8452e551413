"""Compiled sorting of dispatched messages by queue, and their consume queue entries."""

from __future__ import annotations

from typing import Final

from storage_engine.native import held_kernel, set_word, store_be_i32, store_be_i64, word
from storage_engine.rocketmq.codec.frame import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from storage_engine.rocketmq.codec.frame_kernels import same_bytes
from storage_engine.rocketmq.engine.dispatch.dispatch_kernels import (
    FIELDS,
    MARKS,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_KEY,
    QUEUE_OFFSET,
    SIZE,
    SYS_FLAG,
    TAGS_CODE,
    TOPIC_AT,
    TOPIC_BYTES,
)

ENTRY_BYTES: Final = 20
_ROW_BYTES: Final = 8 * FIELDS
_NONE: Final = -1


@held_kernel
def group_by_queue(
    base: int, rows: int, count: int, table: int, slots: int, groups: int, order: int, begins: int
) -> tuple[int, int, int]:
    """Sort messages that have entries by their queues; those of one queue stay in their order.

    :param base: address that the rows' places are counted from.
    :param table: address of room for ``slots`` numbers, a power of two above ``count``.
    :param groups: address of room for ``count`` numbers, as ``order``.
    :param order: gets the numbers of the rows.
    :param begins: gets where in ``order`` each queue begins, and the end of the last; one number more.
    :return: how many queues there are, all marks of the rows, and the last row that has an entry.
    """
    marks = 0
    last = _NONE
    for slot in range(slots):
        set_word(table, slot, _NONE)
    queues = 0
    for i in range(count):
        row = rows + _ROW_BYTES * i
        marks |= word(row, MARKS)
        kind = word(row, SYS_FLAG) & TRANSACTION_MASK
        if kind not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
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
            # Until all are counted, the order has the first row of each queue.
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
    :param max_physical: up to where in the log messages have their entry already.
    :param queue_offset: that the first of them has to have; each one has the next.
    :param entries: address of their room.
    :return: the end of the last message in the log; 0: one has its entry already, or doesn't follow.
    """
    end = 0
    for i in range(count):
        row = rows + _ROW_BYTES * word(chosen, i)
        end = word(row, PHYSICAL_OFFSET) + word(row, SIZE)
        if end <= max_physical or word(row, QUEUE_OFFSET) != queue_offset + i:
            return 0
        entry = entries + ENTRY_BYTES * i
        store_be_i64(entry, word(row, PHYSICAL_OFFSET))
        store_be_i32(entry + 8, word(row, SIZE))
        store_be_i64(entry + 12, word(row, TAGS_CODE))
    return end
