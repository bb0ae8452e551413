"""The files of the commitlog in the order of their offsets (MappedFileQueue, MultiPathMappedFileQueue)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import struct
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, StoreLayoutError
from storage_engine.rocketmq.codec.frame_layout import MAGIC_BLANK
from storage_engine.rocketmq.engine.append import append_kernels
from storage_engine.rocketmq.format.mapped_files import file_name, is_offset, list_raw_files
from storage_engine.rocketmq.format.stored_files import refuse_link

_BLOCK_BYTES = 1 << 20


def erase_behind(fd: int, position: int, size_bytes: int) -> None:
    """Overwrite all non-zero bytes of a file, from a position on, with zeros, and flush them to disk."""
    erased = False
    while position < size_bytes:
        try:
            # Skip holes, which were never written.
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
"""Limits of the bytes made writable ahead of a fast producer: the growth during this many calls, and a number
of bytes.
"""
_DONT_NEED, _POPULATE_READ, _POPULATE_WRITE = 4, 22, 23
"""MADV_DONTNEED, and MADV_POPULATE_READ and MADV_POPULATE_WRITE, which Linux has since 5.14."""
_BLANK = struct.Struct(">iI")
_libc = ctypes.CDLL(None)


class WritableFile:
    """A mapped file with the positions up to which it is written, committed and flushed (DefaultMappedFile).

    Readers see the committed bytes. Without a pool of buffers, all written bytes are committed.
    """

    def __init__(
        self, path: Path, base_offset: int, size_bytes: int, pool: TransientPool | None = None
    ) -> None:
        """Open or create the file.

        Disk space is allocated at once: a write to a mapped file on a full disk would kill the process.

        :raises OSError: the file can't be created, or the disk has no room for it.
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
        """Memory to which new messages are written: the buffer, or the mapped file."""
        self._table = array("q", [0] * append_kernels.FILE_FIELDS)
        self._table[append_kernels.TARGET] = address_of(np.frombuffer(self.target, np.uint8))
        self._table[append_kernels.FILE_BYTES] = size_bytes
        self._table[append_kernels.BASE_OFFSET] = base_offset
        self.table_address = self._table.buffer_info()[0]
        """Address of the table that the kernels use to append to the file."""
        self.committed = self.flushed = 0
        self._committed_timestamp_ms = 0
        self._mapped_ahead = self._writable_ahead = 0
        self._wrote_before = 0
        """End of the written bytes when pages were last mapped ahead."""
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
        """Return the newest message's store time; 0 if no message was written since the file was opened."""
        return self._table[append_kernels.STORE_MS]

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes

    @property
    def is_full(self) -> bool:
        return self.wrote == self.size_bytes

    @property
    def is_cleaned_up(self) -> bool:
        """Return whether the file is unmapped and no reader uses it (ReferenceResource#isCleanupOver)."""
        return self._pins <= 0 and self._unmapped

    @property
    def read_position(self) -> int:
        """Return the position up to which readers see the file (DefaultMappedFile#getReadPosition)."""
        return self.committed if self._pool else self.wrote

    @property
    def readable_timestamp_ms(self) -> int:
        """Return the store time of a message that readers can see: the newest, or one shortly before it."""
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
        """Keep the file mapped. Return False if it is being deleted (ReferenceResource#hold)."""
        with self._guard:
            if not self.available or self._pins <= 0:
                return False
            self._pins += 1
            return True

    def unpin(self) -> None:
        """Undo a pin. If the file was shut down, the last unpin unmaps it (ReferenceResource#release)."""
        with self._guard:
            self._pins -= 1
            if self._pins <= 0 and not self.available:
                self._unmap()

    def shutdown(self, forced_after_ms: int, now_ms: int) -> None:
        """Refuse new readers of the file, and unmap it when no reader uses it (ReferenceResource#shutdown).

        :param forced_after_ms: time after which readers are ignored. Their views keep the memory.
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
        """Shut down and delete the file. Return False if a reader uses it (DefaultMappedFile#destroy)."""
        self.shutdown(forced_after_ms, now_ms)
        if not self.is_cleaned_up:
            return False
        unlink(self.path)
        return True

    def map_ahead(self) -> None:
        """Map the pages that will be written next, so that no put has to wait for the kernel.

        Only pages that puts will reach within the next few calls are made writable. The others stay clean, so
        that no flush writes them. If the kernel can't populate pages, puts wait for them.
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

    def _populate(self, populated: int, end: int, advice: int) -> int:
        begin = max(populated, self.wrote) // PAGE_BYTES * PAGE_BYTES
        end = min(end, self.size_bytes)
        if end - begin < _LEAST_AHEAD_BYTES:
            return populated
        _libc.madvise(ctypes.c_void_p(self.address + begin), ctypes.c_size_t(end - begin), advice)
        return end

    def commit(self, least_pages: int) -> int:
        """Write the buffer into the file, and return the committed position (DefaultMappedFile#commit)."""
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
        """Flush the committed bytes to disk, and return the flushed position (DefaultMappedFile#flush).

        :raises OSError: the disk refuses. It is unknown which bytes are on disk. The flushed position stays.
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
        """Unmap completely written pages before a flush. Reading such a page maps it again.

        Otherwise the flush would make each mapped page read-only, and notify all processors of each page.
        """
        begin = -(-self.flushed // PAGE_BYTES) * PAGE_BYTES
        end = position // PAGE_BYTES * PAGE_BYTES
        if end - begin >= _LEAST_AHEAD_BYTES and self._buffer is None:
            _libc.madvise(ctypes.c_void_p(self.address + begin), ctypes.c_size_t(end - begin), _DONT_NEED)

    def erase_rest(self) -> None:
        """Overwrite all bytes behind the written ones with zeros, durably."""
        erase_behind(self._fd, self.wrote, self.size_bytes)

    def last_modified_ms(self) -> int:
        return self.path.stat().st_mtime_ns // 1_000_000

    def _give_back_buffer(self) -> None:
        if self._pool is not None and self._buffer is not None and self._mapping is not None:
            self.target, self._table[append_kernels.TARGET] = self._mapping, self.address
            self._pool.give_back(self._buffer)
            self._buffer = None

    def _unmap(self) -> None:
        """Close the file and its mapping. Views that readers still use keep their memory."""
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
    """Return whether enough pages were written for a commit or a flush (DefaultMappedFile#isAbleToFlush)."""
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
        self._guard = threading.Lock()
        self._free = deque(_locked_buffer(size_bytes) for _ in range(buffers))

    def borrow(self) -> mmap.mmap | None:
        """Take a buffer. Return None if all are in use: then the file itself is written to."""
        with self._guard:
            return self._free.popleft() if self._free else None

    def give_back(self, buffer: mmap.mmap) -> None:
        with self._guard:
            self._free.appendleft(buffer)


def _locked_buffer(size_bytes: int) -> mmap.mmap:
    buffer = mmap.mmap(-1, size_bytes)
    address = address_of(np.frombuffer(buffer, np.uint8))
    # As the broker, continue if the limit of locked memory is too low.
    ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))
    return buffer


_FORCED_AFTER_MS = 1000
Make = Callable[[int], WritableFile]
"""Function that takes an offset and creates the file that begins there."""
_DESCRIPTORS_PER_FILE = 2
"""Number of file descriptors for a file of the log: the file's own, and one that Python's mapping keeps."""
_OTHER_DESCRIPTORS = 512
"""Number of file descriptors for queues, index, sockets, and future files of the log."""


class Preallocation:
    """Creation of the next file before it is needed, in a thread of its own."""

    def __init__(self, make: Make, size_bytes: int) -> None:
        self._make, self._size_bytes = make, size_bytes
        self._worker = ThreadPoolExecutor(1, "preallocation")
        self._next: tuple[int, Future[WritableFile]] | None = None

    def take(self, base_offset: int) -> WritableFile:
        """Return the file that begins at an offset, and start to create the next one."""
        prepared, self._next = self._next, None
        if prepared is not None and prepared[0] == base_offset:
            file = prepared[1].result()
        else:
            _drop(prepared)
            file = self._make(base_offset)
        end_offset = base_offset + self._size_bytes
        self._next = (end_offset, self._worker.submit(self._make, end_offset))
        return file

    def close(self) -> None:
        """Delete the file that was created in advance, unless it was taken, and end the thread."""
        _drop(self._next)
        self._next = None
        self._worker.shutdown()


def _drop(prepared: tuple[int, Future[WritableFile]] | None) -> None:
    if prepared is not None:
        with suppress(OSError):
            prepared[1].result().destroy(_FORCED_AFTER_MS, clock_ms())


class FileQueue:
    """Mapped files, oldest first, with the offsets up to which the whole queue is committed and flushed."""

    def __init__(
        self,
        paths: Sequence[Path],
        file_bytes: int,
        *,
        read_only_paths: Sequence[Path] = (),
        pool: TransientPool | None = None,
    ) -> None:
        """:param paths: directories of the files. New files are created in turn in those that aren't full."""
        self.file_bytes = file_bytes
        self.full_paths: frozenset[Path] = frozenset()
        """Directories whose disks are too full for a new file."""
        self.files: tuple[WritableFile, ...] = ()
        self.flushed_where = self.committed_where = 0
        self.store_timestamp_ms = 0
        """Store time of the newest message that is surely on disk."""
        self._paths, self._read_only = tuple(paths), frozenset(read_only_paths)
        self._pool = pool
        self._guard = threading.Lock()
        self._flushes = FlushGuard()
        self._preallocation = Preallocation(self._make, file_bytes)

    @property
    def first(self) -> WritableFile | None:
        files = self.files
        return files[0] if files else None

    @property
    def last(self) -> WritableFile | None:
        files = self.files
        return files[-1] if files else None

    @property
    def max_offset(self) -> int:
        """Return the offset up to which readers see the log."""
        last = self.last
        return last.base_offset + last.read_position if last else 0

    @property
    def wrote_offset(self) -> int:
        """Return the offset up to which the log is written."""
        last = self.last
        return last.base_offset + last.wrote if last else 0

    @property
    def min_offset(self) -> int:
        """Return the first offset of a file that isn't being deleted; -1 without files (#getMinOffset)."""
        first = self.first
        if first is None:
            return -1
        return first.base_offset if first.available else first.end_offset

    def load(self) -> None:
        """Map the existing files. All files count as full until a recovery sets their ends.

        :raises StoreLayoutError: a file has another size than in the settings, or a name that is no offset.
        :raises BadInputError: this process may not have so many files open.
        """
        directories = (*self._paths, *(path for path in self._read_only if path not in self._paths))
        raw_files = list_raw_files(directories)
        allow_open_files(directories[0], len(raw_files))
        delete_empty_files(directories, raw_files)
        files = []
        for path, size in raw_files:
            if size != self.file_bytes or not is_offset(path.name):
                raise StoreLayoutError(
                    f"{path}: expected a file of {self.file_bytes} bytes whose name is its first offset, "
                    f"found {size} bytes. Nothing was changed. Check mappedFileSizeCommitLog, and compare "
                    "the file with a replica."
                )
            file = WritableFile(path, int(path.name), size)
            file.set_positions(size)
            files.append(file)
        self.files = tuple(files)

    def last_for_write(self) -> WritableFile:
        """Return the file to write to, a new one if the last is full (MappedFileQueue#getLastMappedFile)."""
        last = self.last
        if last is not None and not last.is_full:
            return last
        file = self._preallocation.take(last.end_offset if last else 0)
        with self._guard:
            self.files = (*self.files, file)
        return file

    def find(self, offset: int, *, or_first: bool = False) -> WritableFile | None:
        """Return the file that contains an offset (MappedFileQueue#findMappedFileByOffset)."""
        files = self.files
        if not files:
            return None
        index = offset // self.file_bytes - files[0].base_offset // self.file_bytes
        if 0 <= index < len(files) and files[index].base_offset <= offset < files[index].end_offset:
            return files[index]
        containing = (file for file in files if file.base_offset <= offset < file.end_offset)
        return next(containing, files[0] if or_first else None)

    def commit(self, least_pages: int) -> bool:
        """Commit the next file. Return True if no bytes had to be committed (MappedFileQueue#commit).

        :raises OSError: the disk refuses, or has refused before.
        """
        with self._flushes.flushing():
            file = self.find(self.committed_where, or_first=self.committed_where == 0)
            if file is None:
                return True
            before, self.committed_where = self.committed_where, file.base_offset + file.commit(least_pages)
            return before == self.committed_where

    def flush(self, least_pages: int) -> bool:
        """Flush the next file. Return True if no bytes had to be flushed (MappedFileQueue#flush).

        :raises OSError: the disk refuses, or has refused before. No later byte counts as flushed.
        """
        with self._flushes.flushing():
            file = self.find(self.flushed_where, or_first=self.flushed_where == 0)
            if file is None:
                return True
            timestamp_ms = file.readable_timestamp_ms
            before, self.flushed_where = self.flushed_where, file.base_offset + file.flush(least_pages)
            if least_pages == 0:
                self.store_timestamp_ms = timestamp_ms
            return before == self.flushed_where

    def map_ahead(self) -> None:
        """Map the pages that will be written next."""
        if self.last is not None:
            self.last.map_ahead()

    def truncate(self, offset: int) -> None:
        """Cut off all bytes behind an offset, and delete files behind it (#truncateDirtyFiles)."""
        deleted = []
        for file in self.files:
            if file.end_offset <= offset:
                continue
            if offset >= file.base_offset:
                file.set_positions(offset % self.file_bytes)
            else:
                file.destroy(_FORCED_AFTER_MS, clock_ms())
                deleted.append(file)
        self.forget(deleted)

    def erase_rest(self) -> None:
        """Zero all bytes behind the log's end durably. Otherwise a recovery could read them as messages."""
        if self.last is not None:
            self.last.erase_rest()

    def forget(self, deleted: Sequence[WritableFile]) -> None:
        """Remove deleted files from the queue, and flush their directories."""
        if deleted:
            with self._guard:
                self.files = tuple(file for file in self.files if file not in deleted)
            for directory in {file.path.parent for file in deleted}:
                durable.fsync_path(directory)

    def retry_first(self, forced_after_ms: int, now_ms: int) -> bool:
        """Retry the first file's deletion if a reader delayed it (MappedFileQueue#retryDeleteFirstFile).

        :return: whether the file was deleted.
        """
        first = self.first
        if first is None or first.available or not first.destroy(forced_after_ms, now_ms):
            return False
        self.forget([first])
        return True

    def close(self) -> None:
        """Unmap all files, and delete the file that was created in advance."""
        self._preallocation.close()
        for file in self.files:
            file.shutdown(0, clock_ms())
        self.files = ()

    def _make(self, base_offset: int) -> WritableFile:
        writable = set(self._paths) - self._read_only
        directories = sorted(writable - self.full_paths or writable)
        directory = directories[base_offset // self.file_bytes % len(directories)]
        durable.make_dirs(directory)
        file = WritableFile(directory / file_name(base_offset), base_offset, self.file_bytes, self._pool)
        # Flush the size first: after a power loss, only the log's last file may be empty.
        durable.fsync_path(file.path)
        durable.fsync_path(directory)
        return file


def delete_empty_files(directories: Sequence[Path], raw_files: Sequence[tuple[Path, int]]) -> None:
    """Delete the empty last files, which :func:`list_raw_files` left out (MappedFileQueue#doLoad)."""
    listed_paths = {path for path, _ in raw_files}
    for directory in directories:
        for path in directory.iterdir() if directory.is_dir() else ():
            if path not in listed_paths and path.is_file() and path.stat().st_size == 0:
                path.unlink()


class FlushGuard:
    """Guard of the flushes of some files. After one failed flush it refuses all others.

    After a failed flush it is unknown which bytes are on disk, and the kernel reports the error only once. A
    later flush may succeed without having written these bytes.
    """

    def __init__(self, on_failure: Callable[[OSError], object] = lambda error: None) -> None:
        """:param on_failure: called with the first error, in the thread that meets it."""
        self._turn = threading.Lock()
        self._refused: OSError | None = None
        self._on_failure = on_failure

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Let the block flush while no other block does.

        :raises OSError: the disk has refused before.
        """
        with self._turn:
            if self._refused is not None:
                raise self._refused
            try:
                yield
            except OSError as error:
                self._refused = error
                self._on_failure(error)
                raise


def allow_open_files(directory: Path, files: int) -> None:
    """Raise the soft limit of open files to the hard limit, as a JVM does.

    :raises BadInputError: the hard limit is too low for the log.
    """
    needed = _DESCRIPTORS_PER_FILE * files + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise BadInputError(
            f"{directory}: expected a limit of at least {needed} open files for {files} files of the log, "
            f"found {hard}. Nothing was changed. Raise it: ulimit -Hn, or LimitNOFILE of a service."
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
