"""Consumer lag of a whole store as a Spark job: the queues' files are read by the executors, in batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_engine.model.lag import LagSummary, QueueLag
from storage_engine.retention.lag_table import at_risk, read_lag_table, summarize
from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.lag import LAG_SCHEMA, LagContext, lag_context, queue_lags
from storage_engine.rocketmq.store import RocketMQStore
from storage_engine.rocketmq.subscriptions import group_positions
from storage_engine.rocketmq.window import time_zone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPARK_TYPES = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.bool_(): "boolean"}
_SPARK_SCHEMA = ", ".join(f"`{column.name}` {_SPARK_TYPES[column.type]}" for column in LAG_SCHEMA)


@dataclass(frozen=True, slots=True)
class ConsumerLagRequest:
    """What to compute; crosses to the job as JSON.

    :param store_root: the store; executors must see it under the same path.
    :param broker_conf, overrides, time_zone: as in ``ManagedStore``.
    :param plan_base_offsets: base offsets of the segments that a plan lets go; empty: ask without a plan.
    :param table_path: directory for the table, as Parquet; what is there is replaced.
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

    :raises BadInputError: a store or settings that can't be read, a plan for another store.
    :raises SparkJobError: a task failed.
    """
    lag_frame(spark, request).write.mode("overwrite").parquet(request.table_path)
    table = read_lag_table(request.table_path)
    return ConsumerLagResult(summarize(table), at_risk(table), request.table_path)


def lag_frame(spark: SparkSession, request: ConsumerLagRequest) -> DataFrame:
    """The lag as a DataFrame, one row a :class:`QueueLag`; computed by the tasks that read it."""
    context, positions = prepare(request)

    def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from queue_lags(context, batch).to_batches()

    return spark.createDataFrame(positions).mapInArrow(compute, _SPARK_SCHEMA)


def lag_in_process(request: ConsumerLagRequest) -> pa.Table:
    """The same table, computed here without Spark: for one store at a shell."""
    context, positions = prepare(request)
    return queue_lags(context, positions)


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
