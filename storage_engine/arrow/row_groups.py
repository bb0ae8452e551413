"""Sizes of a data file's row groups. Small groups let a reader of a part of a segment skip the rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

ROW_GROUP_BYTES = 16 << 20
"""Segment bytes in a row group. A row without own bytes counts as many bytes as its views point to."""

_VIEW_BYTES = 16
"""Bytes of a view in Arrow. The first four bytes are the length of the value that the view points to."""


def cut_rows(rows: pa.Table) -> Iterator[pa.Table]:
    """Divide a codec's rows into groups.

    If a row's bytes are in an earlier row, both rows are in one group. So a part of the segment can be made
    from each group alone.
    """
    if not isinstance(rows, pa.Table):
        raise TypeError(f"rows that are {type(rows).__name__}, no Arrow table")
    sizes = rows["size"].to_numpy()
    held_bytes = sizes if (sizes > 0).all() else np.maximum(sizes, _view_bytes(rows))
    for first, last in cut_places(sizes, held_bytes):
        yield rows.slice(first, last - first)


def cut_places(sizes: np.ndarray[Any, Any], held: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yield the index of each group's first row, and the index after its last row.

    :param sizes: sizes of the rows, in bytes of the segment.
    :param held: bytes that each row counts: its size, or the bytes to which its views point, whichever is
        larger.
    """
    with_bytes = np.flatnonzero(sizes > 0)
    ends = np.cumsum(held, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(ROW_GROUP_BYTES, total, ROW_GROUP_BYTES))
    if len(with_bytes) < len(sizes) and len(with_bytes):
        cuts = with_bytes[np.maximum(np.searchsorted(with_bytes, cuts, side="right") - 1, 0)]
    yield from pairwise(np.unique(np.concatenate(([0], cuts, [len(sizes)]))).tolist())


def _view_bytes(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the number of bytes to which each row's views point. Arrow has no function for this."""
    held_bytes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if not pa.types.is_binary_view(column.type):
            continue
        first = 0
        for chunk in column.chunks:
            views = chunk.buffers()[1]
            if views is not None and len(chunk):
                lengths = np.frombuffer(cast("Any", views), np.int32)[:: _VIEW_BYTES // 4]
                valid = chunk.is_valid().to_numpy(zero_copy_only=False)
                held_bytes[first : first + len(chunk)] += np.where(
                    valid, lengths[chunk.offset : chunk.offset + len(chunk)], 0
                )
            first += len(chunk)
    return held_bytes
