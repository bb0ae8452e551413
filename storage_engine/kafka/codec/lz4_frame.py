"""Frames of lz4 as Kafka reads them (Lz4BlockInputStream): the first one, of independent blocks."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import cramjam
import numpy as np

from storage_engine.arrow.memory import address_of
from storage_engine.kafka.codec.expansion import ExpansionError
from storage_engine.native import kernel, load_u8, load_u32

_USUAL_START: Final = bytes.fromhex("04224d18604082")
"""Of the frames that Java and librdkafka write: independent blocks of at most 64 KiB, without checksums."""
_MAGIC: Final = _USUAL_START[:4]
_VERSION_MASK, _VERSION = 0xC0, 0x40
_INDEPENDENT, _BLOCK_SUMS, _CONTENT_SIZE, _CONTENT_SUM, _RESERVED = 0x20, 0x10, 0x08, 0x04, 0x03
_STORED: Final = 1 << 31
_PRIMES: Final = (2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263, 374_761_393)
_MASK: Final = 0xFFFFFFFF
_STREAM_BYTES: Final = 2048
"""Of what Kafka reads ahead of a record (Lz4Compression#decompressionOutputSize)."""
_UINT32 = struct.Struct("<I")
_expand = cramjam.lz4.decompress_block_into


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """:param end: where the first block begins."""

    end: int
    block_bytes: int
    has_block_sums: bool
    has_content_sum: bool


_USUAL: Final = _Descriptor(len(_USUAL_START), 64 << 10, False, False)


def expand_frame(data: memoryview, out: memoryview) -> int:
    """Decompress the blocks of the first frame; what lies behind it Kafka doesn't read.

    :return: how long all is, or more than there is room for.
    :raises ExpansionError: Kafka can't read it.
    """
    frame = _USUAL if data[: _USUAL.end] == _USUAL_START else _descriptor(data)
    at, written, room_bytes, length = frame.end, 0, len(out), len(data)
    while at + 4 <= length:
        (size,) = _UINT32.unpack_from(data, at)
        at += 4
        stored = size >= _STORED
        size &= _STORED - 1
        if size == 0:
            if frame.has_content_sum and at + 4 > length:
                raise ExpansionError("a checksum of lz4's content", f"{length - at} bytes")
            return written
        if size > frame.block_bytes or size > length - at:
            most = min(frame.block_bytes, length - at)
            raise ExpansionError(f"an lz4 block of at most {most} bytes", f"{size}")
        block = data[at : at + size]
        at += size
        if frame.has_block_sums:
            if at + 4 > length or _UINT32.unpack_from(data, at)[0] != xxh32_of(block):
                raise ExpansionError("an lz4 block's checksum", "another")
            at += 4
        grown = _stored_block(block, out[written:]) if stored else _block(block, out[written:], frame)
        if grown == 0:
            rest = _rest_of_record(out[:written])
            if rest == 0:
                return written
            if rest < _STREAM_BYTES:
                raise ExpansionError("records compressed by lz4", "an empty block inside one")
        written += grown
        if written > room_bytes:
            return written
    raise ExpansionError("the end of an lz4 frame", f"{length - at} bytes before the end of the batch")


def _stored_block(block: memoryview, room: memoryview) -> int:
    if len(block) <= len(room):
        room[: len(block)] = block
    return len(block)


def _block(block: memoryview, room: memoryview, frame: _Descriptor) -> int:
    """Return how long a compressed block is, also where there is no room for it."""
    target = room[: frame.block_bytes]
    try:
        return int(_expand(block, target, len(target)))
    except cramjam.DecompressionError as error:
        if len(target) < frame.block_bytes:
            return _block(block, memoryview(bytearray(frame.block_bytes)), frame)
        raise ExpansionError("a block compressed by lz4", str(error).splitlines()[0][:200]) from error


def _descriptor(data: memoryview) -> _Descriptor:
    if len(data) < 7 or data[:4] != _MAGIC:
        raise ExpansionError("the magic of an lz4 frame", data[:4].hex() or "nothing")
    flags, sizes = data[4], data[5]
    block_size = sizes >> 4
    if (
        flags & _VERSION_MASK != _VERSION
        or not flags & _INDEPENDENT
        or flags & _RESERVED
        or sizes & 0x0F
        or not 4 <= block_size <= 7
    ):
        raise ExpansionError("independent lz4 blocks of 64 KiB to 4 MiB", f"flags {data[4:6].hex()}")
    end = 14 if flags & _CONTENT_SIZE else 6
    if end >= len(data) or data[end] != xxh32_of(data[4:end]) >> 8 & 0xFF:
        raise ExpansionError("the checksum of an lz4 frame's descriptor", "another")
    has_sums = flags & _BLOCK_SUMS != 0
    return _Descriptor(end + 1, 1 << (8 + 2 * block_size), has_sums, flags & _CONTENT_SUM != 0)


def _rest_of_record(content: memoryview) -> int:
    """Return how many bytes are left of the record that content ends in; 0: it ends with one.

    At an empty block Kafka's stream says that it ends, unless a read is longer than what it reads ahead.
    """
    at = 0
    while at < len(content):
        size = shift = 0
        while at < len(content):
            byte = content[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            return 1
        # An int of 32 bits there: what a fifth byte has above them is cut off.
        size &= _MASK
        at += (size >> 1) ^ -(size & 1)
        if size & 1 or shift > 35:
            return 1
    return at - len(content)


def xxh32_of(data: bytes | memoryview) -> int:
    """Return the 32 bits of xxHash, of seed 0."""
    array = np.frombuffer(data, np.uint8)
    return int(_xxh32(address_of(array), len(array))) if len(array) else 0x02CC5D05


@kernel
def _xxh32(address: int, size: int) -> int:
    first, second, third, fourth, fifth = _PRIMES
    place = address
    end = address + size
    if size >= 16:
        a = (first + second) & _MASK
        b = second
        c = 0
        d = -first & _MASK
        while place + 16 <= end:
            a = (a + load_u32(place) * second) & _MASK
            b = (b + load_u32(place + 4) * second) & _MASK
            c = (c + load_u32(place + 8) * second) & _MASK
            d = (d + load_u32(place + 12) * second) & _MASK
            a = (((a << 13) | (a >> 19)) & _MASK) * first & _MASK
            b = (((b << 13) | (b >> 19)) & _MASK) * first & _MASK
            c = (((c << 13) | (c >> 19)) & _MASK) * first & _MASK
            d = (((d << 13) | (d >> 19)) & _MASK) * first & _MASK
            place += 16
        total = ((a << 1) | (a >> 31)) & _MASK
        total += ((b << 7) | (b >> 25)) & _MASK
        total += ((c << 12) | (c >> 20)) & _MASK
        total += ((d << 18) | (d >> 14)) & _MASK
    else:
        total = fifth
    total = (total + size) & _MASK
    while place + 4 <= end:
        total = (total + load_u32(place) * third) & _MASK
        total = (((total << 17) | (total >> 15)) & _MASK) * fourth & _MASK
        place += 4
    while place < end:
        total = (total + load_u8(place) * fifth) & _MASK
        total = (((total << 11) | (total >> 21)) & _MASK) * first & _MASK
        place += 1
    total ^= total >> 15
    total = total * second & _MASK
    total ^= total >> 13
    total = total * third & _MASK
    return total ^ (total >> 16)
