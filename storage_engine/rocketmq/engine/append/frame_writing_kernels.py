"""Compiled pieces of writing a frame: its header, its body, its properties (MessageExtEncoder)."""

from __future__ import annotations

from typing import Final

from storage_engine.crc import crc32
from storage_engine.native import (
    copy_bytes,
    inlined,
    load_u8,
    store_be_i32,
    store_be_i64,
    store_u8,
    word,
)
from storage_engine.rocketmq.codec.frame import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_AT,
    CRC_MASK,
    FLAG_AT,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET_AT,
    PROPERTY_CRC,
    PROPERTY_CRC_BYTES,
    PROPERTY_SEPARATOR,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SIZE_AT,
    STORE_HOST_IPV6,
    SYS_FLAG_AT,
)

# Places in a log's table.
BODY_BYTES: Final = 0
"""That a body may have."""
FRAME_BYTES: Final = 1
"""That a frame may have."""
CRC_FUNCTION: Final = 2
CRC_TABLE: Final = 3
ENDS_WITH_CRC: Final = 4
"""Whether each frame ends with its CRC."""
BATCH_BYTES: Final = 5
"""That all frames of a batch may have together."""

MAGIC_BYTES: Final = 4
"""Before a topic's length and name, as the two go together."""
HOST_BYTES: Final = 8
"""Of an IPv4 address and a port."""
_NO_IPV6 = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6)
_CRC_NAME = tuple(PROPERTY_CRC)
_INNER = tuple(b"INNER_")


@inlined
def property_bytes(source: int, own: int, shared: int, reserved: int) -> int:
    """Return the length of a message's properties with the batch's behind them."""
    separator = 0
    if own > 0 and shared > 0 and load_u8(source + own - 1) != PROPERTY_SEPARATOR:
        separator = 1
    return own + separator + shared + reserved


@inlined
def put_property_crc(at: int, size: int, log: int) -> None:
    """Write the property with a frame's CRC into its last bytes (MessageDecoder#createCrc32)."""
    begin = size - PROPERTY_CRC_BYTES
    crc = crc32(word(log, CRC_FUNCTION), word(log, CRC_TABLE), at, begin) & CRC_MASK
    for i in range(8):
        store_u8(at + begin + i, _CRC_NAME[i])
    store_u8(at + begin + 8, NAME_VALUE_SEPARATOR)
    for i in range(10):
        store_u8(at + begin + 9 + i, 48 + crc % 10)
        crc //= 10
    store_u8(at + size - 1, PROPERTY_SEPARATOR)


@inlined
def put_header(
    target: int,
    topic: int,
    queue_id: int,
    sys_flag: int,
    born_ms: int,
    born_host: int,
    store_ms: int,
    store_host: int,
    reconsume_times: int,
    prepared_offset: int,
) -> int:
    """Write what a message, or all of a batch, have in common; return where the body's length lies."""
    copy_bytes(target + MAGIC_AT, topic, MAGIC_BYTES)
    store_be_i32(target + QUEUE_ID_AT, queue_id)
    store_be_i32(target + SYS_FLAG_AT, sys_flag)
    store_be_i64(target + BORN_TIMESTAMP_AT, born_ms)
    at = target + BORN_HOST_AT
    length = HOST_BYTES + (IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_IPV6 else 0)
    copy_bytes(at, born_host, length)
    at += length
    store_be_i64(at, store_ms)
    at += 8
    length = HOST_BYTES + (IPV6_EXTRA_BYTES if sys_flag & STORE_HOST_IPV6 else 0)
    copy_bytes(at, store_host, length)
    at += length
    store_be_i32(at, reconsume_times)
    store_be_i64(at + 4, prepared_offset)
    return at + 12


@inlined
def put_rest(
    target: int,
    length_at: int,
    size: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    body: int,
    body_bytes: int,
    topic: int,
    topic_bytes: int,
    log: int,
) -> int:
    """Write what each message has of its own, but for its properties; return where those lie."""
    store_be_i32(target + SIZE_AT, size)
    crc = 0
    if body_bytes:
        crc = crc32(word(log, CRC_FUNCTION), word(log, CRC_TABLE), body, body_bytes) & CRC_MASK
    store_be_i32(target + BODY_CRC_AT, crc)
    store_be_i32(target + FLAG_AT, flag)
    store_be_i64(target + QUEUE_OFFSET_AT, queue_offset)
    store_be_i64(target + PHYSICAL_OFFSET_AT, physical_offset)
    store_be_i32(length_at, body_bytes)
    place = length_at + 4
    copy_bytes(place, body, body_bytes)
    place += body_bytes
    copy_bytes(place, topic + MAGIC_BYTES, topic_bytes)
    return place + topic_bytes + 2


@inlined
def names_inner(properties: int, length: int) -> bool:
    """Return whether the name of a property by which a message is more than one stands in a block."""
    for at in range(properties, properties + length - len(_INNER) + 1):
        if load_u8(at) == _INNER[0]:
            i = 1
            while i < len(_INNER) and load_u8(at + i) == _INNER[i]:
                i += 1
            if i == len(_INNER):
                return True
    return False


@inlined
def fits_32(value: int) -> bool:
    return -0x80000000 <= value <= 0x7FFFFFFF


@inlined
def is_host(length: int) -> bool:
    """Return whether so many bytes are an address and a port."""
    return length == HOST_BYTES or length == HOST_BYTES + IPV6_EXTRA_BYTES


@inlined
def with_hosts(sys_flag: int, born_bytes: int, store_bytes: int) -> int:
    """Return a system flag that says which hosts are IPv6 ones."""
    born = BORN_HOST_IPV6 if born_bytes != HOST_BYTES else 0
    store = STORE_HOST_IPV6 if store_bytes != HOST_BYTES else 0
    return sys_flag & _NO_IPV6 | born | store
