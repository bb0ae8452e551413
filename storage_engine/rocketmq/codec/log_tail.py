"""Where a segment's messages end, found from its tail: for who only looks. Deletions walk every frame.

A file is made with zeros and written from its beginning on, so that a bisection finds about where it ends.
The last message before that is found by its magic and by the offset that each one has of itself. From there
on frames are followed by their sizes. Checksums are not looked at, nor anything before that message, and
a torn message counts as whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from storage_engine.rocketmq.codec import frame

_BLOCK: Final = 4096
_WINDOWS_BYTES: Final = (1 << 16, 1 << 20, 1 << 24)
"""How far back it is looked for a message's beginning; a broker takes none above 4 MiB by default."""
_MAGICS: Final = tuple(struct.pack(">I", magic) for magic in (frame.MAGIC_V1, frame.MAGIC_V2))
_MESSAGES: Final = frozenset({frame.MAGIC_V1, frame.MAGIC_V2})
_SIZE_AND_MAGIC: Final = struct.Struct(">iI")
_OFFSET: Final = struct.Struct(">q")


def near_logical_end(data: memoryview, base_offset: int) -> int:
    """Return the position at which a segment's frames end, by its tail; 0 where no frame begins it.

    :param data: the whole segment file.
    :param base_offset: physical offset of its first byte.
    """
    if not _frame_bytes(data, 0, base_offset):
        return 0
    low, high = 0, -(-len(data) // _BLOCK)
    while low < high:
        middle = (low + high) // 2
        if any(data[middle * _BLOCK : (middle + 1) * _BLOCK]):
            low = middle + 1
        else:
            high = middle
    at = _last_message(data, base_offset, min(low * _BLOCK, len(data)))
    while size := _frame_bytes(data, at, base_offset):
        at += size
    return at


def last_message(data: memoryview, base_offset: int) -> bytes:
    """Return the last message of a full segment; empty where none is found near its end.

    :param data: the whole segment file.
    :param base_offset: physical offset of its first byte.
    """
    at = _last_message(data, base_offset, len(data))
    return bytes(data[at : at + _frame_bytes(data, at, base_offset)]) if at else b""


def _last_message(data: memoryview, base_offset: int, end: int) -> int:
    """Return where the last message begins that begins before a position; 0: none is found near it."""
    starts = message_starts(lambda start, stop: bytes(data[start:stop]), end)
    return next((at for at in starts if _frame_bytes(data, at, base_offset)), 0)


def message_starts(read: Callable[[int, int], bytes], end: int) -> Iterator[int]:
    """Yield the positions at which a message may begin, from a position back; the last one comes first.

    A magic in a body counts, too: it is followed by the offset of its place only by a rare chance.

    :param read: the segment's bytes from one position up to another.
    """
    for window in _WINDOWS_BYTES:
        start = max(0, end - window)
        block = read(start, end)
        at = len(block)
        while (at := max(block.rfind(magic, 0, at) for magic in _MAGICS)) >= 0:
            yield start + at - frame.MAGIC_AT
        if start == 0:
            return


def _frame_bytes(data: memoryview, at: int, base_offset: int) -> int:
    """Return the size of the frame at a position; 0: none begins there."""
    if at < 0 or at + frame.BLANK_HEADER_BYTES > len(data):
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if magic == frame.MAGIC_BLANK:
        return len(data) - at if size == len(data) - at else 0
    if magic not in _MESSAGES or not frame.MIN_MESSAGE_BYTES <= size <= len(data) - at:
        return 0
    (offset,) = _OFFSET.unpack_from(data, at + frame.PHYSICAL_OFFSET_AT)
    return size if offset == base_offset + at else 0
