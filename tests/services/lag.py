"""Consumer lag, computed in this process."""

from __future__ import annotations

import pyarrow as pa

from storage_engine.arrow.name_columns import add_risk
from storage_engine.kafka import lag as kafka_lag
from storage_engine.model.broker.kind import LagJob
from storage_engine.rocketmq.lag import lag as rocketmq_lag
from storage_engine.spark.consumer_lag import ConsumerLagRequest, prepare


def measured(asked: ConsumerLagRequest) -> pa.Table:
    """Return one row a group and queue."""
    job, _ = prepare(asked)
    assert job is not None
    return measured_by(job)


def measured_by(job: LagJob) -> pa.Table:
    """Return one row a group and queue of a job."""
    return add_risk(job.place(job.positions), job.segments)


def queue_lags(context: rocketmq_lag.LagContext, positions: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return the lag of each row of a RocketMQ store."""
    return add_risk(rocketmq_lag.place_positions(context, positions), context.segments_table)


def partition_lags(context: kafka_lag.LagContext, positions: pa.Table) -> pa.Table:
    """Return the lag of each row of a Kafka node."""
    return add_risk(kafka_lag.place_positions(context, positions), context.segments_table)
