"""Data files in Iceberg's manifests: writing entries, listing them, and finding faults in them.

A task that proves a data file packs the values for its entry. The driver writes manifests from these values,
and opens no data file. A data file is read only if another engine made its partition.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record

from storage_engine.commands import Command, Text
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.catalog.tables import (
    check_partitions,
    is_by_store,
    messages_properties,
    messages_schema,
)
from storage_engine.lake.file.jobs import (
    file_name,
    is_own_name,
    is_shared_name,
    slot_prefix,
    split_data_file_name,
)
from storage_engine.lake.file.scan import LiveFile, plan_files, plan_whole_entries, read_files, store_rows
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.broker.codec import Columns, SegmentCodec
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Finding, Status


def list_entries(table: Table, store_id: str | None, *, statistics: bool = True) -> dict[str, list[LiveFile]]:
    """Return the entries of the table's loaded snapshot, by store id.

    :param store_id: only entries of this store; None for those of all stores.
    :param statistics: whether the entries have all statistics, which take five times the memory.
    :raises LakeUnavailableError: the manifests can't be read.
    """
    entries: dict[str, list[LiveFile]] = {}
    with metadata_errors(table.location(), "read the table's manifests"):
        where = AlwaysTrue() if store_id is None else store_rows(store_id)
        for task in (plan_whole_entries if statistics else plan_files)(table, where):
            for name in [store_id] if store_id is not None else _stores_in(table, task):
                entries.setdefault(name, []).append(LiveFile.of(task))
    return entries


def _stores_in(table: Table, task: FileScanTask) -> list[str]:
    """Return the stores with rows in a file. If another engine made the partition, rows are read."""
    if is_by_store(table, task.file.spec_id):
        return [str(task.file.partition[0])]
    rows = read_files(table, AlwaysTrue(), ("store_id",), [task])
    return [str(name) for name in rows["store_id"].unique().to_pylist()]


def check_entries(
    table: Table, rows: Sequence[Receipt], entries: Sequence[LiveFile], committed_since: frozenset[str]
) -> tuple[Finding, ...]:
    """Return faults of entries with rows that no receipt names. Every receipt may be sound nevertheless.

    :param rows: receipts that count. An expired segment's file may be in the table, or removed already.
    :param committed_since: data files whose receipts were committed after ``rows`` was read.
    """
    by_file = {data_file_of(table, row): row for row in rows}
    unnamed = [e for e in entries if e.location not in by_file and e.location not in committed_since]
    foreign = [e for e in unnamed if not is_own_name(file_name(e.location))]
    nameless = unreceipted_files(table, rows, entries)
    unreceipted = [e for e in unnamed if e.location in nameless]
    locations = {entry.location for entry in entries}
    # An expired segment's rows may be left only in other engines' files.
    moved = [
        row
        for row in rows
        if data_file_of(table, row) not in locations and (row.has_rows or row.moved_to is not None)
    ]
    return (
        *map(_unreceipted_finding, unreceipted),
        *_find_unreceipted_rows(table, rows, [e for e in entries if e.location not in committed_since]),
        *_find_added_rows(moved, foreign),
    )


def _find_unreceipted_rows(
    table: Table, rows: Sequence[Receipt], entries: Sequence[LiveFile]
) -> Iterator[Finding]:
    """Yield a finding for each shared data file with more rows than its receipts count together."""
    named: dict[str, int] = {}
    for row in rows:
        if row.row_groups is not None:
            location = data_file_of(table, row)
            named[location] = named.get(location, 0) + row.row_count
    for entry in entries:
        expected = named.get(entry.location)
        count = entry.entry.record_count - sum(file.record_count for file in entry.deletes)
        if expected is not None and count > expected:
            yield Finding(
                Status.FAILURE,
                entry.location,
                f"expected {expected} rows, those of the segments whose receipts name this data file, found "
                f"{count}: some are of a segment without a receipt here",
                Text(
                    "No byte is lost, but no receipt proves these rows. Run ",
                    Command("archive"),
                    " again while the segment is on the broker's disk, or ",
                    Command("lake rebuild"),
                    ".",
                ),
            )


def _unreceipted_finding(entry: LiveFile) -> Finding:
    return Finding(
        Status.FAILURE,
        entry.location,
        f"expected a receipt that names this data file of the table, found none; it has "
        f"{entry.entry.record_count} rows that no receipt proves",
        Text(
            "If an archiving was killed between its two commits, either of two commands adds the receipt: ",
            Command("archive"),
            ", while the segment is on the broker's disk, or ",
            Command("lake rebuild"),
            ". If no archiving was killed, the receipt was removed. Then roll the table 'segments' back to a "
            "snapshot that has the receipt.",
        ),
    )


def _find_added_rows(moved: Sequence[Receipt], foreign: Sequence[LiveFile]) -> Iterator[Finding]:
    """Yield a finding if other engines' files have more rows than the segments that they rewrote.

    Other engines may rewrite rows into files of their own, but not add rows. If the number is right and each
    segment's rows are proven, no row is in the table twice.
    """
    expected = sum(row.row_count for row in moved)
    count = sum(entry.entry.record_count for entry in foreign)
    deletes = {file.file_path: file for entry in foreign for file in entry.deletes}
    count -= sum(file.record_count for file in deletes.values())
    if count > expected:
        names = ", ".join(entry.location for entry in foreign[:3]) + (", …" if len(foreign) > 3 else "")
        yield Finding(
            Status.FAILURE,
            names,
            f"expected at most {expected} rows in files that another program wrote, those of the "
            f"{len(moved)} segments it took them from; found {count}: some are in the table twice, or were "
            "never archived",
            "No byte is lost, but queries count these rows as well. Find out which program appended them, "
            "and roll the table of rows back to the snapshot before it did.",
        )


def unreceipted_files(table: Table, rows: Iterable[Receipt], entries: Iterable[LiveFile]) -> frozenset[str]:
    """Return the files with a name from archiving that no receipt names.

    When some streams expire, a new file replaces their segment's file. The old file stays in the table until
    the second of two commits, and isn't returned.
    """
    locations = {entry.location for entry in entries}
    by_location = {data_file_of(table, row): row for row in rows}
    replaced = {
        (slot_prefix(row.identity), row.sha256[:16])
        for location, row in by_location.items()
        if row.has_rows and not row.is_whole and location not in locations
    }
    names = {location: file_name(location) for location in locations - by_location.keys()}
    return frozenset(
        location
        for location, name in names.items()
        if is_own_name(name) and (is_shared_name(name) or split_data_file_name(name) not in replaced)
    )


_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


def packed_facts(footer: pq.FileMetaData, codec: SegmentCodec) -> bytes:
    """Return a data file's counts, sizes, bounds and split offsets, packed into some 400 bytes."""
    plan, field_ids = _statistics_plan(codec.schema, codec.columns)
    facts = data_file_statistics_from_parquet_metadata(footer, plan, field_ids).to_serialized_dict()
    plain = {name: facts[name] for name in ("record_count", "split_offsets", *_COUNTS)}
    bounds = {name: {key: value.hex() for key, value in facts[name].items()} for name in _BOUNDS}
    return zlib.compress(json.dumps({**plain, **bounds}, separators=(",", ":")).encode())


def iceberg_data_file(table: Table, location: str, size_bytes: int, store_id: str, packed: bytes) -> DataFile:
    """Return the manifest's entry for a file in the partition of its store.

    :raises LakeUnavailableError: the table isn't partitioned by store.
    """
    check_partitions(table)
    facts: dict[str, Any] = json.loads(zlib.decompress(packed))
    for name in _COUNTS:
        facts[name] = {int(key): value for key, value in facts[name].items()}
    for name in _BOUNDS:
        facts[name] = {int(key): bytes.fromhex(value) for key, value in facts[name].items()}
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(store_id),
        file_size_in_bytes=size_bytes,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **facts,
    )
    data_file.spec_id = table.metadata.default_spec_id
    return data_file


def record_count(packed: bytes) -> int:
    """Return the number of rows in the result of :func:`packed_facts`."""
    return int(json.loads(zlib.decompress(packed))["record_count"])


@cache
def _statistics_plan(
    codec_schema: pa.Schema, columns: Columns
) -> tuple[dict[int, StatisticsCollector], dict[str, int]]:
    schema = messages_schema(codec_schema)
    return compute_statistics_plan(schema, messages_properties(columns)), parquet_path_to_id_mapping(schema)
