"""Compiled encoding of messages as frames in the mapped log (MessageExtEncoder, doAppend)."""

from __future__ import annotations

from typing import Final

from storage_engine.crc import crc32
from storage_engine.native import (
    address_of_bytes,
    copy_bytes,
    held_kernel,
    inlined,
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
from storage_engine.rocketmq.codec import frame_layout as frame

# Positions in a file's table, of 64 bits each.
TARGET: Final = 0
"""Address of the memory to which messages are written; 0 if the memory is unmapped."""
FILE_BYTES: Final = 1
BASE_OFFSET: Final = 2
WROTE: Final = 3
STORE_MS: Final = 4
FILE_FIELDS: Final = 5

# Codes of faults, after which nothing was written.
MALFORMED: Final = -1
PROPERTIES_TOO_LONG: Final = -2
FRAME_TOO_LONG: Final = -3
NO_ROOM: Final = -4
"""The file has no room for the frame and the blank's header behind it."""
INNER: Final = -5
"""A flag or a property marks the message as several messages."""
OUT_OF_RANGE: Final = -6
"""A number is too large for its field, or a host is no address and port."""
UNMAPPED: Final = -7

_MAX_SHORT = (1 << 15) - 1
_BATCH_HEADER = 20
# Positions in a log's table, of 64 bits each.
BODY_BYTES: Final = 0
"""Largest size of a body."""
FRAME_BYTES: Final = 1
"""Largest size of a frame."""
CRC_FUNCTION: Final = 2
CRC_TABLE: Final = 3
ENDS_WITH_CRC: Final = 4
"""Whether each frame ends with its CRC."""
BATCH_BYTES: Final = 5
"""Largest total size of a batch's frames."""

MAGIC_BYTES: Final = 4
"""Bytes of the magic before a topic's length and name. The magic decides the size of the length field."""
HOST_BYTES: Final = 8
"""Bytes of an IPv4 address and a port."""
_NO_IPV6 = ~(frame.BORN_HOST_IPV6 | frame.STORE_HOST_IPV6)
_CRC_NAME = tuple(frame.PROPERTY_CRC)
_INNER = tuple(b"INNER_")


@held_kernel
def write_message(
    file: int,
    log: int,
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    may_be_inner: bool,
) -> tuple[int, int]:
    """Write a message behind the last one. Return its physical offset and size, or a fault's code and 0.

    :param file: address of the file's table, which gets the new positions.
    :param log: address of the log's table.
    :param topic: magic, length and name as in a frame; empty if no frame can have this topic.
    :param may_be_inner: the caller has checked the properties with the prefix ``INNER_``.
    """
    if len(topic) == 0 or len(body) > word(log, BODY_BYTES):
        return FRAME_TOO_LONG, 0
    block, own_bytes = address_of_bytes(properties), len(properties)
    if not may_be_inner and (sys_flag & frame.INNER_BATCH or names_inner(block, own_bytes)):
        return INNER, 0
    numbers = (
        queue_id >= 0
        and fits_32(queue_id)
        and fits_32(flag)
        and fits_32(sys_flag)
        and fits_32(reconsume_times)
    )
    if not (numbers and is_host(len(born_host)) and is_host(len(store_host))):
        return OUT_OF_RANGE, 0
    length = own_bytes
    if word(log, ENDS_WITH_CRC):
        length += frame.PROPERTY_CRC_BYTES
        if own_bytes > 0 and load_u8(block + own_bytes - 1) != frame.PROPERTY_SEPARATOR:
            length += 1
    if length > _MAX_SHORT:
        return PROPERTIES_TOO_LONG, 0
    topic_bytes = len(topic) - MAGIC_BYTES
    size = frame.BODY_AT + len(born_host) + len(store_host) - 2 * HOST_BYTES
    size += len(body) + topic_bytes + 2 + length
    if size > word(log, FRAME_BYTES):
        return FRAME_TOO_LONG, 0
    wrote = word(file, WROTE)
    if size + frame.BLANK_HEADER_BYTES > word(file, FILE_BYTES) - wrote:
        return NO_ROOM, 0
    target = word(file, TARGET) + wrote
    if target == wrote:
        return UNMAPPED, 0
    physical_offset = word(file, BASE_OFFSET) + wrote
    length_at = put_header(
        target,
        address_of_bytes(topic),
        queue_id,
        with_hosts(sys_flag, len(born_host), len(store_host)),
        born_ms,
        address_of_bytes(born_host),
        store_ms,
        address_of_bytes(store_host),
        reconsume_times,
        prepared_offset,
    )
    place = put_rest(
        target,
        length_at,
        size,
        flag,
        queue_offset,
        physical_offset,
        address_of_bytes(body),
        len(body),
        address_of_bytes(topic),
        topic_bytes,
        log,
    )
    store_be_i16(place - 2, length)
    copy_bytes(place, block, own_bytes)
    if word(log, ENDS_WITH_CRC):
        if length > own_bytes + frame.PROPERTY_CRC_BYTES:
            store_u8(place + own_bytes, frame.PROPERTY_SEPARATOR)
        put_property_crc(target, size, log)
    set_word(file, STORE_MS, store_ms)
    set_word(file, WROTE, wrote + size)
    return physical_offset, size


@inlined
def measure_batch(source: int, end: int, fixed: int, shared: int, reserved: int) -> tuple[int, int]:
    """Return the size of a batch's frames and the number of messages, or a fault's code and 0."""
    at = source
    total = 0
    messages = 0
    while at < end:
        if end - at < _BATCH_HEADER + 2:
            return MALFORMED, 0
        body = load_be_i32(at + 16)
        if body < 0 or body > end - at - _BATCH_HEADER - 2:
            return MALFORMED, 0
        properties_at = at + _BATCH_HEADER + body + 2
        own_bytes = load_be_i16(properties_at - 2)
        if own_bytes < 0 or properties_at + own_bytes > end:
            return MALFORMED, 0
        length = property_bytes(properties_at, own_bytes, shared, reserved)
        if length > _MAX_SHORT:
            return PROPERTIES_TOO_LONG, 0
        total += fixed + body + length
        messages += 1
        at = properties_at + own_bytes
    return (total, messages) if messages else (MALFORMED, 0)


@held_kernel
def write_batch(
    file: int,
    log: int,
    topic: bytes,
    messages: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int,
) -> tuple[int, int, int]:
    """Write a batch. Return its physical offset, size and number of messages, or a fault's code and zeros.

    :param file, log, topic: see :func:`write_message`.
    :param messages: each with its size, a CRC, a magic, a flag, its body and its properties.
    :param properties: added to each message behind its own properties.
    """
    numbers = fits_32(queue_id) and fits_32(sys_flag) and fits_32(reconsume_times)
    if not (numbers and is_host(len(born_host)) and is_host(len(store_host))):
        return OUT_OF_RANGE, 0, 0
    flags = with_hosts(sys_flag, len(born_host), len(store_host))
    reserved = frame.PROPERTY_CRC_BYTES if word(log, ENDS_WITH_CRC) else 0
    block, shared = address_of_bytes(properties), len(properties)
    topic_bytes = len(topic) - MAGIC_BYTES
    fixed = frame.BODY_AT + len(born_host) + len(store_host) - 2 * HOST_BYTES + topic_bytes + 2
    at = address_of_bytes(messages)
    end = at + len(messages)
    total, count = measure_batch(at, end, fixed, shared, reserved)
    if total <= 0:
        return total, 0, 0
    if total > word(log, BATCH_BYTES):
        return FRAME_TOO_LONG, 0, 0
    wrote = word(file, WROTE)
    if total + frame.BLANK_HEADER_BYTES > word(file, FILE_BYTES) - wrote:
        return NO_ROOM, 0, 0
    target = word(file, TARGET) + wrote
    if target == wrote:
        return UNMAPPED, 0, 0
    begin = word(file, BASE_OFFSET) + wrote
    physical_offset = begin
    while at < end:
        body = load_be_i32(at + 16)
        own_at = at + _BATCH_HEADER + body + 2
        own_bytes = load_be_i16(own_at - 2)
        length = property_bytes(own_at, own_bytes, shared, reserved)
        size = fixed + body + length
        length_at = put_header(
            target,
            address_of_bytes(topic),
            queue_id,
            flags,
            born_ms,
            address_of_bytes(born_host),
            store_ms,
            address_of_bytes(store_host),
            reconsume_times,
            0,
        )
        place = put_rest(
            target,
            length_at,
            size,
            load_be_i32(at + 12),
            queue_offset,
            physical_offset,
            at + _BATCH_HEADER,
            body,
            address_of_bytes(topic),
            topic_bytes,
            log,
        )
        store_be_i16(place - 2, length)
        copy_bytes(place, own_at, own_bytes)
        place += own_bytes
        if length - reserved - own_bytes > shared:
            store_u8(place, frame.PROPERTY_SEPARATOR)
            place += 1
        copy_bytes(place, block, shared)
        if reserved:
            put_property_crc(target, size, log)
        target += size
        physical_offset += size
        queue_offset += 1
        at = own_at + own_bytes
    set_word(file, STORE_MS, store_ms)
    set_word(file, WROTE, wrote + total)
    return begin, total, count


@inlined
def property_bytes(source: int, own: int, shared: int, reserved: int) -> int:
    """Return the length of a message's own properties and those of its batch behind them."""
    separator = 0
    if own > 0 and shared > 0 and load_u8(source + own - 1) != frame.PROPERTY_SEPARATOR:
        separator = 1
    return own + separator + shared + reserved


@inlined
def put_property_crc(at: int, size: int, log: int) -> None:
    """Write the property with a frame's CRC into the last bytes of the frame (MessageDecoder#createCrc32)."""
    begin = size - frame.PROPERTY_CRC_BYTES
    crc = crc32(word(log, CRC_FUNCTION), word(log, CRC_TABLE), at, begin) & frame.CRC_MASK
    for i in range(8):
        store_u8(at + begin + i, _CRC_NAME[i])
    store_u8(at + begin + 8, frame.NAME_VALUE_SEPARATOR)
    for i in range(10):
        store_u8(at + begin + 9 + i, 48 + crc % 10)
        crc //= 10
    store_u8(at + size - 1, frame.PROPERTY_SEPARATOR)


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
    """Write the fields that all messages of a batch share. Return the position of the body's length."""
    copy_bytes(target + frame.MAGIC_AT, topic, MAGIC_BYTES)
    store_be_i32(target + frame.QUEUE_ID_AT, queue_id)
    store_be_i32(target + frame.SYS_FLAG_AT, sys_flag)
    store_be_i64(target + frame.BORN_TIMESTAMP_AT, born_ms)
    at = target + frame.BORN_HOST_AT
    length = HOST_BYTES + (frame.IPV6_EXTRA_BYTES if sys_flag & frame.BORN_HOST_IPV6 else 0)
    copy_bytes(at, born_host, length)
    at += length
    store_be_i64(at, store_ms)
    at += 8
    length = HOST_BYTES + (frame.IPV6_EXTRA_BYTES if sys_flag & frame.STORE_HOST_IPV6 else 0)
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
    """Write each message's own fields, except its properties. Return the position of the properties."""
    store_be_i32(target + frame.SIZE_AT, size)
    crc = 0
    if body_bytes:
        crc = crc32(word(log, CRC_FUNCTION), word(log, CRC_TABLE), body, body_bytes) & frame.CRC_MASK
    store_be_i32(target + frame.BODY_CRC_AT, crc)
    store_be_i32(target + frame.FLAG_AT, flag)
    store_be_i64(target + frame.QUEUE_OFFSET_AT, queue_offset)
    store_be_i64(target + frame.PHYSICAL_OFFSET_AT, physical_offset)
    store_be_i32(length_at, body_bytes)
    place = length_at + 4
    copy_bytes(place, body, body_bytes)
    place += body_bytes
    copy_bytes(place, topic + MAGIC_BYTES, topic_bytes)
    return place + topic_bytes + 2


@inlined
def names_inner(properties: int, length: int) -> bool:
    """Return whether a block of properties contains ``INNER_``, as those of an inner batch do."""
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
    """Return whether this is the length of an address with a port."""
    return length == HOST_BYTES or length == HOST_BYTES + frame.IPV6_EXTRA_BYTES


@inlined
def with_hosts(sys_flag: int, born_bytes: int, store_bytes: int) -> int:
    """Return a system flag with the bits of IPv6 hosts set."""
    born = frame.BORN_HOST_IPV6 if born_bytes != HOST_BYTES else 0
    store = frame.STORE_HOST_IPV6 if store_bytes != HOST_BYTES else 0
    return sys_flag & _NO_IPV6 | born | store
