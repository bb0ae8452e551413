"""Files of the commitlog and of all kinds of queues. Each is named by its first offset.

The rules come from MappedFileQueue#doLoad and #checkSelf. The broker only logs a fault in a run of files and
continues. In :func:`list_mapped_files` such a fault is an error, since deletions are decided from its result.
Validation must not stop at the first fault, so it uses :func:`list_raw_files`, which checks nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.exceptions import BadInputError, CorruptFileError, StoreBusyError
from storage_engine.rocketmq.format.stored_files import open_stored, symbolic_link

NAME_DIGITS = 20
MAX_FILE_BYTES = (1 << 31) - 1
"""Size limit of a file that a broker maps: Java counts its bytes in an int."""
MAX_QUEUE_ID = (1 << 31) - 1

_MAX_OFFSET = (1 << 63) - 1
_MAX_NAME_BYTES = 255
_LISTINGS = 20


@dataclass(frozen=True, slots=True)
class MappedFile:
    """One file, which covers the offsets [base_offset, base_offset + size_bytes)."""

    path: Path
    base_offset: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes


def file_name(base_offset: int) -> str:
    """Return the name of the file that begins at ``base_offset`` (UtilAll#offset2FileName)."""
    return f"{base_offset:0{NAME_DIGITS}d}"


def is_offset(name: str) -> bool:
    """Return whether a file's name is an offset (UtilAll#offset2FileName)."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdecimal()


def queue_id_of(name: str) -> int | None:
    """Return the queue id that is a directory's name; None if the name is no possible id."""
    if not (name.isascii() and name.isdecimal()) or len(name) > NAME_DIGITS or int(name) > MAX_QUEUE_ID:
        return None
    return int(name)


def has_directory(topic: str) -> bool:
    """Return whether a topic's name can be that of a directory below the directory of the queues.

    A foreign frame or offset table may have any text as a topic.
    """
    return (
        topic not in ("", ".", "..")
        and not {"/", "\0"} & set(topic)
        and len(topic.encode(errors="surrogateescape")) <= _MAX_NAME_BYTES
    )


def list_raw_files(directories: Sequence[Path], *, refuse_links: bool = True) -> tuple[tuple[Path, int], ...]:
    """Return path and size of every file, also of faulty files, sorted by name.

    A missing directory has no files, and directories inside are left out. A pipe, a device or the like has
    the size -1, and must not be opened, since that may block for ever. An empty last file is left out: the
    broker removes it when it opens the store (MappedFileQueue#doLoad), or hasn't set its size yet.

    :param refuse_links: if False, a symbolic link has the size -1, too, and is no error.
    :raises StoreBusyError: files keep vanishing while they are listed.
    :raises StoreLayoutError: a file is a symbolic link.
    """
    raw_files: list[tuple[Path, int]] = []
    for directory in directories:
        raw_files += _list_directory(directory, refuse_links=refuse_links)
    raw_files.sort(key=lambda item: (item[0].name, str(item[0])))
    if raw_files and raw_files[-1][1] == 0:
        raw_files.pop()
    return tuple(raw_files)


def check_not_emptied(queue: Path) -> None:
    """:raises CorruptFileError: a queue without readable files has an empty file: it may have had entries."""
    for path, size in _list_directory(queue):
        if size == 0:
            raise CorruptFileError(
                f"{path}: expected a file of whole entries, found 0 bytes and no other file of its queue: "
                "the queue's content is unknown. Nothing was changed. Start the broker, which makes queues "
                "again from its log, and stop it cleanly; or put the file back from a replica or a backup."
            )


def _list_directory(directory: Path, *, refuse_links: bool = True) -> list[tuple[Path, int]]:
    for _ in range(_LISTINGS):
        try:
            entries = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        files = []
        with entries, suppress(FileNotFoundError):
            for entry in entries:
                if entry.is_symlink() and refuse_links:
                    raise symbolic_link(entry.path)
                # If a file vanishes here, files that were listed before may have vanished, too: list again.
                size = -1 if entry.is_symlink() else size_bytes_of(entry)
                if size is not None:
                    files.append((Path(entry.path), size))
            return files
    raise StoreBusyError(
        f"{directory}: expected its files to stay while they are listed, found that files vanished during "
        "each attempt. Find out who deletes them, and run again."
    )


def size_bytes_of(entry: os.DirEntry[str]) -> int | None:
    """Return the size of an ordinary file; None for a directory, -1 for anything else."""
    try:
        if entry.is_file():
            return entry.stat().st_size
        return None if entry.is_dir() else -1
    except OSError as error:
        if error.errno == errno.ELOOP:
            return -1
        raise


def readable_files(files: Sequence[tuple[Path, int]], *, unit_bytes: int = 1) -> tuple[MappedFile, ...]:
    """Return the files that a broker could have made and that have at least one unit, in the same order."""
    return tuple(
        MappedFile(path, int(path.name), size)
        for path, size in files
        if is_offset(path.name) and unit_bytes <= size <= MAX_FILE_BYTES and _is_reachable(path.name, size)
    )


def _is_reachable(name: str, size_bytes: int) -> bool:
    """Return whether the offset of a file's last byte fits into a Java long."""
    return int(name) + size_bytes <= _MAX_OFFSET


def list_mapped_files(
    directories: Sequence[Path],
    *,
    error: type[BadInputError],
    size_bytes: int | None = None,
    unit_bytes: int = 1,
) -> tuple[MappedFile, ...]:
    """List the files of one log or queue, sorted by base offset, and check that they are contiguous.

    :param directories: directories of the files; a missing directory has none.
    :param size_bytes: file size in the broker's settings; None for the most frequent size.
    """
    raw_files = list_raw_files(directories)
    if not raw_files:
        return ()
    sizes = Counter(size for _, size in raw_files if size > 0)
    expected = size_bytes or (sizes.most_common(1)[0][0] if sizes else 0)
    why = "as configured" if size_bytes else "as the other files"
    files: list[MappedFile] = []
    for path, size in raw_files:
        if not is_offset(path.name):
            raise error(
                f"{path}: expected a name of {NAME_DIGITS} digits, the file's first offset. "
                "Move the file out of the store."
            )
        if size < 0:
            raise error(
                f"{path}: expected an ordinary file, found a link to nothing, a pipe or a device. {_CHECK}"
            )
        if size > MAX_FILE_BYTES:
            raise error(f"{path}: expected at most {MAX_FILE_BYTES} bytes, found {size}. {_CHECK}")
        if size == 0:
            raise error(f"{path}: expected a file of whole entries, found 0 bytes. {_EMPTY}")
        if size != expected:
            raise error(f"{path}: expected {expected} bytes {why}, found {size}. {_CHECK}")
        if size % unit_bytes:
            raise error(f"{path}: expected a multiple of {unit_bytes} bytes, found {size}. {_CHECK}")
        if not _is_reachable(path.name, size):
            raise error(f"{path}: expected a file that ends below offset {_MAX_OFFSET}. {_CHECK}")
        base_offset = int(path.name)
        if base_offset % expected:
            raise error(f"{path}: expected a name that is a multiple of the file size {expected}. {_CHECK}")
        if files and base_offset == files[-1].base_offset:
            raise error(
                f"{path}: base offset {base_offset} exists twice, also as {files[-1].path}. "
                "Find out which one the broker wrote last and move the other one away."
            )
        if files and base_offset != files[-1].end_offset:
            raise error(
                f"{path}: a hole before this file: expected {file_name(files[-1].end_offset)} after "
                f"{files[-1].path}, found base offset {base_offset}. {_CHECK}"
            )
        files.append(MappedFile(path, base_offset, size))
    return tuple(files)


_CHECK = "Compare the directory with a replica or a backup; nothing was changed."
_EMPTY = (
    "Nothing was changed. Put the file back from a replica or a backup. The broker removes an empty file by "
    "itself only where it is the last one."
)


@contextmanager
def map_file(path: Path, *, scattered: bool = False) -> Iterator[memoryview]:
    """Map a file read-only until the block ends, to read a few pages of a large file.

    No view of the mapping may outlive the block.

    :param scattered: read only the used pages from disk, without reading ahead.
    :raises StoreBusyError: the file has become empty.
    """
    with open_stored(path) as file:
        try:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise StoreBusyError(
                f"{path}: expected bytes, found none: another program changes the file. Find out who, and "
                "run again."
            ) from error
    if scattered:
        mapping.madvise(mmap.MADV_RANDOM)
    view = memoryview(mapping)
    try:
        yield view
    except BaseException:
        # The error's traceback may keep views alive. Then a BufferError here would hide the error.
        with suppress(BufferError):
            view.release()
            mapping.close()
        raise
    view.release()
    mapping.close()
