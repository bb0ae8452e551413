"""Files below the lake's two tables that nothing refers to, and their removal.

Kept is what the catalog's table metadata leads to: its own file and those in its log, every snapshot in it
with its manifests, data files, delete files and statistics; and every file that a receipt rests on. What is
left was staged or published by an attempt that died, belongs to a commit that failed, or to a snapshot that
has been expired. A file younger than the grace is never garbage: an attempt may be at work on it.

Must never do: remove a file after a look at the tables that is older than the last commit. Files are listed
first and the tables read after that, for removal while no commit of ours can happen (``commit_lock``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from storage_engine.durable import fsync_path
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.catalog import Lake
from storage_engine.lake.commit_lock import UNLOCKED_GRACE_MS, nobody_commits
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.errors import lake_errors, metadata_errors
from storage_engine.lake.jobs import split_data_file_name
from storage_engine.lake.receipts import list_stores, receipt_history
from storage_engine.lake.small_files import HIDDEN_PREFIX
from storage_engine.lake.staging import PARTIAL_SUFFIX

_METADATA_FILE = re.compile(r"(\d+)-.*\.metadata\.json")

_HOUR_MS = 3_600_000


class GarbageKind(StrEnum):
    """Why a file is there that nothing refers to."""

    STAGED = "staged by an attempt that ended"
    DATA_FILE = "data file that was never committed, or of an expired snapshot"
    MANIFEST = "manifest of a failed commit or an expired snapshot"
    MANIFEST_LIST = "manifest list of a failed commit or an expired snapshot"
    METADATA = "table metadata of a failed commit, or older than the table's log"


@dataclass(frozen=True, slots=True)
class Garbage:
    """:param table: name of the table below whose location it lies.
    :param path: as the file system names it, without a scheme.
    """

    table: str
    path: str
    kind: GarbageKind
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Collection:
    """:param garbage: unreferenced and older than the grace.
    :param deleted: those of them that were removed now.
    :param young_count: unreferenced files that are younger than the grace.
    :param unknown: unreferenced files that neither we nor Iceberg name so; they are never removed.
    """

    garbage: tuple[Garbage, ...]
    deleted: tuple[Garbage, ...]
    young_count: int
    unknown: tuple[str, ...]

    @property
    def garbage_bytes(self) -> int:
        return sum(file.size_bytes for file in self.garbage)

    @property
    def deleted_bytes(self) -> int:
        return sum(file.size_bytes for file in self.deleted)


@dataclass(frozen=True, slots=True)
class _Listed:
    table: str
    root: str
    path: str
    size_bytes: int
    modified_ns: int


def collect(lake: Lake, *, grace_ms: int, now_ms: int, delete: bool) -> Collection:
    """Find garbage, and remove it if asked to.

    :param grace_ms: how long a file that nothing refers to is left alone, in milliseconds since its last
        modification. The lock keeps our own commits safe even without one; other engines' need it, and
        on object stores ours do, too.
    :raises BadInputError: the grace is under ``UNLOCKED_GRACE_MS``, and files are to be removed from an
        object store.
    :raises LakeUnavailableError: the lake can't be read or listed, its catalog is older than its files, or
        somebody commits all the time. What was removed before the error was garbage.
    """
    tables = (lake.messages(), lake.segments())
    unlocked = [table.location() for table in tables if local_path(table.location()) is None]
    if delete and unlocked and grace_ms < UNLOCKED_GRACE_MS:
        raise BadInputError(
            f"{unlocked[0]}: expected a grace of at least {UNLOCKED_GRACE_MS // _HOUR_MS} hours, found "
            f"{grace_ms / _HOUR_MS:g}: on object stores no lock keeps a commit's files from being removed. "
            "Nothing was removed. Use one that is longer than any job that writes to the lake."
        )
    listed = [file for table in tables for file in _list(table)]
    if not delete:
        _check_catalog(lake, listed)
        return _sort(listed, _references(lake), grace_ms, now_ms)
    with nobody_commits(lake):
        _check_catalog(lake, listed)
        found = _sort(listed, _references(lake), grace_ms, now_ms)
        deleted = tuple(_delete(tables, found.garbage))
    return Collection(found.garbage, deleted, found.young_count, found.unknown)


def _list(table: Table) -> list[_Listed]:
    """Every file below a table's location."""
    file_system, root = _file_system(table, table.location())
    with lake_errors(table.location(), "list the table's files"):
        infos = file_system.get_file_info(pafs.FileSelector(root, recursive=True))
    files = [
        _Listed(table.name()[-1], root, info.path, info.size or 0, info.mtime_ns or 0)
        for info in infos
        if info.type == pafs.FileType.File
    ]
    current = _key(table.metadata_location)
    if current not in {_key(file.path) for file in files}:
        raise LakeUnavailableError(
            f"{table.location()}: expected the table's metadata {table.metadata_location} among its files, "
            "found it missing. Nothing was removed. Does the warehouse lie where the catalog says?"
        )
    return files


def _check_catalog(lake: Lake, listed: Sequence[_Listed]) -> None:
    """Make sure that the catalog was not put back from an older copy: what came later would be garbage.

    A commit that failed leaves metadata one version above the current one's, never two: the files were
    listed before the tables are read here.

    :raises LakeUnavailableError: a table has such metadata.
    """
    for table in (lake.messages(), lake.segments()):
        current = _version(table.metadata_location)
        newest = max(
            (file.path for file in listed if file.table == table.name()[-1] and _is_metadata(file)),
            key=_version,
            default=table.metadata_location,
        )
        if 0 <= current < _version(newest) - 1:
            raise LakeUnavailableError(
                f"{table.location()}: expected no metadata much newer than {table.metadata_location}, which "
                f"the catalog names, found {newest}. Was the catalog put back from an older copy? Nothing "
                "was removed: the newer metadata needs files that the older does not name. Point the "
                "catalog at the newest metadata file of each table; or, if nothing of it is needed, move "
                "the newer metadata files away."
            )


def _is_metadata(file: _Listed) -> bool:
    return file.path.removeprefix(file.root).lstrip("/").startswith("metadata/")


def _version(location: str) -> int:
    """The number that a metadata file's name begins with; -1 for any other file."""
    match = _METADATA_FILE.fullmatch(location.rpartition("/")[2])
    return int(match[1]) if match else -1


def _sort(listed: Sequence[_Listed], referenced: set[str], grace_ms: int, now_ms: int) -> Collection:
    garbage: list[Garbage] = []
    unknown: list[str] = []
    young = 0
    newest_ns = (now_ms - grace_ms) * 1_000_000
    for file in listed:
        inside = file.path.removeprefix(file.root).lstrip("/")
        if inside.rpartition("/")[2].startswith(HIDDEN_PREFIX) or _key(file.path) in referenced:
            continue
        kind = _kind(inside)
        if file.modified_ns > newest_ns:
            young += 1
        elif kind is None:
            unknown.append(file.path)
        else:
            garbage.append(Garbage(file.table, file.path, kind, file.size_bytes, file.modified_ns))
    return Collection(tuple(sorted(garbage, key=lambda f: f.path)), (), young, tuple(sorted(unknown)))


def _kind(inside: str) -> GarbageKind | None:
    folder, _, _ = inside.partition("/")
    name = inside.rpartition("/")[2]
    if folder == "data":
        if name.endswith(PARTIAL_SUFFIX):
            return GarbageKind.STAGED
        if name.endswith(".parquet") or split_data_file_name(name)[0]:
            return GarbageKind.DATA_FILE
    if folder == "metadata":
        if name.endswith(".metadata.json"):
            return GarbageKind.METADATA
        if name.endswith(".avro"):
            return GarbageKind.MANIFEST_LIST if name.startswith("snap-") else GarbageKind.MANIFEST
    return None


def _delete(tables: Sequence[Table], garbage: Sequence[Garbage]) -> Iterator[Garbage]:
    """Remove what is still as it was listed; on this machine's file systems it stays removed."""
    by_table = {table.name()[-1]: table for table in tables}
    directories = set()
    for file in garbage:
        table = by_table[file.table]
        file_system, _ = _file_system(table, table.location())
        with lake_errors(file.path, "remove a file that nothing refers to"):
            info = file_system.get_file_info(file.path)
            # A file that came back under its name is another attempt's.
            if (info.size, info.mtime_ns) != (file.size_bytes, file.modified_ns):
                continue
            file_system.delete_file(file.path)
        if local_path(table.location()) is not None:
            directories.add(file.path.rpartition("/")[0])
        yield file
    for directory in directories:
        with lake_errors(directory, "remove files"):
            fsync_path(directory)


def _references(lake: Lake) -> set[str]:
    """Keys of all files that the tables, as they are now, and their receipts refer to."""
    referenced: set[str] = set()
    for table in (lake.messages(), lake.segments()):
        with metadata_errors(table.location(), "read the table's manifests"):
            referenced.update(map(_key, _locations(table)))
    for store in list_stores(lake):
        for receipt in receipt_history(lake, store.store_id):
            referenced.update(
                map(_key, (receipt.data_file, *(file.location for file in receipt.proven_files)))
            )
    return referenced


def _locations(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (file.statistics_path for file in metadata.statistics)
    yield from (file.statistics_path for file in metadata.partition_statistics)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        manifests.update((manifest.manifest_path, manifest) for manifest in snapshot.manifests(table.io))
    for location, manifest in manifests.items():
        yield location
        yield from _files_of(manifest, table)


def _files_of(manifest: ManifestFile, table: Table) -> Iterable[str]:
    return (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def _key(location: str) -> str:
    """The last two parts of a location, which are unique, and the same however the warehouse is reached."""
    return "/".join(location.rsplit("/", 2)[-2:])


def _file_system(table: Table, location: str) -> tuple[pafs.FileSystem, str]:
    """The file system behind a location, and the location's path on it."""
    scheme, netloc, path = PyArrowFileIO.parse_location(location)
    file_io = table.io
    if not isinstance(file_io, PyArrowFileIO):
        raise LakeUnavailableError(
            f"{location}: expected a PyArrow file system, found {type(file_io).__name__}. Nothing was "
            "removed. Configure the lake without py-io-impl."
        )
    return file_io.fs_by_scheme(scheme, netloc), path.rstrip("/")
