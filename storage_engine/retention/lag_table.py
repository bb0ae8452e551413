"""The table of consumer lag: one row a :class:`QueueLag`, a file that anyone can query. And its summary."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_engine.model.lag import LagSummary, QueueLag

AT_RISK_LIMIT = 1000

_ORDER = "order"

_FIRST_AFFECTED: list[tuple[str, Literal["ascending", "descending"]]] = [
    (_ORDER, "ascending"),
    ("group", "ascending"),
    ("topic", "ascending"),
    ("queue_id", "ascending"),
]


def read_lag_table(path: str | os.PathLike[str]) -> pa.Table:
    """Read a table that a lag job wrote.

    :param path: a Parquet file, or a directory of them.
    """
    return pq.read_table(os.fspath(path), columns=[field.name for field in fields(QueueLag)])


def summarize(table: pa.Table) -> LagSummary:
    """The figures for a report's head."""
    risky = table.filter(table["at_risk"])
    return LagSummary(
        groups=pc.count_distinct(table["group"]).as_py(),
        queues=_distinct_queues(table),
        total_lag_messages=pc.sum(table["lag_messages"]).as_py() or 0,
        max_lag_ms=pc.max(table["lag_ms"]).as_py() or 0,
        unknown=table["lag_messages"].null_count,
        at_risk_groups=tuple(sorted(map(str, pc.unique(risky["group"]).to_pylist()))),
        at_risk_queues=_distinct_queues(risky),
    )


def at_risk(table: pa.Table, limit: int = AT_RISK_LIMIT) -> tuple[QueueLag, ...]:
    """The groups and queues whose next message is about to go, those that a plan must be cut for first.

    Groups whose position is unknown come first, then by segment, so that the first row alone decides what
    the lag policy keeps.

    :param limit: at most so many rows.
    """
    risky = table.filter(table["at_risk"])
    unknown_first: pa.ChunkedArray[Any] = pc.call_function(
        "coalesce", [risky["next_segment_base_offset"], pa.scalar(-1, pa.int64())]
    )
    order = pc.sort_indices(risky.append_column(_ORDER, unknown_first), sort_keys=_FIRST_AFFECTED)
    return tuple(QueueLag(**row) for row in risky.take(order[:limit]).to_pylist())


def _distinct_queues(table: pa.Table) -> int:
    return table.group_by(["topic", "queue_id"]).aggregate([]).num_rows
