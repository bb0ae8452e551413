"""Messages as a producer hands them to the engine, and what became of each (MessageExtBrokerInner)."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from storage_engine.core.untrusted import java_text
from storage_engine.rocketmq.codec import frame

_NAME_END = chr(frame.NAME_VALUE_SEPARATOR)
_PROPERTY_END = chr(frame.PROPERTY_SEPARATOR)
_JAVA_TABLE = 128
"""Buckets of the map that the broker parses properties into (MessageDecoder#string2messageProperties)."""


class PutStatus(StrEnum):
    """What became of a message, in the broker's words (PutMessageStatus)."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class PutResult(NamedTuple):
    """Where a message, or a batch, was stored; offsets are -1 where it wasn't.

    :param messages: of a batch; the queue offset is its first one's.
    """

    status: PutStatus
    physical_offset: int = -1
    size_bytes: int = 0
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    messages: int = 1


class NewMessage(NamedTuple):
    """One message.

    A tuple, since a producer makes one for each message that it sends.

    :param properties: the block as it is stored; see :func:`properties_block`.
    :param born_host: of :func:`host_bytes`, as ``store_host``.
    """

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class NewBatch(NamedTuple):
    """Messages of one queue in the form in which a client sends them (MessageExtBatch).

    :param messages: of :func:`encode_batch`.
    :param properties: each message gets them, behind its own.
    """

    topic: str
    messages: bytes
    properties: bytes = b""
    queue_id: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0


def host_bytes(address: str, port: int) -> bytes:
    """Return an address and a port as a frame has them: 8 bytes, or 20 with IPv6."""
    return ipaddress.ip_address(address).packed + struct.pack(">i", port)


def properties_block(properties: Mapping[str, str]) -> bytes:
    """Return properties as they are stored (MessageDecoder#messageProperties2String)."""
    return "".join(f"{name}{_NAME_END}{value}{_PROPERTY_END}" for name, value in properties.items()).encode()


def parse_properties(block: bytes) -> dict[str, str]:
    """Return the properties of a block; the last of equal names (MessageDecoder#string2messageProperties)."""
    found: dict[str, str] = {}
    for part in java_text(block).split(_PROPERTY_END):
        name, separator, value = part.partition(_NAME_END)
        if separator and name and value:
            found[name] = value
    return found


def in_java_order(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties in the order in which the broker's map lists them, where it writes them again."""
    size = _JAVA_TABLE
    while len(properties) > size * 3 // 4:
        size *= 2
    return dict(sorted(properties.items(), key=lambda item: _bucket(item[0], size)))


def _bucket(name: str, size: int) -> int:
    """Return where Java's HashMap keeps a name; those of one bucket stay in the order they came in."""
    from storage_engine.rocketmq.format.index_file import java_hash

    hashed = java_hash(name) & 0xFFFFFFFF
    return (hashed ^ hashed >> 16) & (size - 1)


_BATCH_HEADER = struct.Struct(">iiiii")


def encode_batch(messages: list[tuple[bytes, bytes, int]]) -> bytes:
    """Return messages as a client sends a batch (MessageDecoder#encodeMessages).

    :param messages: body, property block and flag of each.
    """
    parts = []
    for body, properties, flag in messages:
        size = _BATCH_HEADER.size + len(body) + 2 + len(properties)
        parts += [
            _BATCH_HEADER.pack(size, 0, 0, flag, len(body)),
            body,
            struct.pack(">h", len(properties)),
            properties,
        ]
    return b"".join(parts)
