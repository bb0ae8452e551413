"""Compiled checks of one frame: is it whole, are its CRCs right.

Nothing is read outside the segment, whatever its bytes say.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.crc import (
    crc32,
)
from storage_engine.native import (
    inlined,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i8,
    load_le_u64,
    load_u8,
)
from storage_engine.rocketmq.codec.frame import (
    BLANK_HEADER_BYTES,
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_IPV6,
    CRC_MASK,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_BYTES,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET_AT,
    PROPERTY_CRC,
    PROPERTY_CRC_BYTES,
    PROPERTY_SEPARATOR,
    STORE_HOST_IPV6,
    SYS_FLAG_AT,
)

MESSAGE: Final = 0
BLANK: Final = 1
FAULT_TRUNCATED: Final = 2
FAULT_MAGIC: Final = 3
FAULT_SIZE: Final = 4
FAULT_PHYSICAL_OFFSET: Final = 5
FAULT_LENGTHS: Final = 6
FAULT_BLANK_SIZE: Final = 7
FAULT_BODY_CRC: Final = 8
FAULT_PROPERTY_CRC: Final = 9

_CRC_NAME = int.from_bytes(PROPERTY_CRC, "little")
_CRC_DIGITS = 10

Ints32 = npt.NDArray[np.int32]
Ints64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@inlined
def classify(address: int, length: int, position: int, base_offset: int) -> int:
    """MESSAGE, BLANK or a fault: the structure of the frame at ``position`` of a segment.

    CommitLog#checkMessageAndReturnSize, and beyond it: the header must name its own physical offset
    (old bytes may look like frames), and a blank frame must fill the segment to its end.
    """
    remaining = length - position
    if remaining < BLANK_HEADER_BYTES:
        return FAULT_TRUNCATED
    at = address + position
    size = load_be_i32(at)
    magic = load_be_u32(at + MAGIC_AT)
    if magic == MAGIC_BLANK:
        return BLANK if size == remaining else FAULT_BLANK_SIZE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return FAULT_MAGIC
    if size < MIN_MESSAGE_BYTES or size > remaining:
        return FAULT_SIZE
    if load_be_i64(at + PHYSICAL_OFFSET_AT) != base_offset + position:
        return FAULT_PHYSICAL_OFFSET
    length_bytes = 1 if magic == MAGIC_V1 else 2
    body_at = body_position(at)
    if body_at + length_bytes + 2 > size:
        return FAULT_LENGTHS
    topic_at = body_at + max(load_be_i32(at + body_at - 4), 0)
    if topic_at + length_bytes + 2 > size:
        return FAULT_LENGTHS
    topic_length = load_i8(at + topic_at) if length_bytes == 1 else load_be_i16(at + topic_at)
    if topic_length < 0:
        return FAULT_LENGTHS
    properties_at = topic_at + length_bytes + topic_length
    if properties_at + 2 > size:
        return FAULT_LENGTHS
    if properties_at + 2 + max(load_be_i16(at + properties_at), 0) != size:
        return FAULT_LENGTHS
    return MESSAGE


@inlined
def body_position(at: int) -> int:
    """Where the body begins in the frame at address ``at``: IPv6 hosts move it."""
    sys_flag = load_be_i32(at + SYS_FLAG_AT)
    position = BODY_AT
    if sys_flag & BORN_HOST_IPV6:
        position += IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_IPV6:
        position += IPV6_EXTRA_BYTES
    return position


@inlined
def crc_fault(at: int, size: int, crc_function: int, crc_table: int) -> int:
    """MESSAGE, or which CRC of the well-formed frame at address ``at`` is wrong.

    The body's is checked where there is a body (CommitLog#checkMessageAndReturnSize), the one over
    the whole frame where the property block ends with it (MessageDecoder#createCrc32).
    """
    body_at = body_position(at)
    body_length = max(load_be_i32(at + body_at - 4), 0)
    if body_length > 0:
        crc = crc32(crc_function, crc_table, at + body_at, body_length) & CRC_MASK
        if crc != load_be_i32(at + BODY_CRC_AT):
            return FAULT_BODY_CRC
    topic_at = body_at + body_length
    if load_be_u32(at + MAGIC_AT) == MAGIC_V1:
        properties_at = topic_at + 1 + load_i8(at + topic_at) + 2
    else:
        properties_at = topic_at + 2 + load_be_i16(at + topic_at) + 2
    begin = size - PROPERTY_CRC_BYTES
    if begin < properties_at or load_le_u64(at + begin) != np.uint64(_CRC_NAME):
        return MESSAGE
    if begin > properties_at and load_u8(at + begin - 1) != PROPERTY_SEPARATOR:
        return MESSAGE
    if load_u8(at + begin + 8) != NAME_VALUE_SEPARATOR:
        return MESSAGE
    expected = 0
    for i in range(_CRC_DIGITS - 1, -1, -1):
        digit = load_u8(at + begin + 9 + i) - 48
        if digit < 0 or digit > 9:
            return FAULT_PROPERTY_CRC
        expected = expected * 10 + digit
    if load_u8(at + size - 1) != PROPERTY_SEPARATOR:
        return FAULT_PROPERTY_CRC
    if crc32(crc_function, crc_table, at, begin) & CRC_MASK != expected:
        return FAULT_PROPERTY_CRC
    return MESSAGE


@inlined
def next_magic(address: int, position: int, stop: int, length: int) -> int:
    """First place in [position, stop) that has a frame's magic; ``stop`` if there is none."""
    last = min(stop, length - BLANK_HEADER_BYTES + 1)
    while position < last:
        magic = load_be_u32(address + position + MAGIC_AT)
        if magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            return position
        position += 1
    return stop


@inlined
def hash_bytes(address: int, size: int, seed: np.uint64) -> np.uint64:
    """A keyed hash, so that nobody can choose names that collide."""
    value = seed ^ np.uint64(size)
    factor = (seed | np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    at = address
    end = address + size
    while end - at >= 8:
        value = (value ^ load_le_u64(at)) * factor
        value ^= value >> np.uint64(29)
        at += 8
    word = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        word |= np.uint64(load_u8(at)) << shift
        shift += np.uint64(8)
        at += 1
    value = (value ^ word) * factor
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))


@inlined
def same_bytes(left: int, right: int, size: int) -> bool:
    at = 0
    while size - at >= 8:
        if load_le_u64(left + at) != load_le_u64(right + at):
            return False
        at += 8
    while at < size:
        if load_u8(left + at) != load_u8(right + at):
            return False
        at += 1
    return True
