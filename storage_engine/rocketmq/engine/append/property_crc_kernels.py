"""Compiled check of the CRC that ends a message's properties (CommitLog#checkMessageAndReturnSize)."""

from __future__ import annotations

from storage_engine.crc import crc32
from storage_engine.native import inlined, load_u8
from storage_engine.rocketmq.codec.frame import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_CRC_BYTES,
    PROPERTY_SEPARATOR,
)
from storage_engine.rocketmq.engine.append.java_text_kernels import is_text

_NAME = tuple(PROPERTY_CRC)
_CRC_MASK = 0x7FFFFFFF


@inlined
def _as_int(value: int) -> int:
    """Return a number as it is left in an int of Java's."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@inlined
def has_property_crc(at: int, size: int, properties_at: int, length: int, function: int, table: int) -> bool:
    """Return whether a frame's properties name a CRC, and it is the one of all before the room for it.

    The broker takes any CRC above 0, of the last property of its name, and adds up its digits as ints.
    """
    expected = 0
    index = 0
    while index < length:
        kv = -1
        end = index
        while end < length:
            byte = load_u8(at + properties_at + end)
            if byte == PROPERTY_SEPARATOR:
                break
            if byte == NAME_VALUE_SEPARATOR and kv < 0:
                kv = end
            end += 1
        if kv - index == len(_NAME) and kv < end - 1 and is_text(at + properties_at + index, 8, _NAME):
            expected = 0
            for i in range(end - 1, kv, -1):
                expected = _as_int(expected * 10 + load_u8(at + properties_at + i) - 48)
        index = end + 1
    if expected <= 0 or size < PROPERTY_CRC_BYTES:
        return False
    return crc32(function, table, at, size - PROPERTY_CRC_BYTES) & _CRC_MASK == expected
