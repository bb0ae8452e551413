"""Compiled decompression of many payloads by a library's own function, one behind the other."""

from __future__ import annotations

from typing import Final

from storage_engine.kafka.codec.batch_kernels import Ints64
from storage_engine.native import call_zstd, inlined, kernel, load_u8, load_u32

_MAGIC: Final = 0xFD2FB528
_SKIPPED_MAGIC: Final = 0x184D2A50
_SKIPPED_MASK: Final = 0xFFFFFFF0
_SINGLE_SEGMENT: Final = 0x20
_CHECKSUM: Final = 0x04
_ONE_BYTE_BLOCK: Final = 1
_SMALLEST_WINDOW: Final = 7 << 3
"""128 KiB: a stream refuses blocks that are larger than a smaller one."""
_LARGEST_WINDOW: Final = 17 << 3
"""128 MiB: no stream reads a larger one unless it is told to (ZSTD_WINDOWLOG_LIMIT_DEFAULT)."""


@inlined
def has_unusual_window(at: int, size: int) -> bool:
    """Return whether a stream may refuse one of the frames at address ``at`` for its window (RFC 8878)."""
    end = at + size
    while at + 8 <= end:
        magic = load_u32(at)
        if magic & _SKIPPED_MASK == _SKIPPED_MAGIC:
            at += 8 + load_u32(at + 4)
            continue
        if magic != _MAGIC:
            break
        flags = load_u8(at + 4)
        single = flags & _SINGLE_SEGMENT != 0
        window = load_u8(at + 5)
        if not single and (window < _SMALLEST_WINDOW or window > _LARGEST_WINDOW):
            return True
        # Behind the flags: window, dictionary (0, 1, 2 or 4 bytes), and size of the content.
        at += 5 + (0 if single else 1) + (1 << (flags & 3) >> 1)
        at += (1 if single else 0) if flags < 0x40 else 1 << (flags >> 6)
        is_last = False
        while not is_last and at + 3 <= end:
            block = load_u8(at) | load_u8(at + 1) << 8 | load_u8(at + 2) << 16
            is_last = block & 1 != 0
            at += 3 + (1 if (block >> 1) & 3 == _ONE_BYTE_BLOCK else block >> 3)
        at += 4 if flags & _CHECKSUM != 0 else 0
    return False


@kernel
def expand_frames(
    function: int,
    context: int,
    data: int,
    begins: Ints64,
    ends: Ints64,
    out: int,
    used: int,
    most: int,
    stop: int,
    sizes: Ints64,
) -> int:
    """Decompress payloads from ``used`` on, until more than ``stop`` is used.

    :param function: address of ``ZSTD_decompressDCtx``.
    :param context: address of what it works with.
    :param data: address that ``begins`` and ``ends`` count from.
    :param out: address that ``used`` and ``stop`` count from.
    :param most: bytes that one may expand to.
    :param sizes: gets how long each one is.
    :return: how many were decompressed whole.
    """
    i = 0
    while i < len(begins) and used <= stop:
        if has_unusual_window(data + begins[i], ends[i] - begins[i]):
            break
        size = call_zstd(function, context, out + used, most, data + begins[i], ends[i] - begins[i])
        # An error is a negative number.
        if size < 0 or size > most:
            break
        sizes[i] = size
        used += size
        i += 1
    return i
