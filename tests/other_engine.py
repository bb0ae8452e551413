"""What other engines, and people, do to the table ``messages``, which PyIceberg by itself doesn't."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.scan import segment_rows
from storage_engine.model.proof.receipt import Receipt


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AppendDeletes(_FastAppendFiles):
    """PyIceberg reads delete files but writes none; this writes their manifest as others do."""

    def new_manifest_writer(self, spec: Any) -> ManifestWriterV2:
        schema = self._transaction.table_metadata.schema()
        return _DeletesWriter(spec, schema, self.new_manifest_output(), self._snapshot_id, self._compression)


def add_delete_file(lake: Lake, store_id: str, rows: pa.Table, content: DataFileContent, **more: Any) -> None:
    """Say that some rows of a store count as deleted, by a file beside the data files."""
    table = lake.messages()
    location = f"{table.location()}/data/store_id={store_id}/{content.name}.parquet"
    path = local_path(location)
    assert path is not None
    pq.write_table(rows, path)
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(store_id),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        **more,
    )
    file.spec_id = table.spec().spec_id
    with (
        table.transaction() as transaction,
        _AppendDeletes(operation=Operation.APPEND, transaction=transaction, io=table.io) as append,
    ):
        append.append_data_file(file)


def delete_position(lake: Lake, receipt: Receipt, position: int) -> None:
    """Say that one row of a receipt's data file counts as deleted; behind the last row: none does."""
    ids = {"file_path": 2147483546, "pos": 2147483545}
    kinds = {"file_path": pa.string(), "pos": pa.int64()}
    schema = pa.schema(
        [
            pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(ids[name])})
            for name, kind in kinds.items()
        ]
    )
    location = data_file_of(lake.messages(), receipt)
    rows = pa.table([[location], [position]], schema=schema)
    # So that it concerns no other data file.
    bounds = {ids["file_path"]: location.encode()}
    add_delete_file(
        lake,
        receipt.store_id,
        rows,
        DataFileContent.POSITION_DELETES,
        lower_bounds=bounds,
        upper_bounds=bounds,
    )


def rewrite(lake: Lake, receipt: Receipt) -> None:
    """Put a segment's rows into another file, as a compaction does."""
    table, where = lake.messages(), _where(receipt)
    table.overwrite(table.scan(row_filter=where).to_arrow(), overwrite_filter=where)


def commit_again(lake: Lake, receipt: Receipt) -> None:
    """List a segment's data file once more."""
    table = lake.messages()
    table.add_files([data_file_of(table, receipt)], check_duplicate_files=False)


def file_of(lake: Lake, receipt: Receipt) -> DataFile:
    """Return what the table says of the one file that has a segment's rows."""
    (task,) = lake.messages().scan(row_filter=_where(receipt)).plan_files()
    return task.file


def _where(receipt: Receipt) -> BooleanExpression:
    return segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)


def change_entry(lake: Lake, receipt: Receipt, **changed: Any) -> None:
    """Let the table's entry of a segment's data file say something else."""
    table, listed = lake.messages(), file_of(lake, receipt)
    names = ("record_count", "file_size_in_bytes", "lower_bounds", "upper_bounds")
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=listed.file_path,
        file_format=FileFormat.PARQUET,
        partition=listed.partition,
        **{name: getattr(listed, name) for name in names} | changed,
    )
    entry.spec_id = table.spec().spec_id
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(listed)
        overwrite.append_data_file(entry)


def change_rows(lake: Lake, change: Any) -> None:
    """Write the receipts again, each as ``change`` makes it; None: without it.

    :param change: called with a row of ``segments`` as a dictionary.
    """
    table = lake.segments()
    rows = [row for row in map(change, table.scan().to_arrow().to_pylist()) if row is not None]
    table.overwrite(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
