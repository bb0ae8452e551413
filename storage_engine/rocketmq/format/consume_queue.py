"""Consume queues and their extensions: for each queue, where its messages are in the commitlog.

Queues of every kind are directories <kind>/<topic>/<queue id>/ with files of fixed-size entries. As little as
possible is read: single entries by position, a queue's end by bisection, whole files on request.

Entry (20 bytes, big-endian): physical offset 8, frame size 4, tags code 8. Queue offsets count entries: entry
i of a file has queue offset base_offset / 20 + i.

Extensions of consume queues (ConsumeQueueExt) have data for which an entry has no room. Unit, big-endian:
size 2, tags code 8, store time 8, bitmap length 2, bitmap. The queue's entry then has the address of its unit
in place of the tags code: Long.MIN_VALUE + the unit's offset. A unit size below 1 marks a file's end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format.broker_config import CONSUME_QUEUE_ENTRY_BYTES
from storage_engine.rocketmq.format.mapped_files import MappedFile, list_mapped_files, queue_id_of
from storage_engine.rocketmq.format.stored_files import open_stored, symbolic_link

Entries = npt.NDArray[np.void]
Position = tuple[MappedFile, int] | None
"""File of an entry and the entry's number in the file; None if there is no entry, or it isn't known."""

FILLER_SIZE = 0x7FFFFFFF
"""Size field of filler entries, whose offset is 0. If a queue begins in the middle of a file, fillers precede
its first message (ConsumeQueue#fillPreBlank).
"""


def physical_offset(entry: Mapping[str, int]) -> int:
    """Return the physical offset of an entry's message; -1 for a filler."""
    return -1 if int(entry["size"]) == FILLER_SIZE else int(entry["offset"])


@dataclass(frozen=True, slots=True)
class QueueDirectory:
    """One queue of one topic."""

    topic: str
    queue_id: int
    path: Path


def iter_queues(directory: Path, *, min_files: int = 0) -> Iterator[QueueDirectory]:
    """Yield the queues below ``consumequeue`` (or a similar directory), in the file system's order.

    A directory whose name is not a number is no queue (ConsumeQueueStore#loadConsumeQueues).

    :param min_files: skip queues with fewer files. This is cheaper than a check by the caller.
    :raises StoreLayoutError: a topic or a queue is a symbolic link.
    """
    try:
        topics = os.scandir(directory)
    except FileNotFoundError:
        return
    with topics:
        for topic in topics:
            if topic.is_symlink():
                raise symbolic_link(topic.path)
            if not topic.is_dir():
                continue
            with os.scandir(topic.path) as queues:
                for queue in queues:
                    queue_id = queue_id_of(queue.name)
                    if queue_id is None:
                        continue
                    if queue.is_symlink():
                        raise symbolic_link(queue.path)
                    if queue.is_dir() and _has_files(queue.path, min_files):
                        yield QueueDirectory(topic.name, queue_id, Path(queue.path))


def _has_files(directory: str, count: int) -> bool:
    if count == 0:
        return True
    with os.scandir(directory) as files:
        return sum(1 for _ in islice(files, count)) == count


@dataclass(frozen=True, slots=True)
class EntryFormat:
    """The entries of one kind of queue.

    :param dtype: type of an entry, big-endian and packed; its field ``offset`` is the physical offset.
    :param in_use: whether the broker's recovery accepts an entry as written; takes one entry or an array.
    """

    dtype: np.dtype[Any]
    in_use: Callable[[Any], Any]

    def files(self, queue: Path, *, size_bytes: int | None = None) -> tuple[MappedFile, ...]:
        """Return a queue's files, oldest first.

        :raises CorruptFileError: the files don't form one contiguous queue.
        """
        return list_mapped_files(
            (queue,), error=CorruptFileError, size_bytes=size_bytes, unit_bytes=self.dtype.itemsize
        )

    def read_file(self, file: MappedFile) -> Entries:
        """Return one file's entries up to the first that isn't in use, as the broker's recovery does."""
        # Bytes behind these entries aren't read: the file may be sparse and have gigabytes.
        size = self.count_in_use(file) * self.dtype.itemsize
        with open_stored(file.path) as opened:
            data = opened.read(size)
        if len(data) != size:
            raise CorruptFileError(f"{file.path}: expected at least {size} bytes, found {len(data)}.")
        entries = np.frombuffer(data, self.dtype)
        unused = np.flatnonzero(~self.in_use(entries))
        return entries[: unused[0]] if unused.size else entries

    def read_queue(self, files: tuple[MappedFile, ...]) -> Entries:
        """Return the entries of a queue's files, up to the first entry that isn't in use."""
        parts = []
        for file in files:
            parts.append(self.read_file(file))
            if len(parts[-1]) < self.capacity(file):
                break
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def capacity(self, file: MappedFile) -> int:
        return file.size_bytes // self.dtype.itemsize

    def entry(self, file: MappedFile, position: int) -> Mapping[str, int] | None:
        """Return the fields of the entry with number ``position`` in a file; None if it isn't in use."""
        with open_stored(file.path) as opened:
            entry = self._read_at(opened.fileno(), file, position)
        return entry if self.in_use(entry) else None

    def count_in_use(self, file: MappedFile) -> int:
        """Return the number of entries in use in a file, by bisection: written entries come first."""
        with open_stored(file.path) as opened:
            fd, high = opened.fileno(), self.capacity(file)
            if self.in_use(self._read_at(fd, file, high - 1)):
                return high
            return self._bisect(fd, file, high - 1, self.in_use)

    def last_position(self, files: tuple[MappedFile, ...]) -> tuple[MappedFile, int] | None:
        """Return the file and the number of a queue's last entry in use; None if the queue is empty.

        Files behind this entry are preallocated or left over.
        """
        for file in reversed(files):
            if count := self.count_in_use(file):
                return file, count - 1
        return None

    def last_message(self, files: tuple[MappedFile, ...]) -> tuple[int, int] | None:
        """Return physical offset and size of the message of a queue's last entry; None without a message."""
        last = self.last_position(files)
        entry = None if last is None else self.entry(*last)
        if entry is None or entry["size"] == FILLER_SIZE:
            return None
        return entry["offset"], entry["size"]

    def first_at_or_above(
        self, files: tuple[MappedFile, ...], minimum: int, last: tuple[MappedFile, int] | None = None
    ) -> tuple[MappedFile, int]:
        """Return the position of the first entry in use whose message is at ``minimum`` or above.

        Without such an entry, return the position of the next entry to be written. In
        ConsumeQueue#correctMinOffset, the min offset of a queue without valid entries is its max offset, too.
        The search is a bisection, since entries ascend.

        :param files: at least one file.
        :param last: result of :meth:`last_position` for these files, if the caller has it.
        """

        def below(entry: Mapping[str, int]) -> bool:
            return physical_offset(entry) < minimum

        for file in files:
            count = last[1] + 1 if last and file == last[0] else self.count_in_use(file)
            with open_stored(file.path) as opened:
                fd = opened.fileno()
                if not count or not below(self._read_at(fd, file, 0)):
                    position = 0
                else:
                    position = self._bisect(fd, file, count, below)
            if position < self.capacity(file):
                break
        return file, position

    def first_left(self, files: tuple[MappedFile, ...], minimum: int) -> tuple[MappedFile, int]:
        """Return the same as :meth:`first_at_or_above`, without a search for the queue's end.

        :param files: at least one file.
        """

        def is_gone(entry: Mapping[str, int]) -> bool:
            return bool(self.in_use(entry)) and physical_offset(entry) < minimum

        for file in files:
            with open_stored(file.path) as opened:
                fd, count = opened.fileno(), self.capacity(file)
                if not is_gone(self._read_at(fd, file, count - 1)):
                    return file, self._bisect(fd, file, count - 1, is_gone)
        return files[-1], self.capacity(files[-1])

    def _bisect(
        self, fd: int, file: MappedFile, count: int, holds: Callable[[Mapping[str, int]], Any]
    ) -> int:
        """Return how many of the first ``count`` entries meet a condition. They must precede all others."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if holds(self._read_at(fd, file, middle)):
                low = middle + 1
            else:
                high = middle
        return low

    def _read_at(self, fd: int, file: MappedFile, position: int) -> Mapping[str, int]:
        form = _struct(self.dtype)
        data = os.pread(fd, form.size, position * form.size)
        if len(data) != form.size:
            raise CorruptFileError(
                f"{file.path}: expected an entry of {form.size} bytes at position {position * form.size}, "
                f"found the file's end after {len(data)}."
            )
        return dict(zip(self.dtype.names or (), form.unpack(data), strict=True))


_LETTERS = {2: "h", 4: "i", 8: "q"}


@cache
def _struct(dtype: np.dtype[Any]) -> struct.Struct:
    """Return a struct with the dtype's fields. It reads a single entry several times as fast as NumPy."""
    return struct.Struct(">" + "".join(_LETTERS[dtype[name].itemsize] for name in dtype.names or ()))


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
    """Return the queue offset of the next entry: without entries the files' first offset, without files 0."""
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
