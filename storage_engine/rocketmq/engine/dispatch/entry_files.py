"""Files of a consume queue, a batch consume queue or an extension. Entries are appended to the last file.

The files aren't mapped or kept open. So a full disk leads to an error, not to a signal.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from storage_engine.core import durable
from storage_engine.exceptions import StoreLayoutError
from storage_engine.rocketmq.engine.append.mapped_file_queue import (
    PAGE_BYTES,
    delete_empty_files,
    erase_behind,
)
from storage_engine.rocketmq.format.mapped_files import file_name, is_offset, list_raw_files
from storage_engine.rocketmq.format.stored_files import refuse_link

QUEUE_DEPTH = 3
"""Number of directories above a queue's own, as in ``STORE/consumequeue/TOPIC``."""
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class EntryFiles:
    """Files of one queue. All have the same size, and all but the last are full."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self.directory, self.file_bytes = directory, file_bytes
        self._guard = threading.RLock()
        self.bases: list[int] = []
        self.wrote = 0
        """Bytes of the last file that are in use."""
        self.flushed = 0
        """Offset up to which all bytes are on disk."""
        self._last_path = (-1, "")
        """First offset and path of the last file, kept for many appends."""
        self._new_directories: list[Path] = []
        self._deleted = False
        """Whether a file was deleted, and its directory isn't flushed yet."""

    @property
    def end(self) -> int:
        """Return the offset behind the last entry (MappedFileQueue#getMaxOffset)."""
        with self._guard:
            return self.bases[-1] + self.wrote if self.bases else 0

    def written(self) -> tuple[tuple[int, ...], int]:
        """Return the files' first offsets, and the offset behind the last entry, both at the same moment."""
        with self._guard:
            return tuple(self.bases), self.end

    def load(self) -> None:
        """Find the existing files. All count as full until a recovery sets their ends.

        :raises StoreLayoutError: a file has another size than in the settings, or a name that is no offset.
        """
        raw_files = list_raw_files((self.directory,))
        delete_empty_files((self.directory,), raw_files)
        for path, size in raw_files:
            if size != self.file_bytes or not is_offset(path.name):
                raise StoreLayoutError(
                    f"{path}: expected a file of {self.file_bytes} bytes whose name is its first offset, "
                    f"found {size} bytes. Nothing was changed. Check the file size in the broker's "
                    "settings, or put the file back from a replica."
                )
        self.bases = [int(path.name) for path, _ in raw_files]
        self.wrote = self.file_bytes if raw_files else 0
        self.flushed = self.end

    def path(self, base_offset: int) -> Path:
        return self.directory / file_name(base_offset)

    def begin_file(self, start_offset: int) -> bool:
        """Create a file for the next entry if no file has room for it.

        :param start_offset: offset of that entry. It decides where the first file of a queue begins.
        :return: whether the queue's first file was created.
        """
        if self.bases and self.wrote < self.file_bytes:
            return False
        first = not self.bases
        base = start_offset - start_offset % self.file_bytes if first else self.bases[-1] + self.file_bytes
        if not first and self.flushed <= self.bases[-1]:
            # After a power loss, only the last file of a queue may be empty.
            durable.fsync_path(self.path(self.bases[-1]))
        self._make(base)
        with self._guard:
            self.bases.append(base)
            self.wrote = 0
        return first

    def append(self, content: bytes | memoryview) -> None:
        """Append whole entries, to as many files as needed."""
        view = memoryview(content)
        while len(view):
            self.begin_file(self.end)
            count = min(len(view), self.file_bytes - self.wrote)
            if self._last_path[0] != self.bases[-1]:
                self._last_path = self.bases[-1], str(self.path(self.bases[-1]))
            with durable.opened(self._last_path[1], _OPEN) as fd:
                position = self.wrote
                part = view[:count]
                while len(part):
                    written = os.pwrite(fd, part, position)
                    part, position = part[written:], position + written
            self.wrote += count
            view = view[count:]

    def read(self, base_offset: int, position: int, size_bytes: int) -> bytes:
        """Read bytes of one file. At the file's end the result is shorter."""
        with durable.opened(self.path(base_offset), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) as fd:
            return os.pread(fd, size_bytes, position)

    def flush(self, least_pages: int) -> None:
        """Flush to disk all bytes written since the last flush.

        :param least_pages: flush no pages if fewer are unflushed.
        :raises OSError: the disk refuses. Bytes flushed before still count as flushed.
        """
        bases, end = self.written()
        self._flush_deletions()
        if end // PAGE_BYTES - self.flushed // PAGE_BYTES < least_pages or end == self.flushed:
            return
        while self._new_directories:
            durable.fsync_path(self._new_directories[0])
            self._new_directories.pop(0)
        for base in bases:
            if base + self.file_bytes > self.flushed and base < end:
                try:
                    durable.fsync_path(self.path(base))
                except FileNotFoundError:
                    # A cleanup may delete files meanwhile.
                    if base in self.bases:
                        raise
        durable.fsync_path(self.directory)
        self.flushed = end

    def _flush_deletions(self) -> None:
        if self._deleted:
            self._deleted = False
            durable.fsync_path(self.directory)

    def truncate(self, offset: int) -> None:
        """Cut off all bytes behind an offset, and delete files behind it (#truncateDirtyFiles).

        As in the broker, the bytes that are cut off stay in the last file.
        """
        for base in self.bases:
            if base > offset:
                durable.unlink(self.path(base))
                self._deleted = True
        self.bases = [base for base in self.bases if base <= offset]
        if self.bases and self.bases[-1] + self.file_bytes > offset:
            self.wrote = offset - self.bases[-1]
        else:
            self.wrote = self.file_bytes if self.bases else 0
        self.flushed = min(self.flushed, self.end)

    def delete_last(self) -> None:
        """Delete the last file. The file before it counts as full."""
        durable.unlink(self.path(self.bases.pop()))
        self._deleted = True
        self.wrote = self.file_bytes if self.bases else 0
        self.flushed = min(self.flushed, self.end)

    def delete_first(self) -> None:
        with self._guard:
            base, self.bases = self.bases[0], self.bases[1:]
        durable.unlink(self.path(base))
        self._deleted = True

    def delete_all(self) -> None:
        """Delete every file and the directory (MappedFileQueue#destroy)."""
        while self.bases:
            self.delete_last()
        self.flushed, self._deleted = 0, False
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()

    def take_to_disk(self) -> None:
        """Flush what a killed process wrote, since it may be only in the page cache."""
        if self.bases:
            self._new_directories += self.directory.parents[:QUEUE_DEPTH]
        self.flush(0)

    def erase_rest(self) -> None:
        """Zero all bytes behind the last entry durably. Otherwise a recovery could read them as entries.

        The deletion of files that were cut off becomes durable, too.
        """
        self._flush_deletions()
        if not self.bases or self.wrote == self.file_bytes:
            return
        with durable.opened(self.path(self.bases[-1]), _OPEN) as fd:
            erase_behind(fd, self.wrote, self.file_bytes)

    def _make(self, base_offset: int) -> None:
        missing = []
        directory = self.directory
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for new_directory in reversed(missing):
            durable.make_dir(new_directory)
            self._new_directories.append(new_directory.parent)
        path = self.path(base_offset)
        refuse_link(path)
        try:
            with durable.create(path) as file:
                os.ftruncate(file.fileno(), self.file_bytes)
        except FileExistsError:
            os.truncate(path, self.file_bytes)
