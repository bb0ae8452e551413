"""One file of the commitlog, mapped for writing: its positions, and who holds it.

A file is unmapped and deleted only when nobody has it pinned. Python itself refuses to unmap memory that a
view still points into, so a reader never sees unmapped memory, whatever the order of things.

Buffers outside the page cache that new messages are written to first (TransientStorePool). They are locked
into memory where the system allows it. A commit writes them into the file, a flush takes the file to disk.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import threading
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.core import durable
from storage_engine.rocketmq.codec.frame import MAGIC_BLANK
from storage_engine.rocketmq.engine.append import append_kernels
from storage_engine.rocketmq.format.stored_files import refuse_link

_BLOCK_BYTES = 1 << 20


def erase_behind(fd: int, position: int, size_bytes: int) -> None:
    """Write zeros over what is not zero from a position of a file on, and take them to disk.

    :raises OSError: the disk refuses.
    """
    erased = False
    while position < size_bytes:
        try:
            # What was never written takes no time.
            position = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        content = os.pread(fd, min(_BLOCK_BYTES, size_bytes - position), position)
        if not content:
            break
        if content.strip(b"\0"):
            os.pwrite(fd, bytes(len(content)), position)
            erased = True
        position += len(content)
    if erased:
        os.fsync(fd)


PAGE_BYTES = 4096
_AHEAD_BYTES = 32 << 20
_LEAST_AHEAD_BYTES = 1 << 20
_CALLS_AHEAD, _MOST_WRITABLE_BYTES = 2, 64 << 20
"""How far a fast producer's pages are made writable: it reaches them within so many calls."""
_DONT_NEED, _POPULATE_READ, _POPULATE_WRITE = 4, 22, 23
"""MADV_POPULATE_READ and MADV_POPULATE_WRITE, of Linux 5.14 and later."""
_BLANK = struct.Struct(">iI")
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """Bytes of a file that stays mapped until :meth:`release` (SelectMappedBufferResult)."""

    offset: int
    data: memoryview
    file: WritableFile

    def release(self) -> None:
        self.data.release()
        self.file.unpin()


class WritableFile:
    """A mapped file with the positions up to which it is written, committed and flushed (DefaultMappedFile).

    Committed is what readers see. Without a pool of buffers that is what was written.
    """

    def __init__(
        self, path: Path, base_offset: int, size_bytes: int, pool: TransientPool | None = None
    ) -> None:
        """Open or make the file.

        The disk's space is taken at once: writing to a mapped file on a full disk would end the process.

        :param pool: where the file's buffer comes from.
        :raises OSError: the file can't be made, or the disk has no room for it.
        """
        self.path, self.base_offset, self.size_bytes = path, base_offset, size_bytes
        self._fd = _open(path, size_bytes)
        try:
            self._mapping: mmap.mmap | None = mmap.mmap(self._fd, size_bytes)
        except OSError:
            os.close(self._fd)
            raise
        self.array: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self.address = address_of(self.array)
        self._pool = pool
        self._buffer = pool.borrow() if pool else None
        self.target: mmap.mmap = self._buffer or self._mapping
        """What new messages are written to."""
        self._table = array("q", [0] * append_kernels.FILE_FIELDS)
        self._table[append_kernels.TARGET] = address_of(np.frombuffer(self.target, np.uint8))
        self._table[append_kernels.FILE_BYTES] = size_bytes
        self._table[append_kernels.BASE_OFFSET] = base_offset
        self.table_address = self._table.buffer_info()[0]
        """Of the table by which the kernels append to the file."""
        self.committed = self.flushed = 0
        self._committed_timestamp_ms = 0
        self._mapped_ahead = self._writable_ahead = 0
        self._wrote_before = 0
        """Up to where it was written when pages were mapped ahead the last time."""
        self._guard = threading.Lock()
        self._commits = threading.Lock()
        self._pins = 1
        self._unmapped = False
        self.available = True
        self.first_shutdown_ms = 0

    @property
    def wrote(self) -> int:
        return self._table[append_kernels.WROTE]

    @property
    def store_timestamp_ms(self) -> int:
        """Return the store time of the newest message; 0: none was written since the file was opened."""
        return self._table[append_kernels.STORE_MS]

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes

    @property
    def is_full(self) -> bool:
        return self.wrote == self.size_bytes

    @property
    def is_cleaned_up(self) -> bool:
        """Return whether the file is unmapped and nobody has it (ReferenceResource#isCleanupOver)."""
        return self._pins <= 0 and self._unmapped

    @property
    def read_position(self) -> int:
        """Return up to where readers see the file (DefaultMappedFile#getReadPosition)."""
        return self.committed if self._pool else self.wrote

    @property
    def readable_timestamp_ms(self) -> int:
        """Return the store time of a message that readers see already, the newest but for a moment."""
        return self._committed_timestamp_ms if self._pool else self.store_timestamp_ms

    def set_positions(self, position: int) -> None:
        self._table[append_kernels.WROTE] = self._wrote_before = position
        self.committed = self.flushed = position

    def fill_up(self, store_ms: int) -> None:
        """Write the blank behind the last message, so that the file is full."""
        remaining = self.size_bytes - self.wrote
        if remaining:
            _BLANK.pack_into(self.target, self.wrote, remaining, MAGIC_BLANK)
            self._table[append_kernels.STORE_MS] = store_ms
            self._table[append_kernels.WROTE] = self.size_bytes

    def pin(self) -> bool:
        """Keep the file mapped; False when it is being deleted (ReferenceResource#hold)."""
        with self._guard:
            if not self.available or self._pins <= 0:
                return False
            self._pins += 1
            return True

    def unpin(self) -> None:
        """Give up a pin; the last one unmaps a file that was shut down (ReferenceResource#release)."""
        with self._guard:
            self._pins -= 1
            if self._pins <= 0 and not self.available:
                self._unmap()

    def shutdown(self, forced_after_ms: int, now_ms: int) -> None:
        """Let nobody else pin the file, and unmap it once nobody has it (ReferenceResource#shutdown).

        :param forced_after_ms: after so long readers don't count any more. Their memory stays theirs.
        """
        with self._guard:
            if self.available:
                self.available, self.first_shutdown_ms = False, now_ms
                self._pins -= 1
            elif self._pins > 0 and now_ms - self.first_shutdown_ms >= forced_after_ms:
                self._pins = -1000 - self._pins
            if self._pins <= 0:
                self._unmap()

    def destroy(
        self, forced_after_ms: int, now_ms: int, unlink: Callable[[Path], object] = durable.unlink
    ) -> bool:
        """Shut the file down and delete it; False while a reader has it (DefaultMappedFile#destroy)."""
        self.shutdown(forced_after_ms, now_ms)
        if not self.is_cleaned_up:
            return False
        unlink(self.path)
        return True

    def select(self, position: int, size_bytes: int | None = None) -> PinnedRange | None:
        """Pin the file and return bytes of it that were committed; None where there are none."""
        end = self.read_position if size_bytes is None else position + size_bytes
        if not 0 <= position < end <= self.read_position or not self.pin():
            return None
        mapping = self._mapping
        if mapping is None:
            self.unpin()
            return None
        return PinnedRange(self.base_offset + position, memoryview(mapping)[position:end], self)

    def map_ahead(self) -> None:
        """Have the pages that are written next cleared and mapped, so that no put has to wait for that.

        They stay clean, so that no flush writes them, but those that puts reach before the next few calls.
        Where the system can't do it, puts wait as before.
        """
        wrote = self.wrote
        grown, self._wrote_before = wrote - self._wrote_before, wrote
        if self._buffer is not None or not self.pin():
            return
        try:
            if grown >= _LEAST_AHEAD_BYTES:
                end = wrote + min(_CALLS_AHEAD * grown, _MOST_WRITABLE_BYTES)
                self._writable_ahead = self._populate(self._writable_ahead, end, _POPULATE_WRITE)
            else:
                self._mapped_ahead = self._populate(self._mapped_ahead, wrote + _AHEAD_BYTES, _POPULATE_READ)
        finally:
            self.unpin()

    def _populate(self, known: int, end: int, advice: int) -> int:
        begin = max(known, self.wrote) // PAGE_BYTES * PAGE_BYTES
        end = min(end, self.size_bytes)
        if end - begin < _LEAST_AHEAD_BYTES:
            return known
        _libc.madvise(ctypes.c_void_p(self.address + begin), ctypes.c_size_t(end - begin), advice)
        return end

    def commit(self, least_pages: int) -> int:
        """Write what is in the buffer into the file; return the new position (DefaultMappedFile#commit)."""
        with self._commits:
            if self._buffer is None:
                self.committed, self._committed_timestamp_ms = self.wrote, self.store_timestamp_ms
                return self.committed
            timestamp_ms, wrote = self.store_timestamp_ms, self.wrote
            if _is_due(wrote, self.committed, least_pages, self.is_full) and self.pin():
                try:
                    with memoryview(self._buffer) as content:
                        _write_all(self._fd, content[self.committed : wrote], self.committed)
                    self.committed, self._committed_timestamp_ms = wrote, timestamp_ms
                finally:
                    self.unpin()
            if self.committed == self.size_bytes:
                self._give_back_buffer()
            return self.committed

    def flush(self, least_pages: int) -> int:
        """Take what is committed to disk; return the new position (DefaultMappedFile#flush).

        :raises OSError: the disk refuses. What it has is then unknown; the position stays.
        """
        position = self.read_position
        if _is_due(position, self.flushed, least_pages, self.is_full) and self.pin():
            try:
                self._unmap_written(position)
                os.fdatasync(self._fd)
                self.flushed = position
            finally:
                self.unpin()
        return self.flushed

    def _unmap_written(self, position: int) -> None:
        """Take pages that are written wholly out of the mapping before a flush; who reads them has them back.

        A flush makes each mapped page read-only, and tells all processors of each by itself.
        """
        begin = -(-self.flushed // PAGE_BYTES) * PAGE_BYTES
        end = position // PAGE_BYTES * PAGE_BYTES
        if end - begin >= _LEAST_AHEAD_BYTES and self._buffer is None:
            _libc.madvise(ctypes.c_void_p(self.address + begin), ctypes.c_size_t(end - begin), _DONT_NEED)

    def erase_rest(self) -> None:
        """Write zeros over what lies behind what was written, durably."""
        erase_behind(self._fd, self.wrote, self.size_bytes)

    def last_modified_ms(self) -> int:
        return self.path.stat().st_mtime_ns // 1_000_000

    def _give_back_buffer(self) -> None:
        if self._pool is not None and self._buffer is not None and self._mapping is not None:
            self.target, self._table[append_kernels.TARGET] = self._mapping, self.address
            self._pool.give_back(self._buffer)
            self._buffer = None

    def _unmap(self) -> None:
        """Close file and mapping; views that readers still have keep their memory."""
        if self._unmapped:
            return
        self._unmapped = True
        self._give_back_buffer()
        mapping, self._mapping = self._mapping, None
        self.array = np.empty(0, np.uint8)
        del self.target
        self._table[append_kernels.TARGET] = 0
        if mapping is not None:
            with suppress(BufferError):
                mapping.close()
        os.close(self._fd)


def _is_due(position: int, before: int, least_pages: int, full: bool) -> bool:
    """Return whether there is enough to commit or to flush (DefaultMappedFile#isAbleToFlush)."""
    if least_pages > 0 and not full:
        return position // PAGE_BYTES - before // PAGE_BYTES >= least_pages
    return position > before


def _open(path: Path, size_bytes: int) -> int:
    refuse_link(path)
    try:
        with durable.create(path) as file:
            fd = os.dup(file.fileno())
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError:
        os.close(fd)
        path.unlink()
        raise
    return fd


def _write_all(fd: int, content: memoryview, position: int) -> None:
    while len(content):
        count = os.pwrite(fd, content, position)
        content, position = content[count:], position + count


class TransientPool:
    """A fixed number of buffers, each as long as a file of the commitlog."""

    def __init__(self, buffers: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._guard = threading.Lock()
        self._free = deque(_locked_buffer(size_bytes) for _ in range(buffers))

    def borrow(self) -> mmap.mmap | None:
        """Take a buffer; None when all are in use: the file is then written to directly."""
        with self._guard:
            return self._free.popleft() if self._free else None

    def give_back(self, buffer: mmap.mmap) -> None:
        with self._guard:
            self._free.appendleft(buffer)


def _locked_buffer(size_bytes: int) -> mmap.mmap:
    buffer = mmap.mmap(-1, size_bytes)
    address = address_of(np.frombuffer(buffer, np.uint8))
    # As the broker, go on where the limit of locked memory is too low.
    ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))
    return buffer
