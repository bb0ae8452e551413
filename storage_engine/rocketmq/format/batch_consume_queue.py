"""Batch consume queues: like consume queues, but one entry stands for a batch of messages.

Entry (46 bytes, big-endian): physical offset 8, frame size 4, tags code 8, store time 8, base queue offset 8,
batch size 2, compacted offset 4, reserved 4. Kept under ``batchconsumequeue``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from storage_engine.rocketmq.format.consume_queue import QueueBounds
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.format.queue_files import EntryFormat, Position

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


def _in_use(entries: Any) -> Any:
    """BatchConsumeQueue#recover."""
    return (
        (entries["offset"] >= 0)
        & (entries["size"] > 0)
        & (entries["base_offset"] >= 0)
        & (entries["batch_size"] > 0)
    )


FORMAT = EntryFormat(DTYPE, _in_use)


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One entry: messages [base_offset, base_offset + batch_size) of the queue lie in one frame."""

    base_offset: int
    batch_size: int
    physical_offset: int
    size_bytes: int
    store_time_ms: int


def last_entry(files: tuple[MappedFile, ...]) -> BatchEntry | None:
    """A queue's newest entry; None when it has none."""
    found = FORMAT.last_position(files)
    return None if found is None else _entry(*found)


def bounds(files: tuple[MappedFile, ...], log_min_offset: int, last: Position = None) -> QueueBounds:
    """Return the readable queue offsets (BatchConsumeQueue#correctMinOffset).

    They count messages, not entries.

    :param last: as of :func:`storage_engine.rocketmq.format.consume_queue.bounds`.
    """
    at = last or FORMAT.last_position(files)
    newest = None if at is None else _entry(*at)
    if newest is None:
        return QueueBounds(0, 0)
    maximum = newest.base_offset + newest.batch_size
    first = _entry(*FORMAT.first_at_or_above(files, log_min_offset, at))
    return QueueBounds(maximum if first is None else first.base_offset, maximum)


def _entry(file: MappedFile, position: int) -> BatchEntry | None:
    if position >= FORMAT.capacity(file):
        return None
    entry = FORMAT.entry(file, position)
    if entry is None:
        return None
    return BatchEntry(
        base_offset=int(entry["base_offset"]),
        batch_size=int(entry["batch_size"]),
        physical_offset=int(entry["offset"]),
        size_bytes=int(entry["size"]),
        store_time_ms=int(entry["store_time"]),
    )
