"""Decompression of message bodies. Clients compress large bodies before they send them.

The broker and the lake keep a body as the client sent it, so it is decompressed when it is read. These
functions take and return Arrow arrays, so that DuckDB and Spark can use them as SQL functions directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib
from isal.igzip_lib import IsalError

from storage_engine.exceptions import CorruptBodyError
from storage_engine.rocketmq.codec import frame_layout as frame

MAX_BODY_BYTES = 64 << 20
"""Default limit for the bytes of a decompressed body. Clients send at most 4 MiB (maxMessageSize)."""

_MAX_ARRAY_BYTES = (1 << 31) - 1
"""Most bytes that an Arrow array of binaries can hold. This also limits the memory of one call."""

_MAX_SQL_BYTES = 1 << 30
"""Most bytes that one call of the SQL function returns. DuckDB's batches have 2,048 rows."""

PART_BYTES = 32 << 20
"""Most bytes of decompressed bodies in memory at one time. A single larger body may exceed it."""

_TYPE_SHIFT = 8

_FIRST_READ_BYTES = 4096
_LIKELY_RATIO = 8

Longs = npt.NDArray[np.int64]

_Decompress = Callable[[pa.Buffer, int], bytes]


def decompress_bodies(
    bodies: pa.Array[Any] | pa.ChunkedArray[Any],
    sys_flags: pa.Array[Any] | pa.ChunkedArray[Any],
    max_body_bytes: int = MAX_BODY_BYTES,
    on_error: Literal["raise", "null"] = "raise",
) -> pa.Array[Any]:
    """Decompress every compressed body; other bodies are returned unchanged.

    ``sys_flag`` describes the compression (MessageSysFlag). Bit 0 says whether the body is compressed. Bits 8
    to 10 are the format: 1 for an LZ4 frame, 2 for a Zstandard frame, 3 or (older clients) 0 for a zlib
    stream (CompressionType#findByValue, Lz4Compressor, ZstdCompressor, ZlibCompressor).

    :param max_body_bytes: limit for one decompressed body, since a few KB can expand to gigabytes.
    :param on_error: with ``null``, a body that can't be decompressed becomes null. If all bodies together are
        too large for an array, the largest become null until the rest fits.
    :return: an array of the same type as ``bodies``.
    :raises CorruptBodyError: a body contradicts its flag or is too large, or all together are too large.
    """
    return _join_bodies(bodies, sys_flags, max_body_bytes, on_error, _MAX_ARRAY_BYTES)


def decompressed_parts(
    bodies: pa.Array[Any] | pa.ChunkedArray[Any],
    sys_flags: pa.Array[Any] | pa.ChunkedArray[Any],
    part_bytes: int = PART_BYTES,
) -> Iterator[pa.Array[Any]]:
    """Decompress any number of bodies in bounded memory. A faulty body becomes null.

    :param part_bytes: most bytes of decompressed bodies in one part; a single larger body may exceed it.
    :return: consecutive parts of the result of :func:`decompress_bodies`.
    """
    body_array, flags, rows = _compressed_rows(bodies, sys_flags)
    start, total_bytes, plain = 0, 0, list[bytes | None]()
    for row, flag in zip(rows.tolist(), flags[rows].tolist(), strict=True):
        body = _body(body_array, row, flag, MAX_BODY_BYTES, "null")
        size_bytes = len(body or b"")
        if plain and total_bytes + size_bytes > part_bytes:
            yield _with_plain(body_array[start:row], _slice_rows(rows, start, row), plain)
            start, total_bytes, plain = row, 0, []
        plain.append(body)
        total_bytes += size_bytes
    yield _with_plain(body_array[start:], _slice_rows(rows, start, len(body_array)), plain)


# DuckDB reads these type hints, and accepts no more exact ones.
def decompress_bodies_or_null(bodies: pa.Array, sys_flags: pa.Array) -> pa.Array:  # type: ignore[type-arg]
    """Decompress bodies in SQL, see :func:`decompress_bodies`. A faulty body becomes null.

    If a batch's bodies together exceed 1 GiB, its largest bodies become null, too, until the rest fits.
    """
    return _join_bodies(bodies, sys_flags, MAX_BODY_BYTES, "null", _MAX_SQL_BYTES)


def is_compressed(sys_flags: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Return a mask of the messages with a compressed body, in any format."""
    bit = pa.scalar(frame.COMPRESSED, sys_flags.type)
    mask: pa.ChunkedArray[Any] = pc.equal(pc.bit_wise_and(sys_flags, bit), bit)
    return mask


def _join_bodies(
    bodies: pa.Array[Any] | pa.ChunkedArray[Any],
    sys_flags: pa.Array[Any] | pa.ChunkedArray[Any],
    max_body_bytes: int,
    on_error: Literal["raise", "null"],
    max_bytes: int,
) -> pa.Array[Any]:
    """Return one array of all bodies, with at most ``max_bytes``."""
    body_array, flags, rows = _compressed_rows(bodies, sys_flags)
    sizes = _sizes(body_array)
    total_bytes = int(sizes.sum() - sizes[rows].sum())
    largest: list[tuple[int, int]] = []
    plain: list[bytes | None] = []
    for row, flag in zip(rows.tolist(), flags[rows].tolist(), strict=True):
        body = _body(body_array, row, flag, max_body_bytes, on_error)
        plain.append(body)
        size_bytes = len(body or b"")
        total_bytes += size_bytes
        heappush(largest, (-size_bytes, len(plain) - 1))
        while total_bytes > max_bytes and largest:
            if on_error == "raise":
                raise CorruptBodyError(
                    f"row {row}: expected bodies of at most {max_bytes} bytes together, found more. "
                    "Decompress fewer rows at a time."
                )
            dropped_bytes, number = heappop(largest)
            plain[number] = None
            total_bytes += dropped_bytes
    return _with_plain(body_array, rows, plain)


def _compressed_rows(
    bodies: pa.Array[Any] | pa.ChunkedArray[Any], sys_flags: pa.Array[Any] | pa.ChunkedArray[Any]
) -> tuple[pa.Array[Any], Longs, Longs]:
    """Return the bodies and flags as flat arrays, and the row numbers of compressed bodies."""
    body_array, flag_array = _flatten(bodies), _flatten(sys_flags)
    if len(body_array) != len(flag_array):
        raise ValueError(f"expected a sys_flag for each of {len(body_array)} bodies, found {len(flag_array)}")
    flags = flag_array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    compressed = (flags & frame.COMPRESSED != 0) & body_array.is_valid().to_numpy(zero_copy_only=False)
    return body_array, flags, np.flatnonzero(compressed)


def _body(
    bodies: pa.Array[Any], row: int, flag: int, max_body_bytes: int, on_error: Literal["raise", "null"]
) -> bytes | None:
    """Return one decompressed body.

    :raises CorruptBodyError: the body can't be decompressed in the format of its flag.
    """
    content = bodies[row].as_buffer()
    try:
        return _decompress(content, flag, max_body_bytes)
    except ValueError as error:
        if on_error == "null":
            return None
        raise CorruptBodyError(
            f"row {row}: expected a body of {content.size} bytes compressed as sys_flag {flag} says, "
            f"found {error}. Nothing was changed. Read it as it is stored, or take null for such bodies."
        ) from error


def _with_plain(bodies: pa.Array[Any], rows: Longs, plain: list[bytes | None]) -> pa.Array[Any]:
    """Replace the bodies of these rows by decompressed ones."""
    if not len(rows):
        return bodies
    if bodies.type == pa.binary_view():
        # Arrow's kernels don't support views yet.
        return _with_plain(bodies.cast(pa.binary()), rows, plain).cast(pa.binary_view())
    replaced = np.zeros(len(bodies), np.bool_)
    replaced[rows] = True
    result: pa.Array[Any] = pc.replace_with_mask(bodies, pa.array(replaced), _binaries(plain, bodies.type))
    return result


def _slice_rows(rows: Longs, start: int, end: int) -> Longs:
    """Return the row numbers within a slice, counted from the start of the slice."""
    return rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)] - start


def _sizes(bodies: pa.Array[Any]) -> Longs:
    """Return the size of each body in bytes; 0 for a null."""
    binaries: Any = bodies.cast(pa.binary()) if bodies.type == pa.binary_view() else bodies
    return np.asarray(pc.fill_null(pc.binary_length(binaries), 0), np.int64)


def _flatten(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _binaries(values: list[bytes | None], kind: pa.DataType) -> pa.Array[Any]:
    """Build the same array as ``pa.array``, at a sixth of the cost."""
    offsets = np.zeros(len(values) + 1, np.int64 if pa.types.is_large_binary(kind) else np.int32)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    valid = pa.array([value is not None for value in values]).buffers()[1]
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(offsets.data), data])


def _decompress(content: pa.Buffer, flag: int, max_bytes: int) -> bytes:
    """Return a decompressed body.

    :raises ValueError: the body is malformed. The error's text follows "found" in a message.
    """
    kind = (flag & frame.COMPRESSION_TYPE_MASK) >> _TYPE_SHIFT
    if kind not in _DECOMPRESS:
        raise ValueError(f"compression type {kind}, which no client writes")
    if not content.size:
        # Java's decompressors return an empty body for it.
        return b""
    body = _DECOMPRESS[kind](content, max_bytes)
    if len(body) > max_bytes:
        raise ValueError(f"one that decompresses to more than {max_bytes} bytes")
    return body


def _inflate(content: pa.Buffer, max_bytes: int) -> bytes:
    stream = isal_zlib.decompressobj()
    try:
        body: bytes = stream.decompress(content, max_bytes + 1)
    except IsalError as error:  # type: ignore[misc]  # its stub has no base class
        raise ValueError(f"no zlib stream ({error})") from error
    if not stream.eof and len(body) <= max_bytes:
        raise ValueError("a zlib stream that is cut off")
    return body


def _frames(codec: Literal["lz4", "zstd"]) -> _Decompress:
    def decompress(content: pa.Buffer, max_bytes: int) -> bytes:
        try:
            with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
                parts: list[bytes] = []
                left_bytes = max_bytes + 1
                # A read allocates all the bytes that it asks for, so it asks for the likely size of the body.
                size = _FIRST_READ_BYTES + _LIKELY_RATIO * content.size
                while left_bytes > 0 and (part := stream.read(min(size, left_bytes))):
                    parts.append(part)
                    left_bytes -= len(part)
                    size *= 2
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"no whole {codec} frame ({error})") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    return decompress


_DECOMPRESS: dict[int, _Decompress] = {0: _inflate, 1: _frames("lz4"), 2: _frames("zstd"), 3: _inflate}
"""Decompressors by the number in the system flag (CompressionType)."""
