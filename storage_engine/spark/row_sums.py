"""Results of tasks on a segment's rows: sums for each segment and stream, or single rows if sums disagree.

Positions count from the segment's first byte. Pure Arrow; this module imports neither Spark nor pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table

from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.data_file import opened_rows
from storage_engine.lake.file.scan import LiveFile, read_files, store_rows
from storage_engine.lake.storage.errors import lake_errors, metadata_errors
from storage_engine.model.broker.codec import Columns, SegmentCodec, offsets_count_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SEGMENT = ("lineage", "log", "segment_base_offset")
"""Columns that identify a segment of a store."""

_IDENTITY: list[pa.Field[Any]] = [
    pa.field("lineage", pa.int32()),
    pa.field("log", pa.string()),
    pa.field("segment_base_offset", pa.int64()),
    pa.field("stream", pa.string()),
]
_COUNTED: dict[str, Any] = {
    "row_count": ([], "count_all"),
    "messages": ("is_message", "sum"),
    "row_bytes": ("size", "sum"),
    "first": ("first", "min"),
    "last": ("last", "max"),
    "byte_chain": ("byte_chain", "sum"),
    "offsets": ("offset", "count"),
    "distinct_offsets": ("offset", "count_distinct"),
    "first_offset": ("offset", "min"),
    "last_offset": ("offset", "max"),
    "offset_chain": ("offset_chain", "sum"),
    "unknown_steps": ("is_unknown", "sum"),
}

_SEED = 42
_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)

_COUNTS: list[pa.Field[Any]] = [pa.field(name, pa.int64()) for name in _COUNTED]
SUMS = pa.schema([*_IDENTITY, pa.field("location", pa.string()), *_COUNTS])
"""Sums over the rows of one segment and stream in one row group.

``stream``: the codec's names for a message's stream, joined with blanks; null if the rows are in no stream.
``first``, ``last``: beginning and end of the rows' bytes. ``offsets`` to ``offset_chain``: sums over the
messages' offsets in the stream. ``byte_chain``, ``offset_chain``: see :func:`sum_rows`. ``unknown_steps``:
number of messages for which the columns don't show the next offset.
"""

_PLACES: list[pa.Field[Any]] = [
    pa.field(name, pa.int64()) for name in ("start", "size", "offset", "step", "row")
]
ROWS = pa.schema([*_IDENTITY, *_PLACES])
"""Single rows. ``row`` is the row's number in its file."""


def columns_read(columns: Columns) -> tuple[str, ...]:
    """Return the few columns that are read from a data file."""
    offset = () if columns.offset is None else (columns.offset,)
    names = (*SEGMENT, "physical_offset", "size", "kind", *columns.streams, *offset, *columns.step_columns)
    return tuple(dict.fromkeys(names))


def sum_rows(rows: pa.Table, location: str, codec: SegmentCodec) -> pa.Table:
    """Return the sums of some rows, with the columns of :data:`SUMS`.

    A chain is the sum of hash(end) - hash(start) over ranges of bytes or offsets, modulo 2^64. If ranges join
    without gap or overlap, in any order, the hashes in between cancel each other out. The result is hash(last
    end) - hash(first start). Other ranges give this result only by a hash collision.

    :param rows: rows with the columns of :func:`columns_read`.
    """
    streams = [f"stream_{number}" for number in range(len(codec.columns.streams))]
    placed = _place_rows(rows, codec)
    owns = pc.greater(placed["size"], pa.scalar(0))
    start, size = placed["start"], placed["size"]
    placed = (
        placed.append_column("first", pc.if_else(owns, start, None))
        .append_column("last", pc.if_else(owns, pc.add(start, size), None))
        .append_column("byte_chain", _link(start, pc.add(start, size)))
        .append_column("offset_chain", _link(placed["offset"], pc.add(placed["offset"], 1)))
        .append_column("is_unknown", _count(pc.and_(placed["offset"].is_valid(), placed["step"].is_null())))
    )
    grouped = placed.group_by([*SEGMENT, *streams], use_threads=False).aggregate([*_COUNTED.values()])
    sums: dict[str, Any] = {name: grouped[name] for name in SEGMENT}
    sums["stream"] = _stream(grouped, streams)
    sums["location"] = pa.array([location] * grouped.num_rows, pa.string())
    for name, (column, fold) in _COUNTED.items():
        sums[name] = grouped[f"{column}_{fold}" if column else fold]
    return pa.table(sums)


def place_rows(rows: pa.Table, first_row: int, codec: SegmentCodec) -> pa.Table:
    """Return some single rows, with the columns of :data:`ROWS`.

    :param rows: rows with the columns of :func:`columns_read`.
    :param first_row: how many rows of the file come before these rows.
    """
    placed = _place_rows(rows, codec)
    streams = [f"stream_{number}" for number in range(len(codec.columns.streams))]
    numbers = pa.array(range(first_row, first_row + rows.num_rows), pa.int64())
    return placed.append_column("stream", _stream(placed, streams)).append_column("row", numbers)


def _place_rows(rows: pa.Table, codec: SegmentCodec) -> pa.Table:
    columns, nothing = codec.columns, pa.nulls(rows.num_rows, pa.int64())
    start = rows["physical_offset"]
    if offsets_count_bytes(codec):
        start = pc.subtract(start, rows["segment_base_offset"])
    offset = nothing if columns.offset is None else rows[columns.offset]
    step: Any = nothing if columns.steps is None else columns.steps(rows)
    # The offset of a row that is in no stream doesn't count.
    offset = pc.if_else(pc.fill_null(pc.equal(step, pa.scalar(0)), False), None, offset)
    cells: dict[str, Any] = {name: rows[name] for name in SEGMENT}
    cells |= {f"stream_{number}": rows[name] for number, name in enumerate(columns.streams)}
    cells |= {"start": start, "size": rows["size"].cast(pa.int64()), "offset": offset, "step": step}
    return pa.table({**cells, "is_message": _count(pc.equal(rows["kind"], pa.scalar("message")))})


def _link(start: Any, end: Any) -> Any:
    return pc.subtract(hash_numbers(end), hash_numbers(start)).cast(pa.int64(), safe=False)


def hash_numbers(numbers: Any) -> Any:
    """Return the XXH64 hashes of 64-bit numbers with seed 42, like Spark's ``xxhash64``, but null for null.

    See the specification of xxHash: its five primes, and the rule for an input of eight bytes.
    """

    def times(value: Any, prime: int) -> Any:
        return pc.multiply(value, pa.scalar(prime, pa.uint64()))

    def shifted(value: Any, bits: int) -> Any:
        return pc.shift_right(value, pa.scalar(bits, pa.uint64()))

    def rotated(value: Any, bits: int) -> Any:
        return pc.bit_wise_or(pc.shift_left(value, pa.scalar(bits, pa.uint64())), shifted(value, 64 - bits))

    first, second, third, fourth, fifth = _PRIMES
    lane = times(rotated(times(numbers.cast(pa.uint64(), safe=False), second), 31), first)
    value = pc.bit_wise_xor(lane, pa.scalar(_SEED + fifth + 8, pa.uint64()))
    value = pc.add(times(rotated(value, 27), first), pa.scalar(fourth, pa.uint64()))
    value = times(pc.bit_wise_xor(value, shifted(value, 33)), second)
    value = times(pc.bit_wise_xor(value, shifted(value, 29)), third)
    return pc.bit_wise_xor(value, shifted(value, 32))


def _stream(rows: pa.Table, streams: Sequence[str]) -> Any:
    if not streams:
        return pa.nulls(rows.num_rows, pa.string())
    names: list[Any] = [rows[name].cast(pa.string()) for name in streams]
    return pc.binary_join_element_wise(*names, " ")


def _count(mask: Any) -> Any:
    return mask.cast(pa.int64())


TASKS_PER_CORE = 4
"""Tasks for each core, if there are enough files. Then a slower core takes fewer tasks."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The row group from which rows were read.

    :param first_row: how many rows of the file come before the row group.
    """

    location: str
    first_row: int


Fold = Callable[[pa.Table, RowGroup], pa.Table]
"""Function that reduces many rows to a few."""


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """A store's data files in one snapshot of its lake.

    :param files: the files as the snapshot lists them. If it lists a file twice, the file is here twice.
    """

    config: LakeConfig
    table: Table
    store_id: str
    files: tuple[LiveFile, ...]


def map_row_groups(
    spark: SparkSession, source: StoreFiles, columns: Sequence[str], fold: Fold, schema: pa.Schema
) -> DataFrame:
    """Return the results of a function for each row group of the files.

    A file in which some rows count as deleted is read by the driver, because only PyIceberg knows these rows.

    :param fold: function that gets rows with ``columns``, and returns rows with the columns of ``schema``.
    :raises LakeUnavailableError: the driver can't read a file. If a task can't, its error has the same text.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    properties, whole_files = source.config.file_io_properties, [f for f in source.files if not f.has_deletes]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            locations: list[Any] = batch.column(0).to_pylist()
            for location in locations:
                for rows, place in _row_groups(load_file_io(properties, location), location, columns):
                    yield from fold(rows, place).select(schema.names).cast(schema).to_batches()

    context, spark_schema = spark.sparkContext, from_arrow_schema(schema)
    tasks = max(1, min(len(whole_files), TASKS_PER_CORE * context.defaultParallelism))
    locations = context.parallelize([(file.location,) for file in whole_files], tasks)
    frame = spark.createDataFrame(locations, "location string").mapInArrow(read, spark_schema)
    if len(whole_files) == len(source.files):
        return frame
    merged = [fold(rows, place).select(schema.names).cast(schema) for rows, place in _merge(source, columns)]
    rows = [tuple(row.values()) for table in merged for row in table.to_pylist()]
    return frame.unionByName(spark.createDataFrame(rows, spark_schema))


def keep_frame(frame: DataFrame, tasks: int) -> DataFrame:
    """Return a frame that is computed once, in at most ``tasks`` parts. By default Spark makes 200 parts."""
    return frame.coalesce(tasks).cache()


def unite_frames(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the rows of all frames, which have the same columns."""
    return reduce(lambda first, second: first.unionByName(second), frames)


def _row_groups(
    file_io: FileIO, location: str, columns: Sequence[str]
) -> Iterator[tuple[pa.Table, RowGroup]]:
    first_row = 0
    with lake_errors(location, "read a data file"), opened_rows(file_io, location) as parquet:
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=list(columns), use_threads=False)
            yield rows, RowGroup(location, first_row)
            first_row += rows.num_rows


def _merge(source: StoreFiles, columns: Sequence[str]) -> Iterator[tuple[pa.Table, RowGroup]]:
    table, locations = source.table, {file.location for file in source.files if file.has_deletes}
    with metadata_errors(table.location(), "read rows that were partly deleted"):
        for task in table.scan(row_filter=store_rows(source.store_id)).plan_files():
            if task.file.file_path in locations:
                yield read_files(table, AlwaysTrue(), columns, [task]), RowGroup(task.file.file_path, 0)
