"""Consumer lag, computed in this process."""

from __future__ import annotations

import pyarrow as pa

from storage_engine.spark.consumer_lag import ConsumerLagRequest, prepare


def measured(asked: ConsumerLagRequest) -> pa.Table:
    """Return one row a group and queue."""
    job, _ = prepare(asked)
    assert job is not None
    return job.measure(job.positions)
