"""Writing one batch consume queue, and finding its end again (BatchConsumeQueue)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage_engine.rocketmq.engine.dispatch.entry_files import EntryFiles
from storage_engine.rocketmq.engine.dispatch.queue_writer import Longs, cut_behind, files_to_look_at
from storage_engine.rocketmq.format import batch_consume_queue

UNIT = batch_consume_queue.DTYPE.itemsize
_NOT_COMPACTED = -1


class BatchQueueWriter:
    """One batch consume queue: an entry for each frame that holds a batch."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self.files = EntryFiles(directory, file_bytes)
        self.max_physical_offset = -1
        """Where the newest message begins that has an entry; a consume queue has its end here."""
        self.next_queue_offset = 0
        self.min_queue_offset = -1
        """First queue offset whose message is in the log, as of the last :meth:`correct_min`; -1: none."""

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

        :param base_offsets: queue offset of each batch's first message; below 0: the frame is no batch.
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
        """Find the end, looking at the last three files (BatchConsumeQueue#recover).

        :param unflushed_from: as of
            :meth:`~storage_engine.rocketmq.engine.dispatch.queue_writer.QueueWriter.recover`.
        """
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
            end = base + count * UNIT
            if count * UNIT != self.files.file_bytes:
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
            # The broker takes a file's first entry as it is, even where nothing was written.
            ends[0] = False
            behind = np.flatnonzero(ends)
            count = int(behind[0]) if behind.size else len(entries)
            self.files.truncate(base + count * UNIT)
            self.max_physical_offset = int(entries[count - 1]["offset"])
            break
        self._find_next_queue_offset()

    def drop_behind(self, log_end: int) -> None:
        """Cut off, for sure, entries of messages behind the log's end."""
        end = self.files.end
        cut_behind(self.files, batch_consume_queue.FORMAT, log_end)
        if self.files.end != end:
            self.max_physical_offset = log_end - 1
            self._find_next_queue_offset()

    def delete_below(self, min_offset: int) -> int:
        """Delete files whose last entry lies below an offset (MappedFileQueue#deleteExpiredFileByOffset)."""
        deleted = 0
        while len(self.files.bases) > 1:
            if int(self._entries(self.files.bases[0])[-1]["offset"]) >= min_offset:
                break
            self.files.delete_first()
            deleted += 1
        return deleted

    def clean_below(self, min_offset: int) -> int:
        """Delete what points only below the log's min offset (BatchConsumeQueue#deleteExpiredFile).

        :return: how many files went.
        """
        deleted = self.delete_below(min_offset)
        self.correct_min(min_offset)
        return deleted

    def correct_min(self, min_offset: int) -> None:
        """Find the first entry whose message is in the log (BatchConsumeQueue#correctMinOffset)."""
        bases, end = self.files.written()
        self.min_queue_offset = -1
        if not bases:
            return
        count = (self.files.file_bytes if len(bases) > 1 else end - bases[0]) // UNIT
        entries = self._entries(bases[0])[:count]
        if count:
            self.min_queue_offset = int(entries[0]["base_offset"])
        left = np.flatnonzero(entries["offset"] >= min_offset)
        gone = int(left[0]) if left.size else count
        if gone:
            last = entries[gone - 1]
            self.min_queue_offset = int(last["base_offset"]) + int(last["batch_size"])

    def _entries(self, base: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        data = self.files.read(base, 0, self.files.file_bytes)
        return np.frombuffer(data[: len(data) // UNIT * UNIT], batch_consume_queue.DTYPE)

    def _find_next_queue_offset(self) -> None:
        """Set the next queue offset from the last entry (BatchConsumeQueue#reviseMaxOffsetInQueue)."""
        files = self.files
        self.next_queue_offset = 0
        for base, wrote in zip(reversed(files.bases[-2:]), (files.wrote, files.file_bytes), strict=False):
            if wrote >= UNIT:
                last = self._entries(base)[wrote // UNIT - 1]
                self.next_queue_offset = int(last["base_offset"]) + int(last["batch_size"])
                return
