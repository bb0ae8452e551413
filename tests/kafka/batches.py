"""Record batches and messages of older formats, made by hand."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from storage_engine.crc import crc32c_of


@dataclass(frozen=True)
class Record:
    """A record to be written.

    :param padded: the number for its offset is a byte longer than it needs to be.
    """

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str | bytes, bytes | None]] = field(default=())
    attributes: int = 0
    padded: bool = False


def varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(one: Record, base_timestamp: int, delta: int) -> bytes:
    place = varint(delta)
    if one.padded:
        place = place[:-1] + bytes([place[-1] | 0x80, 0])
    headers = b"".join(
        sized(name.encode() if isinstance(name, str) else name) + sized(value) for name, value in one.headers
    )
    body = struct.pack(">b", one.attributes) + varint(one.timestamp - base_timestamp) + place
    body += sized(one.key) + sized(one.value)
    body += varint(len(one.headers)) + headers
    return varint(len(body)) + body


def batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    payload: bytes | None = None,
    producer_id: int = -1,
) -> bytes:
    """Return a batch; ``payload`` takes the place of its records' bytes, as where they are compressed."""
    base_timestamp = records[0].timestamp if records else -1
    content = b"".join(record(one, base_timestamp, i) for i, one in enumerate(records))
    head = struct.pack(
        ">qiibIhiqqqhii",
        base_offset,
        0,
        3,
        2,
        0,
        attributes,
        max(len(records) - 1, 0) if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max((r.timestamp for r in records), default=-1) if max_timestamp is None else max_timestamp,
        producer_id,
        -1,
        -1,
        len(records),
    )
    return with_crc(head + (content if payload is None else payload))


def marker(kind: int, producer_id: int, base_offset: int) -> bytes:
    """Return a control batch.

    :param kind: 0 aborts the producer's transaction, 1 commits it.
    """
    one = Record(1, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return batch([one], base_offset=base_offset, attributes=48, producer_id=producer_id)


def with_crc(data: bytes) -> bytes:
    """Return a batch with the length and the CRC that it should have."""
    data = data[:8] + struct.pack(">i", len(data) - 12) + data[12:]
    return data[:17] + struct.pack(">I", crc32c_of(data[21:])) + data[21:]


def legacy(magic: int, offset: int, key: bytes, value: bytes) -> bytes:
    """Return a message of format 0 or 1."""
    time = struct.pack(">q", 1_500_000_000_000) if magic else b""
    rest = struct.pack(">bb", magic, 0) + time
    rest += struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(rest)) + rest
    return struct.pack(">qi", offset, len(message)) + message
