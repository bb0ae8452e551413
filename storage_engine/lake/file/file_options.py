"""Parquet encodings of a data file's columns, by its codec and a sample of the rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from storage_engine.lake.catalog.tables import IDENTITY_COLUMNS, LEAF_KEY, SELECTIVE_COLUMNS
from storage_engine.model.broker.codec import Columns

COMPRESSION_LEVEL: Final = 1
_PACKED_LEVEL: Final = -100
"""Compression level for data that doesn't shrink. At this level, zstd takes little time."""
SAMPLE_ROWS: Final = 1 << 14
"""Number of first rows by which a file's options are chosen."""
_SAMPLE_VALUES: Final = 1000
_LEAST_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 1 << 20
"""Bounds for a sample's bytes. A smaller sample counts as compressible. Sampling ends at the upper bound."""
_SHRINKS: Final = 0.97
"""Largest compressed share of the original size at which compression is worth its time."""
_MOST_DISTINCT: Final = 0.9
"""Share of distinct values above which no dictionary is tried."""


def writer_options(schema: pa.Schema, columns: Columns, rows: pa.Table | None) -> dict[str, Any]:
    """Return options of the Parquet writer.

    :param rows: the file's first rows, from which a sample is taken; None if the file has no rows.
    """
    names = set(schema.names)
    sample = schema.empty_table() if rows is None else rows.slice(0, SAMPLE_ROWS)
    coded = [name for name in columns.dictionary if name not in columns.keys or _has_repeats(sample[name])]
    dictionary = (*IDENTITY_COLUMNS.names, "kind", *coded, LEAF_KEY)
    bounds = (*SELECTIVE_COLUMNS, *columns.bounds, *columns.file_bounds)
    plain = [name for name in sample.column_names if name not in columns.dictionary]
    return {
        "compression": "zstd",
        "compression_level": {name: _PACKED_LEVEL for name in plain if _is_packed(sample[name])}
        or COMPRESSION_LEVEL,
        "use_dictionary": [name for name in dictionary if name.split(".")[0] in names],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in columns.delta if name in names},
        "write_statistics": [name for name in bounds if name in names],
        "write_page_index": True,
        "data_page_version": "2.0",
        "version": "2.6",
        "store_schema": False,
    }


def _has_repeats(column: pa.ChunkedArray[Any]) -> bool:
    values: Any = column
    if pa.types.is_binary_view(values.type):
        values = values.cast(pa.large_binary())
    return bool(pc.count_distinct(values).as_py() <= _MOST_DISTINCT * (len(values) - values.null_count))


def _is_packed(column: pa.ChunkedArray[Any]) -> bool:
    """Return whether a column's bytes don't shrink when they are compressed."""
    if not pa.types.is_binary_view(column.type):
        return False
    values: list[bytes] = []
    size_bytes = 0
    places = np.flatnonzero(column.is_valid())
    for place in places[:: max(1, len(places) // _SAMPLE_VALUES)].tolist():
        values.append(column[place].as_py())
        size_bytes += len(values[-1])
        if size_bytes >= _MOST_BYTES:
            break
    packed = zstandard.compress(b"".join(values), COMPRESSION_LEVEL)
    return size_bytes >= _LEAST_BYTES and len(packed) > _SHRINKS * size_bytes
