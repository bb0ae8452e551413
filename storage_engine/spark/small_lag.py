"""Consumer lag of a store with few positions, computed where it is asked for: no Spark has to start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq

from storage_engine.durable import make_dirs
from storage_engine.retention.lag_table import at_risk, summarize
from storage_engine.rocketmq.lag import queue_lags
from storage_engine.spark.consumer_lag import ConsumerLagRequest, ConsumerLagResult, prepare


def lag_without_spark(request: ConsumerLagRequest, most_positions: int) -> ConsumerLagResult | None:
    """What the job computes and writes, computed and written here.

    :param most_positions: of groups in queues; for more than these, None: they are Spark's to compute.
    :raises BadInputError: a store or settings that can't be read, a plan for another store.
    """
    context, positions = prepare(request)
    if positions.num_rows > most_positions:
        return None
    table = queue_lags(context, positions)
    directory = Path(request.table_path)
    shutil.rmtree(directory, ignore_errors=True)
    make_dirs(directory)
    pq.write_table(table, directory / "part-00000.parquet")
    return ConsumerLagResult(summarize(table), at_risk(table), request.table_path)
