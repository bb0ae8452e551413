"""Compiled parser of record batches: where batches lie in a segment, and which bytes are no batch.

Must never read outside the buffer, whatever its bytes contain: segments may be hostile.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.crc import crc32, crc32c
from storage_engine.kafka.format import batch_headers as header
from storage_engine.native import (
    call_zstd,
    inlined,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i8,
    load_u8,
    load_u32,
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
"""Faults of batches whose CRC is right: a producer sent them in this state."""

# Where a walk stands, between calls: indexes into its state array.
POSITION: Final = 0
ROWS: Final = 1
RUN_END: Final = 2
"""Position behind the bytes that are known to be no batch."""
STATE_SIZE: Final = 3

PIECE_BYTES: Final = 1 << 20
"""A run of bytes that are no batch is split into pieces of at most this many bytes."""


CHECK_NONE: Final = 0
CHECK_ALL: Final = 1
CHECK_COMPRESSED: Final = 2
"""Check the CRC of compressed batches only. The decoder checks other batches when it reads their records."""


@inlined
def fault_of(
    at: int, left: int, crc_function: int, crc_table: int, crc32_function: int, crc32_table: int, check: int
) -> int:
    """Return the fault of the batch or message at address ``at``; FAULT_NONE: it is whole."""
    if left < header.MAGIC_AT + 1:
        return FAULT_TORN
    size = load_be_i32(at + header.LENGTH_AT) + header.LENGTH_OVERHEAD
    magic = load_i8(at + header.MAGIC_AT)
    if size < header.MIN_LEGACY_BYTES:
        return FAULT_SIZE
    if size > left:
        return FAULT_TORN
    if magic == 0 or magic == 1:
        if check != CHECK_NONE:
            crc = crc32(
                crc32_function, crc32_table, at + header.LEGACY_CRC_AT + 4, size - header.LEGACY_CRC_AT - 4
            )
            if crc != load_be_u32(at + header.LEGACY_CRC_AT):
                return FAULT_CRC
        return FAULT_NONE
    if magic != header.MAGIC:
        return FAULT_MAGIC
    if size < header.HEADER_BYTES:
        return FAULT_SIZE
    count = load_be_i32(at + header.RECORD_COUNT_AT)
    compressed = load_be_i16(at + header.ATTRIBUTES_AT) & header.CODEC_MASK != 0
    many = count < 0 or (not compressed and count > (size - header.HEADER_BYTES) // header.MIN_RECORD_BYTES)
    if check == CHECK_ALL or (check == CHECK_COMPRESSED and (compressed or many)):
        crc = crc32c(crc_function, crc_table, at + header.ATTRIBUTES_AT, size - header.ATTRIBUTES_AT)
        if crc != load_be_u32(at + header.CRC_AT):
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
    """Find the batches in about ``limit`` bytes from the walk's position on, at least one.

    After an impossible length, the rest is undecodable. After a wrong CRC, the walk goes on behind it.
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
            left_bytes = length - position
            fault = fault_of(at, left_bytes, crc_function, crc_table, crc32_function, crc32_table, check)
            if fault in (FAULT_TORN, FAULT_SIZE):
                run_end = length
            else:
                run_end = position + load_be_i32(at + header.LENGTH_AT) + header.LENGTH_OVERHEAD
                if fault == FAULT_NONE:
                    kind = BATCH if load_i8(at + header.MAGIC_AT) == header.MAGIC else LEGACY
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
            counts[rows] = load_be_i32(at + header.RECORD_COUNT_AT)
            codecs[rows] = load_be_i16(at + header.ATTRIBUTES_AT) & header.CODEC_MASK
        rows += 1
        position += size
    state[POSITION] = position
    state[ROWS] = rows
    state[RUN_END] = run_end


@kernel
def read_words(address: int, positions: Ints64, at: int, width: int, values: Ints64) -> None:
    """Read a field of each batch.

    :param at: its position in a batch.
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


_MAGIC: Final = 0xFD2FB528
_SKIPPED_MAGIC: Final = 0x184D2A50
_SKIPPED_MASK: Final = 0xFFFFFFF0
_SINGLE_SEGMENT: Final = 0x20
_CHECKSUM: Final = 0x04
_ONE_BYTE_BLOCK: Final = 1
_SMALLEST_WINDOW: Final = 7 << 3
"""128 KiB: with a smaller window, a stream refuses blocks that are larger than the window."""
_LARGEST_WINDOW: Final = 17 << 3
"""128 MiB: by default, streams read no larger window (ZSTD_WINDOWLOG_LIMIT_DEFAULT)."""


@inlined
def has_unusual_window(at: int, size: int) -> bool:
    """Return whether a stream may refuse a frame at address ``at`` because of its window (RFC 8878)."""
    end = at + size
    while at + 8 <= end:
        magic = load_u32(at)
        if magic & _SKIPPED_MASK == _SKIPPED_MAGIC:
            at += 8 + load_u32(at + 4)
            continue
        if magic != _MAGIC:
            break
        flags = load_u8(at + 4)
        single = flags & _SINGLE_SEGMENT != 0
        window = load_u8(at + 5)
        if not single and (window < _SMALLEST_WINDOW or window > _LARGEST_WINDOW):
            return True
        # Behind the flags: window, dictionary (0, 1, 2 or 4 bytes), and size of the content.
        at += 5 + (0 if single else 1) + (1 << (flags & 3) >> 1)
        at += (1 if single else 0) if flags < 0x40 else 1 << (flags >> 6)
        is_last = False
        while not is_last and at + 3 <= end:
            block = load_u8(at) | load_u8(at + 1) << 8 | load_u8(at + 2) << 16
            is_last = block & 1 != 0
            at += 3 + (1 if (block >> 1) & 3 == _ONE_BYTE_BLOCK else block >> 3)
        at += 4 if flags & _CHECKSUM != 0 else 0
    return False


@kernel
def expand_frames(
    function: int,
    context: int,
    data: int,
    begins: Ints64,
    ends: Ints64,
    out: int,
    used: int,
    most: int,
    stop: int,
    sizes: Ints64,
) -> int:
    """Decompress payloads into the memory from ``used`` on, until more than ``stop`` bytes of it are used.

    Stop at the first payload that needs a stream, or isn't whole.

    :param function: address of ``ZSTD_decompressDCtx``.
    :param context: address of the context that the function works with.
    :param data: address that ``begins`` and ``ends`` count from.
    :param out: address that ``used`` and ``stop`` count from.
    :param most: bytes that one payload may expand to.
    :param sizes: receives the expanded length of each payload.
    :return: the number of payloads that were decompressed whole.
    """
    i = 0
    while i < len(begins) and used <= stop:
        if has_unusual_window(data + begins[i], ends[i] - begins[i]):
            break
        size = call_zstd(function, context, out + used, most, data + begins[i], ends[i] - begins[i])
        # An error is a negative number.
        if size < 0 or size > most:
            break
        sizes[i] = size
        used += size
        i += 1
    return i
