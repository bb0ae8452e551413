"""Recovery after a stop or a crash: finds the log's end, and makes queues and index agree with it.

It follows the broker's rules, so that it leaves the same files as the broker.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.core import durable
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.engine.append.flush import StoreCheckpoint
from storage_engine.rocketmq.engine.append.mapped_file_queue import FileQueue
from storage_engine.rocketmq.engine.dispatch import dispatch_kernels as kernels
from storage_engine.rocketmq.engine.dispatch.index_writer import IndexWriter
from storage_engine.rocketmq.engine.dispatch.queue_writer import QueueTable
from storage_engine.rocketmq.engine.dispatch.reput import Bytes, Dispatcher, FrameReader, Rows
from storage_engine.rocketmq.engine.engine_settings import EngineSettings

INDEXED_FILES = 10
"""Largest number of the log's files that a start reads to rebuild an index after a crash."""

OnRows = Callable[[Bytes, Rows], None]


@dataclass(frozen=True, slots=True)
class LogPart:
    """A file of the log, mapped for a recovery."""

    path: Path
    base_offset: int
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RecoveredEnd:
    """End of the log's undamaged messages.

    :param last_message: offset of the last undamaged message; None if none was read.
    :param began_at: offset at which reading began.
    """

    offset: int
    last_message: int | None
    began_at: int


def first_part_after_crash(
    parts: Sequence[LogPart], checkpoint: StoreCheckpoint, settings: EngineSettings
) -> int:
    """Return the number of the file at which a recovery begins (CommitLog#isMappedFileMatchedRecover).

    It is the newest file whose first message was stored at or before the recovery time, else the first.
    """
    with_index = settings.index_enable and settings.index_safe
    recovery_time_ms = checkpoint.recovery_time_ms(with_index=with_index)
    for number in range(len(parts) - 1, 0, -1):
        stored_ms = _first_store_ms(parts[number].data)
        if stored_ms is not None and stored_ms != 0 and stored_ms <= recovery_time_ms:
            return number
    return 0


def first_part_after_stop(parts: Sequence[LogPart], dispatched: int) -> int:
    """Return the number of the newest file that begins at or below the dispatched offset, or 0."""
    numbers = range(len(parts) - 1, 0, -1)
    return next((number for number in numbers if parts[number].base_offset <= dispatched), 0)


def find_end(
    parts: Sequence[LogPart], number: int, reader: FrameReader, on_rows: OnRows, *, check_crc: bool
) -> RecoveredEnd:
    """Read frames from the start of a file up to the first invalid frame.

    :param on_rows: called with the messages in their order.
    """
    part, position, last = parts[number], 0, None
    began_at = part.base_offset
    while True:
        size = len(part.data)
        walk = reader.read(part.data, position, size, size, check_crc=check_crc)
        if len(walk.rows):
            last = part.base_offset + int(walk.rows[-1, kernels.POSITION])
            on_rows(part.data, walk.rows)
        position = walk.position
        if walk.reason == kernels.ROOM:
            continue
        if walk.reason != kernels.BLANK or number + 1 == len(parts):
            return RecoveredEnd(part.base_offset + position, last, began_at)
        number += 1
        part, position = parts[number], 0


def recover(
    files: FileQueue,
    queues: QueueTable,
    dispatcher: Dispatcher,
    checkpoint: StoreCheckpoint,
    settings: EngineSettings,
    *,
    clean: bool,
) -> RecoveredEnd:
    """Find the ends of log and queues, cut off the rest, and dispatch messages without entries."""
    parts = [LogPart(file.path, file.base_offset, file.array) for file in files.files]
    number = 0
    if clean:
        queues.recover(None)
    else:
        number = first_part_after_crash(parts, checkpoint, settings)
        queues.recover(parts[number].base_offset if parts else 0)
    dispatched = queues.max_physical_offset
    if not parts:
        files.flushed_where = files.committed_where = 0
        queues.destroy()
        queues.settle_next_offsets()
        return RecoveredEnd(0, None, 0)

    def on_rows(data: Bytes, rows: Rows) -> None:
        if clean:
            rows = np.ascontiguousarray(rows[rows[:, kernels.PHYSICAL_OFFSET] > dispatched])
        dispatcher.dispatch(data, rows)

    if clean:
        number = first_part_after_stop(parts, dispatched)
    reader = FrameReader(settings)
    end = find_end(parts, number, reader, on_rows, check_crc=settings.check_crc_on_recover)
    if not clean:
        # The bytes that a killed process wrote may be only in the page cache.
        for file in files.files:
            if file.end_offset > end.began_at:
                durable.fsync_path(file.path)
        for directory in {file.path.parent for file in files.files}:
            durable.fsync_path(directory)
        queues.take_to_disk()
    # CommitLog#setConfirmOffset
    checkpoint.set(confirm_phy_offset=end.began_at if end.last_message is None else end.last_message)
    if dispatched >= end.offset:
        queues.truncate(end.offset)
        queues.flush(0)
    files.flushed_where = files.committed_where = end.offset
    parts.clear()
    files.truncate(end.offset)
    queues.settle_next_offsets()
    return end


def first_to_index(begin: int, began_at: int, bases: Sequence[int], *, everything: bool) -> int:
    """Return the offset from which messages are indexed again. By default few files of the log are read.

    :param begin: offset from which messages need entries.
    :param began_at: offset at which the recovery began to read the log.
    :param bases: first offsets of the log's files, ascending.
    :param everything: return ``begin``, even if many files have to be read.
    """
    if everything or len(bases) <= INDEXED_FILES:
        return begin
    return max(begin, min(began_at, bases[-INDEXED_FILES]))


def index_again(files: FileQueue, reader: FrameReader, index: IndexWriter, begin: int, now_ms: int) -> None:
    """Index the messages from an offset of the log on.

    :param now_ms: time that becomes the name of a new file.
    """
    parts = [LogPart(f.path, f.base_offset, f.array) for f in files.files if f.end_offset > begin]
    if not parts:
        return

    def put(data: Bytes, rows: Rows) -> None:
        offsets = rows[:, kernels.PHYSICAL_OFFSET]
        chosen = np.ascontiguousarray(rows[(offsets >= begin) & (offsets < files.wrote_offset)])
        if len(chosen):
            index.put(address_of(data), data, chosen, now_ms)

    find_end(parts, 0, reader, put, check_crc=False)


def _first_store_ms(data: npt.NDArray[np.uint8]) -> int | None:
    """Return the store time of the message at a file's begin; None if no message is there."""
    header = bytes(data[: frame.STORE_HOST_AT + frame.IPV6_EXTRA_BYTES])
    (magic,) = struct.unpack_from(">I", header, frame.MAGIC_AT)
    if magic not in (frame.MAGIC_V1, frame.MAGIC_V2):
        return None
    (sys_flag,) = struct.unpack_from(">i", header, frame.SYS_FLAG_AT)
    extra = frame.IPV6_EXTRA_BYTES if sys_flag & frame.BORN_HOST_IPV6 else 0
    (stored_ms,) = struct.unpack_from(">q", header, frame.STORE_TIMESTAMP_AT + extra)
    return int(stored_ms)
