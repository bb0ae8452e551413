"""The properties of messages as text, as they are stored, and as pairs of name and value."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.exceptions import ProofError
from storage_engine.rocketmq.codec.frame_layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_NAME_END: Final = chr(NAME_VALUE_SEPARATOR)
PAIR_END: Final = chr(PROPERTY_SEPARATOR)
_EMPTY: Final = pa.scalar("")
_BITS: Final = 50
"""With fewer names than this, each name is one bit of an integer. If a row has a name twice, the sum of
its bits differs from their OR. The 14 bits above are for carries: a block of at most 32,767 bytes has fewer
than 2^13 pairs.
"""


def join_pairs(pairs: Any, terminated: Any) -> pa.Array[Any]:
    """Join pairs to blocks of properties, the inverse of :func:`read_pairs`; "" for null.

    :param terminated: for each block, whether a separator follows its last pair.
    :raises ProofError: a pair has no value.
    """
    if pairs.items.null_count:
        raise ProofError("a row to encode has a property whose value is null")
    each = pc.binary_join_element_wise(pairs.keys, pairs.items, _NAME_END)
    joined: Any = pc.binary_join(pa.ListArray.from_arrays(pairs.offsets, each), PAIR_END)
    is_ended: Any = pc.and_(pc.coalesce(terminated, pa.scalar(False)), pc.not_equal(joined, _EMPTY))
    ends: Any = pc.if_else(is_ended, pa.scalar(PAIR_END), _EMPTY)
    return pc.binary_join_element_wise(joined, ends, "")  # type: ignore[no-any-return]


def property_maps(texts: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """Return blocks of properties as maps. They are parsed by the rules of
    MessageDecoder#string2messageProperties.

    Pairs without a name or a value are dropped. Of several values of a name, the last counts. A null block
    stays null.
    """
    return read_pairs(texts)[0]


def read_pairs(texts: pa.ChunkedArray[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.bool_]]:
    """Return maps like :func:`property_maps`, and for each text whether all its pairs are in the map."""
    blocks: Any = texts.combine_chunks()
    pieces: Any = pc.split_pattern(blocks, PAIR_END)
    pair: Any = pc.split_pattern(pieces.flatten(), _NAME_END, max_splits=1)
    has_both: Any = pc.equal(pc.list_value_length(pair), pa.scalar(2))
    pair = pair.filter(has_both)
    rows: Any = pc.list_parent_indices(pieces).filter(has_both)
    names: Any = pc.list_element(pair, 0)
    values: Any = pc.list_element(pair, 1)
    is_pair: Any = pc.and_(pc.not_equal(names, _EMPTY), pc.not_equal(values, _EMPTY))
    names, values, rows = names.filter(is_pair), values.filter(is_pair), rows.filter(is_pair).to_numpy()
    last = _find_last_pairs(rows, names)
    if len(last) < len(rows):
        rows, names, values = rows[last], names.take(pa.array(last)), values.take(pa.array(last))
    pairs_of_row = np.bincount(rows, minlength=len(blocks))
    # Splitting gives an empty piece behind a block's final separator, which is no pair.
    ends: Any = pc.ends_with(blocks, PAIR_END).fill_null(False)
    pieces_of_row = pc.list_value_length(pieces).fill_null(0).to_numpy() - ends.to_numpy(zero_copy_only=False)
    is_missing = np.append(blocks.is_null().to_numpy(zero_copy_only=False), False)
    offsets: Any = pa.array(np.append(0, np.cumsum(pairs_of_row)).astype(np.int32), mask=is_missing)
    return pa.MapArray.from_arrays(offsets, names, values), pairs_of_row == pieces_of_row


def _find_last_pairs(rows: npt.NDArray[np.int64], names: Any) -> npt.NDArray[np.int64]:
    """Return the indexes of pairs without a later pair of the same name in their row.

    :param rows: row of each pair, ascending.
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
