"""Rows appended to the lake's small tables, receipts and deletions, without filling them with tiny files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import IO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat, ManifestFile
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.tables import check_partitions
from storage_engine.lake.file.scan import WantedFiles, all_equal, may_have, plan_files, read_files
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.proof.receipt import ChainHead, Receipt
from storage_engine.model.store import grouped


class _Transaction(Transaction):
    """A transaction that copies the table's metadata once after each staged update, never before the first.

    PyIceberg's own transaction makes some twenty copies in a commit. No copy is changed.
    """

    _copied: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._copied is None or self._copied[0] is not self._updates:
            self._copied = (self._updates, super().table_metadata)
        return self._copied[1]


def begin(table: Table) -> Transaction:
    return _Transaction(table)


MERGED_FILES = 4
"""If one store has at least this number of files of about the same size, a commit merges them into one. So a
receipt is written again only when its file has grown fourfold, however long the history is."""

FULL_FILE_ROWS = 1_000
"""A file with this many receipts or more is not merged: rewriting it would cost more than reading it."""


def prepare_receipts(table: Table, heads: Mapping[str, ChainHead], rows: Sequence[Receipt]) -> Transaction:
    """Write the files and manifests of a commit. The catalog is not changed yet.

    The same snapshot removes a store's small files, and the new file has their rows unchanged. So the chain
    stays the same, a reader of the table sees each row once, and a killed commit changes nothing.

    :param table: the loaded table.
    :param heads: the end of each store's chain in this table, by store.
    :param rows: receipts to append, in this order for each store. They are linked into the store's chain.
    :raises OSError: a file can't be written.
    """
    new = {
        store_id: as_table(table, _chained(heads[store_id], of_store))
        for store_id, of_store in sorted(grouped(rows, lambda row: row.store_id).items())
    }
    return prepare_rows(table, new, "sequence")


def prepare_rows(table: Table, new: Mapping[str, pa.Table], order: str) -> Transaction:
    """Do the same as :func:`prepare_receipts` for rows of either small table.

    :param new: rows to append by store, with the table's columns.
    :param order: column of whole numbers that orders the rows of a file. The file's name has its first value.
    :raises LakeUnavailableError: the table has other partitions than those by store.
    """
    check_partitions(table)
    merged: list[DataFile] = []
    added: list[DataFile] = []
    for store_id, rows in new.items():
        files = _files(table, store_id)
        chosen = [files[at] for at in files_to_merge([task.file.record_count for task in files])]
        if chosen:
            old = read_files(table, all_equal({"store_id": store_id}), tuple(rows.column_names), chosen)
            if old.num_rows == sum(task.file.record_count for task in chosen):
                merged += [task.file for task in chosen]
                rows = pa.concat_tables([old.cast(rows.schema), rows]).sort_by(order)
        added.append(_write(table, store_id, rows, order))
    transaction = begin(table)
    overwrite = _Overwrite(Operation.OVERWRITE, transaction, table.io)
    overwrite.tells = [may_have(table, store_id, WantedFiles(below_rows=FULL_FILE_ROWS)) for store_id in new]
    with overwrite if merged else transaction.update_snapshot().merge_append() as change:
        for file in merged:
            change.delete_data_file(file)
        for file in added:
            change.append_data_file(file)
    return transaction


def _chained(head: ChainHead, rows: Sequence[Receipt]) -> list[dict[str, object]]:
    chained = []
    for row in rows:
        fields = asdict(row)
        fields["sequence"], fields["previous_hash"] = head.sequence + 1, head.row_hash
        fields["row_hash"] = row_hash(fields)
        head = ChainHead(head.sequence + 1, fields["row_hash"])
        chained.append(fields)
    return chained


def as_table(table: Table, rows: Sequence[dict[str, object]]) -> pa.Table:
    """Return rows with a loaded table's columns.

    :raises LakeUnavailableError: the table lacks a column for a value that a row's hash covers.
    """
    lacking = {name for row in rows for name, value in row.items() if value is not None}
    lacking.difference_update(table.schema().column_names)
    if lacking:
        raise LakeUnavailableError(
            f"{table.location()}: expected the columns {', '.join(sorted(lacking))}, found none: the lake "
            "went back to an older version since its segments were proven. Nothing was committed. Run "
            "archive again."
        )
    # With field ids, which make the files readable to other engines without a name mapping.
    schema = schema_to_pyarrow(table.schema(), file_format=FileFormat.PARQUET)
    return pa.Table.from_pylist(rows, schema=schema)


def files_to_merge(row_counts: Sequence[int]) -> list[int]:
    """Return the indexes of the files to merge with the rows that a commit appends."""
    by_size: dict[int, list[int]] = {}
    for at, count in enumerate(row_counts):
        if count < FULL_FILE_ROWS:
            # Two bits are a factor of four.
            by_size.setdefault((count.bit_length() - 1) // 2, []).append(at)
    return [at for indexes in by_size.values() if len(indexes) >= MERGED_FILES for at in indexes]


def _files(table: Table, store_id: str) -> list[FileScanTask]:
    with metadata_errors(table.location(), "read the table's manifests"):
        where = all_equal({"store_id": store_id})
        tasks = plan_files(table, where, store_id=store_id, below_rows=FULL_FILE_ROWS)
        return [task for task in tasks if not task.delete_files]


class _Overwrite(_OverwriteFiles):
    """An overwrite that opens only manifests with files to remove. PyIceberg opens every manifest twice.

    :param tells: functions that return whether a manifest may list a file to remove.
    """

    tells: Sequence[Callable[[ManifestFile], bool]] = ()

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: any(tell(manifest) for tell in self.tells)


def _write(table: Table, store_id: str, rows: pa.Table, order: str = "sequence") -> DataFile:
    first = rows[order][0].as_py()
    location = f"{table.location()}/data/store_id={store_id}/{first:020d}-{uuid.uuid4()}.parquet"
    with table.io.new_output(location).create() as sink:
        pq.write_table(rows, cast(IO[bytes], sink), compression="zstd", store_schema=False)
    with metadata_errors(location, "read back a file of rows"):
        return parquet_file_to_data_file(table.io, table.metadata, location)
