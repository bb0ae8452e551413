"""Consumer lag without Spark: computed in this process, and shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from storage_engine.cli.output import duration_text, print_table
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.spark.consumer_lag import ConsumerLagRequest, lag_in_process


def in_process_lag(managed: ManagedStore, plan_base_offsets: tuple[int, ...]) -> pa.Table:
    """One row a :class:`~storage_engine.model.lag.QueueLag` of the store.

    :param plan_base_offsets: the segments that are about to go.
    """
    return lag_in_process(
        ConsumerLagRequest(
            store_root=managed.root,
            table_path="",
            broker_conf=managed.broker_conf,
            overrides=managed.overrides,
            time_zone=managed.time_zone,
            plan_base_offsets=plan_base_offsets,
        )
    )


def print_lag(rows: Iterable[Mapping[str, Any]]) -> None:
    print_table(
        "Consumer lag",
        (
            "group",
            "topic",
            "queue#",
            "committed#",
            "min#",
            "max#",
            "behind#",
            "behind by",
            "lost#",
            "loses in",
            "at risk",
        ),
        (
            (
                row["group"],
                row["topic"],
                row["queue_id"],
                "unknown" if row["committed_offset"] is None else row["committed_offset"],
                row["min_offset"],
                row["max_offset"],
                "unknown" if row["lag_messages"] is None else row["lag_messages"],
                duration_text(row["lag_ms"]),
                row["lost_messages"],
                duration_text(row["time_to_loss_ms"]),
                "yes" if row["at_risk"] else "",
            )
            for row in rows
        ),
    )
