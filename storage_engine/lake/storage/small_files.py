"""Our small files below a table's location, and listing all files there, on disks and object stores.

Our files' names begin with a dot, because Spark's ``remove_orphan_files`` doesn't touch such files.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow.fs as pafs
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from storage_engine.core import durable
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.storage.errors import lake_errors

HIDDEN_PREFIX = ".storage-engine-"
"""The beginning of the names of our own small files below a table's location."""

OWN_FOLDER = "_storage-engine"
"""Directory below the location of ``segments`` for our files that are never changed or removed."""

_CLOCK_NAME = f"{HIDDEN_PREFIX}clock"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file below a location.

    :param path: the file system's path, without a scheme.
    :param inside: the path relative to the location.
    """

    path: str
    inside: str
    size_bytes: int
    modified_ns: int

    @property
    def is_ours(self) -> bool:
        """Return whether this is one of our small files, or a file in our trash or folder."""
        parts = self.inside.split("/")
        return parts[0] == OWN_FOLDER or any(part.startswith(HIDDEN_PREFIX) for part in parts)


def read_small_file(file_io: FileIO, location: str) -> bytes | None:
    """Return a file's content, or None if there is no such file.

    :raises LakeUnavailableError: the file can't be read.
    """
    with lake_errors(location, "read a file"):
        try:
            with file_io.new_input(location).open() as stream:
                return stream.read()
        except FileNotFoundError:
            return None


def replace_small_file(file_io: FileIO, location: str, data: bytes) -> None:
    """Write a file durably. It replaces an older file of that name.

    :raises LakeUnavailableError: the file can't be written.
    """
    with lake_errors(location, "write a file"):
        path = local_path(location)
        if path is not None:
            durable.make_dirs(path.parent)
            durable.write_file(path, data)
            return
        with file_io.new_output(location).create(overwrite=True) as stream:
            stream.write(data)


def delete_small_file(file_io: FileIO, location: str) -> None:
    """Remove a file durably if it exists.

    :raises LakeUnavailableError: the file can't be removed.
    """
    with lake_errors(location, "remove a file"):
        path = local_path(location)
        if path is None:
            file_io.delete(location)
        elif durable.unlink(path):
            durable.fsync_path(path.parent)


def read_clock_at(file_io: FileIO, location: str) -> int:
    """Write a file, and return its time by the storage's clock, in nanoseconds since the epoch.

    :raises LakeUnavailableError: nothing can be written there.
    """
    replace_small_file(file_io, f"{location}/{_CLOCK_NAME}", b"The time here.\n")
    file_system, root = file_system_of(file_io, location)
    path = f"{root}/{_CLOCK_NAME}"
    with lake_errors(path, "look at a file"):
        info = file_system.get_file_info(path)
    if info.type != pafs.FileType.File:
        raise LakeUnavailableError(f"{path}: expected a file, found none. Nothing was changed.")
    return info.mtime_ns or 0


def list_files(file_io: FileIO, location: str) -> list[ListedFile]:
    """List every file below a location, or none if there is no such directory.

    :raises LakeUnavailableError: the location can't be listed.
    """
    file_system, root = file_system_of(file_io, location)
    with lake_errors(location, "list files"):
        infos = file_system.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    return [
        ListedFile(info.path, info.path.removeprefix(root).lstrip("/"), info.size or 0, info.mtime_ns or 0)
        for info in infos
        if info.type == pafs.FileType.File
    ]


def file_system_of(file_io: FileIO, location: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system behind a location, and the location's path on it.

    :raises LakeUnavailableError: the lake was configured with another library's file access.
    """
    if not isinstance(file_io, PyArrowFileIO):
        raise LakeUnavailableError(
            f"{location}: expected a PyArrow file system, found {type(file_io).__name__}. Nothing was "
            "changed. Configure the lake without py-io-impl."
        )
    scheme, netloc, path = PyArrowFileIO.parse_location(location)
    return file_io.fs_by_scheme(scheme, netloc), path.rstrip("/")


T = TypeVar("T")

_Stamp = tuple[int, int, int, int] | None

_memories: weakref.WeakSet[FileMemory[Any]] = weakref.WeakSet()


class FileMemory(Generic[T]):
    """A cache of parsed files, by location. The least recently used value is dropped first.

    :param most: largest sum of the values' weights.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._entries: OrderedDict[str, tuple[_Stamp, T, int]] = OrderedDict()
        self._lock = threading.Lock()
        _memories.add(self)

    def get(self, location: str, parse: Callable[[], T], weigh: Callable[[T], int] = lambda _: 1) -> T:
        """Return a file's parsed content. The file is parsed if it isn't cached or has changed.

        :raises Exception: as ``parse`` does.
        """
        stamp = _stamp(location)
        with self._lock:
            entry = self._entries.get(location)
            if entry is not None and entry[0] == stamp:
                self._entries.move_to_end(location)
                return entry[1]
        value = parse()
        weight = weigh(value)
        with self._lock:
            self._drop(location)
            self._entries[location] = (stamp, value, weight)
            self._weight += weight
            while self._weight > self._most and len(self._entries) > 1:
                self._drop(next(iter(self._entries)))
        return value

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._weight = 0

    def _drop(self, location: str) -> None:
        if (entry := self._entries.pop(location, None)) is not None:
            self._weight -= entry[2]


def forget_files() -> None:
    """Clear all caches, so that this process reads every file of a lake again, as verification must."""
    for memory in list(_memories):
        memory.clear()


def _stamp(location: str) -> _Stamp:
    """Return a local file's inode, size and times, zeros if it is missing, or None for a remote file."""
    path = local_path(location)
    try:
        status = None if path is None else path.stat()
    except OSError:
        # Parsing the file raises the error.
        return (0, 0, 0, 0)
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
