"""Index files: from topic and key to the physical offsets of messages.

Header (40 bytes): begin timestamp 8, end timestamp 8, begin physical offset 8, end physical offset 8, used
slots 4, next entry 4. Then come hash slots of 4 bytes: the number of the newest entry with that hash. Then
come entries of 20 bytes: hash 4, physical offset 8, seconds since the begin timestamp 4, number of the
previous entry in the slot 4. Entries are numbered from 1. All numbers are big-endian.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.consume_queue import Entries
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import size_bytes_of
from storage_engine.rocketmq.format.stored_files import open_stored, refuse_link

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
NAME_DIGITS = 17
DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_DEFAULT_ENTRIES_PER_SLOT = 4
_HINT = "The broker rebuilds no index: restore the file, or move it away while the broker is stopped."


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """An index file's header; timestamps are store times in milliseconds since the epoch.

    :param next_entry: number of the next entry; next_entry - 1 entries are in use.
    """

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_phy_offset: int
    end_phy_offset: int
    used_slots: int
    next_entry: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One index file.

    :param capacity: number of entries for which a file has room, counting the unused number 0 (maxIndexNum).
    """

    path: Path
    size_bytes: int
    hash_slots: int
    capacity: int
    header: IndexHeader


def list_index_paths(layout: StoreLayout) -> tuple[Path, ...]:
    """Return a store's index files, oldest first.

    An empty last file is left out: the broker hasn't set its size yet, or was killed before.

    :raises CorruptFileError: a file's name isn't a time in the form yyyyMMddHHmmssSSS.
    :raises StoreLayoutError: a file is a symbolic link.
    """
    try:
        with os.scandir(layout.index) as scan:
            entries = list(scan)
    except FileNotFoundError:
        return ()
    sizes = {Path(entry.path): size_bytes_of(entry) for entry in entries}
    paths = sorted(path for path, size in sizes.items() if size is not None)
    for path in paths:
        refuse_link(path)
        if sizes[path] == -1:
            raise CorruptFileError(f"{path}: expected an ordinary file, found another kind. {_HINT}")
        if len(path.name) != NAME_DIGITS or not path.name.isdecimal():
            raise CorruptFileError(
                f"{path}: expected a name of {NAME_DIGITS} digits, the time at which it was begun. Move the "
                "file out of the store."
            )
    if paths and sizes[paths[-1]] == 0:
        paths.pop()
    return tuple(paths)


def read_header(path: Path) -> IndexHeader:
    """Read an index file's header.

    :raises CorruptFileError: the file is shorter than a header.
    """
    with open_stored(path) as file:
        data = file.read(HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        raise CorruptFileError(
            f"{path}: expected a header of {HEADER_BYTES} bytes, found {len(data)}. {_HINT}"
        )
    header = IndexHeader(*_HEADER.unpack(data))
    return replace(header, next_entry=max(1, header.next_entry))  # IndexHeader#load


def read_index_files(layout: StoreLayout, config: BrokerConfig) -> tuple[IndexFile, ...]:
    """Return a store's index files, oldest first.

    If the broker's settings don't have the numbers of slots and entries, a full file shows them. Without a
    full file, the default ratio of the two is assumed, and the file's newest entry must confirm it.

    :raises CorruptFileError: sizes differ, a header is impossible, or these numbers are unknown.
    """
    files = [(path, path.stat().st_size, read_header(path)) for path in list_index_paths(layout)]
    if not files:
        return ()
    slots, capacity = _shape(files, config)
    expected = HEADER_BYTES + slots * SLOT_BYTES + capacity * ENTRY_BYTES
    for path, size, header in files:
        if size != expected:
            raise CorruptFileError(f"{path}: expected {expected} bytes, found {size}. {_HINT}")
        if header.next_entry > capacity:
            raise CorruptFileError(
                f"{path}: offset 36: expected at most {capacity} entries, found {header.next_entry}. {_HINT}"
            )
    return tuple(IndexFile(path, size, slots, capacity, header) for path, size, header in files)


def read_slots(file: IndexFile) -> npt.NDArray[np.int32]:
    """Return the hash slots. Each has the number of its newest entry, or 0 without an entry."""
    return np.fromfile(file.path, ">i4", file.hash_slots, offset=HEADER_BYTES).astype(np.int32)


def read_entries(file: IndexFile) -> Entries:
    """Return the entries in use, from number 1 on."""
    start = HEADER_BYTES + SLOT_BYTES * file.hash_slots + ENTRY_BYTES
    return np.fromfile(file.path, DTYPE, file.header.next_entry - 1, offset=start)


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which ``topic#key`` is indexed (IndexFile#indexKeyHashMethod)."""
    return abs_or_zero(java_hash(f"{topic}#{key}"))


def java_hash(text: str) -> int:
    """Compute String#hashCode over UTF-16 units, as a signed 32-bit integer."""
    value = 0
    for unit in memoryview(text.encode("utf-16", "surrogatepass")[2:]).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def abs_or_zero(value: int) -> int:
    """Return Math#abs, but 0 for Integer.MIN_VALUE, which has no absolute value in 32 bits."""
    return 0 if value == -(1 << 31) else abs(value)


@contextmanager
def open_index(layout: StoreLayout, config: BrokerConfig) -> Iterator[Index]:
    """Map a store's index files for many lookups. The mappings are closed when the block ends.

    :raises CorruptFileError: a file isn't a possible index file.
    """
    with ExitStack() as stack:
        files = []
        for file in read_index_files(layout, config):
            with open_stored(file.path) as opened:
                data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            files.append((file, stack.enter_context(data)))
        yield Index(tuple(files))


@dataclass(frozen=True, slots=True)
class Index:
    """The index files of a store, mapped, oldest first."""

    files: tuple[tuple[IndexFile, mmap.mmap], ...]

    def lookup(self, topic: str, key: str, max_count: int) -> tuple[int, ...]:
        """Return the first ``max_count`` of :meth:`newest_first`, ascending (IndexService#queryOffset)."""
        return tuple(sorted(islice(self.newest_first(topic, key), max(0, max_count))))

    def newest_first(self, topic: str, key: str) -> Iterator[int]:
        """Yield the physical offsets with the hash of topic and key, the newest first.

        Another topic and key may have the same hash, and the log may no longer have a message.

        :param key: one of the message's keys, or its unique key.
        """
        hash_code = key_hash(topic, key)
        for file, data in reversed(self.files):
            yield from _chain(file, data, hash_code)


def _chain(file: IndexFile, data: mmap.mmap, hash_code: int) -> Iterator[int]:
    """Yield the offsets of a file's entries with this hash, the newest first (IndexFile#selectPhyOffset)."""
    if file.header.next_entry <= 1:
        return
    (number,) = _SLOT.unpack_from(data, HEADER_BYTES + SLOT_BYTES * (hash_code % file.hash_slots))
    entries = HEADER_BYTES + SLOT_BYTES * file.hash_slots
    # number next_entry may be in use: the broker writes an entry before it counts the entry
    while 0 < number <= min(file.header.next_entry, file.capacity - 1):
        entry_hash, offset, seconds, previous = _ENTRY.unpack_from(data, entries + ENTRY_BYTES * number)
        if seconds < 0:
            return
        if entry_hash == hash_code:
            yield offset
        if previous >= number:  # corrupt: entries only point back; without this check the loop may not end
            return
        number = previous


def _shape(files: Sequence[tuple[Path, int, IndexHeader]], config: BrokerConfig) -> tuple[int, int]:
    """Return for how many slots and entries a file has room."""
    path, size, header = files[0]
    room = size - HEADER_BYTES
    slots, capacity = config.max_hash_slot_num, config.max_index_num
    guessed = slots is None and capacity is None and len(files) == 1
    if guessed:
        slots = room // (SLOT_BYTES + _DEFAULT_ENTRIES_PER_SLOT * ENTRY_BYTES)
    elif slots is None and capacity is None:  # a new file is begun when the one before it is full
        capacity = header.next_entry
    if slots is None:
        slots = (room - (capacity or 0) * ENTRY_BYTES) // SLOT_BYTES
    if capacity is None:
        capacity = (room - slots * SLOT_BYTES) // ENTRY_BYTES
    fits = slots > 0 and slots * SLOT_BYTES + capacity * ENTRY_BYTES == room
    if not fits or (guessed and not _is_confirmed(IndexFile(path, size, slots, capacity, header))):
        raise CorruptFileError(
            f"{path}: expected {HEADER_BYTES} + {SLOT_BYTES} × maxHashSlotNum + {ENTRY_BYTES} × maxIndexNum "
            f"bytes, found {size} (tried {slots} and {capacity}). Name the broker.conf of the broker."
        )
    return slots, capacity


def _is_confirmed(file: IndexFile) -> bool:
    """Return whether the newest entry matches the file's header, and is the newest entry of its slot."""
    newest = file.header.next_entry - 1
    if newest == 0:
        return True
    entries = read_entries(file)
    slots = read_slots(file)
    return (
        len(entries) == newest
        and int(entries["offset"][-1]) == file.header.end_phy_offset
        and int(slots[int(entries["hash"][-1]) % file.hash_slots]) == newest
    )
