"""CRC-32 (zlib's polynomial) for the kernels: a compiled function where there is one.

The isal wheel's shared object exports Intel's ``crc32_gzip_refl``, many times as fast as zlib's. On
a platform where it can't be found the kernels use their own table-driven CRC; the result is the same.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding as llvm  # type: ignore[import-untyped]

from storage_engine.rocketmq.native import call_crc, inlined, load_u8, load_u32

_SYMBOL = "crc32_gzip_refl"
_WIDE_SYMBOL = "crc32_gzip_refl_avx2"
"""Twice as fast, but isal's own dispatch passes it over on processors without AVX-512."""
_WIDE_FEATURES = ("avx2", "vpclmulqdq")
_SELF_TEST_SIZES = (0, 1, 7, 16, 63, 64, 255, 1024, 4099)


@dataclass(frozen=True, slots=True)
class CrcEngine:
    """What the kernels need to compute a CRC.

    :param function: address of a compiled function; 0: use the table.
    :param table: address of eight tables of 256, for eight bytes a step; they are never freed.
    """

    function: int
    table: int


@functools.cache
def crc_engine() -> CrcEngine:
    """The fastest CRC-32 that passes a comparison with zlib's on this machine."""
    return CrcEngine(_compiled_function(), int(slicing_table().ctypes.data))


@functools.cache
def slicing_table() -> npt.NDArray[np.uint32]:
    """Tables for slicing by eight: entry [k][b] is the CRC of byte b followed by k zero bytes."""
    table = np.zeros((8, 256), np.uint32)
    value = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = np.where(value & 1, (value >> 1) ^ np.uint32(0xEDB88320), value >> 1).astype(np.uint32)
    table[0] = value
    for k in range(1, 8):
        table[k] = (table[k - 1] >> 8) ^ table[0][table[k - 1] & 0xFF]
    return table


def _compiled_function() -> int:
    try:
        import isal.isal_zlib

        library = ctypes.CDLL(isal.isal_zlib.__file__)
    except (ImportError, OSError):
        return 0
    features = llvm.get_host_cpu_features()
    wide = all(features.get(name, False) for name in _WIDE_FEATURES)
    for symbol in (_WIDE_SYMBOL, _SYMBOL) if wide else (_SYMBOL,):
        function = getattr(library, symbol, None)
        if function is not None and _agrees_with_zlib(function):
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _agrees_with_zlib(function: Any) -> bool:
    function.restype = ctypes.c_uint32
    function.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64]
    sample = bytes(range(256)) * 17
    return all(function(0, sample[:size], size) == zlib.crc32(sample[:size]) for size in _SELF_TEST_SIZES)


@inlined
def _entry(table: int, zeros: int, byte: int) -> int:
    return load_u32(table + 4 * (256 * zeros + byte))


@inlined
def crc32(function: int, table: int, address: int, size: int) -> int:
    """CRC-32 of ``size`` bytes at ``address``, by the compiled function or by the table."""
    if function != 0:
        result: int = call_crc(function, address, size)
        return result
    crc = 0xFFFFFFFF
    at = address
    end = address + size
    while end - at >= 8:
        low = load_u8(at) | load_u8(at + 1) << 8 | load_u8(at + 2) << 16 | load_u8(at + 3) << 24
        low ^= crc
        crc = (
            _entry(table, 7, low & 0xFF)
            ^ _entry(table, 6, low >> 8 & 0xFF)
            ^ _entry(table, 5, low >> 16 & 0xFF)
            ^ _entry(table, 4, low >> 24)
            ^ _entry(table, 3, load_u8(at + 4))
            ^ _entry(table, 2, load_u8(at + 5))
            ^ _entry(table, 1, load_u8(at + 6))
            ^ _entry(table, 0, load_u8(at + 7))
        )
        at += 8
    while at < end:
        crc = crc >> 8 ^ _entry(table, 0, (crc ^ load_u8(at)) & 0xFF)
        at += 1
    return crc ^ 0xFFFFFFFF
