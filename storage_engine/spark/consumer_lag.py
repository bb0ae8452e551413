"""Consumer lag of a store as a Spark job: groups' positions in the logs, joined with segments to delete."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_engine.arrow.name_columns import ANYWHERE, LAG_SCHEMA, NAME, PLACES_SCHEMA, add_risk
from storage_engine.brokers import default_broker, find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import create
from storage_engine.core.long_work import report_work
from storage_engine.core.turns import SharedLock
from storage_engine.core.wording import count_text, reason_text
from storage_engine.exceptions import StorageEngineError, StoreNotFoundError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.kind import LagJob, LagRequest
from storage_engine.model.lag import LagSource, LagSummary, PositionsFrom, QueueLag
from storage_engine.model.settings.policy import SparkUse, lag_place, process_text
from storage_engine.model.store import FileFacts, Segment, SegmentId
from storage_engine.retention.lag.lag_table import lag_part, merge, new_lag_table, queue_shares, write_share
from storage_engine.retention.lag.unread_losses import (
    error_text,
    shielded_runs,
    shielded_text,
    shielded_unread,
)
from storage_engine.retention.store.brokers import settings_of
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.spark.job_io import telling_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARE_ROWS = 250_000
"""Greatest number of rows for one task. This limits the task's memory."""

_BATCH_ROWS = 1 << 14
"""Rows that a task passes to the JVM at once."""

SHIELDED_SHOWN = 10
"""Greatest number of notices on groups and topics with unread messages that only the shield has."""

_POSITIONS = ".positions.arrow"

_PLAIN_PLACES = pa.schema(
    [field.with_type(pa.string()) if field.type == NAME else field for field in PLACES_SCHEMA]
)
"""The schema of places with types that the JVM can read."""


@dataclass(frozen=True, slots=True)
class ConsumerLagRequest:
    """The request to compute lag. It is passed to the job as JSON.

    :param settings: settings of the store. Executors must see the store at the same path.
    :param plan_segments: segments that a plan deletes, or empty if there is no plan.
    :param table_path: directory whose contents the table replaces. Executors must see it at the same path.
    :param now_ms: the moment to compute for, in milliseconds since the epoch; None for the job's own time.
    """

    settings: StoreSettings
    table_path: str
    plan_segments: tuple[SegmentId, ...] = ()
    now_ms: int | None = None
    broker: str = field(default_factory=default_broker)

    @classmethod
    def of(
        cls,
        store: ManagedStore,
        table_path: str,
        going: Iterable[Segment | SegmentId],
        now_ms: int | None = None,
    ) -> ConsumerLagRequest:
        """:param going: the segments about to be deleted."""
        return cls(
            settings=settings_of(store),
            table_path=table_path,
            plan_segments=tuple(segment.id if isinstance(segment, Segment) else segment for segment in going),
            now_ms=now_ms,
            broker=store.broker,
        )


@dataclass(frozen=True, slots=True)
class ConsumerLagResult:
    """:param at_risk: the rows that show the plan's cost for each group; see ``lag_table.lag_part``.
    :param logs: the measured logs; None for all logs of the store.
    :param ran: where the lag was measured, or "" if not known.
    """

    summary: LagSummary
    at_risk: tuple[QueueLag, ...]
    table_path: str
    logs: tuple[str, ...] | None = None
    ran: str = ""


def consumer_lag(spark: SparkSession, request: ConsumerLagRequest) -> ConsumerLagResult:
    """Compute the lag of every group and queue of a store, write the table, and sum it up.

    The positions are in a file beside the table while the job runs. Each task takes a share of whole queues
    from that file, and finds the groups' places in the store's files. The places are joined with the segments
    to delete. Each task then writes its part of the table, and returns a few KB.

    :raises BadInputError: a store or its settings can't be read, or the plan is for another store.
    :raises StoreNotFoundError: an executor doesn't see the store, or the table's directory.
    :raises SparkJobError: a task failed.
    """
    from pyspark import TaskContext
    from pyspark.sql.pandas.types import from_arrow_schema

    job, source = prepare(request)
    if job is None:
        return _nobody_known(request, source)
    newest, place, logs = job.newest, job.place, job.logs
    with new_lag_table(request.table_path) as directory:
        file = directory / _POSITIONS
        create(file).close()
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, job.positions.schema) as writer:
            writer.write_table(job.positions)
        shares, segments = queue_shares(job.positions, SHARE_ROWS), job.segments
        positions = job.positions.num_rows
        del job
        log = [] if newest is None else [Path(newest.path).parent]

        def find_places(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            check_sight(newest, file)
            for number in (number for batch in numbers for number in batch.to_pylist()):
                start, end = shares[number["id"]]
                # This process doesn't have the driver's lock.
                with SharedLock(log), pa.memory_map(str(file)) as source:
                    places = place(pa.ipc.open_file(source).read_all().slice(start, end - start))
                yield from places.cast(_PLAIN_PLACES).to_batches(_BATCH_ROWS)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            table = pa.Table.from_batches(batches).cast(LAG_SCHEMA)
            write_share(directory, TaskContext.get().partitionId(), table)
            measured.add(table.num_rows)
            yield pa.RecordBatch.from_pylist([{"part": pickle.dumps(lag_part(table))}])

        parts, measured = [], spark.sparkContext.accumulator(0)
        if shares:
            count = count_text(positions, "position")
            spark.sparkContext.setJobDescription(f"consumer lag of {count}")
            numbers = spark.range(0, len(shares), 1, len(shares))
            places = numbers.mapInArrow(find_places, from_arrow_schema(_PLAIN_PLACES))
            rows = [tuple(row.values()) for row in segments.to_pylist()]
            to_delete = spark.createDataFrame(rows, from_arrow_schema(segments.schema))
            written = join_segments(places, to_delete).mapInArrow(write, "part binary")
            with telling_progress(lambda: f"Measured lag: {measured.value} of {count}"):
                # The pickled part comes from our own task, like any task's result.
                parts = [pickle.loads(row.part) for row in written.collect()]
        else:
            write_share(directory, 0, LAG_SCHEMA.empty_table())
        file.unlink()
    return ConsumerLagResult(*merge(parts, source, logs), request.table_path, logs)


def join_segments(places: DataFrame, segments: DataFrame) -> DataFrame:
    """Join places with the segments that they need, like ``name_columns.add_risk`` without Spark.

    :param places: frame with the columns of ``PLACES_SCHEMA``.
    :param segments: small frame with the columns of ``SEGMENTS_SCHEMA``, which all executors get.
    :return: frame with the columns of ``LAG_SCHEMA``.
    """
    from pyspark.sql import functions as F  # noqa: N812

    is_known, base_offset = F.col("committed_offset").isNotNull(), F.col("next_segment_base_offset")
    return (
        places.join(F.broadcast(segments), ["log", "next_segment_base_offset"], "left")
        .withColumn("at_risk", F.coalesce("goes", F.lit(False)))
        .withColumn("time_to_loss_ms", F.when(is_known, F.col("time_to_loss_ms")))
        .withColumn("next_segment_base_offset", F.when(is_known & (base_offset != ANYWHERE), base_offset))
        .select(*LAG_SCHEMA.names)
    )


def check_sight(newest: FileFacts | None, positions: Path) -> None:
    """Make sure that this host sees the driver's files. Otherwise an unseen queue would count as read."""
    of_store = [] if newest is None else [(Path(newest.path), newest.inode)]
    for path, inode in (*of_store, (positions, None)):
        try:
            actual = path.stat().st_ino
        except OSError as error:
            raise StoreNotFoundError(
                f"{path}: expected the file that the driver sees; the executor on host {gethostname()} finds "
                f"no file there ({error.strerror}). Mount its directory at the same path on every executor, "
                "or use local[N] on the host that has the directory."
            ) from error
        if inode not in (None, actual):
            raise StoreNotFoundError(
                f"{path}: expected the driver's file with inode {inode}, found inode {actual} on host "
                f"{gethostname()}. Mount the store at the same path on every executor."
            )


@dataclass(frozen=True, slots=True)
class LagInProcess:
    """The table of one store, computed in this process without Spark, share by share."""

    job: LagJob | None
    prepared: LagSource

    @property
    def source(self) -> LagSource:
        """Return the origin of the positions, and what is unknown in the tables so far."""
        more = () if self.job is None else self.job.source.notices
        return replace(self.prepared, notices=tuple(dict.fromkeys((*self.prepared.notices, *more))))

    @property
    def logs(self) -> tuple[str, ...] | None:
        return None if self.job is None else self.job.logs

    def __iter__(self) -> Iterator[pa.Table]:
        if self.job is None:
            return
        positions, segments = self.job.positions, self.job.segments
        with report_work("Measuring lag", positions.num_rows, "positions") as advance:
            for start, end in queue_shares(positions, SHARE_ROWS):
                yield add_risk(self.job.place(positions.slice(start, end - start)), segments)
                advance(end - start)


def lag_here(store: ManagedStore, going: Iterable[SegmentId], now_ms: int) -> ConsumerLagResult:
    """Compute the lag of a store in this process, and write no table.

    :param going: the segments about to be deleted.
    :raises BadInputError: a store or its settings can't be read, or the plan is for another store.
    """
    tables = LagInProcess(*prepare(ConsumerLagRequest.of(store, "", going, now_ms)))
    merged = merge([*map(lag_part, tables)], tables.source, tables.logs)
    return ConsumerLagResult(*merged, "", tables.logs, process_text(1))


def lag_without_spark(request: ConsumerLagRequest, spark: SparkUse | None) -> ConsumerLagResult | None:
    """Compute and write the job's result in this process, so that no Spark has to start.

    :param spark: Spark for large work, or None if there is none.
    :return: the result, or None if Spark has to do the work because it is large.
    :raises BadInputError: a store or its settings can't be read, or the plan is for another store.
    """
    job, source = prepare(request)
    place = lag_place(spark, 0 if job is None else job.positions.num_rows)
    if job is None:
        return replace(_nobody_known(request, source), ran=place.text)
    if place.in_spark:
        return None
    here, parts = LagInProcess(job, source), []
    with new_lag_table(request.table_path) as directory:
        for number, table in enumerate(here):
            write_share(directory, number, table)
            parts.append(lag_part(table))
        if not parts:
            write_share(directory, 0, LAG_SCHEMA.empty_table())
    return ConsumerLagResult(*merge(parts, here.source, job.logs), request.table_path, job.logs, place.text)


def prepare(request: ConsumerLagRequest) -> tuple[LagJob | None, LagSource]:
    """Read the groups' positions. The job is None if the store's broker can't name its consumers.

    :raises BadInputError: a store or its settings can't be read, or the plan is for another store.
    """
    broker = find_broker(request.broker)
    now_ms = clock_ms() if request.now_ms is None else request.now_ms
    job = broker.lag(LagRequest(request.settings, request.plan_segments, now_ms))
    if job is None:
        notice = f"{broker.words.title} doesn't name its consumers, so consumers' losses are unknown"
        return None, LagSource(PositionsFrom.NOBODY, notices=(notice,))
    return job, replace(job.source, notices=(*job.source.notices, *_list_shielded(job)))


def _nobody_known(request: ConsumerLagRequest, source: LagSource) -> ConsumerLagResult:
    return ConsumerLagResult(*merge([], source), request.table_path)


def _list_shielded(job: LagJob) -> Iterator[str]:
    """Yield notices on messages that groups have not read, in segments that only the shield has."""
    try:
        unread = shielded_unread(map(job.unread, shielded_runs(job.snapshot)))
    except (StorageEngineError, OSError) as error:
        yield error_text(reason_text(error))
        return
    yield from (shielded_text(row) for row in unread.rows[:SHIELDED_SHOWN])
    if unread.error:
        yield error_text(unread.error)
    if more := len(unread.rows[SHIELDED_SHOWN:]):
        yield f"the same holds for {count_text(more, 'more group and topic')}"
