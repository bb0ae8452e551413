"""Rows of a lake's messages as a stream, in bounded memory, reading only what can hold what is asked for.

PyIceberg's own batch reader reads all files of a scan at once and keeps what it found until it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow, schema_to_pyarrow
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import LongType

from storage_engine.core.long_work import told
from storage_engine.lake.file.scan import plan_whole_entries
from storage_engine.lake.storage.errors import lake_errors, parquet_errors
from storage_engine.model.broker.codec import Columns, SegmentCodec

Mask = Callable[[pa.Table], "pa.ChunkedArray[Any] | pa.Array[Any]"]


@dataclass(slots=True)
class ReadCount:
    """What a stream has read so far of what the table has; bytes are those of Parquet columns."""

    files: int = 0
    row_groups: int = 0
    bytes: int = 0
    total_files: int = 0


def message_batches(
    table: Table,
    where: BooleanExpression,
    columns: Sequence[str],
    *,
    mask_columns: Sequence[str] = (),
    mask: Mask | None = None,
    count: ReadCount | None = None,
    left_out: Set[str] = frozenset(),
) -> Iterator[pa.Table]:
    """Yield the rows that match, a row group at a time; those of one queue in their order.

    Files are chosen by the manifests' bounds, row groups by their statistics. Of a row group the columns
    that decide are read first, and the others only when some row matches.

    :param where: over the table's columns.
    :param columns: to yield, in this order.
    :param mask_columns: what ``mask`` needs.
    :param mask: which rows match, beyond ``where``.
    :param count: is counted up.
    :param left_out: locations of data files that aren't read.
    :raises LakeUnavailableError: the lake can't be read.
    :raises ProofError: a data file is no Parquet file.
    """
    count = ReadCount() if count is None else count
    with lake_errors(table.location(), "plan a scan"):
        bound = bind(table.schema(), where, case_sensitive=True)
        filter_expression = expression_to_pyarrow(bound, table.schema())
        base = table.schema().find_field("segment_base_offset").field_id
        chosen = [task for task in plan_whole_entries(table, where) if task.file.file_path not in left_out]
        tasks = sorted(chosen, key=lambda task: _order(task, base))
        snapshot = table.current_snapshot()
        if snapshot is not None and snapshot.summary is not None:
            count.total_files = int(snapshot.summary["total-data-files"] or 0)
    names = {table.schema().find_column_name(field) for field in extract_field_ids(bound)}
    types = schema_to_pyarrow(table.schema(), include_field_ids=False)
    deciding = sorted({*filter(None, names), *mask_columns})
    with told("Reading data files", sum(task.file.file_size_in_bytes for task in tasks)) as advance:
        for task in tasks:
            count.files += 1
            if task.delete_files:
                found = _merged_on_read(table, where, task, sorted({*columns, *mask_columns}))
            else:
                path = task.file.file_path
                found = rows_of_file(table.io, path, filter_expression, deciding, columns, types, mask, count)
            told_bytes, before = 0, count.bytes
            for rows in found:
                # Columns that nobody asked for are not read; the file is done with all the same.
                read_bytes = min(count.bytes - before, task.file.file_size_in_bytes)
                advance(read_bytes - told_bytes)
                told_bytes = read_bytes
                kept = rows if mask is None or not task.delete_files else rows.filter(mask(rows))
                if kept.num_rows:
                    yield kept.select(columns)
            advance(task.file.file_size_in_bytes - told_bytes)


def plain_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return a column as everybody reads it; a codec may have binaries as views."""
    return pa.field(field.name, pa.binary()) if pa.types.is_binary_view(field.type) else field


def with_sources(names: Iterable[str], columns: Columns) -> tuple[str, ...]:
    """Return columns, and those of which they are made where they have no value."""
    wanted = tuple(names)
    return tuple(dict.fromkeys((*wanted, *(columns.views[one][0] for one in wanted if one in columns.views))))


def shaped(rows: pa.Table, schema: pa.Schema, codec: SegmentCodec) -> pa.Table:
    """Return rows with the columns of a schema, made of their sources where they have no value.

    :param rows: with what :func:`with_sources` names, as far as the table has it.
    """
    columns = []
    for field in schema:
        lacks = field.name not in rows.column_names
        column: Any = pa.nulls(rows.num_rows, field.type) if lacks else rows[field.name].cast(field.type)
        source, view = codec.columns.views.get(field.name, ("", None))
        if view is not None and source in rows.column_names:
            # PyIceberg has wider types for what a file lacks.
            made = view(rows[source].cast(codec.schema.field(source).type))
            column = pc.coalesce(column, pa.chunked_array([made], field.type))
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _order(task: FileScanTask, base_offset_id: int) -> tuple[int, str]:
    lower = (task.file.lower_bounds or {}).get(base_offset_id)
    return (0 if lower is None else int(from_bytes(LongType(), lower))), task.file.file_path


def rows_of_file(
    file_io: FileIO,
    path: str,
    filter_expression: Any,
    deciding: Sequence[str],
    columns: Sequence[str],
    types: pa.Schema,
    mask: Mask | None = None,
    count: ReadCount | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a data file that match, a row group at a time.

    :param filter_expression: as Arrow has it.
    :param deciding: columns that it or the mask needs.
    :param columns: what is wanted beside them.
    :param types: of these columns, for those that came to the table after the file, which have no value.
    """
    count = ReadCount() if count is None else count
    with (
        parquet_errors(path),
        cast("Any", file_io.new_input(path).open()) as stored,
        pq.ParquetFile(stored) as parquet,
    ):
        likely: Sequence[int] = range(parquet.num_row_groups)
        if set(deciding) <= set(parquet.schema_arrow.names):
            fragment: Any = ds.ParquetFileFormat().make_fragment(stored)
            parts = fragment.split_by_row_group(filter_expression)
            likely = [group.id for part in parts for group in part.row_groups]
        others = [name for name in columns if name not in deciding]
        for group in likely:
            count.row_groups += 1
            count.bytes += _column_bytes(parquet, group, deciding)
            rows = _read(parquet, group, deciding, types)
            numbered = rows.append_column("__row", pa.array(np.arange(rows.num_rows)))
            found = numbered.filter(filter_expression)
            if mask is not None and found.num_rows:
                found = found.filter(mask(found))
            if not found.num_rows:
                continue
            count.bytes += _column_bytes(parquet, group, others)
            more = _read(parquet, group, others, types)
            if found.num_rows < rows.num_rows:
                more = more.take(found["__row"])
            for name in others:
                found = found.append_column(name, more[name])
            yield found


def _read(parquet: pq.ParquetFile, group: int, columns: Sequence[str], types: pa.Schema) -> pa.Table:
    """Return columns of a row group; one that the file lacks has no value."""
    rows = parquet.read_row_group(group, columns=list(columns))
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, types.field(name).type))
    return rows


def _column_bytes(parquet: pq.ParquetFile, group: int, columns: Sequence[str]) -> int:
    metadata, wanted = parquet.metadata.row_group(group), set(columns)
    chunks = (metadata.column(number) for number in range(metadata.num_columns))
    return sum(
        chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in wanted
    )


def _merged_on_read(
    table: Table, where: BooleanExpression, task: FileScanTask, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """A file some of whose rows another engine deleted: PyIceberg knows which; it reads the file whole."""
    with lake_errors(task.file.file_path, "read a data file"):
        schema = table.schema().select(*columns)
        for batch in ArrowScan(table.metadata, table.io, schema, where).to_record_batches([task]):
            yield pa.Table.from_batches([batch])
