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

from storage_engine.rocketmq.native import call_crc, inlined, int64, load_le_u64, load_u8

_SYMBOL = "crc32_gzip_refl"
_WIDE_SYMBOL = "crc32_gzip_refl_avx2"
"""Twice as fast, but isal's own dispatch passes it over on processors without AVX-512."""
_WIDE_FEATURES = ("avx2", "vpclmulqdq")
_SELF_TEST_SIZES = (0, 1, 7, 16, 63, 64, 255, 1024, 4099)


@dataclass(frozen=True, slots=True)
class CrcEngine:
    """What the kernels need to compute a CRC.

    :param function: address of a compiled function; 0: use the table.
    :param table: eight tables of 256, for eight bytes a step.
    """

    function: int
    table: npt.NDArray[np.uint32]


@functools.cache
def crc_engine() -> CrcEngine:
    """The fastest CRC-32 that passes a comparison with zlib's on this machine."""
    return CrcEngine(_compiled_function(), slicing_table())


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
def crc32(function: int, table: npt.NDArray[np.uint32], address: int, size: int) -> int:
    """CRC-32 of ``size`` bytes at ``address``, by the compiled function or by the table."""
    if function != 0:
        result: int = call_crc(function, address, size)
        return result
    crc = np.uint64(0xFFFFFFFF)
    low = np.uint64(0xFF)
    at = address
    end = address + size
    while end - at >= 8:
        word = load_le_u64(at) ^ crc
        crc = np.uint64(
            table[7, word & low]
            ^ table[6, (word >> np.uint64(8)) & low]
            ^ table[5, (word >> np.uint64(16)) & low]
            ^ table[4, (word >> np.uint64(24)) & low]
            ^ table[3, (word >> np.uint64(32)) & low]
            ^ table[2, (word >> np.uint64(40)) & low]
            ^ table[1, (word >> np.uint64(48)) & low]
            ^ table[0, word >> np.uint64(56)]
        )
        at += 8
    while at < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(table[0, (crc ^ np.uint64(load_u8(at))) & low])
        at += 1
    return int64(crc ^ np.uint64(0xFFFFFFFF))
