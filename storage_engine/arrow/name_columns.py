"""Dictionary-coded columns of names. Tables of consumers' positions and lag, with up to 10 million rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Names: TypeAlias = "pa.DictionaryArray[Any, Any]"


def coded(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.int32]]:
    """Return a column's distinct names, sorted, and the index of each row's name among them."""
    array = one_array(column)
    codes = np.asarray(array.indices)
    used = np.zeros(len(array.dictionary), dtype=bool)
    used[codes] = True
    kept = np.flatnonzero(used)
    names = array.dictionary.take(kept)
    order = np.asarray(pc.array_sort_indices(names), dtype=np.int64)
    if len(kept) == len(used) and np.array_equal(order, kept):
        return names, codes
    place = np.empty(len(used), dtype=np.int32)
    place[kept[order]] = np.arange(len(order), dtype=np.int32)
    return names.take(order), place[codes]


def one_array(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> Names:
    """Return a column of names as one array with one dictionary.

    :param column: strings, dictionary-coded or not.
    """
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        whole = column.unify_dictionaries().combine_chunks()
        (column,) = whole.chunks if isinstance(whole, pa.ChunkedArray) else (whole,)
    assert isinstance(column, pa.DictionaryArray)
    return column


def names_of(names: pa.Array[Any]) -> list[str]:
    return [str(name) for name in names.to_pylist()]


def queue_starts(positions: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the index of each queue's first row. The rows of a queue must be adjacent."""
    if not positions.num_rows:
        return np.empty(0, dtype=np.int64)
    codes = np.asarray(one_array(positions["topic"]).indices)
    queues = np.asarray(positions["queue_id"])
    changed = (codes[1:] != codes[:-1]) | (queues[1:] != queues[:-1])
    return np.concatenate([[0], np.flatnonzero(changed) + 1])


NAME: pa.DataType = pa.dictionary(pa.int32(), pa.string())

_POSITIONS: list[pa.Field[Any]] = [
    pa.field("topic", NAME, nullable=False),
    pa.field("queue_id", pa.int32(), nullable=False),
    pa.field("group", NAME, nullable=False),
    pa.field("committed_offset", pa.int64()),
]
POSITIONS_SCHEMA = pa.schema(_POSITIONS)
"""A row for each group and queue. If the offset is null, the group's position isn't known."""

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
"""One column for each field of :class:`storage_engine.model.lag.QueueLag`."""

PLACES_SCHEMA = pa.schema([field for field in _LAG if field.name not in ("at_risk", "time_to_loss_ms")])
"""Facts about a position that follow from files: its lag, and the messages that are already lost.
:func:`add_risk` adds the effect of a deletion.

``next_segment_base_offset`` is the base offset of the segment with the group's next message. If the position
is unknown, the oldest message counts as next. :data:`ANYWHERE` means that any segment may have the next one.
"""

ANYWHERE = -1

_SEGMENTS: list[pa.Field[Any]] = [
    pa.field("log", pa.string()),
    pa.field("next_segment_base_offset", pa.int64()),
    pa.field("goes", pa.bool_()),
    pa.field("time_to_loss_ms", pa.int64()),
]
SEGMENTS_SCHEMA = pa.schema(_SEGMENTS)
"""Facts about a deletion: which segments it deletes, and after what time age permits each deletion."""


def segments_table(segments: Iterable[tuple[str, int, bool, int | None]]) -> pa.Table:
    """Return a table of :data:`SEGMENTS_SCHEMA`. A log with a deleted segment also has a row for ANYWHERE."""
    rows = list(segments)
    rows += [(log, ANYWHERE, True, None) for log in dict.fromkeys(log for log, _, goes, _ in rows if goes)]
    names = SEGMENTS_SCHEMA.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], SEGMENTS_SCHEMA)


def add_risk(places: pa.Table, segments: pa.Table) -> pa.Table:
    """Join positions with the segments that groups need next. A group whose segment is deleted is at risk.

    A Spark job does the same with DataFrames (``storage_engine.spark.consumer_lag.join_segments``).

    :param places: table of :data:`PLACES_SCHEMA`.
    :param segments: table of :data:`SEGMENTS_SCHEMA`.
    :return: table of :data:`LAG_SCHEMA`, in the order of ``places``.
    """
    keys = ["log", "next_segment_base_offset"]
    needed = places.select(keys).set_column(0, "log", places["log"].cast(pa.string()))
    rows: Any = pa.array(range(places.num_rows), pa.int64())
    joined: Any = needed.append_column("row", rows).join(segments, keys).sort_by("row")
    has_position: Any = places["committed_offset"].is_valid()
    base_offset: Any = places["next_segment_base_offset"]
    is_certain = pc.and_(has_position, pc.not_equal(base_offset, pa.scalar(ANYWHERE)))
    columns: dict[str, Any] = {name: places[name] for name in places.schema.names}
    columns["next_segment_base_offset"] = pc.if_else(is_certain, base_offset, None)
    columns["at_risk"] = pc.fill_null(joined["goes"], False)
    columns["time_to_loss_ms"] = pc.if_else(has_position, joined["time_to_loss_ms"], None)
    return pa.table([columns[name] for name in LAG_SCHEMA.names], schema=LAG_SCHEMA)
