"""The properties of messages as text, as they are stored, and as pairs of name and value.

Lakes of a version below 3 have pairs. Their rows keep the exact bytes of a message whose pairs, joined
again, are not its block of properties.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.exceptions import ProofError
from storage_engine.rocketmq.codec.frame import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from storage_engine.rocketmq.codec.message_schema import PAIR_COLUMNS, SCHEMA, TEXT_COLUMN

_NAME_END: Final = chr(NAME_VALUE_SEPARATOR)
_PAIR_END: Final = chr(PROPERTY_SEPARATOR)
_EMPTY: Final = pa.scalar("")
_BITS: Final = 63
_PAIRS, _TERMINATED = PAIR_COLUMNS


def property_texts(rows: pa.RecordBatch) -> pa.Array[Any]:
    """Return each row's block of properties; those of an older lake's rows are joined of its pairs.

    :raises ProofError: a pair has no value.
    """
    texts: Any = rows.column(TEXT_COLUMN) if TEXT_COLUMN in rows.schema.names else None
    pairs: Any = rows.column(_PAIRS)
    if texts is not None and pairs.null_count == len(pairs):
        return texts  # type: ignore[no-any-return]
    if pairs.items.null_count:
        raise ProofError("a row to encode has a property whose value is null")
    each = pc.binary_join_element_wise(pairs.keys, pairs.items, _NAME_END)
    joined: Any = pc.binary_join(pa.ListArray.from_arrays(pairs.offsets, each), _PAIR_END)
    terminated: Any = pc.coalesce(rows.column(_TERMINATED), pa.scalar(False))
    is_ended: Any = pc.and_(terminated, pc.not_equal(joined, _EMPTY))
    ends: Any = pc.if_else(is_ended, pa.scalar(_PAIR_END), _EMPTY)
    joined = pc.binary_join_element_wise(joined, ends, "")
    return joined if texts is None else pc.coalesce(texts, joined)


def property_maps(texts: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """Return blocks of properties as MessageDecoder#string2messageProperties reads them: pairs without a name
    or a value are dropped, of one name's values the last counts; null of null.
    """
    return _read_pairs(texts)[0]


def older_rows(rows: pa.Table) -> pa.Table:
    """Return decoded rows as lakes of a version below 3 have them."""
    texts: Any = rows[TEXT_COLUMN]
    maps, is_exact = _read_pairs(texts)
    columns: dict[str, Any] = {_PAIRS: maps, _TERMINATED: pc.ends_with(texts, _PAIR_END)}
    wanted = ~is_exact & rows["raw"].is_null().to_numpy()
    if wanted.any():
        exact = pa.chunked_array([_exact_bytes(rows, wanted)])
        columns["raw"] = pc.coalesce(rows["raw"].cast(pa.large_binary()), exact.cast(pa.large_binary()))
    for name, column in columns.items():
        field = SCHEMA.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, column.cast(field.type))
    return rows.drop_columns([TEXT_COLUMN])


def _read_pairs(texts: pa.ChunkedArray[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.bool_]]:
    """Return the pairs, and of which texts they are all."""
    blocks: Any = texts.combine_chunks()
    pieces: Any = pc.split_pattern(blocks, _PAIR_END)
    pair: Any = pc.split_pattern(pieces.flatten(), _NAME_END, max_splits=1)
    has_both: Any = pc.equal(pc.list_value_length(pair), pa.scalar(2))
    pair = pair.filter(has_both)
    rows: Any = pc.list_parent_indices(pieces).filter(has_both)
    names: Any = pc.list_element(pair, 0)
    values: Any = pc.list_element(pair, 1)
    is_pair: Any = pc.and_(pc.not_equal(names, _EMPTY), pc.not_equal(values, _EMPTY))
    names, values, rows = names.filter(is_pair), values.filter(is_pair), rows.filter(is_pair).to_numpy()
    last = _last_of_each_name(rows, names)
    if len(last) < len(rows):
        rows, names, values = rows[last], names.take(pa.array(last)), values.take(pa.array(last))
    pairs_of_row = np.bincount(rows, minlength=len(blocks))
    # Behind the separator that a block ends with nothing is split off.
    ends: Any = pc.ends_with(blocks, _PAIR_END).fill_null(False)
    pieces_of_row = pc.list_value_length(pieces).fill_null(0).to_numpy() - ends.to_numpy(zero_copy_only=False)
    is_missing = np.append(blocks.is_null().to_numpy(zero_copy_only=False), False)
    offsets: Any = pa.array(np.append(0, np.cumsum(pairs_of_row)).astype(np.int32), mask=is_missing)
    return pa.MapArray.from_arrays(offsets, names, values), pairs_of_row == pieces_of_row


def _last_of_each_name(rows: npt.NDArray[np.int64], names: Any) -> npt.NDArray[np.int64]:
    """Return the places of the pairs that are the last of their name in their row.

    :param rows: of each pair, ascending.
    """
    coded = names.dictionary_encode()
    codes: npt.NDArray[np.int64] = coded.indices.to_numpy().astype(np.int64)
    places = np.arange(len(rows), dtype=np.int64)
    if len(coded.dictionary) < _BITS and len(rows):
        bits, starts = np.left_shift(1, codes), np.flatnonzero(np.diff(rows, prepend=-1))
        if (np.add.reduceat(bits, starts) == np.bitwise_or.reduceat(bits, starts)).all():
            return places
    pairs = pa.table({"row": pa.array(rows), "name": pa.array(codes), "place": pa.array(places)})
    last: Any = pairs.group_by(["row", "name"]).aggregate([("place", "max")])["place_max"]
    return np.sort(last.to_numpy())


def _exact_bytes(rows: pa.Table, wanted: npt.NDArray[np.bool_]) -> pa.Array[Any]:
    """Return the bytes of messages as views, null of rows that aren't wanted."""
    from storage_engine.rocketmq.codec.encode import encode_rows

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
