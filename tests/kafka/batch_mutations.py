"""Batches changed at random in header, compressed bytes and records, each with its right CRC."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections.abc import Callable, Sequence

import cramjam
import pyarrow as pa
import zstandard
from isal import isal_zlib

from storage_engine.kafka.codec.compression import xxh32_of
from tests.kafka import batches

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the number in a batch's attributes."""

_NUMBERS = (-1, -2, -3, -64, -65, 0, 1, 2, 63, 64, 127, 128, 300, (1 << 31) - 1, -(1 << 31), 1 << 33)
_BYTES = (0, 1, 2, 7, 0x1F, 0x3F, 0x40, 0x7F, 0x80, 0x81, 0xC0, 0xFE, 0xFF)
_HEADER_FIELDS = ((21, 2), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4), (57, 4))
"""Place and width of what the CRC covers before the records; attributes and count come twice as often."""


def mutated_batch(codec: int, chance: random.Random) -> bytes:
    """Return a batch of which nothing, one thing or several are other than Kafka's clients write them.

    :param codec: its number in the attributes.
    """
    wrong = 0.3 if chance.random() < 0.4 else 0.0
    bodies = [_record(i, wrong, chance) for i in range(chance.choice((1, 1, 2, 3, 9)))]
    content = b"".join(bodies)
    if chance.random() < 0.1:
        content = changed(content, chance)
    if chance.random() < 0.05:
        content += chance.randbytes(chance.choice((1, 3, 70_000)))
    payload = packed(codec, content, chance)
    if codec and chance.random() < 0.3:
        payload = changed(payload, chance)
    data = bytearray(
        batches.batch([batches.Record(1_795_180_000_000, None, b"")] * len(bodies), attributes=codec)
    )
    data = data[:61] + payload
    while chance.random() < 0.2:
        at, width = chance.choice(_HEADER_FIELDS)
        value = chance.choice((*_NUMBERS, len(bodies) - 1, len(bodies) + 1, codec | 8, codec | 0x48))
        data[at : at + width] = (value % (1 << (8 * width))).to_bytes(width, "big")
    return batches.with_crc(bytes(data))


def _record(delta: int, wrong: float, chance: random.Random) -> bytes:
    """Return a record.

    :param wrong: how often one of its numbers is another, or longer than it needs to be.
    """
    names = [
        chance.choice((b"h", b"", b"\xff\xfename", b"\xed\xa0\x80", "größe".encode()))
        for _ in range(chance.choice((0, 0, 1, 3)))
    ]
    numbers: list[int | bytes] = [chance.choice((0, 5, -7, 1 << 40, -(1 << 63))), delta]
    for content in (b"k" * chance.choice((0, 3, 20)), _value(chance)):
        numbers += [-1] if chance.random() < 0.1 else [len(content), content]
    numbers.append(len(names))
    for name in names:
        numbers += [len(name), name, *([-1] if chance.random() < 0.3 else [2, b"hv"])]
    place = chance.choice([i for i, one in enumerate(numbers) if isinstance(one, int)])
    how = chance.random()
    if how < wrong / 2:
        numbers[place] = chance.choice(_NUMBERS)
        if chance.random() < 0.6 and isinstance([*numbers, 0][place + 1], bytes):
            numbers[place + 1] = b""
    parts = [one if isinstance(one, bytes) else batches.varint(one) for one in numbers]
    if wrong / 2 < how < wrong:
        parts[place] = lengthened(parts[place], chance)
    body = bytes([chance.choice((0, 0, 0, 1, 0x80))]) + b"".join(parts)
    size = batches.varint(
        len(body) + (chance.choice((-1, 1, 1 << 30, -len(body))) if chance.random() < 0.02 else 0)
    )
    return (lengthened(size, chance) if chance.random() < 0.02 else size) + body


def _value(chance: random.Random) -> bytes:
    size = chance.choice((0, 10, 10, 100, 100, 100, 3_000, 70_000) if chance.random() < 0.1 else (0, 10, 100))
    return (b"value" * size)[:size] if chance.random() < 0.7 else chance.randbytes(size)


def lengthened(number: bytes, chance: random.Random) -> bytes:
    """Return a number of more bytes than it needs, some of which have bits that nobody reads."""
    longest = chance.choice((len(number) + 1, 5, 5, 6, 10, 10, 11))
    if longest <= len(number):
        return number
    filled = bytes([*number[:-1], number[-1] | 0x80, *[0x80] * (longest - len(number) - 1)])
    return filled + bytes([chance.choice((0, 0, 0x10, 0x70, 0x7E, 2))])


def changed(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with one change or a few."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        # The first bytes say most.
        at = chance.randrange(min(len(out), chance.choice((12, 30, 1 << 30))) + 1)
        match chance.randrange(6):
            case 0 | 1 if at < len(out):
                out[at] = chance.choice(_BYTES)
            case 2 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 3:
                del out[-chance.choice((1, 2, 4, 8, 9)) :]
            case 4:
                out += chance.choice((bytes, chance.randbytes))(chance.choice((1, 2, 3, 4, 8, 30)))
            case _:
                out[at:at] = chance.choice((bytes, chance.randbytes))(chance.choice((1, 4)))
    return bytes(out)


def packed(codec: int, content: bytes, chance: random.Random) -> bytes:
    """Compress records in one piece or several, whose forms are those of several writers."""
    if codec == 0:
        return content
    pack = _PACK[codec]
    if chance.random() < 0.7:
        return pack([content], chance)
    cuts = sorted(chance.choice((0, len(content), chance.randrange(len(content) + 1))) for _ in range(2))
    pieces = [content[: cuts[0]], content[cuts[0] : cuts[1]], content[cuts[1] :]]
    if chance.random() < 0.5:
        return pack(pieces, chance)
    parts = [pack([piece], chance) for piece in pieces if piece or chance.random() < 0.3]
    if chance.random() < 0.2:
        parts[-1] = parts[-1][: chance.randrange(len(parts[-1]) + 1)]
    return chance.choice((b"", b"", b"", bytes(3), bytes(20))).join(parts)


def _gzip(pieces: Sequence[bytes], chance: random.Random) -> bytes:
    return b"".join(_gzip_member(piece, chance) for piece in pieces)


def _gzip_member(piece: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return gzip.compress(piece, chance.choice((0, 6)))
    flags = chance.choice((0, 1, 2, 4, 8, 16, 0x1F, 0x20, 0xE0))
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6)
    head += b"\x03\x00abc" * (flags >> 2 & 1) + b"name\x00" * (flags >> 3 & 1) + b"why\x00" * (flags >> 4 & 1)
    if flags & 2:
        check = zlib.crc32(head) & 0xFFFF ^ (chance.random() < 0.3)
        head += struct.pack("<H", check)
    body = isal_zlib.compress(piece, wbits=-15)
    return head + body + struct.pack("<II", zlib.crc32(piece), len(piece) & 0xFFFFFFFF)


def _snappy(pieces: Sequence[bytes], chance: random.Random) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(piece)) for piece in pieces]
    if len(blocks) == 1 and chance.random() < 0.4:
        return blocks[0]
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", *(chance.choice((1, 1, 1, 1, 0, 2, -1)) for _ in range(2)))
    if chance.random() < 0.1:
        blocks.insert(chance.randrange(len(blocks) + 1), b"")
    return head + b"".join(struct.pack(">I", len(block)) + block for block in blocks)


def _lz4(pieces: Sequence[bytes], chance: random.Random) -> bytes:
    if len(pieces) == 1 and chance.random() < 0.2:
        return pa.Codec("lz4").compress(pieces[0], asbytes=True)
    usual = chance.random() < 0.8
    flags = 0x60 | (0 if usual else chance.choice((0, 4, 8, 0x10, 0x1C, 1, 2)))
    if chance.random() < 0.05:
        flags ^= chance.choice((0x20, 0x40, 0x80))
    descriptor = bytes(
        [flags, chance.choice((0x40, 0x50, 0x60, 0x70)) if usual else chance.choice((*_BYTES, 0x41))]
    )
    descriptor += bytes(8) * (flags >> 3 & 1)
    frame = (
        b"\x04\x22\x4d\x18"
        + descriptor
        + bytes([xxh32_of(descriptor) >> 8 & 0xFF ^ (chance.random() < 0.03)])
    )
    for piece in pieces:
        for at in range(0, len(piece) or 1, 64 << 10):
            part = piece[at : at + (64 << 10)]
            stored = chance.random() < 0.3
            block = part if stored else bytes(cramjam.lz4.compress_block(part, store_size=False))
            frame += struct.pack("<I", len(block) | stored << 31) + block
            if flags & 0x10:
                frame += struct.pack("<I", xxh32_of(block) ^ (chance.random() < 0.1))
    frame += bytes(4) if chance.random() < 0.9 else struct.pack("<I", 1 << 31)
    return frame + (chance.randbytes(4) if flags & 4 and chance.random() < 0.9 else b"")


def _zstd(pieces: Sequence[bytes], chance: random.Random) -> bytes:
    options = zstandard.ZstdCompressionParameters(
        write_content_size=chance.random() < 0.5,
        write_checksum=chance.random() < 0.3,
        window_log=chance.choice((10, 17, 27, 28)),
    )
    if chance.random() < 0.6:
        return zstandard.ZstdCompressor(compression_params=options).compress(b"".join(pieces))
    packer = zstandard.ZstdCompressor(compression_params=options).compressobj()
    blocks = b"".join(
        packer.compress(piece) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for piece in pieces
    )
    skipped = struct.pack("<II", 0x184D2A50 + chance.randrange(16), 3) + b"abc"
    return blocks + packer.flush() + skipped * (chance.random() < 0.1)


_PACK: dict[int, Callable[[Sequence[bytes], random.Random], bytes]] = {
    1: _gzip,
    2: _snappy,
    3: _lz4,
    4: _zstd,
}
