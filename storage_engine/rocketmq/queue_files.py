"""Directories <kind>/<topic>/<queue id>/ of fixed-size entries: what consume queues of both kinds share.

Reads as little as possible: one entry by position, the end by bisection, whole files only when asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.mapped_files import MappedFile, list_mapped_files

Entries = npt.NDArray[np.void]

FILLER_SIZE = 0x7FFFFFFF
"""Size in the entries (with offset 0) that fill up a queue that begins in the middle of a file
(ConsumeQueue#fillPreBlank); they lie before every message."""


def physical_offset(entry: np.void) -> int:
    """Where an entry's message lies in the commitlog; -1 for a filler."""
    return -1 if int(entry["size"]) == FILLER_SIZE else int(entry["offset"])


@dataclass(frozen=True, slots=True)
class QueueDirectory:
    """One queue of one topic."""

    topic: str
    queue_id: int
    path: Path


def iter_queues(directory: Path, *, min_files: int = 0) -> Iterator[QueueDirectory]:
    """The queues below ``consumequeue`` (or a directory like it), in the order the file system gives.

    A directory whose name is not a number is no queue (ConsumeQueueStore#loadConsumeQueues).

    :param min_files: pass over queues of fewer files; cheaper than asking afterwards.
    """
    try:
        topics = os.scandir(directory)
    except FileNotFoundError:
        return
    with topics:
        for topic in topics:
            if not topic.is_dir():
                continue
            with os.scandir(topic.path) as queues:
                for queue in queues:
                    if (
                        queue.name.isascii()
                        and queue.name.isdecimal()
                        and queue.is_dir()
                        and _has_files(queue.path, min_files)
                    ):
                        yield QueueDirectory(topic.name, int(queue.name), Path(queue.path))


def _has_files(directory: str, count: int) -> bool:
    if count == 0:
        return True
    with os.scandir(directory) as files:
        return sum(1 for _ in islice(files, count)) == count


@dataclass(frozen=True, slots=True)
class EntryFormat:
    """The entries of one kind of queue.

    :param dtype: big-endian, packed; has a field ``offset``: the physical offset.
    :param in_use: which entries of an array the recovery of the broker takes for written.
    """

    dtype: np.dtype[Any]
    in_use: Callable[[Entries], npt.NDArray[np.bool_]]

    def files(self, queue: Path, *, size_bytes: int | None = None) -> tuple[MappedFile, ...]:
        """A queue's files, oldest first.

        :raises CorruptFileError: they don't form one contiguous queue.
        """
        return list_mapped_files(
            (queue,), error=CorruptFileError, size_bytes=size_bytes, unit_bytes=self.dtype.itemsize
        )

    def read_file(self, file: MappedFile) -> Entries:
        """The entries of one file that are in use: up to the first one that isn't, as recovery reads."""
        data = file.path.read_bytes()
        if len(data) != file.size_bytes:
            raise CorruptFileError(f"{file.path}: expected {file.size_bytes} bytes, found {len(data)}.")
        entries = np.frombuffer(data, self.dtype)
        unused = np.flatnonzero(~self.in_use(entries))
        return entries[: unused[0]] if unused.size else entries

    def read_queue(self, files: tuple[MappedFile, ...]) -> Entries:
        """All entries of a queue's files that are in use."""
        parts = []
        for file in files:
            parts.append(self.read_file(file))
            if len(parts[-1]) < self.capacity(file):
                break
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def capacity(self, file: MappedFile) -> int:
        return file.size_bytes // self.dtype.itemsize

    def entry(self, file: MappedFile, position: int) -> np.void | None:
        """The entry at ``position`` (counted in entries) of a file; None when it isn't in use."""
        with file.path.open("rb", buffering=0) as opened:
            entry = self._read_at(opened.fileno(), file, position)
        return entry if self._is_used(entry) else None

    def count_in_use(self, file: MappedFile) -> int:
        """How many entries of a file are in use, by bisection: written ones come first."""
        with file.path.open("rb", buffering=0) as opened:
            low, high = 0, self.capacity(file)
            while low < high:
                middle = (low + high) // 2
                if self._is_used(self._read_at(opened.fileno(), file, middle)):
                    low = middle + 1
                else:
                    high = middle
        return low

    def last_position(self, files: tuple[MappedFile, ...]) -> tuple[MappedFile, int] | None:
        """Where a queue's last entry in use is: its file and position there; None in an empty queue.

        Files behind it are preallocated or left over.
        """
        for file in reversed(files):
            count = self.count_in_use(file)
            if count:
                return file, count - 1
        return None

    def first_at_or_above(self, files: tuple[MappedFile, ...], minimum: int) -> tuple[MappedFile, int]:
        """Position of the first entry in use whose message lies at or above the physical offset ``minimum``.

        It is that of the entry to come when there is none (ConsumeQueue#correctMinOffset: the min offset
        of a queue without valid entries is its max offset). By bisection: entries ascend.

        :param files: at least one.
        """
        for file in files:
            count = self.count_in_use(file)
            position = self._bisect(file, count, minimum)
            if position < self.capacity(file):
                break
        return file, position

    def _bisect(self, file: MappedFile, count: int, minimum: int) -> int:
        with file.path.open("rb", buffering=0) as opened:
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                if physical_offset(self._read_at(opened.fileno(), file, middle)) < minimum:
                    low = middle + 1
                else:
                    high = middle
        return low

    def _is_used(self, entry: np.void) -> bool:
        return bool(self.in_use(np.array([entry], self.dtype))[0])

    def _read_at(self, fd: int, file: MappedFile, position: int) -> np.void:
        size = self.dtype.itemsize
        data = os.pread(fd, size, position * size)
        if len(data) != size:
            raise CorruptFileError(
                f"{file.path}: expected an entry of {size} bytes at position {position * size}, "
                f"found the file's end after {len(data)}."
            )
        entry: np.void = np.frombuffer(data, self.dtype)[0]
        return entry
