"""Where the values of NumPy arrays and Arrow columns lie in memory, for the compiled kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa


def address_of(array: npt.NDArray[np.generic]) -> int:
    """Return the address of an array's first element; the caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


class ColumnAddresses:
    """Where a batch's columns lie in memory. Holds what must stay there while a kernel runs."""

    def __init__(self, columns: int) -> None:
        self.table = np.zeros(columns, np.int64)
        self.held: list[Any] = []

    def bytes(self, place: int, values: npt.NDArray[np.uint8]) -> None:
        self.held.append(values)
        self.table[place] = address_of(values)

    def fixed(self, place: int, column: pa.Array[Any]) -> None:
        """Place the values as they lie; where a value is null, anything."""
        values: Any = column.buffers()[1]
        self.held.append(values)
        self.table[place] = values.address + column.offset * (column.type.bit_width // 8)

    def text(self, place: int, offsets_place: int, column: pa.Array[Any]) -> int:
        """Place a text column.

        :return: length of the bytes that the offsets point into.
        """
        _, offsets, content = column.buffers()
        self.held += [offsets, content]
        if offsets is None or offsets.size == 0:
            # Arrow lets an array without elements have no offsets.
            self.bytes(offsets_place, np.zeros(8, np.uint8))
        else:
            self.table[offsets_place] = offsets.address + 4 * column.offset
        if content is None:
            return 0
        self.table[place] = content.address
        return int(content.size)

    def views(self, place: int, buffers_place: int, column: pa.Array[Any]) -> None:
        views: Any
        _, views, *contents = column.buffers()
        self.held += [views, *contents]
        self.table[place] = views.address + 16 * column.offset
        buffers = np.array([0 if content is None else content.address for content in contents], np.int64)
        self.held.append(buffers)
        self.table[buffers_place] = address_of(buffers)


def valid_flags(column: pa.Array[Any]) -> npt.NDArray[np.uint8]:
    """Return one byte a value: 1 where there is one."""
    if column.null_count == 0:
        return np.ones(len(column), np.uint8)
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint8)
    return boolean_flags(column.is_valid())


def boolean_flags(column: pa.Array[Any]) -> npt.NDArray[np.uint8]:
    """Return one byte a value; null is false."""
    # Commands that read no row load no Arrow.
    import pyarrow as pa
    import pyarrow.compute as pc

    filled: Any = pc.fill_null(cast("Any", column), False)
    flags: npt.NDArray[np.uint8] = filled.cast(pa.uint8()).to_numpy()
    return flags
