"""Consume queues: for each queue of a topic, where its messages lie in the commitlog.

Entry (20 bytes, big-endian): physical offset 8, frame size 4, tags code 8. A queue's offset counts
entries: entry i of a file is queue offset base_offset / 20 + i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from storage_engine.rocketmq.format.broker_config import CONSUME_QUEUE_ENTRY_BYTES
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.format.queue_files import FILLER_SIZE, EntryFormat, Position

DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


def _in_use(entries: Any) -> Any:
    """ConsumeQueue#recover."""
    return (entries["offset"] >= 0) & (entries["size"] > 0)


FORMAT = EntryFormat(DTYPE, _in_use)
"""Fillers are in use; the first entry's queue offset is the first file's base / 20."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a consume queue: where a message lies."""

    queue_offset: int
    physical_offset: int
    size_bytes: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Queue offsets [min_offset, max_offset) that are readable, as the broker reports them."""

    min_offset: int
    max_offset: int


def last_entry(files: tuple[MappedFile, ...]) -> Entry | None:
    """A queue's newest entry; None when it has none."""
    found = FORMAT.last_position(files)
    return None if found is None else _entry(*found)


def entry_at(files: tuple[MappedFile, ...], queue_offset: int) -> Entry | None:
    """The entry of a queue offset; None when the queue has none there (any more, or yet)."""
    position = queue_offset * CONSUME_QUEUE_ENTRY_BYTES
    for file in files:
        if file.base_offset <= position < file.end_offset:
            return _entry(file, (position - file.base_offset) // CONSUME_QUEUE_ENTRY_BYTES)
    return None


def bounds(files: tuple[MappedFile, ...], log_min_offset: int, last: Position = None) -> QueueBounds:
    """The readable queue offsets, given the commitlog's min offset (ConsumeQueue#correctMinOffset).

    A queue whose messages are all gone keeps its max offset, and its min offset equals it.

    :param last: where the last entry is (``FORMAT.last_position``) where that is known already.
    """
    if not files:
        return QueueBounds(0, 0)
    last = last or FORMAT.last_position(files)
    maximum = files[0].base_offset // CONSUME_QUEUE_ENTRY_BYTES if last is None else queue_offset(*last) + 1
    return QueueBounds(queue_offset(*FORMAT.first_at_or_above(files, log_min_offset, last)), maximum)


def queue_offset(file: MappedFile, position: int) -> int:
    """Return the queue offset of the entry at a position of a file."""
    return file.base_offset // CONSUME_QUEUE_ENTRY_BYTES + position


def _entry(file: MappedFile, position: int) -> Entry | None:
    entry = FORMAT.entry(file, position)
    if entry is None or int(entry["size"]) == FILLER_SIZE:
        return None
    return Entry(
        queue_offset=queue_offset(file, position),
        physical_offset=int(entry["offset"]),
        size_bytes=int(entry["size"]),
        tags_code=int(entry["tags_code"]),
    )
