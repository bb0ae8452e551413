"""SHA-256 for the kernels: OpenSSL's compiled functions where they can be reached, else a kernel of our own.

OpenSSL's one-shot functions look the algorithm up at each call, which takes longer than hashing a small
message. ``SHA256_Init``, ``_Update``, ``_Final`` and, of one block, ``_Transform`` don't. They are of the
libcrypto behind Python's ``_hashlib``. Where that is linked statically, and they can't be found, a kernel of
our own gives the same.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.native import (
    call_1,
    call_2,
    call_3,
    copy_32,
    copy_bytes,
    inlined,
    kernel,
    load_be_u32,
    load_u32,
    set_word,
    store_be_i32,
    store_be_i64,
    store_i32,
    store_u8,
    word,
)

DIGEST_BYTES = 32
BLOCK_BYTES = 64
SCRATCH_BYTES = 1024
"""What one hash needs: OpenSSL's SHA256_CTX, of 112 bytes, or our own state, block and words."""

_SYMBOLS = ("SHA256_Init", "SHA256_Update", "SHA256_Final", "SHA256_Transform")
_SELF_TEST_SIZES = (0, 1, 29, 55, 56, 63, 64, 65, 119, 120, 255, 1024, 4099)
_ALL = 0xFFFFFFFF
_INIT, _UPDATE, _FINAL, _TRANSFORM, _FIRST, _CONSTANTS = range(6)
"""Places in an engine: addresses of four functions (0: our own kernel), of the first state's eight words, and
of the 64 constants of our own kernel."""
_BLOCK, _WORDS = 64, 128
"""Of our own kernel's scratch: eight words of state as in SHA256_CTX, a block, 64 words of its schedule."""


@functools.cache
def sha256_engine() -> npt.NDArray[np.int64]:
    """Return what the kernels need to hash, compared with hashlib on this machine; it is never freed."""
    functions = _openssl_functions()
    if functions:
        theirs = np.array([*functions, *own_engine()[_FIRST:]], np.int64)
        if is_right(theirs):
            return theirs
    return own_engine()


_kept: list[Any] = []
"""Arrays and a library whose addresses stand in an engine."""


@functools.cache
def own_engine() -> npt.NDArray[np.int64]:
    """Return the engine of our own kernel alone."""
    first, constants = _constants()
    _kept.extend((first, constants))
    return np.array([0, 0, 0, 0, address_of(first), address_of(constants)], np.int64)


def is_right(engine: npt.NDArray[np.int64]) -> bool:
    """Return whether an engine gives what hashlib gives, of messages of all kinds of lengths in two parts."""
    sample = np.frombuffer(bytes(range(256)) * 17, np.uint8)
    scratch, digest = np.empty(SCRATCH_BYTES, np.uint8), np.empty(DIGEST_BYTES, np.uint8)
    for size in _SELF_TEST_SIZES:
        for first in {0, size // 3, size}:
            _hash(engine, address_of(scratch), address_of(sample), first, size - first, address_of(digest))
            if digest.tobytes() != hashlib.sha256(sample[:size].tobytes()).digest():
                return False
    padded = np.frombuffer(b"abc\x80" + bytes(BLOCK_BYTES - 5) + b"\x18", np.uint8)
    _hash_blocks(engine, address_of(scratch), address_of(padded), 1, address_of(digest))
    return digest.tobytes() == hashlib.sha256(b"abc").digest()


def _openssl_functions() -> list[int]:
    """Return the addresses of OpenSSL's three functions; none where they can't be found."""
    try:
        import _hashlib

        library = ctypes.CDLL(getattr(_hashlib, "__file__", None))
        functions = [getattr(library, symbol) for symbol in _SYMBOLS]
    except (ImportError, OSError, AttributeError):
        return []
    _kept.append(library)
    return [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]


def _constants() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return eight words of the first state and 64 round constants, by their definition.

    They are the first 32 bits of the fractional parts of the square roots of the first 8 primes, and of the
    cube roots of the first 64 (FIPS 180-4, 5.3.3 and 4.2.2).
    """
    primes = [n for n in range(2, 312) if all(n % divisor for divisor in range(2, n))]
    squares = [_root(prime << 64, 2) & _ALL for prime in primes[:8]]
    cubes = [_root(prime << 96, 3) & _ALL for prime in primes]
    return np.array(squares, np.uint32), np.array(cubes, np.int64)


def _root(value: int, degree: int) -> int:
    """Return the integer part of a root of a whole number."""
    low, high = 0, 1 << 64
    while low < high:
        middle = (low + high + 1) >> 1
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low


@kernel
def _hash(
    engine: npt.NDArray[np.int64], scratch: int, data: int, first_size: int, second_size: int, digest: int
) -> None:
    sha256(engine.ctypes.data, scratch, data, first_size, data + first_size, second_size, digest)


@kernel
def _hash_blocks(engine: npt.NDArray[np.int64], scratch: int, message: int, blocks: int, digest: int) -> None:
    sha256_blocks(engine.ctypes.data, scratch, message, blocks, digest)


@inlined
def sha256_blocks(engine: int, scratch: int, message: int, blocks: int, digest: int) -> None:
    """Write the SHA-256 of a short message to an address.

    :param message: address of the message with its padding.
    :param blocks: that it has.
    """
    copy_32(scratch, word(engine, _FIRST))
    for i in range(blocks):
        if word(engine, _TRANSFORM) != 0:
            call_2(word(engine, _TRANSFORM), scratch, message + BLOCK_BYTES * i)
        else:
            _compress(word(engine, _CONSTANTS), scratch, message + BLOCK_BYTES * i)
    _write_state(scratch, digest)


@inlined
def _write_state(scratch: int, digest: int) -> None:
    for i in range(8):
        store_be_i32(digest + 4 * i, load_u32(scratch + 4 * i))


@inlined
def sha256(
    engine: int, scratch: int, first: int, first_size: int, second: int, second_size: int, digest: int
) -> None:
    """Write the SHA-256 of two runs of bytes, one behind the other, to an address.

    :param engine: address of what :func:`sha256_engine` returns.
    :param scratch: address of :data:`SCRATCH_BYTES` that nobody else uses meanwhile.
    """
    if word(engine, _INIT) != 0:
        call_1(word(engine, _INIT), scratch)
        call_3(word(engine, _UPDATE), scratch, first, first_size)
        if second_size > 0:
            call_3(word(engine, _UPDATE), scratch, second, second_size)
        call_2(word(engine, _FINAL), digest, scratch)
    else:
        copy_32(scratch, word(engine, _FIRST))
        _own_sha256(word(engine, _CONSTANTS), scratch, first, first_size, second, second_size, digest)


@inlined
def _own_sha256(
    constants: int, scratch: int, first: int, first_size: int, second: int, second_size: int, digest: int
) -> None:
    block = scratch + _BLOCK
    used = _take(constants, scratch, 0, first, first_size)
    used = _take(constants, scratch, used, second, second_size)
    store_u8(block + used, 0x80)
    used += 1
    if used > BLOCK_BYTES - 8:
        for i in range(used, BLOCK_BYTES):
            store_u8(block + i, 0)
        _compress(constants, scratch, block)
        used = 0
    for i in range(used, BLOCK_BYTES - 8):
        store_u8(block + i, 0)
    store_be_i64(block + BLOCK_BYTES - 8, 8 * (first_size + second_size))
    _compress(constants, scratch, block)
    _write_state(scratch, digest)


@inlined
def _take(constants: int, scratch: int, used: int, data: int, size: int) -> int:
    """Hash whole blocks, and keep what is left over.

    :param used: bytes in the block by now.
    :return: bytes in the block now.
    """
    at, end = data, data + size
    while at < end:
        if used == 0 and end - at >= BLOCK_BYTES:
            _compress(constants, scratch, at)
            at += BLOCK_BYTES
            continue
        count = min(BLOCK_BYTES - used, end - at)
        copy_bytes(scratch + _BLOCK + used, at, count)
        used, at = used + count, at + count
        if used == BLOCK_BYTES:
            _compress(constants, scratch, scratch + _BLOCK)
            used = 0
    return used


@inlined
def _rotated(value: int, bits: int) -> int:
    return (value >> bits | value << (32 - bits)) & _ALL


@inlined
def _compress(constants: int, scratch: int, block: int) -> None:
    """FIPS 180-4, 6.2.2."""
    words = scratch + _WORDS
    for t in range(16):
        set_word(words, t, load_be_u32(block + 4 * t))
    for t in range(16, 64):
        x, y = word(words, t - 15), word(words, t - 2)
        low = _rotated(x, 7) ^ _rotated(x, 18) ^ x >> 3
        high = _rotated(y, 17) ^ _rotated(y, 19) ^ y >> 10
        set_word(words, t, (word(words, t - 16) + low + word(words, t - 7) + high) & _ALL)
    a, b, c, d = _state(scratch, 0), _state(scratch, 1), _state(scratch, 2), _state(scratch, 3)
    e, f, g, h = _state(scratch, 4), _state(scratch, 5), _state(scratch, 6), _state(scratch, 7)
    for t in range(64):
        mixed = _rotated(e, 6) ^ _rotated(e, 11) ^ _rotated(e, 25)
        added = h + mixed + (e & f ^ ~e & g) + word(constants, t) + word(words, t)
        other = (_rotated(a, 2) ^ _rotated(a, 13) ^ _rotated(a, 22)) + (a & b ^ a & c ^ b & c)
        h, g, f, e = g, f, e, (d + added) & _ALL
        d, c, b, a = c, b, a, (added + other) & _ALL
    _add(scratch, 0, a)
    _add(scratch, 1, b)
    _add(scratch, 2, c)
    _add(scratch, 3, d)
    _add(scratch, 4, e)
    _add(scratch, 5, f)
    _add(scratch, 6, g)
    _add(scratch, 7, h)


@inlined
def _state(scratch: int, number: int) -> int:
    return load_u32(scratch + 4 * number)


@inlined
def _add(scratch: int, number: int, value: int) -> None:
    store_i32(scratch + 4 * number, _state(scratch, number) + value)
