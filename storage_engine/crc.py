"""CRC-32 (zlib's polynomial) and CRC-32C (Castagnoli's) for the kernels, by compiled functions if possible.

The isal wheel's shared object exports Intel's ``crc32_gzip_refl``, many times as fast as zlib's, and
``crc32_iscsi``. On a platform without them the kernels use a table. The result is the same.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding as llvm  # type: ignore[import-untyped]

from storage_engine.native import call_crc, call_crc32c, inlined, load_u8, load_u32

_POLYNOMIAL, _POLYNOMIAL_C = 0xEDB88320, 0x82F63B78
_ALL = 0xFFFFFFFF
_SYMBOL_C = "crc32_iscsi"
_ARGUMENTS_C = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32]
_SYMBOL = "crc32_gzip_refl"
_WIDE_SYMBOL = "crc32_gzip_refl_avx2"
"""This function is twice as fast, but isal's own dispatch doesn't choose it on processors without AVX-512."""
_WIDE_FEATURES = ("avx2", "vpclmulqdq")
_SELF_TEST_SIZES = (0, 1, 7, 16, 63, 64, 255, 1024, 4099)


@dataclass(frozen=True, slots=True)
class CrcEngine:
    """Data that the kernels need to compute a CRC.

    :param function: address of a compiled function; 0 if there is none, so that the table is used.
    :param table: address of eight tables of 256 values, for eight bytes per step. They are never freed.
    """

    function: int
    table: int


@functools.cache
def crc_engine() -> CrcEngine:
    """Return the fastest CRC-32 on this machine that agrees with zlib's."""
    features = llvm.get_host_cpu_features()
    wide = all(features.get(name, False) for name in _WIDE_FEATURES)
    symbols = (_WIDE_SYMBOL, _SYMBOL) if wide else (_SYMBOL,)
    arguments = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64]
    function = _compiled_function(symbols, arguments, lambda call, data: call(0, data, len(data)), zlib.crc32)
    return CrcEngine(function, int(slicing_table(_POLYNOMIAL).ctypes.data))


@functools.cache
def crc32c_engine() -> CrcEngine:
    """Return the fastest CRC-32C on this machine that agrees with the table's."""
    function = _compiled_function(
        (_SYMBOL_C,), _ARGUMENTS_C, lambda call, data: call(data, len(data), _ALL) ^ _ALL, _crc32c_by_bytes
    )
    return CrcEngine(function, int(slicing_table(_POLYNOMIAL_C).ctypes.data))


@functools.cache
def slicing_table(polynomial: int) -> npt.NDArray[np.uint32]:
    """Return tables for slicing by eight: entry [k][b] is the CRC of byte b followed by k zero bytes."""
    table = np.zeros((8, 256), np.uint32)
    value = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = np.where(value & 1, (value >> 1) ^ np.uint32(polynomial), value >> 1).astype(np.uint32)
    table[0] = value
    for k in range(1, 8):
        table[k] = (table[k - 1] >> 8) ^ table[0][table[k - 1] & 0xFF]
    return table


def crc32c_of(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes, for callers outside of kernels. Other threads run meanwhile."""
    function = _crc32c_function()
    if function is None:
        return _crc32c_by_bytes(bytes(data))
    return int(function(_address_of(data), len(data), _ALL)) ^ _ALL


def _address_of(data: bytes | memoryview) -> int:
    if isinstance(data, memoryview) and not data.readonly and len(data):
        # NumPy takes three times as long: half of the time of the CRC of a block that is sent.
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    return int(np.frombuffer(data, np.uint8).ctypes.data) if len(data) else 0


@functools.cache
def _crc32c_function() -> Callable[[int, int, int], int] | None:
    address = crc32c_engine().function
    if not address:
        return None
    return ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)(address)


def _crc32c_by_bytes(data: bytes) -> int:
    table, crc = _bytes_table(), _ALL
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ _ALL


@functools.cache
def _bytes_table() -> list[int]:
    return [int(entry) for entry in slicing_table(_POLYNOMIAL_C)[0]]


def _compiled_function(
    symbols: tuple[str, ...],
    arguments: list[Any],
    called: Callable[[Any, bytes], int],
    expected: Callable[[bytes], int],
) -> int:
    """Return the address of the first function with the expected result, or 0 if there is none."""
    try:
        import isal.isal_zlib

        library = ctypes.CDLL(isal.isal_zlib.__file__)
    except (ImportError, OSError):
        return 0
    sample = bytes(range(256)) * 17
    for symbol in symbols:
        function = getattr(library, symbol, None)
        if function is None:
            continue
        function.restype, function.argtypes = ctypes.c_uint32, arguments
        if all(called(function, sample[:size]) == expected(sample[:size]) for size in _SELF_TEST_SIZES):
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


@inlined
def _entry(table: int, zeros: int, byte: int) -> int:
    return load_u32(table + 4 * (256 * zeros + byte))


@inlined
def _by_table(table: int, address: int, size: int) -> int:
    crc = _ALL
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
    return crc ^ _ALL


@inlined
def crc32(function: int, table: int, address: int, size: int) -> int:
    """Return the CRC-32 of ``size`` bytes at ``address``, by the compiled function or by the table."""
    if function != 0:
        return call_crc(function, address, size)
    return _by_table(table, address, size)


@inlined
def crc32c(function: int, table: int, address: int, size: int) -> int:
    """Return the CRC-32C of ``size`` bytes at ``address``, by the compiled function or by the table."""
    if function != 0:
        return call_crc32c(function, address, size) ^ _ALL
    return _by_table(table, address, size)
