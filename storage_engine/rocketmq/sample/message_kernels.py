"""Compiled writing of messages in the form of a client's batch (MessageDecoder#encodeMessages)."""

from __future__ import annotations

from storage_engine.native import copy_bytes, int64, kernel, store_be_i16, store_be_i32
from storage_engine.rocketmq.codec.frame_kernels import Ints64

HEADER_BYTES = 20
"""Bytes before a message's body: its size, magic, CRC, flag and the length of its body."""


@kernel
def write_messages(
    pool: int,
    sources: Ints64,
    body_bytes: Ints64,
    properties: int,
    row_bytes: int,
    property_bytes: Ints64,
    starts: Ints64,
    out: int,
) -> None:
    """Write consecutive messages.

    :param pool: address from which the sources of bodies are counted.
    :param properties: address of the first row of properties; each further row is ``row_bytes`` behind the
        one before.
    :param starts: position of each message in ``out``, which has room for all messages.
    """
    for i in range(len(sources)):
        at = out + starts[i]
        body = int64(body_bytes[i])
        length = int64(property_bytes[i])
        store_be_i32(at, HEADER_BYTES + body + 2 + length)
        store_be_i32(at + 4, 0)
        store_be_i32(at + 8, 0)
        store_be_i32(at + 12, 0)
        store_be_i32(at + 16, body)
        copy_bytes(at + HEADER_BYTES, pool + sources[i], body)
        store_be_i16(at + HEADER_BYTES + body, length)
        copy_bytes(at + HEADER_BYTES + body + 2, properties + i * row_bytes, length)
