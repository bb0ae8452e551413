"""Writing and recovery of consume queues and their extensions (ConsumeQueue, ConsumeQueueExt)."""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.exceptions import StoreLayoutError
from storage_engine.rocketmq.engine.dispatch.dispatch_kernels import next_entries
from storage_engine.rocketmq.engine.dispatch.entry_files import EntryFiles
from storage_engine.rocketmq.engine.engine_settings import EngineSettings
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue
from storage_engine.rocketmq.format.consume_queue import (
    END_BLANK_BYTES,
    FILLER_SIZE,
    HEADER_BYTES,
    MAX_ADDRESS,
    Entries,
    EntryFormat,
    iter_queues,
    unit_offset,
)
from storage_engine.rocketmq.format.layout import StoreLayout

UNIT = consume_queue.DTYPE.itemsize
Longs = npt.NDArray[np.int64]
_FILES_TO_RECOVER = 3
_BLOCK_ENTRIES = 3276
_EXT_UNIT = np.dtype([("size", ">i2"), ("tags_code", ">i8"), ("store_time", ">i8"), ("bitmap_size", ">i2")])
_MIN_LONG = -(1 << 63)
_SHORT = struct.Struct(">h")
BATCH_UNIT = batch_consume_queue.DTYPE.itemsize
_NOT_COMPACTED = -1


class ExtWriter:
    """The extension of a consume queue. Each entry has one unit without a bitmap."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self.files = EntryFiles(directory, file_bytes)

    def append(self, tags_codes: Longs, store_ms: Longs) -> Longs:
        """Write units and return their addresses (ConsumeQueueExt#put)."""
        units = np.zeros(len(tags_codes), _EXT_UNIT)
        units["size"], units["tags_code"], units["store_time"] = HEADER_BYTES, tags_codes, store_ms
        addresses = np.empty(len(units), np.int64)
        written = 0
        while written < len(units):
            self.files.begin_file(0)
            room = self.files.file_bytes - self.files.wrote - END_BLANK_BYTES
            count = min(len(units) - written, room // HEADER_BYTES)
            if count <= 0:
                # Skip the rest of the file, so that the next unit begins a new file.
                self.files.append(_SHORT.pack(-1))
                self.files.wrote = self.files.file_bytes
                continue
            addresses[written : written + count] = (
                _MIN_LONG + self.files.end + HEADER_BYTES * np.arange(count, dtype=np.int64)
            )
            self.files.append(units[written : written + count].tobytes())
            written += count
        return addresses

    def are_complete(self, addresses: Longs) -> npt.NDArray[np.bool_]:
        """Return for each address whether its unit is complete.

        A page that was lost in a power loss is full of zeros, and a unit may lie on two pages.
        """
        complete = np.zeros(len(addresses), bool)
        offsets = addresses - _MIN_LONG
        for base in self.files.bases:
            in_file = (offsets >= base) & (offsets + HEADER_BYTES <= base + self.files.file_bytes)
            if not in_file.any():
                continue
            first = int(offsets[in_file].min()) - base
            count = int(offsets[in_file].max()) - base - first + HEADER_BYTES
            data = np.frombuffer(self.files.read(base, first, count).ljust(count, b"\0"), np.uint8)
            positions = (offsets[in_file] - base - first)[:, None] + np.arange(HEADER_BYTES)
            units = data[positions].view(_EXT_UNIT)[:, 0]
            sizes_match = units["bitmap_size"] == units["size"] - HEADER_BYTES
            complete[in_file] = (units["store_time"] > 0) & sizes_match
        return complete

    def recover(self) -> None:
        """Cut off the bytes behind the last file's units (ConsumeQueueExt#recover)."""
        if not self.files.bases:
            return
        position = 0
        for base in self.files.bases:
            data = self.files.read(base, 0, self.files.file_bytes)
            position = 0
            while position + 2 <= len(data):
                (size,) = _SHORT.unpack_from(data, position)
                if size <= 0:
                    break
                position += size
        self.files.truncate(self.files.bases[-1] + position)

    def truncate_behind(self, address: int) -> None:
        """Cut off the units behind the one at an address (ConsumeQueueExt#truncateByMaxAddress)."""
        offset = unit_offset(address)
        if offset is None:
            return
        base = offset - offset % self.files.file_bytes
        position = offset - base
        if base not in self.files.bases or offset + 2 > self.files.end:
            return
        (size,) = _SHORT.unpack(self.files.read(base, position, 2))
        if size >= 1:
            self.files.truncate(offset + size)

    def delete_before(self, address: int) -> None:
        """Delete files that end before a unit's address (ConsumeQueueExt#truncateByMinAddress)."""
        offset = unit_offset(address)
        while (
            offset is not None and self.files.bases and self.files.bases[0] + self.files.file_bytes < offset
        ):
            self.files.delete_first()


def files_to_look_at(files: EntryFiles, form: EntryFormat, unflushed_from: int | None) -> int:
    """Return how many of a queue's last files a recovery reads.

    :param unflushed_from: see :meth:`QueueWriter.recover`.
    """
    count = _FILES_TO_RECOVER
    if unflushed_from is None:
        return count
    for number, base in enumerate(reversed(files.bases), 1):
        count = max(count, number)
        first = np.frombuffer(files.read(base, 0, form.dtype.itemsize), form.dtype)[0]
        if form.in_use(first) and int(first["offset"]) < unflushed_from:
            break
    return count


def cut_behind(files: EntryFiles, form: EntryFormat, log_end: int) -> None:
    """Cut off entries of messages behind the log's end, and delete files without an entry.

    The broker's own rule (``truncate``) stops if the last file has no entry.
    """
    unit = form.dtype.itemsize
    while files.bases:
        entries = np.frombuffer(files.read(files.bases[-1], 0, files.wrote // unit * unit), form.dtype)
        cut = np.flatnonzero(~form.in_use(entries) | (entries["offset"] >= log_end))
        count = int(cut[0]) if cut.size else len(entries)
        if count:
            files.truncate(files.bases[-1] + count * unit)
            return
        files.delete_last()


def delete_below(files: EntryFiles, form: EntryFormat, min_offset: int) -> int:
    """Delete files whose last entry points below an offset (MappedFileQueue#deleteExpiredFileByOffset)."""
    unit, deleted = form.dtype.itemsize, 0
    while len(files.bases) > 1:
        last = np.frombuffer(
            files.read(files.bases[0], files.file_bytes // unit * unit - unit, unit), form.dtype
        )
        if int(last[0]["offset"]) >= min_offset:
            break
        files.delete_first()
        deleted += 1
    return deleted


class QueueWriter:
    """One consume queue."""

    def __init__(self, directory: Path, file_bytes: int, ext: ExtWriter | None) -> None:
        self.files = EntryFiles(directory, file_bytes)
        self.ext = ext
        self.max_physical_offset = -1
        """End of the newest message that has an entry."""
        self._min_position = 0

    @property
    def next_queue_offset(self) -> int:
        return self.files.end // UNIT

    @property
    def min_queue_offset(self) -> int:
        """Return the first queue offset whose message is in the log, as :meth:`correct_min` last set it."""
        return self._min_position // UNIT

    def load(self) -> None:
        """Find the files (ConsumeQueue#load)."""
        self.files.load()
        if self.ext:
            self.ext.files.load()

    def append_next(self, rows: int, chosen: int, count: int) -> bool:
        """Write the entries of messages if they directly follow the last entry and each other.

        :param rows: address of a dispatch's rows.
        :param chosen: address of the numbers of the rows to write.
        :return: False if no entry was written: then :meth:`append` has to check each message.
        """
        if self.ext or not self.files.bases:
            return False
        entries = np.empty(UNIT * count, np.uint8)
        end = next_entries(
            rows, chosen, count, self.max_physical_offset, self.next_queue_offset, address_of(entries)
        )
        if end:
            self.files.append(entries.data)
            self.max_physical_offset = end
        return end > 0

    def append(
        self, physical: Longs, sizes: Longs, tags_codes: Longs, queue_offsets: Longs, store_ms: Longs | None
    ) -> None:
        """Write the entries of messages in their order (ConsumeQueue#putMessagePositionInfoWrapper).

        Messages that already have an entry are skipped.

        :param store_ms: store times for units of the extension; None to write no units.
        """
        if self.ext and store_ms is not None:
            tags_codes = self.ext.append(tags_codes, store_ms)
        fresh = physical + sizes > self.max_physical_offset
        if not fresh.all():
            physical, sizes = physical[fresh], sizes[fresh]
            tags_codes, queue_offsets = tags_codes[fresh], queue_offsets[fresh]
        if not len(physical):
            return
        entries = np.empty(len(physical), consume_queue.DTYPE)
        entries["offset"], entries["size"], entries["tags_code"] = physical, sizes, tags_codes
        contiguous = bool((np.diff(queue_offsets) == 1).all())
        for number, queue_offset in enumerate(queue_offsets.tolist()):
            if contiguous and self.files.bases and queue_offset == self.next_queue_offset:
                self.files.append(entries[number:].tobytes())
                self.max_physical_offset = int(physical[-1] + sizes[-1])
                return
            self._append_one(entries[number], queue_offset)

    def _append_one(self, entry: np.void, queue_offset: int) -> None:
        """Write an entry, with or without a gap before it (ConsumeQueue#putMessagePositionInfo)."""
        expected = queue_offset * UNIT
        if self.files.begin_file(expected) and queue_offset != 0:
            # Write fillers before the queue's first entry (ConsumeQueue#fillPreBlank).
            filler = struct.pack(">qiq", 0, FILLER_SIZE, 0)
            self.files.append(filler * (expected % self.files.file_bytes // UNIT))
            self.files.flushed = expected - expected % self.files.file_bytes
        if queue_offset != 0 and expected < self.files.end:
            return
        self.max_physical_offset = int(entry["offset"]) + int(entry["size"])
        self.files.append(entry.tobytes())

    def flush(self, least_pages: int) -> None:
        self.files.flush(least_pages)
        if self.ext:
            self.ext.files.flush(least_pages)

    def recover(self, unflushed_from: int | None = None) -> None:
        """Find the end of the entries in use, from the last three files (ConsumeQueue#recover).

        :param unflushed_from: offset of the log. For messages from there on, pages of entries may be missing
            on disk, so all files with such entries are read. None if all entries are on disk.
        """
        bases = self.files.bases
        if not bases:
            return
        newest_ext = 1
        end = 0
        for base in bases[-files_to_look_at(self.files, consume_queue.FORMAT, unflushed_from) :]:
            count = 0
            for block in self._blocks(base):
                entries = block[: self._count_with_units(block, unflushed_from)]
                count += len(entries)
                if len(entries):
                    self.max_physical_offset = int(entries[-1]["offset"]) + int(entries[-1]["size"])
                    addresses = entries["tags_code"][entries["tags_code"] <= MAX_ADDRESS]
                    newest_ext = int(addresses[-1]) if len(addresses) else newest_ext
                if len(entries) < len(block):
                    break
            end = base + count * UNIT
            if count * UNIT != self.files.file_bytes:
                break
        self.files.truncate(end)
        if self.ext:
            # New units overwrite the old ones at other addresses: no old entry may stay and point to them.
            self.files.erase_rest()
            self.ext.recover()
            self.ext.truncate_behind(newest_ext)
            # After a power loss, an entry must not point to an old unit in place of its own.
            self.ext.files.erase_rest()

    def _count_with_units(self, entries: Entries, unflushed_from: int | None) -> int:
        """Return the number of entries before the first one whose unit was lost in a power loss.

        From that entry on, all are written again when their messages are dispatched again. (The broker keeps
        these entries, and appends new units where the lost ones were. So the entries point to wrong units.)
        """
        if self.ext is None or unflushed_from is None:
            return len(entries)
        unsure = np.flatnonzero((entries["offset"] >= unflushed_from) & (entries["tags_code"] <= MAX_ADDRESS))
        lost = unsure[~self.ext.are_complete(entries["tags_code"][unsure].astype(np.int64))]
        return int(lost[0]) if lost.size else len(entries)

    def truncate(self, physical_offset: int) -> None:
        """Cut off entries of messages at or behind an offset (ConsumeQueue#truncateDirtyLogicFiles)."""
        self.max_physical_offset = physical_offset
        while self.files.bases:
            base = self.files.bases[-1]
            first = self._entry(base, 0)
            if int(first["offset"]) >= physical_offset:
                self.files.delete_last()
                continue
            # The broker keeps a file's first entry without a check, even if it was never written.
            count_kept, last = 1, first
            for number, entries in enumerate(self._blocks(base)):
                behind = np.flatnonzero(entries["offset"] >= physical_offset)
                count = int(behind[0]) if behind.size else len(entries)
                if count:
                    count_kept, last = number * _BLOCK_ENTRIES + count, entries[count - 1]
                if behind.size:
                    break
            self.files.truncate(base + count_kept * UNIT)
            self.max_physical_offset = int(last["offset"]) + int(last["size"])
            return
        if self.ext:
            self.ext.truncate_behind(1)

    def drop_behind(self, log_end: int) -> None:
        """Cut off all entries of messages behind the log's end, also those that the broker's rule misses."""
        end = self.files.end
        cut_behind(self.files, consume_queue.FORMAT, log_end)
        if self.files.end != end:
            self.max_physical_offset = log_end

    def clean_below(self, min_offset: int) -> int:
        """Delete files that point only below the log's min offset (ConsumeQueue#deleteExpiredFile).

        :return: number of deleted files, without those of the extension.
        """
        deleted = delete_below(self.files, consume_queue.FORMAT, min_offset)
        address = self.correct_min(min_offset)
        if self.ext and address is not None:
            self.ext.delete_before(address)
        return deleted

    def correct_min(self, min_offset: int) -> int | None:
        """Find the first entry whose message is in the log (ConsumeQueue#correctMinOffset).

        :return: the entry's tags code, or its unit's address in place of the code; None if the entry is the
            same as before, or no entry has its message in the log.
        """
        bases, end = self.files.written()
        if self._min_position >= end:
            return None
        if end > bases[-1] and self._physical(bases[-1], (end - bases[-1]) // UNIT - 1) < min_offset:
            # No message is left. The queue continues at its end.
            self._min_position = end
            return None
        first = bases[0]
        is_known = self._min_position >= first
        start = (self._min_position - first) // UNIT if is_known else 0
        count = (self.files.file_bytes if len(bases) > 1 else end - first) // UNIT
        if start >= count or (is_known and self._physical(first, start) >= min_offset):
            return None
        index = bisect_left(
            range(count), min_offset, lo=start, key=lambda number: self._physical(first, number)
        )
        if index == count:
            return None
        self._min_position = first + index * UNIT
        return int(self._entry(first, index)["tags_code"])

    def _physical(self, base: int, number: int) -> int:
        return int(self._entry(base, number)["offset"])

    def _entry(self, base: int, number: int) -> np.void:
        entry: np.void = np.frombuffer(self.files.read(base, number * UNIT, UNIT), consume_queue.DTYPE)[0]
        return entry

    def _blocks(self, base: int) -> Iterator[Entries]:
        """Yield the entries of a file in blocks, up to the first unused one."""
        position = 0
        while position < self.files.file_bytes:
            data = self.files.read(base, position, _BLOCK_ENTRIES * UNIT)
            entries = np.frombuffer(data[: len(data) // UNIT * UNIT], consume_queue.DTYPE)
            unused = np.flatnonzero(~consume_queue.FORMAT.in_use(entries))
            if unused.size:
                yield entries[: unused[0]]
                return
            if not len(entries):
                return
            yield entries
            position += len(entries) * UNIT


class BatchQueueWriter:
    """One batch consume queue. It has an entry for each frame with a batch."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self.files = EntryFiles(directory, file_bytes)
        self.max_physical_offset = -1
        """Begin of the newest message that has an entry. (In a consume queue it is the message's end.)"""
        self.next_queue_offset = 0
        self.min_queue_offset = -1
        """First queue offset whose message is in the log, as :meth:`correct_min` set it; -1 without any."""

    def load(self) -> None:
        self.files.load()

    def append(
        self,
        physical: Longs,
        sizes: Longs,
        tags_codes: Longs,
        store_ms: Longs,
        base_offsets: Longs,
        counts: Longs,
    ) -> None:
        """Write the entries of batches in their order (BatchConsumeQueue#putMessagePositionInfoWrapper).

        :param base_offsets: queue offset of each batch's first message; negative if the frame is no batch.
        """
        fresh = (physical > self.max_physical_offset) & (base_offsets >= 0) & (counts >= 0)
        if not fresh.any():
            return
        entries = np.zeros(int(fresh.sum()), batch_consume_queue.DTYPE)
        entries["offset"], entries["size"] = physical[fresh], sizes[fresh]
        entries["tags_code"], entries["store_time"] = tags_codes[fresh], store_ms[fresh]
        entries["base_offset"], entries["batch_size"] = base_offsets[fresh], counts[fresh]
        entries["compact_offset"] = _NOT_COMPACTED
        self.files.append(entries.tobytes())
        self.max_physical_offset = int(entries["offset"][-1])
        self.next_queue_offset = int(entries["base_offset"][-1]) + int(entries["batch_size"][-1])
        if self.min_queue_offset < 0:
            self.correct_min(0)

    def flush(self, least_pages: int) -> None:
        self.files.flush(least_pages)

    def recover(self, unflushed_from: int | None = None) -> None:
        """Find the end from the last files, as :meth:`QueueWriter.recover` (BatchConsumeQueue#recover)."""
        bases = self.files.bases
        if not bases:
            return
        end = 0
        for base in bases[-files_to_look_at(self.files, batch_consume_queue.FORMAT, unflushed_from) :]:
            entries = self._entries(base)
            unused = np.flatnonzero(~batch_consume_queue.FORMAT.in_use(entries))
            count = int(unused[0]) if unused.size else len(entries)
            if count:
                self.max_physical_offset = int(entries[count - 1]["offset"])
            end = base + count * BATCH_UNIT
            if count * BATCH_UNIT != self.files.file_bytes:
                break
        self.files.truncate(end)
        self._find_next_queue_offset()

    def truncate(self, physical_offset: int) -> None:
        """Cut off entries of messages at or behind an offset (BatchConsumeQueue#truncateDirtyLogicFiles)."""
        self.max_physical_offset = physical_offset - 1
        while self.files.bases:
            base = self.files.bases[-1]
            entries = self._entries(base)
            if int(entries[0]["offset"]) >= physical_offset:
                self.files.delete_last()
                continue
            ends = ~batch_consume_queue.FORMAT.in_use(entries) | (entries["offset"] >= physical_offset)
            # The broker keeps a file's first entry without a check, even if it was never written.
            ends[0] = False
            behind = np.flatnonzero(ends)
            count = int(behind[0]) if behind.size else len(entries)
            self.files.truncate(base + count * BATCH_UNIT)
            self.max_physical_offset = int(entries[count - 1]["offset"])
            break
        self._find_next_queue_offset()

    def drop_behind(self, log_end: int) -> None:
        """Cut off all entries of messages behind the log's end, also those that the broker's rule misses."""
        end = self.files.end
        cut_behind(self.files, batch_consume_queue.FORMAT, log_end)
        if self.files.end != end:
            self.max_physical_offset = log_end - 1
            self._find_next_queue_offset()

    def clean_below(self, min_offset: int) -> int:
        """Delete and count files that point only below an offset (BatchConsumeQueue#deleteExpiredFile)."""
        deleted = delete_below(self.files, batch_consume_queue.FORMAT, min_offset)
        self.correct_min(min_offset)
        return deleted

    def correct_min(self, min_offset: int) -> None:
        """Find the first entry whose message is in the log (BatchConsumeQueue#correctMinOffset)."""
        bases, end = self.files.written()
        self.min_queue_offset = -1
        if not bases:
            return
        count = (self.files.file_bytes if len(bases) > 1 else end - bases[0]) // BATCH_UNIT
        entries = self._entries(bases[0])[:count]
        if count:
            self.min_queue_offset = int(entries[0]["base_offset"])
        remaining = np.flatnonzero(entries["offset"] >= min_offset)
        below = int(remaining[0]) if remaining.size else count
        if below:
            last = entries[below - 1]
            self.min_queue_offset = int(last["base_offset"]) + int(last["batch_size"])

    def _entries(self, base: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        data = self.files.read(base, 0, self.files.file_bytes)
        return np.frombuffer(data[: len(data) // BATCH_UNIT * BATCH_UNIT], batch_consume_queue.DTYPE)

    def _find_next_queue_offset(self) -> None:
        """Set the next queue offset from the last entry (BatchConsumeQueue#reviseMaxOffsetInQueue)."""
        files = self.files
        self.next_queue_offset = 0
        for base, wrote in zip(reversed(files.bases[-2:]), (files.wrote, files.file_bytes), strict=False):
            if wrote >= BATCH_UNIT:
                last = self._entries(base)[wrote // BATCH_UNIT - 1]
                self.next_queue_offset = int(last["base_offset"]) + int(last["batch_size"])
                return


Writer = QueueWriter | BatchQueueWriter

_SYNCS = 8
"""Number of files that are flushed at the same time, since a disk handles waiting requests together."""

_LONGEST_NAME_BYTES = 255
"""Longest name of a directory that each file system of Linux allows, in bytes."""


def is_directory_name(topic: str) -> bool:
    """Return whether a topic's name can be the name of a directory in the store."""
    fits = 0 < len(topic.encode()) <= _LONGEST_NAME_BYTES
    return fits and topic not in (".", "..") and "/" not in topic and "\0" not in topic


class QueueTable:
    """Queue writers by topic and queue id."""

    def __init__(self, layout: StoreLayout, settings: EngineSettings, batch_topics: frozenset[str]) -> None:
        """:param batch_topics: topics that have batch consume queues."""
        self._layout, self._settings = layout, settings
        self._batch_topics = batch_topics
        self._flushes = threading.Lock()
        self._writers: dict[tuple[str, int], Writer] = {}
        self.next_offsets: dict[tuple[str, int], int] = {}
        """Queue offset of each queue's next message. It is changed only under the appender's lock."""

    def __iter__(self) -> Iterator[Writer]:
        return iter(tuple(self._writers.values()))

    def is_batch(self, topic: str) -> bool:
        return topic in self._batch_topics

    def load(self) -> None:
        """Find the existing queues.

        :raises StoreLayoutError: a file of a queue has another size than in the settings.
        """
        for directory in (self._layout.consumequeue, self._layout.batchconsumequeue):
            for queue in iter_queues(directory):
                if directory == self._layout.batchconsumequeue:
                    self._batch_topics |= {queue.topic}
                self.find(queue.topic, queue.queue_id).load()

    def find(self, topic: str, queue_id: int) -> Writer:
        """Return a queue's writer. A queue that has no writer gets one.

        :raises StoreLayoutError: no directory can be named after the topic or queue of a message on disk.
        """
        writer = self._writers.get((topic, queue_id))
        if writer is None:
            if not is_directory_name(topic) or queue_id < 0:
                raise StoreLayoutError(
                    f"{self._layout.root}: expected a message whose topic and queue can name directories, "
                    f"found topic {topic!r:.300}, queue {queue_id}. No queue was created. Find out which "
                    "program wrote the message, and put the file of the log back from a replica."
                )
            writer = self._writers[topic, queue_id] = self._new(topic, queue_id)
        return writer

    @property
    def max_physical_offset(self) -> int:
        """Return the physical offset up to which the log is dispatched. It is the largest one of all queues.

        Return -1 if no queue has an entry.
        """
        return max((writer.max_physical_offset for writer in self), default=-1)

    def recover(self, unflushed_from: int | None) -> None:
        """Find the end of each queue.

        :param unflushed_from: offset of the log from which entries may be missing on disk; None without any.
        """
        for writer in self:
            writer.recover(unflushed_from)
        if unflushed_from is not None:
            for files in self.entry_files():
                files.flushed = 0

    def truncate(self, physical_offset: int) -> None:
        for writer in self:
            writer.truncate(physical_offset)

    def correct_min(self, min_offset: int) -> None:
        """Find each queue's first entry whose message is in the log (ConsumeQueueStore#correctMinOffset)."""
        for writer in self:
            writer.correct_min(min_offset)

    def flush(self, least_pages: int) -> None:
        """Flush the entries of each queue with at least this number of unflushed pages."""
        with self._flushes:
            for writer in self:
                writer.flush(least_pages)

    def take_to_disk(self) -> None:
        """Flush files that a killed process wrote."""
        with ThreadPoolExecutor(_SYNCS, thread_name_prefix="flush") as pool:
            for _ in pool.map(EntryFiles.take_to_disk, self.entry_files()):
                pass

    def drop_behind(self, log_end: int) -> None:
        """Remove all entries of messages behind the log's end durably."""
        for writer in self:
            writer.drop_behind(log_end)
        for files in self.entry_files():
            files.erase_rest()
        self.flush(0)
        self.settle_next_offsets()

    def destroy(self) -> None:
        """Delete every queue (ConsumeQueueStore#destroy)."""
        for files in self.entry_files():
            files.delete_all()
        self._writers.clear()

    def files_in(self, directory: Path) -> EntryFiles | None:
        """Return the files of the queue or extension in a directory; None if it belongs to neither."""
        return next((files for files in self.entry_files() if files.directory == directory), None)

    def entry_files(self) -> Iterator[EntryFiles]:
        """Yield the files of each queue, and those of its extension."""
        for writer in self:
            yield writer.files
            if isinstance(writer, QueueWriter) and writer.ext:
                yield writer.ext.files

    def settle_next_offsets(self) -> None:
        """Set each queue's next offset to the end of its entries (ConsumeQueueStore#recoverOffsetTable)."""
        self.next_offsets = {queue: writer.next_queue_offset for queue, writer in self._writers.items()}

    def _new(self, topic: str, queue_id: int) -> Writer:
        settings, name = self._settings, str(queue_id)
        if self.is_batch(topic):
            directory = self._layout.batchconsumequeue / topic / name
            return BatchQueueWriter(directory, settings.batch_queue_file_bytes)
        ext = None
        if settings.ext_enable:
            ext = ExtWriter(self._layout.consumequeue_ext / topic / name, settings.ext_file_bytes)
        return QueueWriter(self._layout.consumequeue / topic / name, settings.consume_queue_file_bytes, ext)
