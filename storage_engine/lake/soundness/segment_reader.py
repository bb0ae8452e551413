"""Reading a segment's bytes from the files that have its rows now, and reading rows as a stream.

Memory is limited, and only files and row groups that can have the wanted rows are read. PyIceberg's own batch
reader reads all files of a scan at once and keeps all rows until they are taken.

This module also computes the bytes of each topic and day in a segment, from four narrow columns of its rows.

LakeUnavailableError is raised if the lake can't be read, ProofError if a data file is no Parquet file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
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

from storage_engine.brokers import find_broker
from storage_engine.core.clock import DAY_MS
from storage_engine.core.long_work import report_work
from storage_engine.exceptions import ProofError
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.catalog.tables import TREE_COLUMNS
from storage_engine.lake.file.data_file import (
    WindowMemory,
    check_disjoint,
    check_tiled,
    encode_rows,
    opened_rows,
    push_rows,
    rows_of_segment,
    segment_bytes,
)
from storage_engine.lake.file.scan import live_files_of, plan_whole_entries, segment_rows
from storage_engine.lake.file.segment_tree import SegmentTree
from storage_engine.lake.storage.errors import lake_errors, parquet_errors
from storage_engine.model.broker.codec import Columns, SegmentCodec
from storage_engine.model.proof.receipt import Receipt, with_rows
from storage_engine.model.store import TopicDay

Mask = Callable[[pa.Table], "pa.ChunkedArray[Any] | pa.Array[Any]"]


@dataclass(slots=True)
class ReadCount:
    """Numbers of files, row groups and bytes of Parquet columns that a stream has read.

    :param total_files: number of all data files of the table.
    """

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
    """Yield the rows that match, one row group at a time. Rows of one queue are in order.

    Files are chosen by the manifests' bounds, row groups by their statistics. In a row group the columns of
    the conditions are read first, and the others only if a row matches.

    :param where: condition on the table's columns.
    :param columns: columns to yield, in this order.
    :param mask_columns: columns that ``mask`` needs.
    :param mask: returns which rows match, in addition to ``where``.
    :param count: this function adds to it.
    :param left_out: locations of data files that aren't read.
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
    with report_work("Reading data files", sum(task.file.file_size_in_bytes for task in tasks)) as advance:
        for task in tasks:
            count.files += 1
            if task.delete_files:
                parts = _merged_on_read(table, where, task, sorted({*columns, *mask_columns}))
            else:
                path = task.file.file_path
                parts = rows_of_file(table.io, path, filter_expression, deciding, columns, types, mask, count)
            reported_bytes, before = 0, count.bytes
            for rows in parts:
                # Unwanted columns aren't read; they are reported when the file is done.
                read_bytes = min(count.bytes - before, task.file.file_size_in_bytes)
                advance(read_bytes - reported_bytes)
                reported_bytes = read_bytes
                kept = rows if mask is None or not task.delete_files else rows.filter(mask(rows))
                if kept.num_rows:
                    yield kept.select(columns)
            advance(task.file.file_size_in_bytes - reported_bytes)


def plain_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return a column without Arrow's type ``binary_view``, which a codec may use: it becomes ``binary``."""
    return pa.field(field.name, pa.binary()) if pa.types.is_binary_view(field.type) else field


def with_sources(names: Iterable[str], columns: Columns) -> tuple[str, ...]:
    """Return columns, together with the source columns from which missing values are made."""
    base = tuple(names)
    return tuple(dict.fromkeys((*base, *(columns.views[name][0] for name in base if name in columns.views))))


def shape_rows(rows: pa.Table, schema: pa.Schema, codec: SegmentCodec) -> pa.Table:
    """Return rows with the columns of a schema. Missing values are made from their source columns.

    :param rows: rows with the columns of :func:`with_sources`, as far as the table has them.
    """
    columns = []
    for field in schema:
        lacks = field.name not in rows.column_names
        column: Any = pa.nulls(rows.num_rows, field.type) if lacks else rows[field.name].cast(field.type)
        source, view = codec.columns.views.get(field.name, ("", None))
        if view is not None and source in rows.column_names:
            # For a column that a file lacks, PyIceberg has a wider type.
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
    """Yield the rows of a data file that match, one row group at a time.

    :param filter_expression: condition as an Arrow expression.
    :param deciding: columns that the condition or the mask needs.
    :param columns: further wanted columns.
    :param types: types of the columns. A column that is newer than the file gets nulls of its type.
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
            matching = numbered.filter(filter_expression)
            if mask is not None and matching.num_rows:
                matching = matching.filter(mask(matching))
            if not matching.num_rows:
                continue
            count.bytes += _column_bytes(parquet, group, others)
            more = _read(parquet, group, others, types)
            if matching.num_rows < rows.num_rows:
                more = more.take(matching["__row"])
            for name in others:
                matching = matching.append_column(name, more[name])
            yield matching


def _read(parquet: pq.ParquetFile, group: int, columns: Sequence[str], types: pa.Schema) -> pa.Table:
    """Return columns of a row group. A column that the file lacks is null."""
    rows = parquet.read_row_group(group, columns=list(columns))
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, types.field(name).type))
    return rows


def _column_bytes(parquet: pq.ParquetFile, group: int, columns: Sequence[str]) -> int:
    metadata, names = parquet.metadata.row_group(group), set(columns)
    chunks = (metadata.column(number) for number in range(metadata.num_columns))
    return sum(
        chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in names
    )


def _merged_on_read(
    table: Table, where: BooleanExpression, task: FileScanTask, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the remaining rows of a file from which another engine has deleted rows, read by PyIceberg."""
    with lake_errors(task.file.file_path, "read a data file"):
        schema = table.schema().select(*columns)
        for batch in ArrowScan(table.metadata, table.io, schema, where).to_record_batches([task]):
            yield pa.Table.from_batches([batch])


EVERY_ROW: Final[Any] = cast("Any", pc).scalar(True)
"""Condition that selects every row, as an Arrow expression."""


def untouched_files(table: Table, rows: Sequence[Receipt]) -> frozenset[str]:
    """Return the locations of receipts' data files that the table has unchanged.

    :param table: the loaded table of rows.
    """
    return frozenset(file.location for file in live_files_of(table, rows) if not file.has_deletes)


def expired_files(table: Table, rows: Iterable[Receipt]) -> frozenset[str]:
    """Return the locations of data files that have only expired segments.

    Between the two commits of an expiry the table still has such files.

    :param rows: receipts that count, whatever their state is.
    """
    every_row = list(rows)
    kept = {data_file_of(table, row) for row in with_rows(every_row)}
    return frozenset({data_file_of(table, row) for row in every_row if not row.has_rows} - kept)


def read_segment(
    table: Table,
    receipt: Receipt,
    *,
    untouched: Set[str] | None = None,
    memory: WindowMemory | None = None,
    tree: SegmentTree | None = None,
) -> Iterator[tuple[int, memoryview]]:
    """Yield a segment's bytes in order, as (position, bytes).

    The first position is that of :func:`origin_of`. The bytes come from the segment's data file if the table
    has it unchanged; otherwise from the rows that another engine rewrote. The caller must compare the
    SHA-256: nothing here is a proof.

    :param table: the loaded table of rows.
    :param untouched: the result of :func:`untouched_files` for the table; None to call that function here.
    :param memory: memory for the bytes. Without it, bytes are valid until the next bytes are requested.
    :raises ProofError: the data file is no Parquet file, or the rows are not a whole segment.
    """
    location, origin = data_file_of(table, receipt), origin_of(receipt)
    if location not in (untouched_files(table, [receipt]) if untouched is None else untouched):
        yield origin, _bytes_of_rows(table, receipt, tree)[0]
        return
    codec = find_broker(receipt.broker).codec
    with opened_rows(table.io, location) as parquet:
        rows = rows_of_segment(parquet, receipt, location)
        yield from segment_bytes(rows, codec, origin, receipt.size_bytes, location, memory=memory, tree=tree)


def tree_to_compare(receipt: Receipt, name: str) -> SegmentTree | None:
    """Return the builder of a tree to compare with a receipt's; None if the receipt has no tree.

    :param name: name of the file or table that has the rows, for messages.
    """
    return None if receipt.root is None else SegmentTree(find_broker(receipt.broker).codec.columns, name)


def tree_fault(receipt: Receipt, leaves: SegmentTree | None) -> str:
    """Return how the tree over a segment's rows differs from its receipt's tree; "" if it doesn't.

    :param leaves: the result of :func:`tree_to_compare`, after all rows were read.
    """
    if leaves is None:
        return ""
    try:
        tree = leaves.tree(receipt.base_offset, receipt.size_bytes, receipt.sha256, receipt.gone_streams)
    except ProofError as error:
        return str(error)
    if tree.root != receipt.root:
        return f"expected the root {receipt.root}, found {tree.root}"
    if tree.streams != receipt.streams:
        return f"expected the streams {receipt.streams}, found {tree.streams}"
    return ""


def rows_fault(table: Table, receipt: Receipt, name: str, untouched: Set[str] | None = None) -> str:
    """Read a segment's rows back, and return how they differ from the proven segment; "" if they don't.

    :param name: name of the file or table that has the rows, for messages.
    :param untouched: as in :func:`read_segment`, whose errors this function raises, too.
    """
    digest, leaves = hashlib.sha256(), tree_to_compare(receipt, name)
    for _, chunk in read_segment(table, receipt, untouched=untouched, tree=leaves):
        digest.update(chunk)
    return tree_fault(receipt, leaves) if digest.hexdigest() == receipt.sha256 else "other bytes"


def partial_fault(table: Table, receipt: Receipt, *, from_table: bool) -> str:
    """Return how the remaining rows of a segment differ from the proven ones; "" if they don't.

    These rows, with the recorded hashes of the removed streams, must give the root of the whole segment. The
    root covers the SHA-256 of the segment's file.

    :param table: the loaded table of rows.
    :param from_table: read the rows from the table, without rows of removed streams. Otherwise they are read
        from their own data file, which the table may not have yet.
    :raises ProofError: the rows aren't the segment's.
    """
    leaves = tree_to_compare(receipt, receipt.data_file)
    if leaves is None:
        return "expected a root, found none"
    location, codec = data_file_of(table, receipt), find_broker(receipt.broker).codec
    if from_table:
        _bytes_of_rows(table, receipt, leaves)
        return tree_fault(receipt, leaves)
    with opened_rows(table.io, location) as parquet:
        rows = rows_of_segment(parquet, receipt, location)
        push_rows(rows, codec, origin_of(receipt), receipt.size_bytes, location, leaves)
    return tree_fault(receipt, leaves)


def origin_of(receipt: Receipt) -> int:
    """Return the position of a segment's first byte. Positions of its rows count from there."""
    return find_broker(receipt.broker).codec.origin(receipt.base_offset)


def narrow_rows(
    table: Table, receipt: Receipt, columns: Sequence[str], untouched: Set[str], keeps: Any = EVERY_ROW
) -> Iterator[pa.Table]:
    """Yield some columns of a segment's rows, in batches.

    :param table: the loaded table of rows.
    :param untouched: the result of :func:`untouched_files` for the table.
    :param keeps: condition on these columns, as an Arrow expression.
    """
    location = data_file_of(table, receipt)
    if location not in untouched:
        where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
        of_codec = find_broker(receipt.broker).codec.columns
        names = list(dict.fromkeys((*columns, *of_codec.streams[:1])))
        for rows in message_batches(table, where, names):
            yield _without_removed(rows, of_codec, receipt).select(list(columns)).filter(keeps)
        return
    if receipt.groups is None:
        types = find_broker(receipt.broker).codec.schema
        for rows in rows_of_file(table.io, location, keeps, columns, (), types):
            yield rows.select(list(columns))
        return
    with opened_rows(table.io, location) as parquet:
        segment = rows_of_segment(parquet, receipt, location)
        for group in range(segment.num_row_groups):
            yield segment.read_row_group(group, columns=list(columns), use_threads=False).filter(keeps)


def filled_segment(table: Table, receipt: Receipt) -> tuple[memoryview, int]:
    """Return the bytes of a segment with filler in the place of removed streams, and the filler's length.

    All other bytes are proven: with the recorded hashes of the removed streams they give the root.

    :param table: the loaded table of rows.
    :raises ProofError: the remaining rows differ from the proven ones.
    """
    leaves = tree_to_compare(receipt, table.location())
    out, starts, ends, stored_ms = _bytes_of_rows(table, receipt, leaves)
    if fault := tree_fault(receipt, leaves) if leaves is not None else "expected a root, found none":
        raise ProofError(f"{table.location()}: {receipt.log}/{receipt.base_offset:020d}: {fault}.")
    origin = origin_of(receipt)
    gap_starts = np.append(origin, ends)
    gap_ends = np.append(starts, origin + receipt.size_bytes)
    gaps = np.flatnonzero(gap_starts < gap_ends)
    # A filler gets the store timestamp of the message before it, the first one that of the segment.
    times = np.append(receipt.first_store_timestamp_ms or receipt.proven_at_ms, stored_ms)
    last_timed = np.maximum.accumulate(np.where(times > 0, np.arange(len(times)), 0))
    codec = find_broker(receipt.broker).codec
    rows = codec.filler(gap_starts[gaps], gap_ends[gaps], times[last_timed[gaps]])
    if rows is None:
        raise ProofError(
            f"{receipt.log}: expected a broker whose log may have filler, found {receipt.broker}."
        )
    return out, encode_rows(codec, rows, out, origin, table.location())


def _bytes_of_rows(
    table: Table, receipt: Receipt, tree: SegmentTree | None
) -> tuple[memoryview, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a segment's bytes, and begin, end and store timestamp of each row, in order.

    Bytes without a row are zero. A timestamp that isn't known is 0.
    """
    codec, origin = find_broker(receipt.broker).codec, origin_of(receipt)
    where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
    out = np.zeros(receipt.size_bytes, dtype=np.uint8).data
    offsets, sizes, times = ([np.empty(0, np.int64)] for _ in range(3))
    with lake_errors(table.location(), "read a segment's rows"):
        names = set(table.schema().column_names)
        columns = codec.schema if tree is None else (*codec.schema, *TREE_COLUMNS)
        schema = pa.schema([field for field in columns if field.name in names])
        scan = table.scan(row_filter=where, selected_fields=tuple(schema.names))
        for batch in scan.to_arrow_batch_reader():
            rows = _without_removed(pa.Table.from_batches([batch]), codec.columns, receipt)
            # PyIceberg widens strings and binaries; the codec needs its own types.
            rows = rows.select(schema.names).cast(schema)
            encode_rows(codec, rows, out, origin, table.location())
            if tree is not None:
                tree.add(rows)
            times.append(_stored_ms(rows, codec.columns))
            offsets.append(rows["physical_offset"].to_numpy())
            sizes.append(rows["size"].to_numpy().astype(np.int64))
    starts = np.concatenate(offsets)
    if len(starts) != receipt.row_count:
        # A missing row without bytes doesn't show in the bytes.
        raise ProofError(
            f"{table.location()}: expected {receipt.row_count} rows of {receipt.log}/"
            f"{receipt.base_offset:020d}, found {len(starts)}. Another engine changed them."
        )
    ends, end = starts + np.concatenate(sizes), origin + receipt.size_bytes
    if receipt.is_whole:
        order = check_tiled(starts, ends, origin, end, table.location())
    else:
        order = check_disjoint(starts, ends - starts, origin, end, table.location())
    if tree is not None:
        tree.push(order, starts, ends - starts, out, origin)
    return out, starts[order], ends[order], np.concatenate(times)[order]


def _without_removed(rows: pa.Table, columns: Columns, receipt: Receipt) -> pa.Table:
    removed = list(receipt.gone_streams)
    if not removed:
        return rows
    topics: Any = rows[columns.streams[0]]
    return rows.filter(pc.invert(pc.is_in(topics, value_set=pa.array(removed, topics.type))))


def _stored_ms(rows: pa.Table, columns: Columns) -> npt.NDArray[np.int64]:
    if columns.stored_at is None:
        return np.zeros(rows.num_rows, np.int64)
    stored: Any = rows[columns.stored_at].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    return np.asarray(pc.fill_null(stored, 0).to_numpy())


MOST_TOPICS = 100
"""Maximum of topics in a segment that are counted separately. Other topics are counted together."""
MOST_ROWS = 10_000
"""Maximum number of pairs of topic and day for a segment. Pairs with the fewest bytes are left out. A broker
usually writes a segment within a few days."""

_SIZE, _KIND = "size", "kind"
_COUNTED = ["topic", "day", "bytes", "messages"]
_UNITS_A_DAY = {"s": 86_400, "ms": DAY_MS, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def read_topic_days(table: Table, receipt: Receipt, untouched: Set[str]) -> tuple[TopicDay, ...]:
    """Return the bytes of each topic and day in a segment, the largest first.

    :param table: the loaded table of rows.
    :param untouched: the result of :func:`untouched_files` for the table.
    :return: () if the broker's codec has no column for the topic or for the time.
    """
    columns = find_broker(receipt.broker).codec.columns
    if not columns.streams or columns.stored_at is None:
        return ()
    names = (columns.streams[0], columns.stored_at, _SIZE, _KIND)
    return topic_days_of(narrow_rows(table, receipt, names, untouched), columns)


def topic_days_of(batches: Iterable[pa.Table], columns: Columns) -> tuple[TopicDay, ...]:
    """Return the bytes of each topic and day in some rows, the largest first.

    Messages without a topic or a time don't count. A row without a time that isn't a message, such as the
    header of a batch, gets the time of the next row.

    :param batches: rows in the segment's order, with the first column that names a stream, the column of the
        stored time, ``size`` and ``kind``.
    """
    counted = [_counted(rows, columns) for rows in batches]
    if not counted:
        return ()
    sums = _sums(pa.concat_tables(counted))
    topics = sums.group_by("topic").aggregate([("bytes", "sum")]).sort_by([("bytes_sum", "descending")])
    largest = topics["topic"][:MOST_TOPICS]
    topic = pc.if_else(pc.is_in(sums["topic"], value_set=largest), sums["topic"], "")
    sums = _sums(sums.set_column(0, "topic", topic))
    sums = sums.sort_by([("bytes", "descending"), ("topic", "ascending"), ("day", "ascending")])
    return tuple(
        TopicDay(row["topic"], row["day"], row["bytes"], row["messages"])
        for row in sums[:MOST_ROWS].to_pylist()
    )


def _counted(rows: pa.Table, columns: Columns) -> pa.Table:
    topic, stored_at = columns.streams[0], str(columns.stored_at)
    if rows[topic].null_count:
        rows = rows.filter(rows[topic].is_valid())
    is_message = pc.equal(rows[_KIND], pa.scalar("message"))
    if rows[stored_at].null_count:
        timed = pc.fill_null_forward(pc.fill_null_backward(rows[stored_at]))
        timed = pc.if_else(is_message, rows[stored_at], timed)
        rows = rows.set_column(rows.schema.get_field_index(stored_at), stored_at, timed)
        has_time = rows[stored_at].is_valid()
        rows, is_message = rows.filter(has_time), is_message.filter(has_time)
    stored = rows[stored_at]
    days = np.floor_divide(stored.cast(pa.int64()).to_numpy(), _UNITS_A_DAY[stored.type.unit])
    sizes = rows[_SIZE].cast(pa.int64())
    counted = pa.Table.from_arrays(
        [rows[topic], pa.chunked_array([days]), sizes, is_message.cast(pa.int64())],
        names=["topic", "day", _SIZE, _KIND],
    )
    sums = counted.group_by(["topic", "day"], use_threads=False).aggregate([(_SIZE, "sum"), (_KIND, "sum")])
    sums = sums.select(["topic", "day", f"{_SIZE}_sum", f"{_KIND}_sum"])
    return sums.set_column(0, "topic", sums["topic"].cast(pa.string())).rename_columns(_COUNTED)


def _sums(counted: pa.Table) -> pa.Table:
    sums = counted.group_by(["topic", "day"], use_threads=False).aggregate(
        [("bytes", "sum"), ("messages", "sum")]
    )
    return sums.select(["topic", "day", "bytes_sum", "messages_sum"]).rename_columns(_COUNTED)
