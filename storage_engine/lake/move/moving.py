"""A lake's tables at the present location of their files, and rewriting their metadata for that location.

If the table of deletions isn't the lake's own, or can't be read, the other tables are moved without it. If
the original is still at the place that the metadata names, the files here are a copy and get their own UUID.
Otherwise the lake was moved.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from pyiceberg.io import load_file_io

from storage_engine.commands import Command
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeMissingError, LakeUnavailableError
from storage_engine.lake.acts.act_files import read_acts_at
from storage_engine.lake.archive.table_writer import Target, write_table
from storage_engine.lake.catalog.catalog import (
    CHANGE_LOCK,
    Lake,
    connect,
    name_in_catalog,
    read_pointers,
    repoint,
    rows_table_among,
    rows_table_of,
)
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import (
    COPIED_HEADS_PROPERTY,
    COPY_OF_PROPERTY,
    LAKE_ID_PROPERTY,
    Mark,
    is_below,
    is_same_catalog,
    known_mark_at,
    knows,
    metadata_version,
    put_mark,
)
from storage_engine.lake.catalog.own_tables import has_mark, is_own_metadata, own_place, usual_location
from storage_engine.lake.catalog.placed_table import (
    PlacedTable,
    live_files,
    read_placed,
    rows_of,
    with_own_place,
)
from storage_engine.lake.catalog.tables import DELETIONS, SEGMENTS, check_version_of
from storage_engine.lake.catalog.writing import (
    Intent,
    begin,
    end,
    may_have_landed,
    nobody_commits_at,
    open_intent,
    read_intent,
    sweep_attempts,
)
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.soundness.metadata_ends import find_metadata
from storage_engine.lake.soundness.receipts import by_store, check_files, receipts_of_files
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import list_files
from storage_engine.model.proof.receipt import ChainHead, Receipt

_SQLITE = "sqlite:"


def check_other_catalog(
    location: str, catalog_id: str, marks: Iterable[Mark], *, take_over: bool
) -> str | None:
    """Make sure that no other catalog in use names a lake's files.

    :param take_over: a person has decided that the other catalog is not to be used any more.
    :return: the other catalog, which this catalog replaces; None if it replaces no catalog.
    :raises LakeIdentityError: the other catalog exists, or this host can't find out.
    """
    others = {mark.catalog for mark in marks if not is_same_catalog(mark.catalog, catalog_id)}
    for other in sorted(others):
        if not take_over and (reason := _describe_catalog(catalog_id, other)):
            raise LakeIdentityError(
                f"lake {location}: expected that the catalog {other}, which committed last, is gone, found "
                f"that it {reason}. Nothing was changed. Use that catalog; or run this again with "
                "--take-over, after which that catalog is refused."
            )
    return min(others, default=None)


def _describe_catalog(catalog_id: str, other: str) -> str:
    """Return a text about a catalog that may be in use, or "" if it no longer exists."""
    if not other.startswith(_SQLITE):
        return "can't be looked at from here"
    path = Path(other.removeprefix(_SQLITE).rsplit(" ", 2)[0])
    own = catalog_id.removeprefix(_SQLITE).rsplit(" ", 2)[0]
    if not path.exists() or (Path(own).exists() and path.samefile(own)):
        return ""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM iceberg_tables").fetchone()
    except sqlite3.DatabaseError:
        return ""
    return f"is there, with {count} tables" if count else ""


Tables = Mapping[str, PlacedTable]
"""A lake's tables by name: ``segments`` first, ``deletions`` last if there is such a table."""


def placed_tables(lake: Lake) -> dict[str, PlacedTable]:
    """Return the tables that a lake's catalog names, at the present location of their files.

    :raises LakeMissingError: the catalog lacks a table.
    :raises LakeUnavailableError: the metadata doesn't exist there, or can't be read.
    :raises BadInputError: the lake's broker isn't installed.
    """
    pointers = read_pointers(lake)
    tables = {}
    rows = rows_table_among(pointers)
    if SEGMENTS in pointers:
        tables[SEGMENTS] = placed_table(lake, SEGMENTS, pointers[SEGMENTS])
        rows = rows_table_of(tables[SEGMENTS].metadata.properties)
    if missing := [name for name in (SEGMENTS, rows) if name not in pointers]:
        raise LakeMissingError(
            f"lake {lake.location}: expected the tables {SEGMENTS} and {rows} in the catalog, found no "
            f"{' and no '.join(missing)}. Nothing was changed. If the warehouse has a lake whose "
            "catalog is lost, run ",
            Command("lake rebuild"),
            ".",
        )
    tables[rows] = placed_table(lake, rows, pointers[rows])
    if DELETIONS in pointers:
        with suppress(LakeUnavailableError, BadInputError):
            deletions = placed_table(lake, DELETIONS, pointers[DELETIONS])
            if is_usable(deletions, tables):
                tables[DELETIONS] = deletions
    return tables


def is_usable(deletions: PlacedTable, tables: Tables) -> bool:
    """Return whether a table of deletions belongs to the lake of the other tables, and can be read.

    :raises BadInputError: a newer release made it.
    :raises LakeUnavailableError: its files or manifests can't be read.
    """
    metadata, mark = deletions.metadata, known_mark_at(deletions.io, deletions.location)
    check_version_of(deletions.location, metadata.properties)
    live_files(deletions)
    return metadata.properties.get(LAKE_ID_PROPERTY) == lake_id_of_tables(tables) and (
        mark is None
        or (
            mark.table_uuid == str(metadata.table_uuid)
            and knows(metadata, deletions.file_name, mark.metadata)
        )
    )


def own_location(config: LakeConfig, name: str, pointer: str | None = None) -> str:
    """Return the present location of a table of this lake.

    :param pointer: location of a metadata file of the table, here or at another place; None if unknown.
    :raises LakeUnavailableError: the marks that decide between two locations can't be read.
    """
    warehouse = config.properties.get("warehouse", "").rstrip("/")
    usual = usual_location(config, name) or f"{warehouse}/{config.namespace}/{name}"
    root = (pointer or "").rpartition("/metadata/")[0]
    if not root:
        return usual
    place = root if is_below(root, warehouse) else "/".join((warehouse, *root.split("/")[-2:]))
    if place == usual:
        return usual
    # Another engine may have put the table's metadata anywhere, also below the warehouse.
    file_io = load_file_io(config.file_io_properties, usual)
    return usual if has_mark(config, usual, file_io) and not has_mark(config, place, file_io) else place


def placed_table(lake: Lake, name: str, pointer: str) -> PlacedTable:
    """Return the table that a catalog names, at the present location of its files.

    :param pointer: location of its metadata file in the catalog.
    :raises LakeUnavailableError: the metadata doesn't exist there, or can't be read.
    """
    config, file_name = lake.config, pointer.rpartition("/")[2]
    location = own_location(config, name, pointer)
    file_io = load_file_io(config.file_io_properties, location)
    is_away = pointer != f"{location}/metadata/{file_name}" and (
        is_below(pointer, config.properties.get("warehouse", ""))
        or is_own_metadata(config, lake.catalog_id, name, pointer, file_io)
    )
    table = read_placed(file_io, name, location, file_name, pointer if is_away else None)
    return with_own_place(table, own_place(config, lake.catalog_id, name, table.metadata, file_io))


def lake_id_of_tables(tables: Tables) -> str | None:
    """Return the lake's UUID by its tables' properties, or None for a lake of version 1."""
    return tables[SEGMENTS].metadata.properties.get(LAKE_ID_PROPERTY)


def all_receipts(segments: PlacedTable) -> list[Receipt]:
    """Read every receipt of a lake, from the present location of its files.

    :raises LakeUnavailableError: a file is missing or can't be read.
    """
    return receipts_of_files(segments.io, live_files(segments))


def heads_text(rows: Sequence[Receipt]) -> str:
    """Return the last receipt of each store, in the form of :data:`COPIED_HEADS_PROPERTY`."""
    heads = {store: ChainHead.of(of_store) for store, of_store in by_store(rows).items()}
    return json.dumps({store: [head.sequence, head.row_hash] for store, head in heads.items()})


def has_landed(intent: Intent, tables: Tables) -> bool:
    """Return whether the catalog names metadata that a killed attempt of a command wrote for this place."""
    if any(table.is_elsewhere for table in tables.values()):
        return False
    segments = tables[SEGMENTS]
    return may_have_landed(segments.io, segments.location, intent, segments.file_name)


def move_tables(
    lake: Lake, tables: Tables, pointers: Mapping[str, str | None], rows: Sequence[Receipt], command: str
) -> Intent:
    """Write the tables' metadata for the present location of their files, and make the catalog name it.

    :param pointers: location of each table's metadata in the catalog.
    :param rows: all receipts.
    :param command: name of the calling command, for its intent.
    :return: the intent. It has the lake's UUID and, if the lake is a copy, the original's UUID.
    :raises LakeUnavailableError: a file or the catalog can't be read or written.
    """
    segments = tables[SEGMENTS]
    earlier = open_intent(segments.io, segments.location)
    lake_id = lake_id_of_tables(tables)
    planned = Intent(command, lake_id, None)
    if earlier is not None and earlier.copy_of is not None:
        planned = earlier
    elif any(original_is_there(table, lake_id) for table in tables.values() if table.is_elsewhere):
        original = lake_id or f"table {segments.metadata.table_uuid}"
        planned = Intent(command, str(uuid.uuid4()), original, () if earlier is None else earlier.attempts)
    elif earlier is not None:
        planned = earlier
    intent = begin(segments.io, segments.location, planned)
    properties: dict[str, str | None] = {}
    if intent.copy_of is not None:
        properties = {
            LAKE_ID_PROPERTY: intent.lake_id,
            COPY_OF_PROPERTY: intent.copy_of,
            COPIED_HEADS_PROPERTY: heads_text(rows),
        }
    changes = {}
    for name, table in tables.items():
        names = [entry.metadata_file.rpartition("/")[2] for entry in table.metadata.metadata_log]
        target = Target(table.location, table.io, intent.attempt, (*names, table.file_name))
        changes[name] = (pointers.get(name), write_table(table, target, properties).metadata_location)
    repoint(lake, changes)
    finish(lake, placed_tables(lake), intent)
    return intent


def finish(lake: Lake, tables: Tables, intent: Intent | None) -> None:
    """Write marks that agree with the catalog, and remove a command's intent.

    :raises LakeUnavailableError: a file or the catalog can't be written.
    """
    segments = tables[SEGMENTS]
    if intent is not None:
        locations = [table.location for table in tables.values()]
        sweep_attempts(segments.io, locations, intent, [table.file_name for table in tables.values()])
    for table in tables.values():
        # A lake of version 1 has no mark until it is taken over.
        if (lake_id := table.metadata.properties.get(LAKE_ID_PROPERTY)) is not None:
            mark = Mark(lake_id, str(table.metadata.table_uuid), lake.catalog_id, table.file_name)
            act = _newest_act(table) if table is segments else ""
            put_mark(table.io, table.location, replace(mark, act=act))
            name_in_catalog(lake, lake_id)
    if intent is not None:
        end(segments.io, segments.location, intent)


def _newest_act(segments: PlacedTable) -> str:
    """Return the SHA-256 of the newest act; "" without acts.

    If the acts can't be read or are no chain, the mark names the newest act.
    """
    with suppress(LakeUnavailableError):
        acts = read_acts_at(segments.io, segments.location)
        return acts[-1].sha256 if acts else ""
    mark = known_mark_at(segments.io, segments.location)
    return mark.act if mark else ""


def original_is_there(table: PlacedTable, lake_id: str | None) -> bool:
    """Return whether the original lake is still at the place that a table's metadata names.

    :param lake_id: the lake's UUID; None for a lake of version 1.
    :raises LakeUnavailableError: the original place can't be read.
    """
    if table.is_unmoved or _is_same_place(table):
        return False
    mark = known_mark_at(table.io, table.named_location)
    if mark is not None:
        # By now, another lake may be at that place.
        return mark.lake_id == lake_id or mark.table_uuid == str(table.metadata.table_uuid)
    with lake_errors(table.named_location, "look whether the lake is still there"):
        return bool(list_files(table.io, f"{table.named_location}/metadata"))


def _is_same_place(table: PlacedTable) -> bool:
    """Return whether a table's metadata names its present place by another path, such as a bind mount's."""
    here, named = local_path(table.location), local_path(table.named_location)
    if here is None or named is None:
        return False
    with lake_errors(table.named_location, "look whether the lake is still there"):
        return named.exists() and here.samefile(named)


def check_same_lake(tables: Tables) -> None:
    """Raise LakeIdentityError if tables belong to several lakes."""
    ids = {table.metadata.properties.get(LAKE_ID_PROPERTY) for table in tables.values()}
    if len(ids - {None}) > 1:
        raise LakeIdentityError(
            f"{tables[SEGMENTS].location}: expected all tables of one lake, found tables of the lakes "
            f"{' and '.join(sorted(map(str, ids)))}. Nothing was changed. Bring the catalog back from a "
            "backup of one lake."
        )


@dataclass(frozen=True, slots=True)
class Relocated:
    """Result of a relocation.

    :param former: the location that the metadata named before the relocation; None if it was the right one.
    :param copy_of: UUID of the original, if the lake is a copy; otherwise None.
    :param other_catalog: the catalog that this one replaced, or None.
    :param dropped_snapshots: number of older snapshots that can't be read any more.
    """

    location: str
    changed: bool
    lake_id: str | None
    former: str | None = None
    copy_of: str | None = None
    other_catalog: str | None = None
    file_count: int = 0
    file_bytes: int = 0
    dropped_snapshots: int = 0


def relocate(config: LakeConfig, *, take_over: bool = False) -> Relocated:
    """Make a lake usable again after its files were moved, its catalog was moved, or its marks were lost.

    It is safe to kill at any instant and to run again.

    :param take_over: a person has decided that another catalog of the same files is not to be used any more.
    :raises LakeMissingError: the catalog has no tables.
    :raises LakeIdentityError: another lake is there, or the catalog is older than the warehouse.
    :raises LakeUnavailableError: the lake can't be read or written, or a file is missing or damaged.
    """
    lake = connect(config)
    with CHANGE_LOCK, nobody_commits_at(rows_of(placed_tables(lake)).location):
        tables = placed_tables(lake)
        segments = tables[SEGMENTS]
        intent = read_intent(segments.io, segments.location)
        if intent is not None and has_landed(intent, tables):
            finish(lake, tables, intent)
            return _result(config, tables, changed=True)
        check_same_lake(tables)
        for table in tables.values():
            check_version_of(table.location, table.metadata.properties)
        marks = {name: known_mark_at(table.io, table.location) for name, table in tables.items()}
        _check_marks(tables, marks)
        _check_newest(tables, marks, () if intent is None else intent.attempts)
        elsewhere = any(table.is_elsewhere for table in tables.values())
        existing = [mark for name, mark in marks.items() if mark is not None and name != DELETIONS]
        # Marks of moved files are of their former place, and don't tell of a second catalog here.
        other = (
            None
            if elsewhere
            else check_other_catalog(config.location, lake.catalog_id, existing, take_over=take_over)
        )
        is_marked = all(mark and is_same_catalog(mark.catalog, lake.catalog_id) for mark in marks.values())
        if not elsewhere and other is None and is_marked:
            if intent is not None:
                end(segments.io, segments.location, intent)
            return _result(config, tables, changed=False)
        rows = all_receipts(segments)
        count, size_bytes = check_files(tables, rows)
        former, dropped = None, 0
        if elsewhere:
            former = segments.named_location
            dropped = sum(max(0, len(table.metadata.snapshots) - 1) for table in tables.values())
            move_tables(lake, tables, read_pointers(lake), rows, "relocate")
        else:
            finish(lake, tables, intent)
        return _result(
            config,
            placed_tables(lake),
            changed=True,
            former=former,
            other_catalog=other,
            file_count=count,
            file_bytes=size_bytes,
            dropped_snapshots=dropped,
        )


def _check_marks(tables: Tables, marks: Mapping[str, Mark | None]) -> None:
    """Raise LakeIdentityError if a mark is of another lake, or of a later state than the catalog's."""
    lake_id = lake_id_of_tables(tables)
    for name, table in tables.items():
        mark = marks[name]
        if mark is None:
            continue
        if mark.table_uuid != str(table.metadata.table_uuid) or lake_id not in (None, mark.lake_id):
            raise LakeIdentityError(
                f"{table.location}: expected the files of lake {lake_id or 'without a UUID'}, found the mark "
                f"of lake {mark.lake_id}: catalog and warehouse are of two lakes. Nothing was changed. Bring "
                "together the catalog and the warehouse of one lake."
            )
        if not mark.pending and not knows(table.metadata, table.file_name, mark.metadata):
            raise LakeIdentityError(
                f"{table.location}: expected the catalog to know {mark.metadata}, which was committed last, "
                f"found that it knows nothing after {table.file_name}: the catalog is older than the "
                "warehouse. Nothing was changed. Run ",
                Command("lake rebuild"),
                ", which brings the catalog up to what the warehouse holds.",
            )


def _check_newest(tables: Tables, marks: Mapping[str, Mark | None], attempts: Sequence[str]) -> None:
    """Make sure that the catalog names the last state of each table without a mark.

    :param attempts: UUIDs of a killed command's attempts, whose files don't count.
    :raises LakeIdentityError: there is metadata that is or may be newer than the catalog's.
    """
    for name, table in tables.items():
        if marks[name] is not None or name == DELETIONS:
            continue
        above = metadata_version(table.file_name)
        files = find_metadata(table.io, name, table.location, attempts, above=above)
        newer = [
            file.file_name
            for file in files.readable.values()
            if knows(file.metadata, file.file_name, table.file_name)
        ]
        if newer or files.damaged:
            raise LakeIdentityError(
                f"{table.location}: expected {table.file_name}, which the catalog names, to be the table's "
                f"last state, because there is no mark; found {max((*newer, *files.damaged))}, which is "
                "newer or can't be read. Nothing was changed. Run ",
                Command("lake rebuild"),
                ", which brings the catalog up to what the warehouse holds and writes the marks.",
            )


def _result(config: LakeConfig, tables: Tables, *, changed: bool, **facts: object) -> Relocated:
    copy_of = tables[SEGMENTS].metadata.properties.get(COPY_OF_PROPERTY)
    return Relocated(
        config.location,
        changed,
        lake_id_of_tables(tables),
        copy_of=copy_of,
        **facts,  # type: ignore[arg-type]
    )
