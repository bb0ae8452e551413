"""The metadata files below a table's location, and which of them is the state that the lake is in.

Each commit writes one, which lists those before it. One that no other lists is an end: the last state, that
of a commit that was killed before the catalog knew of it, or that of another branch.
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
    """:param readable: by name.
    :param damaged: names of those that can't be read.
    """

    readable: dict[str, PlacedTable]
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The state that a table is in.

    :param before: location of the metadata file that the catalog named; None: it named none.
    :param now: location of the one that it names now, or would name.
    :param others: names of the metadata files that other states end with.
    :param damaged: names of metadata files that can't be read.
    """

    table: str
    before: str | None
    now: str
    others: tuple[str, ...]
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableState:
    """The state that a table is in.

    :param found: its files there.
    :param mark: its location's mark; None: there is none that can be read.
    """

    found: MetadataFiles
    mark: Mark | None
    chosen: PlacedTable

    def told(self, before: str | None) -> Chosen:
        """Say so.

        :param before: see :class:`Chosen`.
        """
        ends = ends_of(self.found.readable.values())
        others = tuple(sorted(end.file_name for end in ends if end is not self.chosen))
        now = self.chosen.metadata_location
        return Chosen(self.chosen.name, before, now, others, self.found.damaged)


def find_metadata(
    file_io: FileIO, name: str, location: str, skip: Sequence[str] = (), *, above: int = -1
) -> MetadataFiles:
    """Read every metadata file below a table's location.

    :param skip: UUIDs of attempts that came to nothing, whose files don't count.
    :param above: only files whose names begin with a higher number than this.
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


def of_one_table(found: MetadataFiles, mark: Mark | None, pointer: str | None) -> list[PlacedTable]:
    """Return the metadata of the one table that a location is for.

    :param mark: the location's mark; None: there is none.
    :param pointer: name of the metadata file that the catalog names; None: it names none.
    :raises LakeIdentityError: there are several tables, and nothing tells which it is.
    """
    tables = found.readable
    uuids = {table.metadata.table_uuid for table in tables.values()}
    wanted: UUID | None = None
    if mark is not None:
        wanted = UUID(mark.table_uuid)
    elif pointer in tables:
        wanted = tables[pointer].metadata.table_uuid
    elif len(uuids) == 1:
        wanted = min(uuids)
    chosen = [table for table in tables.values() if table.metadata.table_uuid == wanted]
    if not chosen:
        some = next(iter(tables.values()), None)
        raise LakeIdentityError(
            f"{some.location if some else 'lake'}: expected metadata of one table, found that of "
            f"{' and '.join(sorted(map(str, uuids)))}, and "
            f"{'a mark of ' + str(wanted) if wanted else 'no mark'}. Nothing was changed. Move the metadata "
            "files that are of another lake out of the directory."
        )
    return chosen


def ends_of(tables: Iterable[PlacedTable]) -> list[PlacedTable]:
    """Return the newest states: those that no other state's metadata log names as older."""
    tables = list(tables)
    listed = {
        entry.metadata_file.rpartition("/")[2] for table in tables for entry in table.metadata.metadata_log
    }
    return [table for table in tables if table.file_name not in listed]


def rank(table: PlacedTable, mark: Mark | None, pointer: str | None) -> Rank:
    """Say how much speaks for a state: the mark first, then the catalog, then how far it goes."""
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
    """Return the state that the lake is in.

    :param tables: metadata of one table.
    :param worth: how many of the otherwise known receipts a state has; None: its files can't be read.
    :raises LakeUnavailableError: no state can be read.
    """

    def by_rank(table: PlacedTable) -> Rank:
        return rank(table, mark, pointer)

    ends = ends_of(tables)
    readable = [(value, by_rank(table), table) for table in ends if (value := worth(table)) is not None]
    if readable:
        return max(readable, key=lambda item: item[:2])[2]
    others = (table for table in sorted(tables, key=by_rank, reverse=True) if table not in ends)
    for table in others:
        if worth(table) is not None:
            return table
    raise LakeUnavailableError(
        f"{tables[0].location}: expected metadata whose manifests can be read, found none among "
        f"{len(tables)} files. Nothing was changed. Bring the metadata directory back from a copy of the "
        "lake."
    )
