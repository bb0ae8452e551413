"""What lies below a table's location, in its trash too, and what time it is there."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    ListedFile,
    file_system_of,
    list_files,
    read_clock_at,
)

TRASH = f"{HIDDEN_PREFIX}trash"
"""Directory below a table's location: one directory a pass, with the files that it took."""

TAKEN_LIST = f"{HIDDEN_PREFIX}taken.json"
"""In such a directory: what the pass took. On an object store it is all that there is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table's files lie.

    :param name: of the table.
    :param location: without a final slash.
    :param root: the same as the file system names it.
    """

    name: str
    location: str
    io: FileIO
    file_system: pafs.FileSystem
    root: str

    @classmethod
    def at(cls, name: str, location: str, file_io: FileIO) -> Place:
        """
        :raises LakeUnavailableError: the lake was configured with another library's file access.
        """
        location = location.rstrip("/")
        return cls(name, location, file_io, *file_system_of(file_io, location))

    @classmethod
    def of(cls, table: Table) -> Place:
        """
        :raises LakeUnavailableError: the lake was configured with another library's file access.
        """
        return cls.at(table.name()[-1], table.location(), table.io)

    @property
    def is_local(self) -> bool:
        return local_path(self.location) is not None

    def now_ns(self) -> int:
        """Return the time there.

        :raises LakeUnavailableError: nothing can be written there.
        """
        return read_clock_at(self.io, self.location)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file below a table's location.

    :param inside: its path, relative to that location; for one in the trash the path that it was taken from.
    :param found: the same as it lies there now.
    :param path: as the file system names it, without a scheme.
    """

    inside: str
    found: str
    path: str
    size_bytes: int
    modified_ns: int

    def key(self, place: Place) -> str:
        """Return what other files name it by."""
        return key_of(f"{place.root}/{self.inside}")


@dataclass(frozen=True, slots=True)
class TrashList:
    """A pass that took files.

    :param moment: its name.
    :param since_ns: when it took them.
    """

    moment: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """:param files: of the table, without ours and without the trash.
    :param linked: files that a symbolic link leads to; they are left alone.
    :param trashed: files in the trash, by the moment at which they were taken.
    :param lists: what took them.
    """

    files: tuple[TableFile, ...]
    linked: tuple[str, ...]
    trashed: dict[str, tuple[TableFile, ...]]
    lists: tuple[TrashList, ...]


def key_of(location: str) -> str:
    """The last two parts of a location, which are unique, and the same however the warehouse is reached."""
    return "/".join(location.rsplit("/", 2)[-2:])


def list_place(place: Place) -> Listing:
    """List every file below a table's location.

    :raises LakeUnavailableError: it can't be listed.
    """
    files: list[TableFile] = []
    linked: list[str] = []
    trashed: dict[str, list[TableFile]] = {}
    lists: list[TrashList] = []
    links = _Links(place)
    for file in list_files(place.io, place.location):
        folder, _, below = file.inside.partition("/")
        if folder == TRASH:
            moment, _, inside = below.partition("/")
            if inside == TAKEN_LIST:
                lists.append(TrashList(moment, file.modified_ns))
            elif inside:
                trashed.setdefault(moment, []).append(_table_file(file, inside))
        elif links.lead_to(file):
            linked.append(file.path)
        elif HIDDEN_PREFIX not in file.inside and not file.is_ours:
            files.append(_table_file(file, file.inside))
    return Listing(
        tuple(files), tuple(linked), {moment: tuple(taken) for moment, taken in trashed.items()}, tuple(lists)
    )


def now_ns(places: Collection[Place], *, may_guess: bool) -> int:
    """Return the earliest time of some places.

    :param may_guess: take this host's clock where a place can't be written to: nothing is removed there.
    :raises LakeUnavailableError: a place can't be written to.
    """
    try:
        return min(place.now_ns() for place in places)
    except LakeUnavailableError:
        if not may_guess:
            raise
        return time.time_ns()


def _table_file(file: ListedFile, inside: str) -> TableFile:
    return TableFile(inside, file.inside, file.path, file.size_bytes, file.modified_ns)


class _Links:
    """Which files of a local place are reached by a symbolic link: another name for a file, or elsewhere."""

    def __init__(self, place: Place) -> None:
        self._root = os.path.realpath(place.root) if place.is_local else None
        self._directories: dict[str, bool] = {}

    def lead_to(self, file: ListedFile) -> bool:
        if self._root is None:
            return False
        folder = file.inside.rpartition("/")[0]
        if folder not in self._directories:
            real = os.path.realpath(Path(file.path).parent)
            self._directories[folder] = real != f"{self._root}/{folder}".rstrip("/")
        return self._directories[folder] or Path(file.path).is_symlink()
