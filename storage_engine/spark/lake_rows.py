"""Rows of a lake as DataFrames: planned by PyIceberg, read by PyArrow in the tasks, and summed up there.

A row reaches the JVM only where somebody asks for that very row, so that a small driver does for any lake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table

from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.data_file import opened_rows
from storage_engine.lake.file.filters import store_rows
from storage_engine.lake.file.live_files import LiveFile
from storage_engine.lake.file.scan import read_files
from storage_engine.lake.storage.errors import lake_errors, metadata_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_PER_CORE = 4
"""Where there are files enough: a slower core then takes fewer of them."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Where rows were read.

    :param location: of their data file.
    :param first_row: how many rows of the file come before them.
    """

    location: str
    first_row: int


Fold = Callable[[pa.Table, RowGroup], pa.Table]
"""Makes a few rows of many."""


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """A store's data files in one snapshot of its lake.

    :param table: that of rows, as loaded.
    :param files: as the snapshot lists them; one that it lists twice is there twice.
    """

    config: LakeConfig
    table: Table
    store_id: str
    files: tuple[LiveFile, ...]


def map_row_groups(
    spark: SparkSession, source: StoreFiles, columns: Sequence[str], fold: Fold, schema: pa.Schema
) -> DataFrame:
    """Return what a function makes of each row group of the files.

    A file of which rows count as deleted is read by the driver, as PyIceberg alone knows which ones.

    :param columns: that are read.
    :param fold: is given rows with these columns, and returns rows with those of ``schema``.
    :raises LakeUnavailableError: a file can't be read by the driver; a task's error says the same.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    properties, whole = source.config.file_io_properties, [f for f in source.files if not f.has_deletes]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            locations: list[Any] = batch.column(0).to_pylist()
            for location in locations:
                for rows, place in _row_groups(load_file_io(properties, location), location, columns):
                    yield from fold(rows, place).select(schema.names).cast(schema).to_batches()

    context, spark_schema = spark.sparkContext, from_arrow_schema(schema)
    tasks = max(1, min(len(whole), TASKS_PER_CORE * context.defaultParallelism))
    locations = context.parallelize([(file.location,) for file in whole], tasks)
    frame = spark.createDataFrame(locations, "location string").mapInArrow(read, spark_schema)
    if len(whole) == len(source.files):
        return frame
    merged = [fold(rows, place).select(schema.names).cast(schema) for rows, place in _merged(source, columns)]
    rows = [tuple(row.values()) for table in merged for row in table.to_pylist()]
    return frame.unionByName(spark.createDataFrame(rows, spark_schema))


def kept(frame: DataFrame, tasks: int) -> DataFrame:
    """Return a frame that is computed once, in so many parts: Spark alone would make 200 of the smallest."""
    return frame.coalesce(tasks).cache()


def united(frames: Iterable[DataFrame]) -> DataFrame:
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


def _merged(source: StoreFiles, columns: Sequence[str]) -> Iterator[tuple[pa.Table, RowGroup]]:
    table, wanted = source.table, {file.location for file in source.files if file.has_deletes}
    with metadata_errors(table.location(), "read rows that were partly deleted"):
        for task in table.scan(row_filter=store_rows(source.store_id)).plan_files():
            if task.file.file_path in wanted:
                rows = read_files(table, AlwaysTrue(), columns, [task])
                yield rows, RowGroup(task.file.file_path, 0)
