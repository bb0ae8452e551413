"""Addresses of NumPy arrays' and Arrow columns' values in memory, for the compiled kernels."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa


_LINE_BYTES = 64
"""Bytes of a processor's cache line."""
_STAGGER_BYTES = 17 * _LINE_BYTES
"""Distance between the starts of columns: an odd number of cache lines."""
_MAX_FREE = 2
"""Most free blocks of a column: one for a chunk's table, and one for the next table, which may be made while
the first is in use."""
_MAX_KEPT_BYTES = 256 << 20
"""Size of the largest buffer whose memory is kept for the next chunk."""

_per_thread = threading.local()


def address_of(array: npt.NDArray[np.generic]) -> int:
    """Return the address of an array's first element. The caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


class Arena:
    """Memory for the columns of successive chunks, for one thread at a time.

    Memory that a chunk's table no longer needs is used for the next chunk. New pages would have to be cleared
    by the kernel, which takes as long as filling them.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[npt.NDArray[np.uint8]]] = {}

    @staticmethod
    def of_thread() -> Arena:
        """Return this thread's arena. All segments that the thread works on use it in turn."""
        arena: Arena | None = getattr(_per_thread, "arena", None)
        if arena is None:
            arena = _per_thread.arena = Arena()
        return arena

    def buffer(self, column: int, size: int) -> pa.Buffer:
        """Return writable, uninitialised memory. Only written pages become resident.

        The memory returns to the arena when the last Arrow buffer over it is freed.

        Columns are filled together, row by row. Each column's memory begins at another place in a page.
        Otherwise all columns would compete for the same few lines of the processor's caches.
        """
        import pyarrow as pa

        free = self._free.setdefault(column, [])
        block = free.pop() if free else None
        if block is None or len(block) < size:
            capacity, stagger = size + size // 8, column * _STAGGER_BYTES
            memory = np.empty(capacity + stagger + _LINE_BYTES, np.uint8)
            begin = stagger + -(address_of(memory) + stagger) % _LINE_BYTES
            block = memory[begin : begin + capacity]
        lent = block[:size]
        if size <= _MAX_KEPT_BYTES:
            weakref.finalize(lent, _give_back, free, block).atexit = False
        return pa.py_buffer(lent.data)


def _give_back(free: list[npt.NDArray[np.uint8]], block: npt.NDArray[np.uint8]) -> None:
    if len(free) < _MAX_FREE:
        free.append(block)


class ColumnAddresses:
    """Addresses of a batch's columns. This object keeps the columns' memory alive while a kernel runs."""

    def __init__(self, columns: int) -> None:
        self.table = np.zeros(columns, np.int64)
        self.held: list[Any] = []

    def bytes(self, place: int, values: npt.NDArray[np.uint8]) -> None:
        self.held.append(values)
        self.table[place] = address_of(values)

    def fixed(self, place: int, column: pa.Array[Any]) -> None:
        """Record the address of a fixed-width column's values. The bytes of a null value are undefined."""
        values: Any = column.buffers()[1]
        self.held.append(values)
        self.table[place] = values.address + column.offset * (column.type.bit_width // 8)

    def text(self, place: int, offsets_place: int, column: pa.Array[Any]) -> int:
        """Record the addresses of a text column, and return the number of bytes of its texts."""
        _, offsets, content = column.buffers()
        self.held += [offsets, content]
        if offsets is None or offsets.size == 0:
            # In Arrow, an array without elements may lack offsets.
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
    """Return one byte for each value: 0 if it is null, otherwise 1."""
    if column.null_count == 0:
        return np.ones(len(column), np.uint8)
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint8)
    bits: Any = column.buffers()[0]
    if bits is None:
        return boolean_flags(column.is_valid())
    end = column.offset + len(column)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=end, bitorder="little")[column.offset :]


def boolean_flags(column: pa.Array[Any]) -> npt.NDArray[np.uint8]:
    """Return one byte for each value: 1 for true, 0 for false and null."""
    # Commands that read no rows don't load Arrow.
    import pyarrow as pa
    import pyarrow.compute as pc

    filled: Any = pc.fill_null(cast("Any", column), False)
    flags: npt.NDArray[np.uint8] = filled.cast(pa.uint8()).to_numpy()
    return flags
