"""Rows as lakes of a version below 3 have them: with pairs of properties in the place of their text.

They keep the exact bytes of a message whose pairs, joined again, are not its block of properties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.rocketmq.codec.encode import encode_rows
from storage_engine.rocketmq.codec.message_schema import PAIR_COLUMNS, SCHEMA, TEXT_COLUMN
from storage_engine.rocketmq.codec.property_pairs import PAIR_END, read_pairs

_PAIRS, _TERMINATED = PAIR_COLUMNS


def older_rows(rows: pa.Table) -> pa.Table:
    """Return decoded rows as lakes of a version below 3 have them."""
    texts: Any = rows[TEXT_COLUMN]
    maps, is_exact = read_pairs(texts)
    columns: dict[str, Any] = {_PAIRS: maps, _TERMINATED: pc.ends_with(texts, PAIR_END)}
    wanted = ~is_exact & rows["raw"].is_null().to_numpy()
    if wanted.any():
        exact = pa.chunked_array([_exact_bytes(rows, wanted)])
        columns["raw"] = pc.coalesce(rows["raw"].cast(pa.large_binary()), exact.cast(pa.large_binary()))
    for name, column in columns.items():
        field = SCHEMA.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, column.cast(field.type))
    return rows.drop_columns([TEXT_COLUMN])


def _exact_bytes(rows: pa.Table, wanted: npt.NDArray[np.bool_]) -> pa.Array[Any]:
    """Return the bytes of messages as views, null of rows that aren't wanted."""
    # Nothing takes views out of a table.
    plain = [
        field.with_type(pa.large_binary()) if pa.types.is_binary_view(field.type) else field
        for field in rows.schema
    ]
    taken = rows.cast(pa.schema(plain)).filter(pa.array(wanted))
    positions, sizes = taken["physical_offset"].to_numpy(), taken["size"].to_numpy()
    first = int(positions.min())
    out = np.zeros(int((positions + sizes).max()) - first, np.uint8)
    encode_rows(taken, out.data, first)
    # Length, first bytes, number of the buffer, place there: no frame is short enough to lie in the view.
    views = np.zeros((rows.num_rows, 4), np.int32)
    views[wanted, 0], views[wanted, 3] = sizes, positions - first
    views[wanted, 1] = out[(positions - first)[:, None] + np.arange(4)].view(np.int32)[:, 0]
    is_there = pa.py_buffer(np.packbits(wanted, bitorder="little").data)
    buffers: list[pa.Buffer | None] = [is_there, pa.py_buffer(views.data), pa.py_buffer(out.data)]
    return pa.Array.from_buffers(pa.binary_view(), rows.num_rows, buffers)
