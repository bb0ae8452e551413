"""Decompression of a batch's records into memory that bounds what they may expand to."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import zstandard
from isal import isal_zlib

MAX_EXPANDED_BYTES: Final = 128 << 20
"""What a batch may expand to. Kafka's own clients end a batch long before, at ``batch.size``."""

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the number in a batch's attributes."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_FAILURES: Any = (isal_zlib.error, OSError, pa.ArrowException, zstandard.ZstdError)
_UINT32 = struct.Struct(">I")


class ExpansionError(Exception):
    """Compressed records are not what their codec says.

    :param expected: what they should be.
    :param found: what they are.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found


class Decompressor:
    """Decompresses records. Not for several threads at a time: it keeps what is dear to make."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()
        self._snappy = pa.Codec("snappy")
        self._by_codec: dict[int, Callable[[memoryview, memoryview], int]] = {
            1: _gzip,
            2: self._snappy_blocks,
            3: _lz4,
            4: self._zstd_frames,
        }

    def decompress(self, codec: int, data: memoryview, out: memoryview) -> int:
        """Decompress ``data`` into ``out``.

        :param codec: its number in a batch's attributes.
        :return: how many bytes were written.
        :raises ExpansionError: it isn't of this codec, or expands to more than ``out`` takes.
        """
        method = self._by_codec.get(codec)
        if method is None:
            raise ExpansionError("a compression type from 0 to 4", str(codec))
        try:
            written = method(data, out)
        except _FAILURES as error:
            raise ExpansionError(f"records compressed by {CODEC_NAMES[codec]}", _in_short(error)) from error
        if written > len(out):
            raise ExpansionError(f"records that expand to at most {len(out)} bytes", "more")
        return written

    def _snappy_blocks(self, data: memoryview, out: memoryview) -> int:
        """Read the frames that Java writes, or the one block that librdkafka does."""
        if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
            return self._snappy_block(data, out, 0)
        at, written = _XERIAL_HEADER_BYTES, 0
        while at < len(data):
            if at + 4 > len(data):
                raise ExpansionError("a snappy block's length", f"{len(data) - at} bytes")
            (size,) = _UINT32.unpack_from(data, at)
            at += 4
            if size > len(data) - at:
                raise ExpansionError(f"a snappy block of {size} bytes", f"{len(data) - at}")
            written = self._snappy_block(data[at : at + size], out, written)
            if written > len(out):
                break
            at += size
        return written

    def _snappy_block(self, block: memoryview, out: memoryview, at: int) -> int:
        size = _snappy_size(block)
        if at + size <= len(out):
            out[at : at + size] = self._snappy.decompress(block, size, asbytes=True)
        return at + size

    def _zstd_frames(self, data: memoryview, out: memoryview) -> int:
        with self._zstd.stream_reader(data, read_across_frames=True, closefd=False) as stream:
            return _filled(stream, out)


def _gzip(data: memoryview, out: memoryview) -> int:
    stream = isal_zlib.decompressobj(wbits=31)
    content = stream.decompress(data, max_length=len(out) + 1)
    if len(content) > len(out):
        return len(content)
    if not stream.eof or stream.unused_data:
        raise ExpansionError("one whole gzip stream", "more bytes" if stream.eof else "its first part")
    out[: len(content)] = content
    return len(content)


def _lz4(data: memoryview, out: memoryview) -> int:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "lz4") as stream:
        return _filled(stream, out)


def _filled(stream: Any, out: memoryview) -> int:
    """Read a stream to its end. :return: how long it is; of one that is too long more than there is room."""
    written = 0
    while written < len(out):
        count = stream.readinto(out[written:])
        if count == 0:
            return written
        written += count
    return written + len(stream.read(1))


def _snappy_size(block: memoryview) -> int:
    """Return what a snappy block says that it expands to."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise ExpansionError("a snappy block that begins with its size", bytes(block[:5]).hex() or "nothing")


def _in_short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
