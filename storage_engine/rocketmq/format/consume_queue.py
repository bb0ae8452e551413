"""Consume queues and their extensions: for each queue, where its messages are in the commitlog.

Entry (20 bytes, big-endian): physical offset 8, frame size 4, tags code 8. Queue offsets count entries: entry
i of a file has queue offset base_offset / 20 + i.

Extensions of consume queues (ConsumeQueueExt) have data for which an entry has no room. Unit, big-endian:
size 2, tags code 8, store time 8, bitmap length 2, bitmap. The queue's entry then has the address of its unit
in place of the tags code: Long.MIN_VALUE + the unit's offset. A unit size below 1 marks a file's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format.broker_config import CONSUME_QUEUE_ENTRY_BYTES
from storage_engine.rocketmq.format.mapped_files import MappedFile, list_mapped_files
from storage_engine.rocketmq.format.queue_files import FILLER_SIZE, EntryFormat, Position

DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


def _is_in_use(entries: Any) -> Any:
    """Return which entries are in use, by the rule of ConsumeQueue#recover."""
    return (entries["offset"] >= 0) & (entries["size"] > 0)


FORMAT = EntryFormat(DTYPE, _is_in_use)
"""Format of entries. Fillers count as in use. A queue's first offset is the first file's base offset / 20."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a consume queue. It points at a message in the log."""

    queue_offset: int
    physical_offset: int
    size_bytes: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Range of readable queue offsets [min_offset, max_offset), as the broker reports it."""

    min_offset: int
    max_offset: int


def last_entry(files: tuple[MappedFile, ...]) -> Entry | None:
    """Return a queue's newest entry; None if the queue is empty, or its newest entry is a filler."""
    position = FORMAT.last_position(files)
    return None if position is None else _entry(*position)


def entry_at(files: tuple[MappedFile, ...], queue_offset: int) -> Entry | None:
    """Return the entry at a queue offset; None if it was deleted, isn't written yet, or is a filler."""
    position = queue_offset * CONSUME_QUEUE_ENTRY_BYTES
    for file in files:
        if file.base_offset <= position < file.end_offset:
            return _entry(file, (position - file.base_offset) // CONSUME_QUEUE_ENTRY_BYTES)
    return None


def bounds(files: tuple[MappedFile, ...], log_min_offset: int, last: Position = None) -> QueueBounds:
    """Return the readable queue offsets for a min offset of the commitlog (ConsumeQueue#correctMinOffset).

    If all messages of a queue are deleted, both bounds are its max offset.

    :param last: the result of ``FORMAT.last_position``, if the caller has it.
    """
    if not files:
        return QueueBounds(0, 0)
    last = last or FORMAT.last_position(files)
    low = queue_offset(*FORMAT.first_at_or_above(files, log_min_offset, last))
    return QueueBounds(low, next_queue_offset(files, last))


def next_queue_offset(files: tuple[MappedFile, ...], last: Position) -> int:
    """Return the queue offset of the next entry. Without entries, its files' first offset, or 0."""
    if last is not None:
        return queue_offset(*last) + 1
    return files[0].base_offset // CONSUME_QUEUE_ENTRY_BYTES if files else 0


def queue_offset(file: MappedFile, position: int) -> int:
    """Return the queue offset of the entry with number ``position`` in a file."""
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


HEADER_BYTES = 20
END_BLANK_BYTES = 4
MAX_ADDRESS = -(1 << 31) - 1
_MIN_LONG = -(1 << 63)


@dataclass(frozen=True, slots=True)
class ExtUnits:
    """Units of one file, as columns; ``bitmap`` has bytes objects."""

    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int16]
    tags_code: npt.NDArray[np.int64]
    store_time_ms: npt.NDArray[np.int64]
    bitmap: tuple[bytes, ...]


def list_files(queue: Path, *, size_bytes: int | None = None) -> tuple[MappedFile, ...]:
    """List a queue's extension files, oldest first.

    :param queue: the directory consumequeue_ext/<topic>/<queue id>.
    :raises CorruptFileError: a file has a wrong name or size, or there is a hole.
    """
    return list_mapped_files((queue,), error=CorruptFileError, size_bytes=size_bytes)


def unit_offset(tags_code: int) -> int | None:
    """Return the offset of the unit that an entry's tags code points to (ConsumeQueueExt#unDecorate).

    :return: None if the value is a real tags code rather than an address (ConsumeQueueExt#isExtAddr).
    """
    return tags_code - _MIN_LONG if tags_code <= MAX_ADDRESS else None


def read_units(file: MappedFile) -> ExtUnits:
    """Return all units of a file.

    :raises CorruptFileError: a unit is shorter than its header or longer than the file.
    """
    data = np.fromfile(file.path, np.uint8)
    if len(data) != file.size_bytes:
        raise CorruptFileError(f"{file.path}: expected {file.size_bytes} bytes, found {len(data)}.")
    runs = list(_runs(file, data))
    positions = [position + np.arange(len(units)) * units.itemsize for position, units in runs]
    return ExtUnits(
        offset=file.base_offset + _joined(positions, np.int64),
        size=_joined([units["size"] for _, units in runs], np.int16),
        tags_code=_joined([units["tags_code"] for _, units in runs], np.int64),
        store_time_ms=_joined([units["store_time"] for _, units in runs], np.int64),
        bitmap=tuple(bitmap.tobytes() for _, units in runs for bitmap in units["bitmap"]),
    )


def _joined(parts: list[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _runs(file: MappedFile, data: npt.NDArray[np.uint8]) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
    """Yield runs of consecutive units of equal size, each as one array. A file has few different sizes."""
    position = 0
    while position + 2 <= len(data):
        size = int(data[position : position + 2].view(">i2")[0])
        if size < 1:
            return
        if size < HEADER_BYTES or position + size > len(data):
            raise CorruptFileError(
                f"{file.path}: offset {position}: expected a unit of {HEADER_BYTES} bytes or more, "
                f"{len(data) - position} at most, found size {size}."
            )
        dtype = np.dtype(
            [
                ("size", ">i2"),
                ("tags_code", ">i8"),
                ("store_time", ">i8"),
                ("bitmap_size", ">i2"),
                ("bitmap", np.uint8, (size - HEADER_BYTES,)),
            ]
        )
        units = data[position : position + (len(data) - position) // size * size].view(dtype)
        others = np.flatnonzero(units["size"] != size)
        units = units[: others[0]] if others.size else units
        if not (units["bitmap_size"] == size - HEADER_BYTES).all():
            bad = int(np.flatnonzero(units["bitmap_size"] != size - HEADER_BYTES)[0])
            raise CorruptFileError(
                f"{file.path}: offset {position + bad * size}: expected a bitmap of {size - HEADER_BYTES} "
                f"bytes, found {int(units['bitmap_size'][bad])}."
            )
        yield position, units
        position += len(units) * size
