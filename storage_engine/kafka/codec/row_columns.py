"""Memory of the rows that the kernels write: one run of bytes, cut into columns as Arrow reads them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.memory import Arena

# Places in the table of addresses. A value a row:
PHYSICAL_OFFSET: Final = 0
OFFSET: Final = 1
TIMESTAMP: Final = 2
PRODUCER_ID: Final = 3
BASE_OFFSET: Final = 4
BASE_TIMESTAMP: Final = 5
SIZE: Final = 6
PRODUCER_EPOCH: Final = 7
LEADER_EPOCH: Final = 8
ATTRIBUTES: Final = 9
RECORD_ATTRIBUTES: Final = 10
HEADER_START: Final = 11
KIND_END: Final = 12
# Binary views, and the text of the kinds:
KEY: Final = 13
VALUE: Final = 14
KIND_TEXT: Final = 15
# Written in a few rows alone, so that most of their memory is never touched:
TIMESTAMP_DELTA: Final = 16
MAX_TIMESTAMP: Final = 17
LAST_OFFSET_DELTA: Final = 18
BASE_SEQUENCE: Final = 19
RECORD_COUNT: Final = 20
BATCH_SIZE: Final = 21
CRC: Final = 22
HEADER_PLACE: Final = 23
# Without a value in most rows, but read in all:
RAW: Final = 24
CONTROL_TYPE: Final = 25
# Bitmaps that begin with all bits set:
HAS_OFFSET: Final = 26
HAS_TIMESTAMP: Final = 27
HAS_KEY: Final = 28
HAS_VALUE: Final = 29
IS_RECORD: Final = 30
IN_BATCH: Final = 31
# Bitmaps that begin with none:
HAS_RAW: Final = 32
HAS_DELTA: Final = 33
IS_OWN: Final = 34
IS_TRANSACTIONAL: Final = 35
COLUMNS: Final = 36

VIEW_BYTES: Final = 16

# Places in an arena: of all columns together, and of decompressed records.
ARENA_COLUMNS: Final = 0
ARENA_EXPANDED: Final = 1

_WIDTHS: Final = (*[8] * 6, *[4] * 7, 16, 16, 11, 8, 8, *[4] * 5, 8, 16, 1)
_LINE_BYTES: Final = 64
_OVERRUN_BYTES: Final = 32
"""The kernels write some values several at a time."""

_zeros = np.zeros(0, np.uint8)


def zeros(size_bytes: int) -> pa.Buffer:
    """Return memory that is all zero, which nobody writes to. Kept for the next call."""
    global _zeros
    if len(_zeros) < size_bytes:
        _zeros = np.zeros(size_bytes + size_bytes // 4, np.uint8)
        _zeros.flags.writeable = False
    return pa.py_buffer(_zeros.data)


class RowColumns:
    """Columns for at most so many rows. What is made of one of them keeps the memory of all."""

    def __init__(self, rows: int, arena: Arena) -> None:
        sizes = [width * (rows + 2) + _OVERRUN_BYTES for width in _WIDTHS]
        sizes += [rows // 8 + 1] * (COLUMNS - len(sizes))
        places, used = [], 0
        for size in sizes:
            places.append(used)
            used += -(-size // _LINE_BYTES) * _LINE_BYTES
        self.memory: Any = arena.buffer(ARENA_COLUMNS, used)
        self.addresses = np.array(places, np.int64) + self.memory.address
        self._places = places
        bytes_of = np.frombuffer(memoryview(self.memory), np.uint8)
        bytes_of[places[HAS_OFFSET] : places[HAS_RAW]] = 0xFF
        bytes_of[places[HAS_RAW] :] = 0
        bytes_of[places[CONTROL_TYPE] : places[CONTROL_TYPE] + rows] = 0xFF
        for column in (HEADER_START, KIND_END):
            bytes_of[places[column] : places[column] + 4] = 0

    def buffer(self, column: int, size_bytes: int) -> pa.Buffer:
        """Return the first bytes of a column."""
        part: pa.Buffer = self.memory.slice(self._places[column], size_bytes)
        return part

    def bits(self, column: int, rows: int) -> pa.Buffer:
        """Return a bitmap."""
        return self.buffer(column, rows // 8 + 1)

    def array(self, column: int, rows: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
        """Return the values of a column."""
        values: npt.NDArray[Any] = np.frombuffer(self.memory, dtype, rows, self._places[column])
        return values
