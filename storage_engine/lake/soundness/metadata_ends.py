"""The metadata files below a table's location, and the choice of the one with the table's right state.

Each commit writes a metadata file, which lists the files before it. A file that no other file lists is an
end. It may be the last state, the state of a commit that was killed before the catalog named it, or the state
of another branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from pyiceberg.io import FileIO

from storage_engine.exceptions import LakeIdentityError, LakeUnavailableError
from storage_engine.lake.catalog.identity import Mark, knows, metadata_version
from storage_engine.lake.catalog.placed_table import PlacedTable, read_placed
from storage_engine.lake.storage.small_files import list_files

Rank = tuple[int | bool, ...]


@dataclass(frozen=True, slots=True)
class MetadataFiles:
    """The metadata files of a table.

    :param readable: files that can be read, by name.
    :param damaged: names of the files that can't be read.
    """

    readable: dict[str, PlacedTable]
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The state that was chosen for a table.

    :param before: location of the metadata file that the catalog named before; None if it named none.
    :param now: location of the metadata file that the catalog names now, or in a dry run would name.
    :param others: names of the metadata files at the ends of other states.
    :param damaged: names of metadata files that can't be read.
    """

    table: str
    before: str | None
    now: str
    others: tuple[str, ...]
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's chosen state, with the files from which it was chosen.

    :param found: the table's metadata files.
    :param mark: the mark at its location; None if no mark can be read.
    """

    found: MetadataFiles
    mark: Mark | None
    chosen: PlacedTable

    def told(self, before: str | None) -> Chosen:
        """Return the choice for a report. See :class:`Chosen` for ``before``."""
        ends = ends_of(self.found.readable.values())
        others = tuple(sorted(end.file_name for end in ends if end is not self.chosen))
        now = self.chosen.metadata_location
        return Chosen(self.chosen.name, before, now, others, self.found.damaged)


def find_metadata(
    file_io: FileIO, name: str, location: str, skip: Sequence[str] = (), *, above: int = -1
) -> MetadataFiles:
    """Read every metadata file below a table's location.

    :param skip: UUIDs of attempts that failed, whose files don't count.
    :param above: read only files whose names begin with a higher number than this.
    :raises LakeUnavailableError: the files can't be listed.
    """
    readable, damaged = {}, []
    for file in list_files(file_io, f"{location}/metadata"):
        if metadata_version(file.inside) <= above or any(attempt in file.inside for attempt in skip):
            continue
        try:
            readable[file.inside] = read_placed(file_io, name, location, file.inside)
        except LakeUnavailableError:
            damaged.append(file.inside)
    return MetadataFiles(readable, tuple(sorted(damaged)))


def of_one_table(files: MetadataFiles, mark: Mark | None, pointer: str | None) -> list[PlacedTable]:
    """Return the metadata of the one table that belongs at a location.

    :param mark: the location's mark, if there is one.
    :param pointer: name of the metadata file that the catalog names, if it names one.
    :raises LakeIdentityError: there is metadata of several tables, and nothing shows which one is right.
    """
    tables = files.readable
    uuids = {table.metadata.table_uuid for table in tables.values()}
    uuid: UUID | None = None
    if mark is not None:
        uuid = UUID(mark.table_uuid)
    elif pointer in tables:
        uuid = tables[pointer].metadata.table_uuid
    elif len(uuids) == 1:
        uuid = min(uuids)
    chosen = [table for table in tables.values() if table.metadata.table_uuid == uuid]
    if not chosen:
        first = next(iter(tables.values()), None)
        raise LakeIdentityError(
            f"{first.location if first else 'lake'}: expected metadata of one table, found that of "
            f"{' and '.join(sorted(map(str, uuids)))}, and "
            f"{'a mark of ' + str(uuid) if uuid else 'no mark'}. Nothing was changed. Move the metadata "
            "files of the other lake out of the directory."
        )
    return chosen


def ends_of(tables: Iterable[PlacedTable]) -> list[PlacedTable]:
    """Return the states that no other state's metadata log names."""
    tables = list(tables)
    listed = {
        entry.metadata_file.rpartition("/")[2] for table in tables for entry in table.metadata.metadata_log
    }
    return [table for table in tables if table.file_name not in listed]


def rank(table: PlacedTable, mark: Mark | None, pointer: str | None) -> Rank:
    """Return a rank that compares states: first by mark, then by catalog, then by how new they are."""
    metadata = table.metadata
    return (
        mark is not None and knows(metadata, table.file_name, mark.metadata),
        pointer is not None and knows(metadata, table.file_name, pointer),
        metadata.next_sequence_number(),
        metadata_version(table.file_name),
        metadata.last_updated_ms,
    )


def choose(
    tables: Sequence[PlacedTable],
    worth: Callable[[PlacedTable], int | None],
    mark: Mark | None,
    pointer: str | None,
) -> PlacedTable:
    """Return a table's right state.

    :param tables: all readable metadata of the table.
    :param worth: returns how many known receipts or proven files a state has; None if it can't be read.
    :raises LakeUnavailableError: no state can be read.
    """

    def by_rank(table: PlacedTable) -> Rank:
        return rank(table, mark, pointer)

    ends = ends_of(tables)
    readable = [(value, by_rank(table), table) for table in ends if (value := worth(table)) is not None]
    if readable:
        return max(readable, key=lambda item: item[:2])[2]
    for table in sorted(tables, key=by_rank, reverse=True):
        if table not in ends and worth(table) is not None:
            return table
    raise LakeUnavailableError(
        f"{tables[0].location}: expected metadata whose manifests can be read, found none among "
        f"{len(tables)} files. Nothing was changed. Bring the metadata directory back from a copy of the "
        "lake."
    )
