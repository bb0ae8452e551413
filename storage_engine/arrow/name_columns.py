"""Columns of names, dictionary-coded: there may be 10 million rows of some thousand names."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Names: TypeAlias = "pa.DictionaryArray[Any, Any]"


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


def queue_starts(positions: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the first row of each run of rows of one queue."""
    if not positions.num_rows:
        return np.empty(0, dtype=np.int64)
    codes = np.asarray(one_array(positions["topic"]).indices)
    queues = np.asarray(positions["queue_id"])
    changed = (codes[1:] != codes[:-1]) | (queues[1:] != queues[:-1])
    return np.concatenate([[0], np.flatnonzero(changed) + 1])
