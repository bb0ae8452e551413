"""Compiled writing of a client's batch as frames, into the mapped log (MessageExtEncoder, doAppend)."""

from __future__ import annotations

from typing import Final

from storage_engine.crc import crc32
from storage_engine.native import (
    copy_bytes,
    inlined,
    kernel,
    load_be_i16,
    load_be_i32,
    load_u8,
    set_word,
    store_be_i16,
    store_be_i32,
    store_be_i64,
    store_u8,
    word,
)
from storage_engine.rocketmq.frame import (
    BODY_CRC_AT,
    FLAG_AT,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET_AT,
    PROPERTY_CRC_BYTES,
    PROPERTY_SEPARATOR,
    QUEUE_OFFSET_AT,
    SIZE_AT,
)

# Places in the table of arguments.
SOURCE: Final = 0
SOURCE_BYTES: Final = 1
HEADER: Final = 2
HEADER_BYTES: Final = 3
TOPIC: Final = 4
TOPIC_BYTES: Final = 5
PROPERTIES: Final = 6
PROPERTIES_BYTES: Final = 7
CRC_FUNCTION: Final = 8
CRC_TABLE: Final = 9
PROPERTY_CRC: Final = 10
MESSAGES: Final = 11
"""Gets the number of messages."""
ARGUMENTS: Final = 12

_MAX_SHORT = (1 << 15) - 1
_BATCH_HEADER = 20
_CRC_NAME = tuple(b"__CRC32#")

MALFORMED: Final = -1
PROPERTIES_TOO_LONG: Final = -2


@inlined
def property_bytes(source: int, own: int, shared: int, reserved: int) -> int:
    """Return the length of a message's properties with the batch's behind them."""
    separator = 0
    if own > 0 and shared > 0 and load_u8(source + own - 1) != PROPERTY_SEPARATOR:
        separator = 1
    return own + separator + shared + reserved


@kernel
def measure_batch(arguments: int) -> int:
    """Return the bytes that a batch's frames take, or what is wrong with it. Counts its messages."""
    at = word(arguments, SOURCE)
    end = at + word(arguments, SOURCE_BYTES)
    fixed = word(arguments, HEADER_BYTES) + word(arguments, TOPIC_BYTES) + 2
    reserved = PROPERTY_CRC_BYTES if word(arguments, PROPERTY_CRC) else 0
    total = 0
    messages = 0
    while at < end:
        if end - at < _BATCH_HEADER + 2:
            return MALFORMED
        body = load_be_i32(at + 16)
        if body < 0 or body > end - at - _BATCH_HEADER - 2:
            return MALFORMED
        properties_at = at + _BATCH_HEADER + body + 2
        own = load_be_i16(properties_at - 2)
        if own < 0 or properties_at + own > end:
            return MALFORMED
        length = property_bytes(properties_at, own, word(arguments, PROPERTIES_BYTES), reserved)
        if length > _MAX_SHORT:
            return PROPERTIES_TOO_LONG
        total += fixed + body + length
        messages += 1
        at = properties_at + own
    set_word(arguments, MESSAGES, messages)
    return total


@inlined
def put_property_crc(at: int, size: int, function: int, table: int) -> None:
    """Write the property with a frame's CRC into its last bytes (MessageDecoder#createCrc32)."""
    begin = size - PROPERTY_CRC_BYTES
    crc = crc32(function, table, at, begin) & 0x7FFFFFFF
    for i in range(8):
        store_u8(at + begin + i, _CRC_NAME[i])
    store_u8(at + begin + 8, NAME_VALUE_SEPARATOR)
    for i in range(10):
        store_u8(at + begin + 9 + i, 48 + crc % 10)
        crc //= 10
    store_u8(at + size - 1, PROPERTY_SEPARATOR)


@kernel
def write_batch(arguments: int, out: int, physical_offset: int, queue_offset: int) -> None:
    """Write a batch's frames; :func:`measure_batch` found it well-formed and that there is room."""
    at = word(arguments, SOURCE)
    end = at + word(arguments, SOURCE_BYTES)
    header_bytes = word(arguments, HEADER_BYTES)
    topic_bytes = word(arguments, TOPIC_BYTES)
    shared = word(arguments, PROPERTIES_BYTES)
    function = word(arguments, CRC_FUNCTION)
    table = word(arguments, CRC_TABLE)
    reserved = PROPERTY_CRC_BYTES if word(arguments, PROPERTY_CRC) else 0
    target = out
    while at < end:
        body = load_be_i32(at + 16)
        properties_at = at + _BATCH_HEADER + body + 2
        own = load_be_i16(properties_at - 2)
        length = property_bytes(properties_at, own, shared, reserved)
        size = header_bytes + body + topic_bytes + 2 + length
        copy_bytes(target, word(arguments, HEADER), header_bytes)
        store_be_i32(target + SIZE_AT, size)
        crc = crc32(function, table, at + _BATCH_HEADER, body) & 0x7FFFFFFF if body else 0
        store_be_i32(target + BODY_CRC_AT, crc)
        store_be_i32(target + FLAG_AT, load_be_i32(at + 12))
        store_be_i64(target + QUEUE_OFFSET_AT, queue_offset)
        store_be_i64(target + PHYSICAL_OFFSET_AT, physical_offset)
        store_be_i32(target + header_bytes - 4, body)
        place = target + header_bytes
        copy_bytes(place, at + _BATCH_HEADER, body)
        place += body
        copy_bytes(place, word(arguments, TOPIC), topic_bytes)
        place += topic_bytes
        store_be_i16(place, length)
        place += 2
        copy_bytes(place, properties_at, own)
        place += own
        if length - reserved - own > shared:
            store_u8(place, PROPERTY_SEPARATOR)
            place += 1
        copy_bytes(place, word(arguments, PROPERTIES), shared)
        if reserved:
            put_property_crc(target, size, function, table)
        target += size
        physical_offset += size
        queue_offset += 1
        at = properties_at + own
