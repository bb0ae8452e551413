"""Compiled decompression of many payloads by a library's own function, one behind the other."""

from __future__ import annotations

from storage_engine.kafka.batch_kernels import Ints64
from storage_engine.native import call_zstd, kernel


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
        size = call_zstd(function, context, out + used, most, data + begins[i], ends[i] - begins[i])
        # An error is a negative number.
        if size < 0 or size > most:
            break
        sizes[i] = size
        used += size
        i += 1
    return i
