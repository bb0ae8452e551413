"""Groups' positions in queues as columns, in the order of the queues."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.lag_columns import POSITIONS_SCHEMA
from storage_engine.arrow.name_columns import coded

Codes = npt.NDArray[np.int64]
Longs = npt.NDArray[np.int64]

_MAX_KEY = 1 << 62


def from_rows(rows: Sequence[tuple[str, int, str, int | None]]) -> pa.Table:
    """A table of :data:`POSITIONS_SCHEMA` from its rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(POSITIONS_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, POSITIONS_SCHEMA, strict=True)]
    return pa.table(arrays, schema=POSITIONS_SCHEMA)


def in_queue_order(table: pa.Table) -> pa.Table:
    """Rows by topic, queue and group: those of one queue together, in one chunk.

    :param table: of :data:`POSITIONS_SCHEMA`.
    """
    topics, topic = coded(table["topic"])
    groups, group = coded(table["group"])
    queue = np.asarray(table["queue_id"])
    order = _order(topic, queue, group, len(topics), len(groups))
    columns = [
        pa.DictionaryArray.from_arrays(topic[order], topics),
        pa.array(queue[order]),
        pa.DictionaryArray.from_arrays(group[order], groups),
        table["committed_offset"].combine_chunks().take(order),
    ]
    return pa.table(columns, schema=POSITIONS_SCHEMA)


def _order(
    topic: npt.NDArray[np.int32],
    queue: npt.NDArray[np.int32],
    group: npt.NDArray[np.int32],
    topics: int,
    groups: int,
) -> npt.NDArray[np.int64]:
    queues = int(queue.max(initial=0)) + 1
    if topics * queues * groups >= _MAX_KEY or queue.min(initial=0) < 0:
        return np.lexsort((group, queue, topic)).astype(np.int64)
    key = (topic.astype(np.int64) * queues + queue) * groups + group
    return np.argsort(key).astype(np.int64, copy=False)
