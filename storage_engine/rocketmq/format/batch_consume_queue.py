"""Batch consume queues: like consume queues, but with one entry for a whole batch of messages.

Entry (46 bytes, big-endian): physical offset 8, frame size 4, tags code 8, store time 8, base queue offset 8,
batch size 2, compacted offset 4, reserved 4. Their directory is ``batchconsumequeue``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.consume_queue import (
    EntryFormat,
    Position,
    QueueBounds,
    QueueDirectory,
    iter_queues,
)
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile

DTYPE = np.dtype(
    [
        ("offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_time", ">i8"),
        ("base_offset", ">i8"),
        ("batch_size", ">i2"),
        ("compact_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)


def _is_in_use(entries: Any) -> Any:
    """Return which entries are in use, by the rule of BatchConsumeQueue#recover."""
    return consume_queue.FORMAT.in_use(entries) & (entries["base_offset"] >= 0) & (entries["batch_size"] > 0)


FORMAT = EntryFormat(DTYPE, _is_in_use)
"""Format of entries. Each points at the frame with queue offsets [base_offset, base_offset + batch_size)."""


def all_queues(layout: StoreLayout) -> Iterator[tuple[QueueDirectory, EntryFormat]]:
    """Yield a store's queues of both kinds, each with the format of its entries."""
    for directory, form in ((layout.consumequeue, consume_queue.FORMAT), (layout.batchconsumequeue, FORMAT)):
        for queue in iter_queues(directory):
            yield queue, form


def bounds(files: tuple[MappedFile, ...], log_min_offset: int, last: Position = None) -> QueueBounds:
    """Return the readable queue offsets, which count messages (BatchConsumeQueue#correctMinOffset).

    :param last: see :func:`storage_engine.rocketmq.format.consume_queue.bounds`.
    """
    at = last or FORMAT.last_position(files)
    newest = None if at is None else FORMAT.entry(*at)
    if newest is None:
        return QueueBounds(0, 0)
    maximum = newest["base_offset"] + newest["batch_size"]
    file, position = FORMAT.first_at_or_above(files, log_min_offset, at)
    first = FORMAT.entry(file, position) if position < FORMAT.capacity(file) else None
    return QueueBounds(maximum if first is None else first["base_offset"], maximum)
