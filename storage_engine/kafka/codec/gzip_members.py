"""Members of gzip as Java reads them (GZIPInputStream), with the buffer that Kafka gives it."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from storage_engine.kafka.codec.expansion import ExpansionError

_BUFFER_BYTES: Final = 8 << 10
"""What is read at a time (GzipCompression#wrapForInput)."""
_LEAST_BEHIND: Final = 26
"""Another member is looked for where more bytes of the buffer are left, with the trailer, or any behind it
(GZIPInputStream#readTrailer, ByteBufferInputStream#available).
"""
_START: Final = b"\x1f\x8b\x08"
_START_BYTES: Final = 10
_HEADER_SUM, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16
_TRAILER = struct.Struct("<II")
_UINT16 = struct.Struct("<H")


def expand_members(data: memoryview, out: memoryview) -> int:
    """Decompress one member after the other. What follows the last one is passed over, as Java does.

    :return: how long all is, or more than there is room for.
    :raises ExpansionError: Kafka can't read it.
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
            raise ExpansionError("a gzip stream's CRC and size", f"{len(data) - at} bytes")
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
    """Return where a member's compressed bytes begin.

    :raises ExpansionError: there is no whole header.
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
