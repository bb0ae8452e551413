"""Bringing a lake's metadata to where its files are: after a move, a plain copy, or the loss of a mark.

Every file is looked at first. Nothing below the old place is changed, and no file there is opened but a mark,
which tells a copy from a lake that has moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage_engine.commands import Command
from storage_engine.exceptions import LakeIdentityError
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, connect
from storage_engine.lake.catalog.commit_lock import nobody_commits_at
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import (
    COPY_OF_PROPERTY,
    Mark,
    is_same_catalog,
    knows,
    metadata_version,
)
from storage_engine.lake.catalog.intents import end, read_intent
from storage_engine.lake.catalog.placed_table import rows_of
from storage_engine.lake.catalog.pointers import read_pointers
from storage_engine.lake.catalog.tables import DELETIONS, SEGMENTS, check_version_of
from storage_engine.lake.move.moving import (
    Tables,
    all_receipts,
    check_other_catalog,
    check_same_lake,
    finish,
    has_landed,
    lake_id_of_tables,
    move_tables,
    own_mark,
    placed_tables,
)
from storage_engine.lake.soundness.file_checks import check_files
from storage_engine.lake.soundness.metadata_ends import find_metadata


@dataclass(frozen=True, slots=True)
class Relocated:
    """What a relocation came to.

    :param changed: something was written.
    :param former: where the metadata said that the lake was; None: its files are where they belong.
    :param copy_of: UUID of the lake that this is a plain copy of; None: it is none.
    :param other_catalog: the catalog whose place this one took; None: it was this one's lake already.
    :param dropped_snapshots: how many older snapshots can't be read any more.
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
    """Make a lake whose files have another place, another catalog or no mark one that can be opened.

    Killed at any instant and run again, it goes on.

    :param take_over: another catalog that names the same files is not to be used any more.
    :raises LakeMissingError: the catalog has no tables.
    :raises LakeIdentityError: another lake lies there, or the catalog is older than what lies there.
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
        marks = {name: own_mark(table) for name, table in tables.items()}
        _check_marks(tables, marks)
        _check_newest(tables, marks, () if intent is None else intent.attempts)
        elsewhere = any(table.is_elsewhere for table in tables.values())
        found = [mark for name, mark in marks.items() if mark is not None and name != DELETIONS]
        # Files of another place come with that place's marks: they say nothing of a second catalog here.
        other = (
            None
            if elsewhere
            else check_other_catalog(config.location, lake.catalog_id, found, take_over=take_over)
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
    """
    :raises LakeIdentityError: a mark is of another lake, or of a later state than the catalog's.
    """
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
                f"{table.location}: expected {mark.metadata}, which was committed last, among what the "
                f"catalog knows, found only up to {table.file_name}: the catalog is older than the "
                "warehouse. Nothing was changed. Run ",
                Command("lake rebuild"),
                ", which brings the catalog up to what is there.",
            )


def _check_newest(tables: Tables, marks: Mapping[str, Mark | None], attempts: Sequence[str]) -> None:
    """Make sure that the catalog names the last state of a table that no mark speaks for.

    :param attempts: what a command that was killed wrote, which nobody relies on.
    :raises LakeIdentityError: metadata lies there that came after the catalog's, or may have.
    """
    for name, table in tables.items():
        if marks[name] is not None or name == DELETIONS:
            continue
        above = metadata_version(table.file_name)
        found = find_metadata(table.io, name, table.location, attempts, above=above)
        newer = [
            file.file_name
            for file in found.readable.values()
            if knows(file.metadata, file.file_name, table.file_name)
        ]
        if newer or found.damaged:
            raise LakeIdentityError(
                f"{table.location}: expected {table.file_name}, which the catalog names, to be the "
                f"table's last state, as no mark says which is; found {max((*newer, *found.damaged))}, "
                "which came after it or can't be read. Nothing was changed. Run ",
                Command("lake rebuild"),
                ", which brings the catalog up to what is there and writes the marks.",
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
