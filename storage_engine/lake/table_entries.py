"""What the ``messages`` table says of its data files, held against receipts and against the files.

No data file's rows are read here: the entries lie in the table's manifests, the statistics in a file's
footer. An entry that is wrong loses no byte, but sends queries past rows that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from storage_engine.lake.errors import metadata_errors
from storage_engine.lake.filters import store_rows
from storage_engine.lake.jobs import file_name, split_data_file_name
from storage_engine.lake.names import data_file_of
from storage_engine.model.receipt import Receipt
from storage_engine.model.validation import Status
from storage_engine.model.verification import Finding, receipt_name


@dataclass(frozen=True, slots=True)
class Entry:
    """A data file as a manifest lists it, with the files that say which of its rows count as deleted."""

    file: DataFile
    deletes: tuple[DataFile, ...]

    @property
    def location(self) -> str:
        return self.file.file_path

    @property
    def has_deletes(self) -> bool:
        return bool(self.deletes)


@dataclass(frozen=True, slots=True)
class StoreEntries:
    """A store's entries, told apart.

    :param own: those that a receipt names, by the name that it gives them; a file listed twice is there once.
    :param findings: what is wrong with any of them, though every receipt may hold.
    """

    own: Mapping[str, Entry]
    findings: tuple[Finding, ...]


def list_entries(table: Table, store_id: str | None) -> dict[str, list[Entry]]:
    """The entries of the table's loaded snapshot by store; of one store only, if one is given.

    :raises LakeUnavailableError: the manifests can't be read.
    """
    found: dict[str, list[Entry]] = {}
    with metadata_errors(table.location(), "read the table's manifests"):
        where = AlwaysTrue() if store_id is None else store_rows(store_id)
        for task in table.scan(row_filter=where).plan_files():
            entry = Entry(task.file, tuple(task.delete_files))
            found.setdefault(str(task.file.partition[0]), []).append(entry)
    return found


def check_entries(
    table: Table, rows: Sequence[Receipt], entries: Sequence[Entry], committed_since: frozenset[str]
) -> StoreEntries:
    """Hold a store's entries against its receipts.

    :param committed_since: data files whose receipts came after ``rows`` was read.
    """
    by_file = {data_file_of(table, row): row for row in rows}
    times = Counter(entry.location for entry in entries)
    known = {entry.location: entry for entry in entries if entry.location in by_file}
    own = {by_file[location].data_file: entry for location, entry in known.items()}
    others = [e for e in entries if e.location not in by_file and e.location not in committed_since]
    unreceipted = [e for e in others if split_data_file_name(file_name(e.location))[0]]
    foreign = [e for e in others if e not in unreceipted]
    moved = [row for row in rows if row.data_file not in own]
    findings = [
        *(_listed_twice(by_file[location], times[location]) for location in known if times[location] > 1),
        *(f for location, entry in known.items() for f in _entry_faults(table, by_file[location], entry)),
        *map(_without_receipt, unreceipted),
        *_too_many_rows(moved, foreign),
    ]
    return StoreEntries(own, tuple(findings))


def statistics_fault(table: Table, entry: Entry) -> str:
    """How the table's statistics of a data file differ from those in its footer; "" when they don't.

    :raises Exception: whatever PyArrow raises for a file that is no Parquet file.
    """
    found, expected = entry.file, parquet_file_to_data_file(table.io, table.metadata, entry.location)
    for name in ("record_count", "lower_bounds", "upper_bounds", "value_counts", "null_value_counts"):
        listed, true = getattr(found, name), getattr(expected, name)
        if isinstance(true, dict):
            # Which columns have statistics is whoever wrote the manifest's to choose.
            listed = listed or {}
            true = {key: value for key, value in true.items() if key in listed}
            listed = {key: value for key, value in listed.items() if key in true}
        if listed != true:
            return (
                f"the table's {name.replace('_', ' ')} of {entry.location} are not those in the file's footer"
            )
    return ""


def _listed_twice(row: Receipt, times: int) -> Finding:
    return Finding(
        Status.FAILURE,
        receipt_name(row),
        f"expected its data file {row.data_file} in the table once, found it {times} times: queries count "
        "its rows that often",
        "No byte is lost. Roll the table messages back to the snapshot before the second commit, or "
        "delete and add the file once, and find out who wrote to the table.",
    )


def _entry_faults(table: Table, row: Receipt, entry: Entry) -> Iterator[Finding]:
    identity: dict[str, str | int] = {
        "store_id": row.store_id,
        "lineage": row.lineage,
        "log": row.log,
        "segment_base_offset": row.base_offset,
    }
    pairs: list[tuple[str, object, object]] = [
        ("rows", row.row_count, entry.file.record_count),
        ("bytes", row.data_file_bytes, entry.file.file_size_in_bytes),
    ]
    for name, value in identity.items():
        field = table.schema().find_field(name)
        assert isinstance(field.field_type, PrimitiveType)
        expected = to_bytes(field.field_type, value)
        for bounds in (entry.file.lower_bounds, entry.file.upper_bounds):
            if (found := (bounds or {}).get(field.field_id)) is not None and found != expected:
                pairs.append((name, expected.hex(), found.hex()))
    for what, expected_value, found_value in pairs:
        if expected_value != found_value:
            yield Finding(
                Status.FAILURE,
                receipt_name(row),
                f"expected {what} {expected_value} in the table's entry of {row.data_file}, found "
                f"{found_value}",
                "Either the receipt or the table's manifest was changed or damaged. Look whether receipts "
                "have a finding too; if not, no byte is lost, but queries may pass the file by: roll "
                "messages back to a sound snapshot, or delete and add the file again.",
            )


def _without_receipt(entry: Entry) -> Finding:
    return Finding(
        Status.FAILURE,
        entry.location,
        f"expected a receipt that names this data file of the table, found none; it has "
        f"{entry.file.record_count} rows that nothing vouches for",
        "If an archiving was killed between its two commits, run storage-engine archive again while the "
        "segment is on the broker's disk: it adds the receipt. Otherwise a receipt was removed: roll the "
        "table segments back to the snapshot that has it.",
    )


def _too_many_rows(moved: Sequence[Receipt], foreign: Sequence[Entry]) -> Iterator[Finding]:
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
            "and roll the table messages back to the snapshot before it did.",
        )


def unreceipted_files(table: Table, rows: Iterable[Receipt], entries: Iterable[Entry]) -> frozenset[str]:
    """Files that are named as archiving names them, and that no receipt names."""
    known = {data_file_of(table, row) for row in rows}
    return frozenset(
        entry.location
        for entry in entries
        if entry.location not in known and split_data_file_name(file_name(entry.location))[0]
    )
