"""Counts of a lake's messages by topic, producer, hour and size class, over a time span, as a Spark job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tzlocal

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import make_dirs, write_file
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.scan import live_files_of
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.broker.broker_store import course_of
from storage_engine.model.broker.codec import Columns
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity
from storage_engine.model.report.usage import (
    HOUR_S,
    SIZE_CLASS_BYTES,
    SIZE_CLASSES,
    DeletionHours,
    RetentionReport,
    Usage,
    hour_advice,
    largest,
    quiet_hour,
    topic_usages,
)
from storage_engine.pages.summary import usage_page
from storage_engine.quality.facts import archived_lakes
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.doctor.left_behind import deletion_hours
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.managed_store import USAGE_PAGE, USAGE_TABLE, run_directory
from storage_engine.spark.row_sums import SEGMENT, StoreFiles, keep_frame, map_row_groups, unite_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_NAMED = 100
"""Greatest number of topics, and of hosts, in a result. The Parquet file has all of them."""

IN_A_BATCH = "in a compressed batch"
"""Size class of a message that the broker stores only as a part of a batch."""

_CELLS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string()),
    pa.field("host", pa.string()),
    pa.field("hour", pa.int64()),
    pa.field("size_class", pa.string()),
    pa.field("messages", pa.int64()),
    pa.field("size_bytes", pa.int64()),
]
CELLS = pa.schema(_CELLS)
"""``hour`` counts hours since the epoch, in UTC. ``host`` is "" if the broker stores no producer's host."""
_NAMES = CELLS.names[:4]


@dataclass(frozen=True, slots=True)
class RetentionReportRequest:
    """The span of time to count. It is passed to the job as JSON.

    :param first_ms: beginning of the span, by the messages' store times; None for the lake's first message.
    :param until_ms: end of the span, which is excluded; None for no end.
    :param time_zone: IANA name of the time zone of the broker's hours.
    """

    lakes: tuple[LakeConfig, ...]
    store_id: str
    broker: str
    usage_path: str
    time_zone: str
    deletion: DeletionHours | None = None
    first_ms: int | None = None
    until_ms: int | None = None


def retention_report_of(
    store: AnyStore,
    run_key: str,
    run_job: Callable[[RetentionReportRequest], RetentionReport],
    first_ms: int | None = None,
    until_ms: int | None = None,
) -> RetentionReport:
    """Count the messages of a store's lakes in a span of time. Write table and page, and record the advice.

    :param run_key: key of the run. This call begins the run.
    :param first_ms: beginning of the span, by the messages' store times; None for the lake's first message.
    :param until_ms: end of the span, which is excluded; None for no end.
    :raises BadInputError: no part of the store is archived, or its broker's rows have no topic or time.
    :raises LakeUnavailableError: no lake can be read.
    """
    started_ns = time.monotonic_ns()
    context = open_context(store)
    columns = find_broker(context.store.broker).codec.columns
    if not columns.streams or columns.stored_at is None:
        raise BadInputError(
            f"{context.store.root}: expected a broker whose rows have a topic and a time, found "
            f"{find_broker(context.store.broker).words.title}. Nothing was changed."
        )
    store_id, lakes, _ = archived_lakes(context)
    run = begin_background_run(context, run_key)
    directory = run_directory(context.store, run_key)
    deletion, time_zone = _deletion_hours(context)
    with context.errors(run, Step.RETENTION_REPORT):
        make_dirs(directory)
        report = run_job(
            RetentionReportRequest(
                lakes=lakes,
                store_id=store_id,
                broker=context.store.broker,
                usage_path=str(directory / USAGE_TABLE),
                time_zone=time_zone,
                deletion=deletion,
                first_ms=first_ms,
                until_ms=until_ms,
            )
        )
        write_file(directory / USAGE_PAGE, usage_page(context.name, report).encode())
        context.save(run, Step.RETENTION_REPORT, report, started_ns)
    return report


def _deletion_hours(context: Context) -> tuple[DeletionHours | None, str]:
    """Return the hours at which the broker deletes by age, and the time zone of these hours."""
    zone = context.store.time_zone or tzlocal.get_localzone_name()
    start = course_of(context.broker).start(context.snapshot(clock_ms()))
    return deletion_hours(context.store.broker, context.broker), start.time_zone if start else zone


def retention_report(spark: SparkSession, request: RetentionReportRequest) -> RetentionReport:
    """Count the messages of a span in the store's lakes, and write the counts as Parquet.

    :raises LakeUnavailableError: a lake, or a file of its table, can't be read.
    """
    from pyspark.sql import functions as F  # noqa: N812

    spark.sparkContext.setJobGroup("retention report", f"usage of store {request.store_id}")
    counted = set[SegmentIdentity]()
    frames = [_cells(spark, config, request, counted) for config in request.lakes]
    cells = keep_frame(_sum_up(unite_frames(frames), *_NAMES), spark.sparkContext.defaultParallelism)
    _write(cells.orderBy("hour", "topic", "host", "size_class").collect(), Path(request.usage_path))
    by_hour = cells.groupBy("hour").agg(F.sum("size_bytes").alias("size_bytes"))
    bytes_by_hour = {row.hour: row.size_bytes for row in by_hour.collect()}
    last_seen = cells.filter("messages > 0").groupBy("topic").agg(F.max("hour").alias("hour"))
    last_hours = {row.topic: row.hour for row in last_seen.collect()}
    first, last = min(bytes_by_hour, default=None), max(bytes_by_hour, default=None)
    quiet = quiet_hour(bytes_by_hour, request.time_zone)
    topics = largest(_usages(cells, "topic"), MOST_NAMED)
    return RetentionReport(
        first_hour=first,
        last_hour=last,
        topics=() if first is None or last is None else topic_usages(topics, last_hours, first, last),
        hosts=largest(_usages(cells, "host"), MOST_NAMED),
        size_classes=_usages(cells, "size_class"),
        quiet=quiet,
        advice=hour_advice(quiet, request.deletion),
        usage_path=request.usage_path,
    )


def _usages(cells: DataFrame, name: str) -> tuple[Usage, ...]:
    ordered = _sum_up(cells, name).sort(["size_bytes", name], ascending=[False, True])
    return tuple(Usage(*row) for row in ordered.collect())


def _sum_up(cells: DataFrame, *names: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    sums = (F.sum(name).alias(name) for name in ("messages", "size_bytes"))
    return cells.groupBy(*names).agg(*sums)


def _cells(
    spark: SparkSession, config: LakeConfig, request: RetentionReportRequest, counted: set[SegmentIdentity]
) -> DataFrame:
    """Return the counts of one lake, for each row group. Rows of several row groups may have the same key.

    :param counted: segments that were counted in another lake, which are left out. The segments that this
        call counts are added.
    """
    lake, columns = open_lake(config), find_broker(request.broker).codec.columns
    table = lake.messages()
    rows = [row for row in receipts(lake, request.store_id) if _counts(row, request, counted)]
    counted.update(row.identity for row in rows)
    slots = {(row.lineage, row.log, row.base_offset) for row in rows}
    # Rows are chosen one by one: another engine may have put rows of several segments into one file.
    source = StoreFiles(config, table, request.store_id, tuple(live_files_of(table, rows)))
    first = None if request.first_ms is None else request.first_ms * 1000
    until = None if request.until_ms is None else request.until_ms * 1000

    def count(rows: pa.Table, _: object) -> pa.Table:
        return count_usage(of_segments(rows, slots), columns, first, until)

    return map_row_groups(spark, source, (*SEGMENT, *columns_counted(columns)), count, CELLS)


def of_segments(rows: pa.Table, wanted: Set[tuple[int, str, int]]) -> pa.Table:
    """Return the rows of the wanted segments, which are given by lineage, log and base offset."""
    identity = rows.select(SEGMENT).combine_chunks()
    segments = identity.group_by([*SEGMENT]).aggregate([]).to_pylist()
    chosen = [row for row in segments if tuple(row.values()) in wanted]
    if len(chosen) == len(segments):
        return rows
    masks = (
        reduce(pc.and_, (pc.equal(identity[name], pa.scalar(value)) for name, value in row.items()))
        for row in chosen
    )
    return rows.filter(reduce(pc.or_, masks, pa.array([False] * rows.num_rows)))


def _counts(row: Receipt, request: RetentionReportRequest, counted: Set[SegmentIdentity]) -> bool:
    """Return whether a segment may have messages of the span, and was not counted in an earlier lake."""
    first_ms, last_ms = row.first_store_timestamp_ms, row.last_store_timestamp_ms
    is_before = request.first_ms is not None and last_ms is not None and last_ms < request.first_ms
    is_behind = request.until_ms is not None and first_ms is not None and first_ms >= request.until_ms
    return not (row.identity in counted or is_before or is_behind)


def columns_counted(columns: Columns) -> tuple[str, ...]:
    """Return the few columns that are read from a data file."""
    names = (*columns.streams[:1], columns.producer, columns.stored_at, "size", "kind")
    return tuple(name for name in names if name is not None)


def count_usage(rows: pa.Table, columns: Columns, first_us: int | None, until_us: int | None) -> pa.Table:
    """Return the counts of rows, with the columns of :data:`CELLS`. Rows without topic or time don't count.

    A row without a message of its own, such as a batch header, gets the time of the next message.

    :param first_us: beginning of the span, by the messages' store times, in microseconds since the epoch.
    :param until_us: end of the span, which is excluded.
    """
    topic, is_message = rows[columns.streams[0]], pc.equal(rows["kind"], pa.scalar("message"))
    stored = rows[str(columns.stored_at)].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    stored = pc.if_else(is_message, stored, pc.fill_null_forward(pc.fill_null_backward(stored)))
    counts = pc.and_(topic.is_valid(), stored.is_valid())
    if first_us is not None:
        counts = pc.and_(counts, pc.greater_equal(stored, pa.scalar(first_us)))
    if until_us is not None:
        counts = pc.and_(counts, pc.less(stored, pa.scalar(until_us)))
    host: Any = pa.nulls(rows.num_rows, pa.string()) if columns.producer is None else rows[columns.producer]
    size = rows["size"].cast(pa.int64())
    cells: dict[str, Any] = {
        "topic": topic.cast(pa.string()),
        "host": pc.fill_null(host.cast(pa.string()), ""),
        "hour": pc.divide(stored, HOUR_S * 1_000_000),
        "size_class": _size_classes(size),
        "messages": is_message.cast(pa.int64()),
        "size_bytes": size,
    }
    sums = pa.table(cells).filter(pc.fill_null(counts, False)).group_by(_NAMES, use_threads=False)
    summed = sums.aggregate([("messages", "sum"), ("size_bytes", "sum")])
    return summed.select([*_NAMES, "messages_sum", "size_bytes_sum"]).rename_columns(CELLS.names)


def _size_classes(size: Any) -> Any:
    classes: Any = pa.scalar(SIZE_CLASSES[-1])
    for name, most in zip(reversed(SIZE_CLASSES[:-1]), reversed(SIZE_CLASS_BYTES), strict=True):
        classes = pc.if_else(pc.less_equal(size, pa.scalar(most)), name, classes)
    return pc.if_else(pc.equal(size, pa.scalar(0)), IN_A_BATCH, classes)


def _write(rows: Iterable[Any], path: Path) -> None:
    content = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row.asDict() for row in rows], CELLS), content)
    make_dirs(path.parent)
    write_file(path, content.getvalue().to_pybytes())
