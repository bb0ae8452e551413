"""Decompression of a batch's records into memory that bounds what they may expand to."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import struct
import weakref
from collections.abc import Callable
from typing import Any, Final

import cramjam
import pyarrow as pa
import zstandard
from isal import isal_zlib

MAX_EXPANDED_BYTES: Final = 128 << 20
"""What a batch may expand to. Kafka's own clients end a batch long before, at ``batch.size``."""

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the number in a batch's attributes."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Of the frames that Java and librdkafka write: independent blocks of at most 64 KiB, without checksums."""
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31
_snappy_size = cramjam.snappy.decompress_raw_len
_expand_snappy = cramjam.snappy.decompress_raw_into
_expand_lz4 = cramjam.lz4.decompress_block_into
_FAILURES: Any = (
    cramjam.DecompressionError,
    isal_zlib.error,
    OSError,
    pa.ArrowException,
    zstandard.ZstdError,
)
_UINT32 = struct.Struct(">I")
_LITTLE_UINT32 = struct.Struct("<I")


_ZSTD_FUNCTIONS: Final = (
    ("ZSTD_createDCtx", ctypes.c_void_p, ()),
    ("ZSTD_freeDCtx", ctypes.c_size_t, (ctypes.c_void_p,)),
    (
        "ZSTD_decompressDCtx",
        ctypes.c_size_t,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
    ),
)


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
        self._zstd_at_once = _ZstdContext.new()
        self._by_codec: dict[int, Callable[[memoryview, memoryview], int]] = {
            1: _gzip,
            2: _snappy,
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

    def _zstd_frames(self, data: memoryview, out: memoryview) -> int:
        written = -1 if self._zstd_at_once is None else self._zstd_at_once.decompress(data, out)
        if written >= 0:
            return written
        # A stream tells what is wrong, or that there is more.
        with self._zstd.stream_reader(data, read_across_frames=True, closefd=False) as stream:
            return _filled(stream, out)


class _ZstdContext:
    """zstd's own function for frames whose size isn't known, which needs neither a window nor a copy."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._decompress = library.ZSTD_decompressDCtx
        self._context = library.ZSTD_createDCtx()
        if not self._context:
            raise MemoryError("zstd can't make a context")
        self._frees = weakref.finalize(self, library.ZSTD_freeDCtx, self._context)

    @classmethod
    def new(cls) -> _ZstdContext | None:
        """Return a context; None where zstandard's wheel doesn't show the function."""
        library = _zstd_library()
        return None if library is None else cls(library)

    def decompress(self, data: memoryview, out: memoryview) -> int:
        """Return how long all frames are; -1: they aren't whole, have damage, or more than ``out`` takes."""
        room, given = pa.py_buffer(out), pa.py_buffer(data)
        written = self._decompress(self._context, room.address, room.size, given.address, given.size)
        return int(written) if written <= room.size else -1


@functools.cache
def _zstd_library() -> ctypes.CDLL | None:
    """Return the module of zstandard's wheel that has zstd's functions, once one of them was tried."""
    try:
        found = importlib.util.find_spec("zstandard._cffi")
        if found is None or found.origin is None:
            return None
        library = ctypes.CDLL(found.origin)
        for name, result, arguments in _ZSTD_FUNCTIONS:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        return None
    sample = bytes(range(256)) * 9
    out = memoryview(bytearray(len(sample)))
    one = _ZstdContext(library)
    tried = one.decompress(memoryview(zstandard.compress(sample)), out) == len(sample) and out == sample
    return library if tried and one.decompress(memoryview(sample), out) == -1 else None


def _gzip(data: memoryview, out: memoryview) -> int:
    stream = isal_zlib.decompressobj(wbits=31)
    content = stream.decompress(data, max_length=len(out) + 1)
    if len(content) > len(out):
        return len(content)
    if not stream.eof or stream.unused_data:
        raise ExpansionError("one whole gzip stream", "more bytes" if stream.eof else "its first part")
    out[: len(content)] = content
    return len(content)


def _snappy(data: memoryview, out: memoryview) -> int:
    """Read the frames that Java writes, or the one block that librdkafka does."""
    if data[:8] != _XERIAL_MAGIC:
        return _snappy_block(data, out, 0)
    at, written, end, room = _XERIAL_HEADER_BYTES, 0, len(data), len(out)
    while at < end and written <= room:
        if at + 4 > end:
            raise ExpansionError("a snappy block's length", f"{end - at} bytes")
        (size,) = _UINT32.unpack_from(data, at)
        at += 4
        if size > end - at:
            raise ExpansionError(f"a snappy block of {size} bytes", f"{end - at}")
        written = _snappy_block(data[at : at + size], out, written)
        at += size
    return written


def _snappy_block(block: memoryview, out: memoryview, at: int) -> int:
    """Expand a block to where others end. :return: where it ends, also where there is no room for it."""
    try:
        return at + _expand_snappy(block, out[at:])
    except cramjam.DecompressionError:
        size = _snappy_size(block)
        if at + size <= len(out):
            raise
        return at + size


def _lz4(data: memoryview, out: memoryview) -> int:
    """Read the blocks of the usual frame, each to its place; of any other, and of damage, a stream tells."""
    written = _lz4_blocks(data, out)
    if written >= 0:
        return written
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "lz4") as stream:
        return _filled(stream, out)


def _lz4_blocks(data: memoryview, out: memoryview) -> int:
    """Return how long all blocks are.

    :return: -1: the frame is another, isn't whole, has damage, or more than ``out`` takes.
    """
    last = len(data) - 4
    if last < len(_LZ4_HEADER) or data[: len(_LZ4_HEADER)] != _LZ4_HEADER:
        return -1
    at, written = len(_LZ4_HEADER), 0
    while at <= last:
        (size,) = _LITTLE_UINT32.unpack_from(data, at)
        at += 4
        if size == 0:
            return written if at == last + 4 else -1
        stored = size >= _LZ4_STORED
        size &= _LZ4_STORED - 1
        block, room = data[at : at + size], out[written : written + _LZ4_BLOCK_BYTES]
        at += size
        if not stored:
            try:
                written += _expand_lz4(block, room, len(room))
            except cramjam.DecompressionError:
                return -1
        elif size == len(block) <= len(room):
            room[:size] = block
            written += size
        else:
            return -1
    return -1


def _filled(stream: Any, out: memoryview) -> int:
    """Read a stream to its end. :return: how long it is; of one that is too long more than there is room."""
    written = 0
    while written < len(out):
        count = stream.readinto(out[written:])
        if count == 0:
            return written
        written += count
    return written + len(stream.read(1))


def _in_short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
