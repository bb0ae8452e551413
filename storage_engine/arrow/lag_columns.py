"""Columns of consumers' positions and of their lag, whatever the broker. There may be 10 million rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

NAME: pa.DataType = pa.dictionary(pa.int32(), pa.string())

_POSITIONS: list[pa.Field[Any]] = [
    pa.field("topic", NAME, nullable=False),
    pa.field("queue_id", pa.int32(), nullable=False),
    pa.field("group", NAME, nullable=False),
    pa.field("committed_offset", pa.int64()),
]
POSITIONS_SCHEMA = pa.schema(_POSITIONS)
"""A row for each group and queue; without an offset the group's position isn't known."""

_LAG: list[pa.Field[Any]] = [
    pa.field("group", NAME, nullable=False),
    pa.field("topic", NAME, nullable=False),
    pa.field("queue_id", pa.int32(), nullable=False),
    pa.field("committed_offset", pa.int64()),
    pa.field("min_offset", pa.int64(), nullable=False),
    pa.field("max_offset", pa.int64(), nullable=False),
    pa.field("lag_messages", pa.int64()),
    pa.field("lag_ms", pa.int64()),
    pa.field("next_physical_offset", pa.int64()),
    pa.field("next_segment_base_offset", pa.int64()),
    pa.field("at_risk", pa.bool_(), nullable=False),
    pa.field("lost_messages", pa.int64(), nullable=False),
    pa.field("time_to_loss_ms", pa.int64()),
    pa.field("log", NAME, nullable=False),
    pa.field("lag_bytes", pa.int64()),
]
LAG_SCHEMA = pa.schema(_LAG)
"""One column for each field of :class:`storage_engine.model.lag.lag.QueueLag`."""
