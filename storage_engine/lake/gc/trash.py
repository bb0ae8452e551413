"""The trash: gc puts files into it. They can be put back, and are removed for good later.

On this machine's file systems, a file is renamed into a hidden directory below its table's location. Each
pass of gc has a directory, below which a file keeps its path. Object stores can't rename: a file stays at its
place, and is in the trash as long as the list of the pass names it. Each pass writes its list before the pass
takes a file, and never changes another pass's list. The list's modification time is the time of the pass.
After a kill at any instant, each file is at its place or in the trash.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.fs as pafs
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from storage_engine.core import durable
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.staging import sha256_of
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    ListedFile,
    delete_small_file,
    file_system_of,
    list_files,
    read_clock_at,
    read_small_file,
    replace_small_file,
)

TRASH = f"{HIDDEN_PREFIX}trash"
"""Directory below a table's location. It has one directory for the files of each pass."""

TAKEN_LIST = f"{HIDDEN_PREFIX}taken.json"
"""Name of a pass's list of files, in the pass's directory. On an object store it is the only file there."""


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of a table's files.

    :param location: the table's location, without a final slash.
    :param root: the file system's path of this location.
    """

    name: str
    location: str
    io: FileIO
    file_system: pafs.FileSystem
    root: str

    @classmethod
    def at(cls, name: str, location: str, file_io: FileIO) -> Place:
        """Return the place at a table's location.

        :raises LakeUnavailableError: the lake was configured with another library's file access.
        """
        location = location.rstrip("/")
        return cls(name, location, file_io, *file_system_of(file_io, location))

    @classmethod
    def of(cls, table: Table) -> Place:
        """Return the place of a loaded table's files.

        :raises LakeUnavailableError: the lake was configured with another library's file access.
        """
        return cls.at(table.name()[-1], table.location(), table.io)

    @property
    def is_local(self) -> bool:
        return local_path(self.location) is not None

    def now_ns(self) -> int:
        """Return the present time by the storage's clock, in nanoseconds since the epoch.

        :raises LakeUnavailableError: the place can't be written.
        """
        return read_clock_at(self.io, self.location)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file below a table's location.

    :param inside: path relative to that location. For a file in the trash, it is the former path.
    :param found: present path relative to that location.
    :param path: the file system's path, without a scheme.
    """

    inside: str
    found: str
    path: str
    size_bytes: int
    modified_ns: int

    def key(self, place: Place) -> str:
        """Return the key by which other files refer to this file."""
        return key_of(f"{place.root}/{self.inside}")


@dataclass(frozen=True, slots=True)
class TrashList:
    """The list of a pass that took files.

    :param moment: name of the pass.
    :param since_ns: time of the pass, in nanoseconds since the epoch.
    """

    moment: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All files below a table's location.

    :param files: the table's files, without our own small files and without the trash.
    :param linked: paths that are or contain symbolic links. Files at such paths are left alone.
    :param trashed: files in the trash, by the name of the pass that took them.
    """

    files: tuple[TableFile, ...]
    linked: tuple[str, ...]
    trashed: dict[str, tuple[TableFile, ...]]
    lists: tuple[TrashList, ...]


def key_of(location: str) -> str:
    """Return the last two parts of a location, which are unique and the same for each path to a warehouse."""
    return "/".join(location.rsplit("/", 2)[-2:])


def list_place(place: Place) -> Listing:
    """List every file below a table's location.

    :raises LakeUnavailableError: the location can't be listed.
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
    """Return the earliest present time by the places' clocks, in nanoseconds since the epoch.

    :param may_guess: if a place can't be written, use this host's clock. Not for callers that remove files.
    :raises LakeUnavailableError: a place can't be written.
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
    """Finds paths with a symbolic link below a local place. Such a file has another name, or is elsewhere."""

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


@dataclass(frozen=True, slots=True)
class Taken:
    """A file on a pass's list.

    :param why: the file's kind, and the reason for its removal.
    """

    inside: str
    size_bytes: int
    modified_ns: int
    why: str


@dataclass(frozen=True, slots=True)
class PutBack:
    """Files that were put back from the trash.

    :param moments: names of the passes whose files were put back.
    :param paths: former and present paths of these files.
    :param occupied: paths of files that stay in the trash, because other files have their former names.
    """

    moments: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    occupied: tuple[str, ...] = ()


def new_moment(now_ns: int) -> str:
    """Return a name for a pass: its time in UTC, and eight random digits."""
    now = datetime.fromtimestamp(now_ns / 1e9, UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"


def in_trash(place: Place, listing: Listing) -> list[tuple[TrashList, TableFile]]:
    """Return the files in the trash, each with the list of its pass.

    On an object store, a file that changed after it was listed isn't in the trash.

    :raises LakeUnavailableError: a list can't be read.
    """
    if place.is_local:
        return [(entry, file) for entry in listing.lists for file in listing.trashed.get(entry.moment, ())]
    files = {(file.inside, file.size_bytes, file.modified_ns): file for file in listing.files}
    entries = []
    for entry in listing.lists:
        for item in _read_list(place, entry.moment):
            file = files.pop((item.inside, item.size_bytes, item.modified_ns), None)
            if file is not None:
                entries.append((entry, file))
    return entries


def take(place: Place, moment: str, files: Sequence[tuple[TableFile, str]]) -> list[TableFile]:
    """Put files into the trash. A file that has changed since it was listed is left alone.

    :param files: files, each with the reason for its removal.
    :return: the files that are in the trash now.
    :raises LakeUnavailableError: the place can't be written.
    """
    if not files:
        return []
    _check_own(place)
    listed = [Taken(file.inside, file.size_bytes, file.modified_ns, why) for file, why in files]
    text = json.dumps(list(map(astuple, listed)), indent=0)
    replace_small_file(place.io, _list_location(place, moment), text.encode())
    if not place.is_local:
        return [file for file, _ in files]
    root, trash = Path(place.root), Path(place.root) / TRASH / moment
    moved = [file for file, _ in files if _move(root / file.inside, trash / file.inside, file)]
    # The new names are synced first, so that after a power loss a file has one of the names, or both.
    _fsync_parents(trash / file.inside for file in moved)
    _fsync_parents(root / file.inside for file in moved)
    return moved


def empty(place: Place, files: Iterable[tuple[TrashList, TableFile]]) -> list[TableFile]:
    """Remove files from the trash for good. A file that has changed since it was listed is left alone.

    :return: the removed files.
    :raises LakeUnavailableError: the place can't be written.
    """
    _check_own(place)
    removed, get_info = [], place.file_system.get_file_info
    for taken, file in files:
        with lake_errors(file.path, "remove a file"):
            # If the list was removed, its files were put back.
            taken_list = f"{place.root}/{TRASH}/{taken.moment}/{TAKEN_LIST}"
            if not place.is_local and get_info(taken_list).type != pafs.FileType.File:
                continue
            info = get_info(file.path)
            if (info.size, info.mtime_ns) == (file.size_bytes, file.modified_ns):
                with suppress(FileNotFoundError):
                    place.file_system.delete_file(file.path)
                    removed.append(file)
    if place.is_local:
        _fsync_parents(Path(file.path) for file in removed)
    return removed


def forget(place: Place, moment: str) -> None:
    """Remove the list and directory of a pass whose files are all out of the trash.

    :raises LakeUnavailableError: the place can't be written.
    """
    if not place.is_local:
        delete_small_file(place.io, _list_location(place, moment))
        return
    directory = Path(place.root) / TRASH / moment
    with lake_errors(str(directory), "remove an empty trash"):
        for below, directories, files in os.walk(directory, topdown=False):
            if below == str(directory):
                continue
            if files or any(Path(below, name).exists() for name in directories):
                return
            Path(below).rmdir()
        durable.unlink(directory / TAKEN_LIST)
        with suppress(FileNotFoundError):
            directory.rmdir()
            durable.fsync_path(directory.parent)


def put_back(place: Place, moment: str | None) -> PutBack:
    """Put the files of one pass or of all passes back under their former names.

    No table is loaded, so this works even if the catalog names a file that is in the trash.

    :param moment: name of the pass; None for all passes.
    :raises LakeUnavailableError: the place can't be read or written.
    """
    _check_own(place)
    listing = list_place(place)
    moments = sorted({*(taken.moment for taken in listing.lists), *listing.trashed})
    moments = [name for name in moments if moment in (None, name)]
    if not place.is_local:
        back = tuple(file.path for taken, file in in_trash(place, listing) if taken.moment in moments)
        for name in moments:
            delete_small_file(place.io, _list_location(place, name))
        return PutBack(tuple(moments), back)
    paths: list[str] = []
    occupied: list[str] = []
    for name in moments:
        files = listing.trashed.get(name, ())
        stay = [
            file.path for file in files if not _link_back(Path(place.root) / file.inside, Path(file.path))
        ]
        occupied += stay
        paths += (f"{place.root}/{file.inside}" for file in files if file.path not in stay)
        _fsync_parents(Path(place.root) / file.inside for file in files)
        for file in files:
            if file.path not in stay:
                durable.unlink(file.path)
        _fsync_parents(Path(file.path) for file in files)
        if not stay:
            forget(place, name)
    return PutBack(tuple(moments), tuple(paths), tuple(occupied))


def _check_own(place: Place) -> None:
    """Make sure that the trash is no symbolic link."""
    trash = Path(place.root) / TRASH
    if place.is_local and trash.is_symlink():
        raise LakeUnavailableError(
            f"{trash}: expected a directory of the lake for its trash, found a symbolic link. Nothing was "
            "removed. Remove the link and run again."
        )


def _move(source: Path, target: Path, file: TableFile) -> bool:
    with lake_errors(str(source), "move a file into the trash"):
        durable.make_dirs(target.parent)
        try:
            status = source.lstat()
            # Another attempt may have written a new file under this name.
            if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.modified_ns):
                return False
            source.rename(target)
        except FileNotFoundError:
            # Another pass of gc took the file.
            return False
    return True


def _link_back(target: Path, source: Path) -> bool:
    """Link a file in the trash to its former name. Return whether that name has the file's bytes now."""
    with lake_errors(str(source), "put a file back"):
        durable.make_dirs(target.parent)
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            return target.is_file() and sha256_of(target) == sha256_of(source)
        except FileNotFoundError:
            return target.exists()
    return True


def _list_location(place: Place, moment: str) -> str:
    return f"{place.location}/{TRASH}/{moment}/{TAKEN_LIST}"


def _read_list(place: Place, moment: str) -> Iterator[Taken]:
    location = _list_location(place, moment)
    try:
        yield from (Taken(*item) for item in json.loads(read_small_file(place.io, location) or b"[]"))
    except (ValueError, TypeError) as error:
        raise LakeUnavailableError(
            f"{location}: expected a list of files that gc took, found something else ({error}). Nothing was "
            "removed. Remove the list: its files still are at their places, and then are out of the trash."
        ) from error


def _fsync_parents(paths: Iterable[Path]) -> None:
    for directory in {path.parent for path in paths}:
        with lake_errors(str(directory), "move files"):
            durable.fsync_path(directory)
