"""Writing the ``checkpoint`` file: up to which store time each part is on disk (StoreCheckpoint).

A recovery trusts it, so a time is set only after what it speaks of was flushed. (The broker writes the time
of what it has dispatched, flushed or not, whenever anything writes the file.)
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import replace
from pathlib import Path

from storage_engine.core import durable
from storage_engine.rocketmq.format.checkpoint import FILE_BYTES, Checkpoint, read_checkpoint

_FORMAT = struct.Struct(">5q")
_MARGIN_MS = 3000
"""Messages of equal store times may lie on both sides of what was flushed."""
_NEW = Checkpoint(0, 0, 0, 0, 0)


class StoreCheckpoint:
    """The file, open, and what is to be written into it next."""

    def __init__(self, path: Path) -> None:
        """Open the file; a missing one is made when it is first written."""
        self._path = path
        self._guard = threading.Lock()
        found = read_checkpoint(path)
        self.values = found or _NEW

    def flushed_log(self, timestamp_ms: int) -> None:
        """Note the store time up to which the commitlog is on disk."""
        with self._guard:
            self.values = replace(self.values, physic_msg_timestamp_ms=timestamp_ms)

    def flushed_queues(self, timestamp_ms: int) -> None:
        """Note the store time up to which the consume queues are on disk."""
        with self._guard:
            self.values = replace(self.values, logics_msg_timestamp_ms=timestamp_ms)

    def flushed_index(self, timestamp_ms: int) -> None:
        """Note the store time up to which index files are on disk."""
        with self._guard:
            self.values = replace(self.values, index_msg_timestamp_ms=timestamp_ms)

    def confirm(self, offset: int) -> None:
        """Note where the last whole message began at the last recovery (CommitLog#setConfirmOffset)."""
        with self._guard:
            self.values = replace(self.values, confirm_phy_offset=offset)

    def recovery_time_ms(self, *, with_index: bool) -> int:
        """Return the store time at which a recovery may begin (StoreCheckpoint#getMinTimestamp).

        :param with_index: the index has to be complete as well (#getMinTimestampIndex).
        """
        values = self.values
        earliest = min(values.physic_msg_timestamp_ms, values.logics_msg_timestamp_ms) - _MARGIN_MS
        earliest = max(0, earliest)
        # Of messages of one time a full index file may have some; the broker passes over the others.
        return min(earliest, values.index_msg_timestamp_ms - 1) if with_index else earliest

    def flush(self) -> None:
        """Write the file and take it to disk."""
        with self._guard:
            values = self.values
            content = _FORMAT.pack(
                values.physic_msg_timestamp_ms,
                values.logics_msg_timestamp_ms,
                values.index_msg_timestamp_ms,
                values.master_flushed_offset,
                values.confirm_phy_offset,
            )
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                durable.write_file(self._path, content.ljust(FILE_BYTES, b"\0"))
                return
            try:
                os.pwrite(fd, content, 0)
                if os.fstat(fd).st_size < FILE_BYTES:
                    os.ftruncate(fd, FILE_BYTES)
                os.fdatasync(fd)
            finally:
                os.close(fd)
