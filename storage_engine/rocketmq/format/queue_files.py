"""Directories <kind>/<topic>/<queue id>/ with files of fixed-size entries, for consume queues of both kinds.

As little as possible is read: single entries by position, a queue's end by bisection, whole files on request.
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
    :param in_use: whether the broker's recovery accepts an entry as written; takes an array or one's fields.
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
        """Return all entries of a queue's files that are in use."""
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

        Without such an entry, return the position of the next entry to be written (by
        ConsumeQueue#correctMinOffset, the min offset of a queue without valid entries is its max offset). The
        search is a bisection, since entries ascend.

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
        """Return for how many of the first ``count`` entries a condition holds. Behind them it must fail."""
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
