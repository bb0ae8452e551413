"""What the table of rows lists, and what is wrong with entries that no receipt names.

The entries lie in the table's manifests. A data file is read only where another engine made its partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from storage_engine.commands import Command, Text
from storage_engine.lake.catalog.names import data_file_of
from storage_engine.lake.catalog.tables import is_by_store
from storage_engine.lake.file.filters import store_rows
from storage_engine.lake.file.jobs import (
    file_name,
    is_own_name,
    is_shared_name,
    slot_prefix,
    split_data_file_name,
)
from storage_engine.lake.file.live_files import LiveFile
from storage_engine.lake.file.scan import plan_files, plan_whole_entries, read_files
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status
from storage_engine.model.report.verification import Finding


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A data file as a manifest lists it, with the files that say which of its rows count as deleted."""

    file: DataFile
    deletes: tuple[DataFile, ...]

    @property
    def location(self) -> str:
        return self.file.file_path

    @property
    def live(self) -> LiveFile:
        return LiveFile(self.file, tuple(sorted(file.file_path for file in self.deletes)))


def list_entries(
    table: Table, store_id: str | None, *, statistics: bool = True
) -> dict[str, list[TableEntry]]:
    """The entries of the table's loaded snapshot by store; of one store only, if one is given.

    :param statistics: with every statistic that the table has of them, in five times the memory.
    :raises LakeUnavailableError: the manifests can't be read.
    """
    found: dict[str, list[TableEntry]] = {}
    with metadata_errors(table.location(), "read the table's manifests"):
        where = AlwaysTrue() if store_id is None else store_rows(store_id)
        for task in (plan_whole_entries if statistics else plan_files)(table, where):
            entry = TableEntry(task.file, tuple(task.delete_files))
            for name in [store_id] if store_id is not None else _stores_in(table, task):
                found.setdefault(name, []).append(entry)
    return found


def _stores_in(table: Table, task: FileScanTask) -> list[str]:
    """Return the stores that a file has rows of; where another engine made its partitions, the rows tell."""
    if is_by_store(table, task.file.spec_id):
        return [str(task.file.partition[0])]
    rows = read_files(table, AlwaysTrue(), ("store_id",), [task])
    return [str(it) for it in rows["store_id"].unique().to_pylist()]


def check_entries(
    table: Table, rows: Sequence[Receipt], entries: Sequence[TableEntry], committed_since: frozenset[str]
) -> tuple[Finding, ...]:
    """Return what is wrong with the entries that no receipt names, though every receipt may be sound.

    :param rows: receipts that count; the file of a segment that expired may be there, or not any more.
    :param committed_since: data files whose receipts came after ``rows`` was read.
    """
    by_file = {data_file_of(table, row): row for row in rows}
    others = [e for e in entries if e.location not in by_file and e.location not in committed_since]
    foreign = [e for e in others if not is_own_name(file_name(e.location))]
    nameless = unreceipted_files(table, rows, entries)
    unreceipted = [e for e in others if e.location in nameless]
    there = {entry.location for entry in entries}
    # What expired was where another engine has put it, or left with its own file.
    moved = [
        row
        for row in rows
        if data_file_of(table, row) not in there and (row.has_rows or row.moved_to is not None)
    ]
    return (
        *map(_without_receipt, unreceipted),
        *_rows_of_nobody(table, rows, [e for e in entries if e.location not in committed_since]),
        *_too_many_rows(moved, foreign),
    )


def _rows_of_nobody(
    table: Table, rows: Sequence[Receipt], entries: Sequence[TableEntry]
) -> Iterator[Finding]:
    """Yield the data files of several segments that have more rows than the receipts which name them."""
    named: dict[str, int] = {}
    for row in rows:
        if row.row_groups is not None:
            location = data_file_of(table, row)
            named[location] = named.get(location, 0) + row.row_count
    for entry in entries:
        count, more = named.get(entry.location), sum(file.record_count for file in entry.deletes)
        if count is not None and entry.file.record_count - more > count:
            yield Finding(
                Status.FAILURE,
                entry.location,
                f"expected {count} rows, those of the segments whose receipts name this data file, found "
                f"{entry.file.record_count - more}: some are of a segment without a receipt here",
                Text(
                    "No byte is lost, but nothing vouches for these rows. Run ",
                    Command("archive"),
                    " again while the segment is on the broker's disk, or ",
                    Command("lake rebuild"),
                    ".",
                ),
            )


def _without_receipt(entry: TableEntry) -> Finding:
    return Finding(
        Status.FAILURE,
        entry.location,
        f"expected a receipt that names this data file of the table, found none; it has "
        f"{entry.file.record_count} rows that nothing vouches for",
        Text(
            "If an archiving was killed between its two commits, run ",
            Command("archive"),
            " again while the segment is on the broker's disk, or ",
            Command("lake rebuild"),
            ": each adds the receipt. Otherwise a receipt was removed: roll the table segments back to the "
            "snapshot that has it.",
        ),
    )


def _too_many_rows(moved: Sequence[Receipt], foreign: Sequence[TableEntry]) -> Iterator[Finding]:
    """Other engines may rewrite rows into files of their own, but not into more rows.

    If there are as many as there should be and each segment's are proven, none is there twice.
    """
    expected = sum(row.row_count for row in moved)
    found = sum(entry.file.record_count for entry in foreign)
    deletes = {file.file_path: file for entry in foreign for file in entry.deletes}
    found -= sum(file.record_count for file in deletes.values())
    if found > expected:
        names = ", ".join(entry.location for entry in foreign[:3]) + (", …" if len(foreign) > 3 else "")
        yield Finding(
            Status.FAILURE,
            names,
            f"expected at most {expected} rows in files that another program wrote, those of the "
            f"{len(moved)} segments it took them from; found {found}: some are in the table twice, or were "
            "never archived",
            "No byte is lost, but queries count these rows as well. Find out which program appended them, "
            "and roll the table of rows back to the snapshot before it did.",
        )


def unreceipted_files(table: Table, rows: Iterable[Receipt], entries: Iterable[TableEntry]) -> frozenset[str]:
    """Files that are named as archiving names them, and that no receipt names.

    The file that an expiry of some streams replaces is in the table until the second of its two commits.
    """
    there = {entry.location for entry in entries}
    known = {data_file_of(table, row): row for row in rows}
    replaced = {
        (slot_prefix(row.identity), row.sha256[:16])
        for location, row in known.items()
        if row.has_rows and not row.is_whole and location not in there
    }
    names = {location: file_name(location) for location in there - known.keys()}
    return frozenset(
        location
        for location, name in names.items()
        if is_own_name(name) and (is_shared_name(name) or split_data_file_name(name) not in replaced)
    )
