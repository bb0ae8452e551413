"""Locations and names of a table's files, which may differ from those in the metadata.

After a plain copy or a move of a lake's directory, every location in its metadata names the old place. No
function here ever opens a file below the old place.

A manifest may be damaged. PyIceberg's compiled Avro decoder trusts the counts that it reads. A damaged count
makes it read beyond its memory, and the process ends. Its decoder in Python takes five times as long, but
notices the end of the file.

In receipts, the name of a data file is relative to the location of the table of rows. To open the file, its
whole location is used. A receipt can't be rewritten when its lake moves, because the row's hash covers the
name. Older receipts have whole locations. They are compared with the locations that the table had before.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pyiceberg.avro.file
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, read_manifest_list
from pyiceberg.serializers import Compressor, FromByteStream
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from storage_engine.commands import Command
from storage_engine.exceptions import LakeIdentityError, LakeUnavailableError
from storage_engine.lake.catalog.tables import DELETIONS, SEGMENTS
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.lake.storage.small_files import read_small_file
from storage_engine.model.proof.receipt import Receipt, StoredFile

FORMER_LOCATIONS_PROPERTY = "storage-engine.former-locations"
"""Table property: JSON list of the locations that the table had before its lake was relocated."""


def relative_name(table: Table, location: str) -> str:
    """Return the relative name that a receipt has for a location below the table.

    Any other location is returned unchanged.
    """
    return location.removeprefix(f"{_root(table)}/")


def location_of(table: Table, name: str) -> str:
    """Return the present location of a file of a table.

    :param table: the table that has the file below its location.
    :param name: the name in a receipt: relative, or below the table's present or former location.
    """
    if "://" not in name and not name.startswith("/"):
        return f"{_root(table)}/{name}"
    for former in former_locations(table):
        if name.startswith(f"{former}/"):
            return f"{_root(table)}/{name.removeprefix(f'{former}/')}"
    return name


def data_file_of(table: Table, receipt: Receipt) -> str:
    """Return the present location of a receipt's own data file.

    :param table: the table of rows.
    """
    return location_of(table, receipt.data_file)


def proven_files(table: Table, receipt: Receipt) -> tuple[StoredFile, ...]:
    """Return the files that a receipt's proof depends on, with their present locations.

    :param table: the table of rows.
    """
    return tuple(
        StoredFile(location_of(table, file.location), file.size_bytes, file.sha256)
        for file in receipt.proven_files
    )


def former_locations(table: Table) -> tuple[str, ...]:
    """Return the locations that a table had before its lake was relocated, without a final slash."""
    return tuple(json.loads(table.properties.get(FORMER_LOCATIONS_PROPERTY, "[]")))


def _root(table: Table) -> str:
    return table.location().rstrip("/")


_lock = threading.Lock()
_careful = 0


@contextmanager
def careful_avro() -> Iterator[None]:
    """Use the careful Avro decoder in every thread of this process while the block runs."""
    global _careful
    with _lock:
        _careful += 1
    try:
        yield
    finally:
        with _lock:
            _careful -= 1


class CarefulDecoder(StreamingBinaryDecoder):
    """A decoder that distinguishes content that is cut short from the end of the content.

    PyIceberg takes any EOFError for the end.
    """

    def read(self, n: int) -> bytes:
        data = super().read(0) if n < 1 else self._input_stream.read(n)
        if n < 0 or (len(data) < n and (data or n > 1)):
            raise ValueError(f"expected {n} bytes of Avro, found {len(data)}: cut short or damaged")
        if len(data) < n:
            raise EOFError("the end of the Avro content")
        return data


def _decoder(content: bytes) -> BinaryDecoder:
    return CarefulDecoder(content) if _careful else new_decoder(content)


vars(pyiceberg.avro.file)["new_decoder"] = _decoder


@dataclass(frozen=True, slots=True)
class PlacedTable:
    """A table's metadata, with the present location of the table's files.

    :param name: ``segments``, ``deletions``, or the name of the table of rows.
    :param metadata: the metadata as it was read; its locations may name another place.
    :param location: present location of the table's files, without a final slash.
    :param metadata_elsewhere: location of the metadata file, if another engine has put it elsewhere.
    :param is_unmoved: whether files outside of ``location`` are still where the metadata names them.
    """

    name: str
    metadata: TableMetadata
    file_name: str
    location: str
    io: FileIO
    metadata_elsewhere: str | None = None
    is_unmoved: bool = False

    @property
    def named_location(self) -> str:
        """Return the location of the files according to the metadata."""
        return self.metadata.location.rstrip("/")

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the metadata names another location than the present location of the files."""
        return self.named_location != self.location

    @property
    def metadata_location(self) -> str:
        return self.metadata_elsewhere or f"{self.location}/metadata/{self.file_name}"

    @property
    def former_locations(self) -> tuple[str, ...]:
        """Return every other location that the metadata or a receipt may name for files of this table."""
        former = json.loads(self.metadata.properties.get(FORMER_LOCATIONS_PROPERTY, "[]"))
        places = former if self.is_unmoved else (*former, self.named_location)
        return tuple(dict.fromkeys(place for place in places if place != self.location))

    def inside(self, location: str) -> str | None:
        """Return a location relative to the table's location; None if it is outside of the table."""
        for root in (self.location, *self.former_locations):
            if location.startswith(f"{root}/"):
                return location.removeprefix(f"{root}/")
        return None

    def here(self, location: str) -> str:
        """Return the present location of a file that the metadata names.

        Raise LakeIdentityError if the file is outside of the table, and may have been moved.
        """
        inside = self.inside(location)
        if inside is None and self.is_unmoved:
            return location
        if inside is None:
            raise LakeIdentityError(
                f"{self.metadata_location}: expected all files of table {self.name} below its location "
                f"{self.named_location}, found {location}: another program put it there. Nothing was "
                "changed. Move its files below the table with that program (in Spark: rewrite_data_files), "
                "at the place that the metadata names."
            )
        return f"{self.location}/{inside}"


def read_placed(
    file_io: FileIO, name: str, location: str, file_name: str, elsewhere: str | None = None
) -> PlacedTable:
    """Read a table's metadata file.

    :param elsewhere: location of the metadata file, if another engine has put it outside of the table.
    :raises LakeUnavailableError: there is no such file, or it can't be read.
    """
    location = location.rstrip("/")
    path = elsewhere or f"{location}/metadata/{file_name}"
    data = read_small_file(file_io, path)
    if data is None:
        raise LakeUnavailableError(
            f"{path}: expected the metadata of table {name}, which the catalog names, found no such "
            "file. Nothing was changed. If catalog and warehouse are of different moments, run ",
            Command("lake rebuild"),
            "; otherwise mount or name the warehouse that belongs to the catalog.",
        )
    with metadata_errors(path, "read the table's metadata"):
        metadata = parse_metadata(data, path)
    return PlacedTable(name, metadata, file_name, location, file_io, elsewhere)


def with_own_place(table: PlacedTable, place: str) -> PlacedTable:
    """Find out whether the files that a table's metadata names were moved, and set ``is_unmoved``.

    :param place: location of the table's own files, by metadata and marks. After a warehouse was moved
        without its catalog, this is ``table.location``, too: the files that the metadata names were moved.
    :raises LakeUnavailableError: the table's files can't be looked at.
    """
    if place.rstrip("/") != table.location:
        return replace(table, is_unmoved=False)
    snapshot = table.metadata.snapshot_by_id(table.metadata.current_snapshot_id or -1)
    named = "" if snapshot is None else snapshot.manifest_list
    is_moved = (
        table.is_elsewhere
        and named.startswith(f"{table.named_location}/")
        and read_small_file(table.io, replace(table, is_unmoved=False).here(named)) is not None
    )
    return replace(table, is_unmoved=not is_moved)


def parse_metadata(data: bytes, location: str) -> TableMetadata:
    """Parse a metadata file, whose name says whether it is compressed. PyIceberg may raise any error."""
    compressor = Compressor.get_compressor(location)
    return FromByteStream.table_metadata(cast("Any", io.BytesIO(data)), compression=compressor)


def rows_of(tables: Mapping[str, PlacedTable]) -> PlacedTable:
    """Return the table of rows.

    :param tables: all tables of a lake, by name.
    """
    return next(table for name, table in tables.items() if name not in (SEGMENTS, DELETIONS))


def live_manifests(table: PlacedTable) -> Iterator[tuple[int, list[ManifestEntry]]]:
    """Yield the partition spec and the live entries of each manifest of the current snapshot.

    :raises LakeUnavailableError: a manifest can't be read, or rows count as deleted by delete files.
    """
    snapshot = table.metadata.snapshot_by_id(table.metadata.current_snapshot_id or -1)
    if snapshot is None:
        return
    file_io = _PlacedIO(table)
    with metadata_errors(table.metadata_location, "read the table's manifests"), careful_avro():
        for manifest in read_manifest_list(file_io.new_input(snapshot.manifest_list)):
            entries = manifest.fetch_manifest_entry(file_io)
            if entries and manifest.content is not ManifestContent.DATA:
                raise LakeUnavailableError(
                    f"{table.location}: expected a table without delete files, found "
                    f"{entries[0].data_file.file_path}, with which another engine deletes rows by position. "
                    "Nothing was changed. Let that engine rewrite the data files at the table's original "
                    "place (in Spark, rewrite_data_files with delete-file-threshold 1). Then run ",
                    Command("verify --level bytes --renew"),
                    " at that place.",
                )
            if entries:
                yield manifest.partition_spec_id, entries


def live_files(table: PlacedTable) -> dict[str, DataFile]:
    """Return the entries of the current snapshot, by the present location of each file.

    :raises LakeIdentityError: a file lies outside of the table.
    :raises LakeUnavailableError: as :func:`live_manifests` does.
    """
    return {
        table.here(entry.data_file.file_path): entry.data_file
        for _, entries in live_manifests(table)
        for entry in entries
    }


class _PlacedIO(FileIO):
    """Opens files that a table's metadata names at their present location. It writes nothing."""

    def __init__(self, table: PlacedTable) -> None:
        super().__init__(table.io.properties)
        self._table = table

    def new_input(self, location: str) -> InputFile:
        return self._table.io.new_input(self._table.here(location))

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError(location)
