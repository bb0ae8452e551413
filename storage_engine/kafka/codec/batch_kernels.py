"""Compiled walk over a segment of a log: where its batches lie, and what is no batch.

Must never read outside the buffer, whatever its bytes say: segments may be hostile.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.crc import crc32, crc32c
from storage_engine.kafka.format.batch_header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER_BYTES,
    LEGACY_CRC_AT,
    LENGTH_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MIN_LEGACY_BYTES,
    MIN_RECORD_BYTES,
    RECORD_COUNT_AT,
)
from storage_engine.native import (
    inlined,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i8,
)

Bytes = npt.NDArray[np.uint8]
Ints32 = npt.NDArray[np.int32]
Ints64 = npt.NDArray[np.int64]

BATCH: Final = 0
LEGACY: Final = 1
UNDECODABLE: Final = 2

# What is wrong with bytes that are no batch:
FAULT_NONE: Final = 0
FAULT_TORN: Final = 1
FAULT_SIZE: Final = 2
FAULT_MAGIC: Final = 3
FAULT_CRC: Final = 4
FAULT_COUNT: Final = 5
FAULT_EXPANSION: Final = 6
FAULT_RECORD: Final = 7
FAULT_MORE: Final = 8
FAULTS_AS_WRITTEN: Final = (FAULT_COUNT, FAULT_EXPANSION, FAULT_RECORD, FAULT_MORE)
"""Of batches whose CRC is right."""

# Where a walk stands, between calls: indexes into its state array.
POSITION: Final = 0
ROWS: Final = 1
RUN_END: Final = 2
"""Behind the bytes that are known to be no batch."""
STATE_SIZE: Final = 3

PIECE_BYTES: Final = 1 << 20
"""A run of bytes that are no batch is split into pieces of at most so many."""


CHECK_NONE: Final = 0
CHECK_ALL: Final = 1
CHECK_COMPRESSED: Final = 2
"""All but the batches whose records are read next, where they lie: whoever reads them checks them then."""


@inlined
def fault_of(
    at: int, left: int, crc_function: int, crc_table: int, crc32_function: int, crc32_table: int, check: int
) -> int:
    """Return what is wrong with the batch or message at address ``at``; FAULT_NONE where it is whole."""
    if left < MAGIC_AT + 1:
        return FAULT_TORN
    size = load_be_i32(at + LENGTH_AT) + LENGTH_OVERHEAD
    magic = load_i8(at + MAGIC_AT)
    if size < MIN_LEGACY_BYTES:
        return FAULT_SIZE
    if size > left:
        return FAULT_TORN
    if magic == 0 or magic == 1:
        if check != CHECK_NONE:
            found = crc32(crc32_function, crc32_table, at + LEGACY_CRC_AT + 4, size - LEGACY_CRC_AT - 4)
            if found != load_be_u32(at + LEGACY_CRC_AT):
                return FAULT_CRC
        return FAULT_NONE
    if magic != MAGIC:
        return FAULT_MAGIC
    if size < HEADER_BYTES:
        return FAULT_SIZE
    count = load_be_i32(at + RECORD_COUNT_AT)
    compressed = load_be_i16(at + ATTRIBUTES_AT) & CODEC_MASK != 0
    many = count < 0 or (not compressed and count > (size - HEADER_BYTES) // MIN_RECORD_BYTES)
    if check == CHECK_ALL or (check == CHECK_COMPRESSED and (compressed or many)):
        found = crc32c(crc_function, crc_table, at + ATTRIBUTES_AT, size - ATTRIBUTES_AT)
        if found != load_be_u32(at + CRC_AT):
            return FAULT_CRC
    return FAULT_COUNT if many else FAULT_NONE


@kernel
def scan(
    address: int,
    length: int,
    limit: int,
    crc_function: int,
    crc_table: int,
    crc32_function: int,
    crc32_table: int,
    check: int,
    state: Ints64,
    positions: Ints64,
    sizes: Ints32,
    kinds: Bytes,
    faults: Bytes,
    counts: Ints32,
    codecs: Bytes,
) -> None:
    """Find the batches of about ``limit`` bytes from where the walk stands, at least one.

    Behind a length that can't be true all is undecodable. Behind a batch whose CRC is wrong the walk goes on.
    """
    position = state[POSITION]
    run_end = state[RUN_END]
    begin = position
    rows = 0
    while position < length and rows < len(positions) and position - begin < limit:
        at = address + position
        kind = UNDECODABLE
        fault = FAULT_NONE
        if position >= run_end:
            left = length - position
            fault = fault_of(at, left, crc_function, crc_table, crc32_function, crc32_table, check)
            if fault in (FAULT_TORN, FAULT_SIZE):
                run_end = length
            else:
                run_end = position + load_be_i32(at + LENGTH_AT) + LENGTH_OVERHEAD
                if fault == FAULT_NONE:
                    kind = BATCH if load_i8(at + MAGIC_AT) == MAGIC else LEGACY
        size = run_end - position
        if kind == UNDECODABLE and fault != FAULT_COUNT:
            size = min(size, PIECE_BYTES)
        positions[rows] = position
        sizes[rows] = size
        kinds[rows] = kind
        faults[rows] = fault
        counts[rows] = 0
        codecs[rows] = 0
        if kind == BATCH:
            counts[rows] = load_be_i32(at + RECORD_COUNT_AT)
            codecs[rows] = load_be_i16(at + ATTRIBUTES_AT) & CODEC_MASK
        rows += 1
        position += size
    state[POSITION] = position
    state[ROWS] = rows
    state[RUN_END] = run_end


@kernel
def read_words(address: int, positions: Ints64, at: int, width: int, values: Ints64) -> None:
    """Read a field of each batch.

    :param at: where it lies in a batch.
    :param width: of the field: 2, 4 or 8 bytes.
    """
    for i in range(len(positions)):
        place = address + positions[i] + at
        if width == 2:
            values[i] = load_be_i16(place)
        elif width == 4:
            values[i] = load_be_i32(place)
        else:
            values[i] = load_be_i64(place)
