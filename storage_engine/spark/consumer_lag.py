"""Consumer lag of a whole store as a Spark job: the queues' files are read by the executors, in shares."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_engine.exceptions import StorageEngineError, StoreNotFoundError
from storage_engine.model.lag import LagSummary, QueueLag
from storage_engine.model.store import FileFacts
from storage_engine.retention.lag_table import LagPart, lag_part, merge, new_lag_table, write_share
from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.lag import LAG_SCHEMA, LagContext, lag_context, queue_lags, queue_shares
from storage_engine.rocketmq.store import RocketMQStore
from storage_engine.rocketmq.subscriptions import group_positions
from storage_engine.rocketmq.window import time_zone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARE_ROWS = 250_000
"""Rows of a task; bounds its memory."""

_POSITIONS = ".positions.arrow"


@dataclass(frozen=True, slots=True)
class ConsumerLagRequest:
    """What to compute; crosses to the job as JSON.

    :param store_root: the store; executors must see it under the same path.
    :param broker_conf, overrides, time_zone: as in ``ManagedStore``.
    :param plan_base_offsets: base offsets of the segments that a plan lets go; empty: ask without a plan.
    :param table_path: directory for the table, as Parquet; what is there is replaced. Executors must see it
        under the same path.
    :param now_ms: the moment to compute for, in milliseconds since the epoch; None: when the job runs.
    """

    store_root: str
    table_path: str
    broker_conf: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    time_zone: str | None = None
    plan_base_offsets: tuple[int, ...] = ()
    now_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerLagResult:
    """:param at_risk: the rows that decide what a plan costs whom; see ``lag_table.at_risk``."""

    summary: LagSummary
    at_risk: tuple[QueueLag, ...]
    table_path: str


def consumer_lag(spark: SparkSession, request: ConsumerLagRequest) -> ConsumerLagResult:
    """Compute the lag of every group and queue of a store, write the table, sum it up.

    The positions lie in a file beside the table meanwhile, of which each task takes its share; what comes
    back from a task is a few KB, however many queues it had.

    :raises BadInputError: a store or settings that can't be read, a plan for another store.
    :raises StoreNotFoundError: an executor doesn't see the store, or the table's directory.
    :raises SparkJobError: a task failed.
    """
    context, positions = prepare(request)
    newest = FileFacts.of(context.segments[-1].path)
    with new_lag_table(request.table_path) as directory:
        file = directory / _POSITIONS
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, positions.schema) as writer:
            writer.write_table(positions)
        shares = queue_shares(positions, SHARE_ROWS)
        del positions

        def compute(share: tuple[int, tuple[int, int]]) -> LagPart | StorageEngineError:
            # an error of ours is a result: Spark would only retry it and wrap its message
            try:
                check_sight(newest, file)
                return _compute(context, file, *share)
            except StorageEngineError as error:
                return error

        parts = []
        if shares:
            tasks = spark.sparkContext.parallelize(list(enumerate(shares)), len(shares))
            for outcome in tasks.map(compute).collect():
                if isinstance(outcome, StorageEngineError):
                    raise outcome
                parts.append(outcome)
        else:
            write_share(directory, 0, LAG_SCHEMA.empty_table())
        file.unlink()
    return ConsumerLagResult(*merge(parts), request.table_path)


def _compute(context: LagContext, file: Path, number: int, rows: tuple[int, int]) -> LagPart:
    """Compute a share of a table and write it."""
    start, end = rows
    with pa.memory_map(str(file)) as source:
        table = queue_lags(context, pa.ipc.open_file(source).read_all().slice(start, end - start))
        write_share(file.parent, number, table)
        return lag_part(table)


def check_sight(newest: FileFacts, positions: Path) -> None:
    """Make sure that this host sees the driver's files: a queue that it doesn't see would count as read."""
    for path, inode in ((Path(newest.path), newest.inode), (positions, None)):
        try:
            found = path.stat().st_ino
        except OSError as error:
            raise StoreNotFoundError(
                f"{path}: expected the file that the driver sees; the executor on host {gethostname()} finds "
                f"none there ({error.strerror}). Mount it at the same path on every executor, or use "
                "local[N] where its disk is."
            ) from error
        if inode not in (None, found):
            raise StoreNotFoundError(
                f"{path}: expected the driver's file with inode {inode}, found inode {found} on host "
                f"{gethostname()}. Mount the store at the same path on every executor."
            )


def lag_in_process(request: ConsumerLagRequest) -> Iterator[pa.Table]:
    """The same table, computed here without Spark, share by share: for one store at a shell."""
    context, positions = prepare(request)
    for start, end in queue_shares(positions, SHARE_ROWS):
        yield queue_lags(context, positions.slice(start, end - start))


def lag_without_spark(request: ConsumerLagRequest, most_positions: int) -> ConsumerLagResult | None:
    """What the job computes and writes, computed and written here: no Spark has to start.

    :param most_positions: of groups in queues; for more than these, None: they are Spark's to compute.
    :raises BadInputError: a store or settings that can't be read, a plan for another store.
    """
    context, positions = prepare(request)
    if positions.num_rows > most_positions:
        return None
    with new_lag_table(request.table_path) as directory:
        table = queue_lags(context, positions)
        write_share(directory, 0, table)
    return ConsumerLagResult(*merge([lag_part(table)]), request.table_path)


def prepare(request: ConsumerLagRequest) -> tuple[LagContext, pa.Table]:
    """What the tasks measure against, and the groups' positions, queue by queue."""
    now_ms = time.time_ns() // 1_000_000 if request.now_ms is None else request.now_ms
    config = load_broker_config(request.broker_conf, request.overrides, root=request.store_root)
    store = RocketMQStore.open(config)
    context = lag_context(
        store.layout,
        store.snapshot(now_ms),
        config,
        request.plan_base_offsets,
        now_ms,
        time_zone(request.time_zone),
    )
    return context, group_positions(store.layout)
