"""A store's rows as one Spark table: rows from its lake, and rows that are only in the store.

Each scan is planned separately, for one state of store and lake, and has each row once. If a segment leaves
the store between planning and reading, it is read from the lake. If it isn't there either, the query fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from storage_engine.brokers import broker_of, find_broker, store_text
from storage_engine.core.host import ANY_HOST
from storage_engine.core.wording import did_you_mean
from storage_engine.exceptions import BadInputError, FileGoneError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.catalog.tables import IDENTITY_COLUMNS
from storage_engine.lake.file.agent_files import begin_run, leave_agent, read_access
from storage_engine.lake.file.jobs import AgentRun
from storage_engine.lake.file.source_file import read_beginning
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.segment_reader import plain_field, rows_of_file, shape_rows, with_sources
from storage_engine.model.broker.codec import Columns, SegmentCodec
from storage_engine.model.store import may_be_one
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.spark.query_plan import (
    LakeFile,
    RowsMissingError,
    Slot,
    StoreFile,
    look_at_store,
    plan_read,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "storage_engine"
"""Name of the data source."""

_BATCH_ROWS = 8_192
_TASK_BYTES = 128 << 20
"""Greatest number of bytes in data files that share a task."""


def table(
    spark: SparkSession,
    lake: str | os.PathLike[str],
    store: str | os.PathLike[str] | None = None,
    **options: str,
) -> DataFrame:
    """Return a store's rows, each once, from its lake or from the store's own segments.

    The executors must have this package, and see lake and store at these paths.

    :param lake: directory of the lake, or directory with its ``lake.json``.
    :param store: the store's root; None for only rows from the lake.
    :param options: further options of the data source: see docs/spark.md.
    :raises BadInputError: an option is unknown, or this Spark doesn't support data sources in Python.
    """
    spark.dataSource.register(StoreTable)
    named = {"lake": str(lake), **({} if store is None else {"store": str(store)}), **options}
    return spark.read.format(FORMAT).options(**named).load()


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a query: which data it reads.

    :param where: filter for the rows to read, as an expression of PyIceberg.
    :param columns: columns to read; empty for all columns.
    """

    lake: str
    store: str | None
    store_id: str | None
    where: str
    columns: tuple[str, ...]
    skip_holes: bool
    broker_conf: str | None
    settings: Mapping[str, str]
    agent: Mapping[str, str]

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Read the options of a query.

        :raises BadInputError: an option is unknown or missing, or its value is not allowed.
        """
        names = {name.lower(): name for name in _OPTIONS}
        for name in given:
            if name.lower() not in names:
                raise BadInputError(
                    f"Expected an option of the data source, found {name}.{did_you_mean(name, _OPTIONS)}"
                )
        values = {names[name.lower()]: value for name, value in given.items()}
        if not values.get("lake"):
            raise BadInputError("Expected option lake, the directory of a lake, found none.")
        if (holes := values.get("holes", "refuse")) not in ("refuse", "skip"):
            raise BadInputError(f"Expected option holes to be refuse or skip, found {holes!r}.")
        pairs = [pair.partition("=") for pair in _split_list(values.get("set", ""))]
        return cls(
            values["lake"],
            values.get("store"),
            values.get("storeId"),
            values.get("where", ""),
            _split_list(values.get("columns", "")),
            holes == "skip",
            values.get("brokerConf"),
            {name.strip(): value.strip() for name, _, value in pairs},
            {name: values[name] for name in _OF_AGENT if values.get(name)},
        )

    def run(self, root: str, files: Sequence[StoreFile]) -> AgentRun | None:
        """Make the named agent serve files of the store. Return None if executors see the store's disk.

        :raises StorageEngineError: the agent can't be reached, or it refuses.
        """
        if not self.agent or not files:
            return None
        address, *paths = (self.agent.get(name) for name in _OF_AGENT)
        access = read_access(address or "", *(None if path is None else Path(path) for path in paths))
        return begin_run(access, {root: [replace(file.facts, size_bytes=file.size_bytes) for file in files]})

    def managed(self, lake: LakeConfig) -> ManagedStore | None:
        """Return the store to read, or None if only the lake is read."""
        if self.store is None:
            return None
        root = Path(self.store).absolute()
        broker = broker_of(root)
        return ManagedStore(
            name=store_text(None, broker, root),
            root=str(root),
            lake=lake,
            journal_url="",
            report_dir="",
            broker=broker,
            broker_conf=self.broker_conf,
            overrides=self.settings,
            host=ANY_HOST,
        )


_OF_AGENT = ("agent", "agentToken", "agentCa", "agentCert")
_OPTIONS = ("lake", "store", "storeId", "where", "columns", "holes", "brokerConf", "set", *_OF_AGENT)


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan's facts that all its tasks share.

    :param keeps: Arrow's filter for the rows. ``deciding`` are the columns that the filter needs.
    """

    lake: LakeConfig
    store_id: str
    broker: str
    schema: pa.Schema
    keeps: Any
    deciding: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns to read: the requested columns, and the columns from which they are computed."""
        return with_sources(self.schema.names, find_broker(self.broker).codec.columns)


@dataclass
class ReadTask(InputPartition):  # type: ignore[misc]
    """The part of a scan that one task reads. It has files of one kind."""

    scan: Scan
    lake_files: tuple[LakeFile, ...] = ()
    store_file: StoreFile | None = None
    agent: AgentRun | None = None


class StoreTable(DataSource):  # type: ignore[misc]
    """The data source: ``spark.read.format("storage_engine").option("lake", …)``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the requested columns.

        :raises BadInputError: there is no such column.
        :raises LakeUnavailableError: the lake can't be read.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        options = Options.read(self.options)
        lake = open_lake(LakeConfig.local(options.lake))
        _check_kind(lake, options.managed(lake.config))
        return from_arrow_schema(_schema(lake, options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return StoreReader(Options.read(self.options), schema.fieldNames())


class StoreReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options, self._columns = options, tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the scan.

        :raises StorageEngineError: as of :func:`~storage_engine.spark.query_plan.plan_read`.
        """
        try:
            return self._tasks()
        except RowsMissingError:
            # A segment may have been sealed and archived between the looks at store and lake.
            return self._tasks()

    def _tasks(self) -> Sequence[InputPartition]:
        options, config = self._options, LakeConfig.local(self._options.lake)
        store = options.managed(config)
        look = None if store is None else look_at_store(store)
        lake = open_lake(config)
        _check_kind(lake, store)
        iceberg_schema = lake.messages().schema()
        every = _schema(lake, options)
        where, keeps, deciding = _filter(iceberg_schema, options.where)
        _check_stored(lake, deciding)
        plan = plan_read(lake, look, where, store_id=options.store_id, skip_holes=options.skip_holes)
        schema = pa.schema([every.field(name) for name in self._columns])
        scan = Scan(config, plan.store_id, lake.broker, schema, keeps, deciding)
        agent = None if store is None else options.run(store.real_root, plan.store_files)
        groups: list[list[LakeFile]] = [[]]
        for file in plan.lake_files:
            if groups[-1] and sum(entry.size_bytes for entry in groups[-1]) + file.size_bytes > _TASK_BYTES:
                groups.append([])
            groups[-1].append(file)
        return [
            *(ReadTask(scan, lake_files=tuple(group)) for group in groups if group),
            *(ReadTask(scan, store_file=file, agent=agent) for file in plan.store_files),
        ] or [ReadTask(scan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows.

        :raises RowsMissingError: a segment left the store meanwhile, and isn't in the lake.
        :raises LakeUnavailableError: a data file can't be read.
        :raises AgentError: the agent can't be reached, or has forgotten the query.
        """
        assert isinstance(partition, ReadTask)
        scan = partition.scan
        for file in partition.lake_files:
            keeps = scan.keeps if file.slots is None else scan.keeps & _segment_filter(file.slots)
            needed = () if file.slots is None else IDENTITY_COLUMNS.names
            yield from _shape_batches(_read_lake_file(scan, file.location, keeps, needed), scan)
        if partition.store_file is not None:
            try:
                yield from _shape_batches(_read_store_file(scan, partition.store_file, partition.agent), scan)
            finally:
                leave_agent()


def _check_kind(lake: Lake, store: ManagedStore | None) -> None:
    """:raises BadInputError: the lake has another broker's rows, or is empty and has no broker."""
    if store is not None and store.broker != lake.broker:
        kind, lake_kind = (find_broker(name).words.title for name in (store.broker, lake.broker))
        raise BadInputError(
            f"lake {lake.location}: expected columns of {kind}, the broker of {store.root}, found columns of "
            f"{lake_kind}. Nothing was read. Archive the store first, or name its own lake."
        )


def _filter(schema: Schema, where: str) -> tuple[BooleanExpression, Any, tuple[str, ...]]:
    """Return the filter of rows to read, the same filter for Arrow, and the columns in it.

    :raises BadInputError: the text isn't an expression over these columns.
    """
    try:
        expression = parse(where) if where else AlwaysTrue()
        bound = bind(schema, expression, case_sensitive=True)
    except Exception as error:
        # If the text can't be parsed, the parser's message is its whole grammar, which is left out.
        detail = f": {error}" if isinstance(error, ValueError) else ""
        raise BadInputError(
            f"Option where: expected an expression such as topic = 'orders' over the columns, found {where!r}"
            f"{detail}. Nothing was read."
        ) from error
    names = {str(schema.find_column_name(field)) for field in extract_field_ids(bound)}
    return expression, expression_to_pyarrow(bound, schema), tuple(sorted(names)) or ("kind",)


def _check_stored(lake: Lake, deciding: Iterable[str]) -> None:
    """:raises BadInputError: the filter has a column that isn't stored."""
    codec = find_broker(lake.broker).codec
    for name in deciding:
        if name in codec.columns.views:
            source, _ = codec.columns.views[name]
            raise BadInputError(
                f"Option where: expected a filter by stored columns, found {name}, which is computed from "
                f"{source} when it is read. Nothing was read. Filter by this column in Spark."
            )
        if name not in IDENTITY_COLUMNS.names and name not in codec.schema.names:
            raise BadInputError(
                f"Option where: expected a filter by columns of segments' rows, found {name}. "
                "Nothing was read."
            )


def _schema(lake: Lake, options: Options) -> pa.Schema:
    """:raises BadInputError: there is no such column."""
    codec = find_broker(lake.broker).codec
    names = {*lake.messages().schema().column_names, *codec.columns.views}
    every = {
        field.name: pa.field(field.name, plain_field(field).type)
        for field in (*IDENTITY_COLUMNS, *codec.schema)
        if field.name in names
    }
    for name in options.columns:
        if name not in every:
            raise BadInputError(
                f"Option columns: expected columns of the rows, found {name}.{did_you_mean(name, every)}"
            )
    return pa.schema([every[name] for name in options.columns or every])


def _segment_filter(slots: Sequence[Slot]) -> Any:
    by_log: dict[tuple[int, str], list[int]] = {}
    for lineage, log, base_offset in slots:
        by_log.setdefault((lineage, log), []).append(base_offset)
    field = pc.field
    logs = [
        (field("lineage") == lineage) & (field("log") == log) & field("segment_base_offset").isin(offsets)
        for (lineage, log), offsets in by_log.items()
    ]
    return reduce(or_, logs)


def _below_end(file: StoreFile, codec: SegmentCodec) -> Any:
    """Return Arrow's filter for the rows of a segment that were durable when the segment was seen."""
    compute: Any = pc
    offset = compute.coalesce(*map(compute.field, _offsets(codec.columns)))
    position, size = compute.field("physical_offset"), compute.field("size")
    end_of_file = codec.origin(file.slot[2]) + file.size_bytes
    is_begun = (compute.field("kind") == "undecodable") & (position + size >= end_of_file)
    return (offset.is_null() | (offset < file.end)) & ~is_begun


def _offsets(columns: Columns) -> tuple[str, ...]:
    return columns.log_offsets or ("physical_offset",)


_PLACE = ("kind", "physical_offset", "size")


def _read_lake_file(scan: Scan, location: str, keeps: Any, needed: Sequence[str]) -> Iterator[pa.Table]:
    file_io = load_file_io(scan.lake.file_io_properties, location)
    deciding = tuple(dict.fromkeys((*scan.deciding, *needed)))
    types = pa.schema([*IDENTITY_COLUMNS, *find_broker(scan.broker).codec.schema])
    yield from rows_of_file(file_io, location, keeps, deciding, scan.columns, types)


def _read_store_file(scan: Scan, file: StoreFile, agent: AgentRun | None) -> Iterator[pa.Table]:
    codec, (lineage, log, base_offset) = find_broker(scan.broker).codec, file.slot
    keeps = scan.keeps if file.end is None else scan.keeps & _below_end(file, codec)
    try:
        data = read_beginning(file.facts, file.size_bytes, file.sealed_in, agent)
    except FileGoneError:
        needed = (*_PLACE, *_offsets(codec.columns), *IDENTITY_COLUMNS.names)
        # Other segments may share its data file.
        keeps &= _segment_filter([file.slot])
        yield from _read_lake_file(scan, _find_released(scan, file), keeps, needed)
        return
    store_id = scan.store_id or None
    values = {"store_id": store_id, "lineage": lineage, "log": log, "segment_base_offset": base_offset}
    columns, keys = {*scan.columns}, {*scan.deciding, *_PLACE, *_offsets(codec.columns)}
    for rows, _ in codec.decode(data.toreadonly(), base_offset, context=file.context):
        for name in (columns | keys) & values.keys():
            kind = IDENTITY_COLUMNS.field(name).type
            rows = rows.append_column(name, pa.repeat(pa.scalar(values[name], kind), rows.num_rows))
        # Arrow can't filter a table that has views.
        deciding = _drop_views(rows.select([name for name in rows.column_names if name in keys]))
        numbers = deciding.append_column("__row", pa.array(np.arange(rows.num_rows))).filter(keeps)["__row"]
        rows = rows.select([name for name in rows.column_names if name in columns])
        yield rows if len(numbers) == rows.num_rows else _drop_views(rows).take(numbers)


def _drop_views(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema(map(plain_field, rows.schema)))


def _find_released(scan: Scan, file: StoreFile) -> str:
    """Return the data file with the rows of a segment that left the store after the scan began.

    :raises RowsMissingError: the lake doesn't have it.
    """
    lineage, log, base_offset = file.slot
    lake, span = open_lake(scan.lake), (base_offset, base_offset)
    # Another topic may have the name by now, or may have had it before.
    rows = [
        row
        for row in receipts(lake, scan.store_id, lineage=lineage, log=log, base_offsets=span)
        if may_be_one(row.log_id or "", file.log_id)
    ]
    if not rows:
        raise RowsMissingError(
            f"{file.facts.path}: expected the segment at offset {base_offset} of log {log} in the store or "
            f"in lake {scan.lake.location}, found that it isn't in the lake, and left the store or changed "
            "meanwhile. Run the query again. If the segment is lost, the query names it."
        )
    return data_file_of(lake.messages(), rows[-1])


def _shape_batches(tables: Iterable[pa.Table], scan: Scan) -> Iterator[pa.RecordBatch]:
    """Yield rows in small batches, with the requested columns in their types."""
    codec = find_broker(scan.broker).codec
    for rows in tables:
        yield from shape_rows(rows, scan.schema, codec).to_batches(max_chunksize=_BATCH_ROWS)
