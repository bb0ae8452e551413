"""Decompression of a batch's records into memory that limits how far they may expand."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import struct
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import cramjam
import numpy as np
import numpy.typing as npt
import zstandard
from isal import isal_zlib

from storage_engine.arrow.memory import address_of
from storage_engine.kafka.codec.batch_kernels import expand_frames
from storage_engine.native import kernel, load_u8, load_u32

_BUFFER_BYTES: Final = 8 << 10
"""Bytes read at a time (GzipCompression#wrapForInput)."""
_LEAST_BEHIND: Final = 26
"""Java looks for another member if its buffer has more bytes left than this, counted from the trailer on. It
also looks if bytes follow the buffer (GZIPInputStream#readTrailer, ByteBufferInputStream#available).
Java from 17.0.21.1 on always looks, and refuses a member that is cut off. Earlier releases ignore such a
member."""
_START: Final = b"\x1f\x8b\x08"
_START_BYTES: Final = 10
_HEADER_SUM, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16
_TRAILER = struct.Struct("<II")
_UINT16 = struct.Struct("<H")
_USUAL_START: Final = bytes.fromhex("04224d18604082")
"""First bytes of frames of Java and librdkafka: independent blocks of at most 64 KiB, no checksums."""
_MAGIC: Final = _USUAL_START[:4]
_VERSION_MASK, _VERSION = 0xC0, 0x40
_INDEPENDENT, _BLOCK_SUMS, _CONTENT_SIZE, _CONTENT_SUM, _RESERVED = 0x20, 0x10, 0x08, 0x04, 0x03
_STORED: Final = 1 << 31
_PRIMES: Final = (2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263, 374_761_393)
_MASK: Final = 0xFFFFFFFF
_STREAM_BYTES: Final = 2048
"""Bytes that Kafka reads ahead of a record (Lz4Compression#decompressionOutputSize)."""
_LITTLE_UINT32 = struct.Struct("<I")
_expand = cramjam.lz4.decompress_block_into


def expand_members(data: memoryview, out: memoryview) -> int:
    """Decompress one gzip member after the other. Ignore bytes after the last member, as Java does.

    :return: the length of all content; larger than ``out`` if it doesn't fit.
    :raises ExpansionError: Kafka can't read the payload.
    """
    content = bytes(data)
    at = filled = _header_end(content, 0)
    written = 0
    while True:
        stream, begin = zlib.decompressobj(wbits=-15), written
        while not stream.eof:
            if at == filled:
                filled = min(filled + _BUFFER_BYTES, len(data))
            if at == filled:
                raise ExpansionError("one whole gzip stream", "its first part")
            try:
                part = stream.decompress(content[at:filled], len(out) - written + 1)
            except zlib.error as error:
                raise ExpansionError("records compressed by gzip", str(error)) from error
            at = filled - len(stream.unused_data)
            if written + len(part) > len(out):
                return written + len(part)
            out[written : written + len(part)] = part
            written += len(part)
        end = at + _TRAILER.size
        if end > len(data):
            expected = f"{_TRAILER.size} bytes with a gzip stream's CRC and size"
            raise ExpansionError(expected, f"{len(data) - at} bytes")
        member = out[begin:written]
        if _TRAILER.unpack_from(content, at) != (zlib.crc32(member), len(member)):
            raise ExpansionError("a gzip stream's CRC and size", "others")
        if filled - at <= _LEAST_BEHIND and max(filled, end) == len(data):
            return written
        try:
            at = _header_end(content, end)
        except ExpansionError:
            return written
        filled = max(filled, at)


def _header_end(data: bytes, at: int) -> int:
    """Return the position where a member's compressed bytes begin.

    :raises ExpansionError: the header isn't whole.
    """
    begin = at
    if at + _START_BYTES > len(data) or data[at : at + 3] != _START:
        raise ExpansionError("a gzip header", data[at : at + 3].hex() or "nothing")
    flags = data[at + 3]
    at += _START_BYTES
    if flags & _EXTRA:
        at += 2 + _uint16(data, at)
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            end = data.find(0, at)
            if end < 0:
                raise ExpansionError("the end of a gzip header", "none")
            at = end + 1
    if flags & _HEADER_SUM:
        if zlib.crc32(data[begin:at]) & 0xFFFF != _uint16(data, at):
            raise ExpansionError("a gzip header's CRC", "another")
        at += 2
    if at > len(data):
        raise ExpansionError("a gzip header", "its first part")
    return at


def _uint16(data: bytes, at: int) -> int:
    if at + 2 > len(data):
        raise ExpansionError("a gzip header", "its first part")
    (value,) = _UINT16.unpack_from(data, at)
    return int(value)


MAX_EXPANDED_BYTES: Final = 128 << 20
"""Bytes that a batch may expand to. Kafka's own clients close a batch much earlier, at ``batch.size``."""

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of compression types, by their number in a batch's attributes."""
_ZSTD = 4
_ZSTD_IN_BYTES: Final = (128 << 10) + 3
"""Bytes that Java reads at a time (ZSTD_DStreamInSize)."""
_ZSTD_OUT_BYTES: Final = 16 << 10
"""Bytes that Kafka expands at a time (ZstdCompression#decompressionOutputSize)."""
_ZSTD_PART_BYTES: Final = 4 << 10
"""Compressed bytes that we expand at a time: too few to fill the memory."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_XERIAL_START = struct.Struct(">8s8xI")
"""A frame's header and the length of its first block. Most frames have only one block."""
_snappy_size = cramjam.snappy.decompress_raw_len
_expand_snappy = cramjam.snappy.decompress_raw_into
_ISAL_ERROR: Any = isal_zlib.error
_FAILURES: Any = (cramjam.DecompressionError, zstandard.ZstdError)
_UINT32 = struct.Struct(">I")
_CONCATENATED: Final = int.from_bytes(_XERIAL_MAGIC[:4], "big")


_ZSTD_FUNCTIONS: Final = (
    ("ZSTD_createDCtx", ctypes.c_void_p, ()),
    ("ZSTD_freeDCtx", ctypes.c_size_t, (ctypes.c_void_p,)),
    (
        "ZSTD_decompressDCtx",
        ctypes.c_size_t,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
    ),
)


class Payloads:
    """Compressed records, and the memory that they are decompressed into."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        begins: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        room: npt.NDArray[np.uint8],
        most_bytes: int,
    ) -> None:
        """Take payloads [begins, ends) of ``data``, each of which may expand to ``most_bytes``.

        ``room`` has space for ``most_bytes`` behind the payloads that are already decompressed.
        """
        self.begin_array, self.end_array, self.most_bytes = begins, ends, most_bytes
        self.begins: list[int] = begins.tolist()
        self.ends: list[int] = ends.tolist()
        self.content, self.room = data.data, room.data
        self.address, self.room_address = address_of(data), address_of(room)


class Decompressor:
    """Decompresses records. Only one thread may use it at a time: it keeps contexts that are slow to make."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()
        self._by_codec: dict[int, Callable[[memoryview, memoryview], int]] = {
            1: _gzip,
            2: _snappy,
            3: expand_frame,
            _ZSTD: self._zstd_frames,
        }

    def expand(
        self, codec: int, payloads: Payloads, first: int, last: int, used: int, stop: int
    ) -> tuple[list[int], ExpansionError | None]:
        """Decompress payloads [first, last) one after the other, until more than ``stop`` bytes are used.

        :param codec: number of the compression type in the batches' attributes.
        :param used: position in the memory where the first payload is written.
        :return: the length of each decompressed payload, and the fault of the next payload; None if no fault.
        """
        method = self._by_codec.get(codec)
        if method is None:
            return [], ExpansionError("a compression type from 0 to 4", str(codec))
        sizes: list[int] = []
        if codec == _ZSTD and (at_once := self._zstd_at_once) is not None:
            sizes = at_once.expand(payloads, first, last, used, stop)
            used += sum(sizes)
        content, out, begins, ends = payloads.content, payloads.room, payloads.begins, payloads.ends
        most = payloads.most_bytes
        try:
            for i in range(first + len(sizes), last):
                if used > stop:
                    break
                size = method(content[begins[i] : ends[i]], out[used : used + most])
                if size > most:
                    raise ExpansionError(f"records that expand to at most {most} bytes", "more")
                sizes.append(size)
                used += size
        except ExpansionError as error:
            return sizes, error
        except _FAILURES as error:
            return sizes, ExpansionError(f"records compressed by {CODEC_NAMES[codec]}", _short_text(error))
        return sizes, None

    @functools.cached_property
    def _zstd_at_once(self) -> _ZstdContext | None:
        # Loading its kernel takes longer than reading a small log.
        return _ZstdContext.new()

    def _zstd_frames(self, data: memoryview, out: memoryview) -> int:
        """Decompress frames as a stream, as Java does, if zstd's own function can't read them at once."""
        written = begin = 0
        while begin < len(data) or not begin:
            frame, at = self._zstd.decompressobj(write_size=_ZSTD_OUT_BYTES), begin
            while not frame.eof:
                if at >= len(data):
                    # If a frame is cut off, Java ignores it, unless it has to read more bytes for it.
                    if begin and -(-begin // _ZSTD_IN_BYTES) == -(-len(data) // _ZSTD_IN_BYTES):
                        return written
                    raise ExpansionError("a whole zstd frame", "its first part")
                content = frame.decompress(data[at : at + _ZSTD_PART_BYTES])
                at = min(at + _ZSTD_PART_BYTES, len(data))
                if written + len(content) > len(out):
                    return written + len(content)
                out[written : written + len(content)] = content
                written += len(content)
            begin = at - len(frame.unused_data)
        return written


class _ZstdContext:
    """zstd's own function for frames of unknown size. It needs no window and no copy."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._function = ctypes.cast(library.ZSTD_decompressDCtx, ctypes.c_void_p).value or 0
        self._context = library.ZSTD_createDCtx()
        if not self._context:
            raise MemoryError("zstd can't make a context")
        self._frees = weakref.finalize(self, library.ZSTD_freeDCtx, self._context)

    @classmethod
    def new(cls) -> _ZstdContext | None:
        """Return a context; None if zstandard's wheel doesn't export the function."""
        library = _zstd_library()
        return None if library is None else cls(library)

    def expand(self, payloads: Payloads, first: int, last: int, used: int, stop: int) -> list[int]:
        """Decompress payloads up to the first one that is cut off, damaged or too long. Return lengths."""
        sizes = np.empty(last - first, np.int64)
        count = expand_frames(
            self._function,
            self._context,
            payloads.address,
            payloads.begin_array[first:last],
            payloads.end_array[first:last],
            payloads.room_address,
            used,
            payloads.most_bytes,
            stop,
            sizes,
        )
        result: list[int] = sizes[:count].tolist()
        return result


@functools.cache
def _zstd_library() -> ctypes.CDLL | None:
    """Return zstandard's library; None if it doesn't export zstd's functions, or if a trial call fails."""
    try:
        spec = importlib.util.find_spec("zstandard._cffi")
        if spec is None or spec.origin is None:
            return None
        library = ctypes.CDLL(spec.origin)
        for name, result, arguments in _ZSTD_FUNCTIONS:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        return None
    sample = bytes(range(256)) * 9
    packed = zstandard.compress(sample)
    out = np.zeros(2 * len(sample), np.uint8)
    places = np.array([0, len(packed)]), np.array([len(packed), len(packed) + len(sample)])
    payloads = Payloads(np.frombuffer(packed + sample, np.uint8), *places, out, len(sample))
    tried = _ZstdContext(library).expand(payloads, 0, 2, 0, len(sample))
    return library if tried == [len(sample)] and out[: len(sample)].tobytes() == sample else None


def _gzip(data: memoryview, out: memoryview) -> int:
    """Decompress a payload as Java does. For the single plain member that clients write, isal is used."""
    if len(data) < 4 or data[3]:
        return expand_members(data, out)
    stream = isal_zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(data, max_length=len(out) + 1)
    except _ISAL_ERROR:
        return expand_members(data, out)
    if len(content) > len(out):
        return len(content)
    if not stream.eof or stream.unused_data:
        return expand_members(data, out)
    out[: len(content)] = content
    return len(content)


def _snappy(data: memoryview, out: memoryview) -> int:
    """Decompress the frames that Java writes, or the single block that librdkafka writes.

    :return: the length of all content; larger than ``out`` if it doesn't fit.
    """
    end = len(data)
    magic, size = _XERIAL_START.unpack_from(data) if end >= _XERIAL_START.size else (b"", 0)
    if magic != _XERIAL_MAGIC:
        return _snappy_block(data, out)
    if size == end - _XERIAL_START.size:
        return _snappy_block(data[_XERIAL_START.size :], out)
    at, written, room = _XERIAL_HEADER_BYTES, 0, len(out)
    # Fewer bytes than a block's length has are ignored.
    while at + 4 <= end and written <= room:
        (size,) = _UINT32.unpack_from(data, at)
        if size == _CONCATENATED:
            head = bytes(data[at : at + _XERIAL_HEADER_BYTES])
            version = int.from_bytes(head[8:12], "big", signed=True)
            if len(head) < _XERIAL_HEADER_BYTES or (head[:8] == _XERIAL_MAGIC and version < 1):
                raise ExpansionError("a snappy header of version 1 or more", head.hex())
            if not written and head[:8] != _XERIAL_MAGIC:
                # The stream reports its end here. If it has given no bytes yet, Kafka reads no further.
                raise ExpansionError("a snappy block with records", "empty ones before another magic")
            at += _XERIAL_HEADER_BYTES
            continue
        at += 4
        if size > end - at:
            raise ExpansionError(f"a snappy block of {size} bytes", f"{end - at}")
        written += _snappy_block(data[at : at + size], out[written:])
        at += size
    return written


def _snappy_block(block: memoryview, out: memoryview) -> int:
    """Decompress a block. Return its decompressed length, also if ``out`` is too small for the content."""
    try:
        return _expand_snappy(block, out)
    except cramjam.DecompressionError:
        size = _snappy_size(block)
        if size <= len(out):
            raise
        return int(size)


def _short_text(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """The descriptor of an lz4 frame. ``end`` is the position where the first block begins."""

    end: int
    block_bytes: int
    has_block_sums: bool
    has_content_sum: bool


_USUAL: Final = _Descriptor(len(_USUAL_START), 64 << 10, False, False)


def expand_frame(data: memoryview, out: memoryview) -> int:
    """Decompress the blocks of the first frame. Kafka doesn't read bytes after it.

    :return: the length of all content; larger than ``out`` if it doesn't fit.
    :raises ExpansionError: Kafka can't read the payload.
    """
    frame = _USUAL if data[: _USUAL.end] == _USUAL_START else _descriptor(data)
    at, written, room_bytes, length = frame.end, 0, len(out), len(data)
    while at + 4 <= length:
        (size,) = _LITTLE_UINT32.unpack_from(data, at)
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
            if at + 4 > length or _LITTLE_UINT32.unpack_from(data, at)[0] != xxh32_of(block):
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
    """Decompress a block. Return its decompressed length, also if ``room`` is too small for the content."""
    target = room[: frame.block_bytes]
    try:
        return int(_expand(block, target, len(target)))
    except cramjam.DecompressionError as error:
        if len(target) < frame.block_bytes:
            return _block(block, memoryview(bytearray(frame.block_bytes)), frame)
        raise ExpansionError("a block compressed by lz4", _short_text(error)) from error


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
    """Return how many bytes the content's last record lacks; 0 if the record is whole.

    At an empty block Kafka's stream reports its end, unless a read asks for ``_STREAM_BYTES`` or more.
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
        # Java reads an int of 32 bits: higher bits of a fifth byte are cut off.
        size &= _MASK
        at += (size >> 1) ^ -(size & 1)
        if size & 1 or shift > 35:
            return 1
    return at - len(content)


def xxh32_of(data: bytes | memoryview) -> int:
    """Return the 32 bits of xxHash, with seed 0."""
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


class ExpansionError(Exception):
    """Compressed records don't fit their compression type."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
