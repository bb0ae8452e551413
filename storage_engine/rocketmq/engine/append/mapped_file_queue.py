"""The files of the commitlog in the order of their offsets (MappedFileQueue, MultiPathMappedFileQueue)."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, StoreLayoutError
from storage_engine.rocketmq.engine.append.mapped_file import TransientPool, WritableFile
from storage_engine.rocketmq.format.mapped_files import file_name, is_offset, list_raw_files

_FORCED_AFTER_MS = 1000
Make = Callable[[int], WritableFile]
"""Makes the file that begins at an offset."""
_A_FILE = 2
"""The file's own, and the one that Python's mapping keeps."""
_OTHERS = 512
"""Queues, index, sockets, and files of the log that are yet to be written."""


class Preallocation:
    """The one file that is made, or being made, before it is needed."""

    def __init__(self, make: Make, size_bytes: int) -> None:
        self._make, self._size_bytes = make, size_bytes
        self._worker = ThreadPoolExecutor(1, "preallocation")
        self._next: tuple[int, Future[WritableFile]] | None = None

    def take(self, base_offset: int) -> WritableFile:
        """Return the file that begins at an offset, and begin to make the one behind it.

        :raises OSError: it can't be made.
        """
        prepared, self._next = self._next, None
        if prepared is not None and prepared[0] == base_offset:
            file = prepared[1].result()
        else:
            _drop(prepared)
            file = self._make(base_offset)
        behind = base_offset + self._size_bytes
        self._next = (behind, self._worker.submit(self._make, behind))
        return file

    def close(self) -> None:
        """Delete the file that nobody needed."""
        _drop(self._next)
        self._next = None
        self._worker.shutdown()


def _drop(prepared: tuple[int, Future[WritableFile]] | None) -> None:
    if prepared is not None:
        with suppress(OSError):
            prepared[1].result().destroy(_FORCED_AFTER_MS, clock_ms())


class FileQueue:
    """Mapped files, oldest first, and how far the whole queue is committed and flushed."""

    def __init__(
        self,
        paths: Sequence[Path],
        file_bytes: int,
        *,
        read_only_paths: Sequence[Path] = (),
        pool: TransientPool | None = None,
    ) -> None:
        """:param paths: directories that files may be in; new ones go to those that aren't full, in turn."""
        self.file_bytes = file_bytes
        self.full_paths: frozenset[Path] = frozenset()
        """Directories on disks that are too full for a new file."""
        self.files: tuple[WritableFile, ...] = ()
        self.flushed_where = self.committed_where = 0
        self.store_timestamp_ms = 0
        """Of the newest message that is on disk for sure."""
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
        """Return the end of what readers see."""
        last = self.last
        return last.base_offset + last.read_position if last else 0

    @property
    def wrote_offset(self) -> int:
        """Return the end of what was written."""
        last = self.last
        return last.base_offset + last.wrote if last else 0

    @property
    def min_offset(self) -> int:
        """Return where the log begins; behind a first file that is being deleted (CommitLog#getMinOffset)."""
        first = self.first
        if first is None:
            return -1
        return first.base_offset if first.available else first.end_offset

    def load(self) -> None:
        """Map the files that are there; all count as full until a recovery tells.

        :raises StoreLayoutError: one has another size than the settings say, or no offset as its name.
        :raises BadInputError: this process may not have so many files open.
        """
        directories = (*self._paths, *(path for path in self._read_only if path not in self._paths))
        found = list_raw_files(directories)
        allow_open_files(directories[0], len(found))
        self._delete_empty_last(directories, found)
        files = []
        for path, size in found:
            if size != self.file_bytes or not is_offset(path.name):
                raise StoreLayoutError(
                    f"{path}: expected a file of {self.file_bytes} bytes whose name is its first offset, "
                    f"found {size} bytes. Nothing was changed. Check mappedFileSizeCommitLog, and compare "
                    "the file with a replica."
                )
            file = WritableFile(path, int(path.name), size, None)
            file.set_positions(size)
            files.append(file)
        self.files = tuple(files)

    def last_for_write(self) -> WritableFile:
        """Return the file to write to; a new one behind a full one (MappedFileQueue#getLastMappedFile).

        :raises OSError: a new file can't be made.
        """
        last = self.last
        if last is not None and not last.is_full:
            return last
        file = self._preallocation.take(last.end_offset if last else 0)
        with self._guard:
            self.files = (*self.files, file)
        return file

    def find(self, offset: int, *, or_first: bool = False) -> WritableFile | None:
        """Return the file that has an offset (MappedFileQueue#findMappedFileByOffset)."""
        files = self.files
        if not files:
            return None
        index = offset // self.file_bytes - files[0].base_offset // self.file_bytes
        if 0 <= index < len(files) and files[index].base_offset <= offset < files[index].end_offset:
            return files[index]
        for file in files:
            if file.base_offset <= offset < file.end_offset:
                return file
        return files[0] if or_first else None

    def commit(self, least_pages: int) -> bool:
        """Commit the file that is next; True when there was nothing to do (MappedFileQueue#commit).

        :raises OSError: the disk refuses, or has refused before.
        """
        with self._flushes.flushing():
            file = self.find(self.committed_where, or_first=self.committed_where == 0)
            if file is None:
                return True
            where = file.base_offset + file.commit(least_pages)
            done = where == self.committed_where
            self.committed_where = where
            return done

    def flush(self, least_pages: int) -> bool:
        """Flush the file that is next; True when there was nothing to do (MappedFileQueue#flush).

        :raises OSError: the disk refuses, or has refused before; nothing counts as flushed from then on.
        """
        with self._flushes.flushing():
            file = self.find(self.flushed_where, or_first=self.flushed_where == 0)
            if file is None:
                return True
            timestamp_ms = file.readable_timestamp_ms
            where = file.base_offset + file.flush(least_pages)
            done = where == self.flushed_where
            self.flushed_where = where
            if least_pages == 0:
                self.store_timestamp_ms = timestamp_ms
            return done

    def map_ahead(self) -> None:
        """Map the pages that are written next."""
        if self.last is not None:
            self.last.map_ahead()

    def truncate(self, offset: int) -> None:
        """Cut the queue off at an offset, whole files too (MappedFileQueue#truncateDirtyFiles)."""
        gone = []
        for file in self.files:
            if file.end_offset <= offset:
                continue
            if offset >= file.base_offset:
                file.set_positions(offset % self.file_bytes)
            else:
                file.destroy(_FORCED_AFTER_MS, clock_ms())
                gone.append(file)
        self.forget(gone)

    def erase_rest(self) -> None:
        """Write zeros over what lies behind the log's end, durably: no recovery may take it for messages.

        :raises OSError: the disk refuses.
        """
        if self.last is not None:
            self.last.erase_rest()

    def forget(self, gone: Sequence[WritableFile]) -> None:
        """Take files that were deleted out of the queue, durably."""
        if gone:
            with self._guard:
                self.files = tuple(file for file in self.files if file not in gone)
            for directory in {file.path.parent for file in gone}:
                durable.fsync_path(directory)

    def retry_first(self, forced_after_ms: int, now_ms: int) -> bool:
        """Try again to delete a first file that a reader held (MappedFileQueue#retryDeleteFirstFile)."""
        first = self.first
        if first is None or first.available or not first.destroy(forced_after_ms, now_ms):
            return False
        self.forget([first])
        return True

    def close(self) -> None:
        """Unmap all files; the one that was made beforehand is deleted."""
        self._preallocation.close()
        for file in self.files:
            file.shutdown(0, clock_ms())
        self.files = ()

    def _make(self, base_offset: int) -> WritableFile:
        directories = sorted(set(self._paths) - self._read_only - self.full_paths)
        directories = directories or sorted(set(self._paths) - self._read_only)
        directory = directories[base_offset // self.file_bytes % len(directories)]
        durable.make_dirs(directory)
        file = WritableFile(directory / file_name(base_offset), base_offset, self.file_bytes, self._pool)
        # First its size: after a power loss only the last file of the log may be without a byte.
        durable.fsync_path(file.path)
        durable.fsync_path(directory)
        return file

    @staticmethod
    def _delete_empty_last(directories: Sequence[Path], found: Sequence[tuple[Path, int]]) -> None:
        """Delete a last file without a byte (MappedFileQueue#doLoad); :func:`list_raw_files` left it out."""
        known = {path for path, _ in found}
        for directory in directories:
            for path in directory.iterdir() if directory.is_dir() else ():
                if path not in known and path.is_file() and path.stat().st_size == 0:
                    path.unlink()


class FlushGuard:
    """Stands before the flushes of some files.

    What was to be written by a refused flush is unknown, and the system says so once: a later flush that
    succeeds has not written it.
    """

    def __init__(self, on_failure: Callable[[OSError], object] = lambda error: None) -> None:
        """:param on_failure: is told of the first refusal, by the thread that meets it."""
        self._turn = threading.Lock()
        self._refused: OSError | None = None
        self._on_failure = on_failure

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Flush while the block runs.

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
    """Raise the soft limit of open files to the hard one, as a JVM does, where a log needs it.

    :param files: of the log.
    :raises BadInputError: the hard limit is too low.
    """
    needed = _A_FILE * files + _OTHERS
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
