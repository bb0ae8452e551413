"""Groups' positions in queues as columns. Names are dictionary-coded: there may be 10 million rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.int64]
Longs = npt.NDArray[np.int64]

NAME: pa.DataType = pa.dictionary(pa.int32(), pa.string())

Names: TypeAlias = "pa.DictionaryArray[Any, Any]"

_COLUMNS: list[pa.Field[Any]] = [
    pa.field("topic", NAME, nullable=False),
    pa.field("queue_id", pa.int32(), nullable=False),
    pa.field("group", NAME, nullable=False),
    pa.field("committed_offset", pa.int64()),
]
POSITIONS_SCHEMA = pa.schema(_COLUMNS)

_MAX_KEY = 1 << 62


def from_rows(rows: Sequence[tuple[str, int, str, int | None]]) -> pa.Table:
    """A table of :data:`POSITIONS_SCHEMA` from its rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(_COLUMNS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _COLUMNS, strict=True)]
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


def coded(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.int32]]:
    """A column of names as its distinct names, sorted, and the place of each row's name among them."""
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
    """A column of names with one dictionary, in one piece.

    :param column: of strings, dictionary-coded or not.
    """
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        whole = column.unify_dictionaries().combine_chunks()
        (column,) = whole.chunks if isinstance(whole, pa.ChunkedArray) else (whole,)
    assert isinstance(column, pa.DictionaryArray)
    return column


def names_of(names: pa.Array[Any]) -> list[str]:
    """Names as strings."""
    return [str(name) for name in names.to_pylist()]


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
