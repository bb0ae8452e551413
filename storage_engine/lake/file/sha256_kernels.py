"""SHA-256 for the kernels: OpenSSL's compiled functions if they can be found, otherwise our own kernel.

OpenSSL's one-shot functions look the algorithm up at each call, which takes longer than hashing a small
message. ``SHA256_Init``, ``_Update``, ``_Final`` and, for one block, ``_Transform`` don't. They belong to the
libcrypto of Python's ``_hashlib``. If libcrypto is linked statically, they can't be found, and our own kernel
computes the same hashes. An x86 processor with instructions for SHA-256 hashes four messages side by side in
half the time. OpenSSL has no function for this.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import io
from collections.abc import Sequence
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.exceptions import ProofError
from storage_engine.native import (
    HAS_SHA256,
    call_1,
    call_2,
    call_3,
    compress_four_sha256,
    compress_sha256,
    compress_two_sha256,
    copy_32,
    copy_bytes,
    inlined,
    kernel,
    load_be_u32,
    load_u32,
    prefetch,
    set_word,
    store_be_i32,
    store_be_i64,
    store_i32,
    store_u8,
    word,
)

DIGEST_BYTES = 32
BLOCK_BYTES = 64
_PART_BYTES = 1 << 17
"""Bytes of a file that are read and hashed at a time. Parts of four files fit into the processor's cache."""
SCRATCH_BYTES = 1024
"""Memory that one hash needs: OpenSSL's SHA256_CTX, of 112 bytes, or our own state, block and words."""

_SYMBOLS = ("SHA256_Init", "SHA256_Update", "SHA256_Final", "SHA256_Transform")
_SELF_TEST_SIZES = (0, 1, 29, 55, 56, 63, 64, 65, 119, 120, 255, 1024, 4099)
_ALL = 0xFFFFFFFF
_INIT, _UPDATE, _FINAL, _TRANSFORM, _FIRST, _CONSTANTS, _LANE_FIRST, _LANE_CONSTANTS = range(8)
"""Indexes into an engine. It has the addresses of four functions, or 0 for our own kernel; then those of our
own kernel's first state (eight words) and 64 constants; then those of the lanes' state and constants."""
_LANE_ORDER = (5, 4, 1, 0, 7, 6, 3, 2)
"""Order of a state's words for the processor's instructions."""
LANES = 4
LANE_BYTES = 256
"""Bytes of a lane's scratch memory: its state, the first block of its message, and the last one or two
blocks. Three words follow: the address of the rest of the message, the number of blocks without padding, and
the number of all blocks."""
_HEAD, _TAIL = 32, 96
_DATA, _WHOLE, _BLOCKS = 28, 29, 30
_BLOCK, _WORDS = 64, 128
"""Offsets in our own kernel's scratch memory of a block, and of the 64 words of its schedule. Before them are
eight words of state, as in SHA256_CTX."""


@functools.cache
def sha256_engine() -> npt.NDArray[np.int64]:
    """Return the engine for the kernels. Its hashes were compared with hashlib's.

    :raises ProofError: on this machine no engine gives the hashes of hashlib.
    """
    own, lanes = own_engine(), _lanes() if HAS_SHA256 else [0, 0]
    for functions in filter(None, (_openssl_functions(), [0, 0, 0, 0])):
        for choice in filter(None, (lanes, [0, 0])):
            engine = np.array([*functions, *own[_FIRST:_LANE_FIRST], *choice], np.int64)
            if is_right(engine):
                return engine
    raise ProofError(
        "SHA-256: expected the hashes of Python's hashlib, found that each compiled function gives other "
        "hashes. Nothing was proven. Remove this machine's cache of compiled kernels, and run again."
    )


def _lanes() -> list[int]:
    """Return the addresses of the first state and of the constants for the processor's instructions."""
    first, constants = _constants()
    state, small = first[list(_LANE_ORDER)].copy(), constants.astype(np.uint32)
    _kept.extend((state, small))
    return [address_of(state), address_of(small)]


_kept: list[Any] = []
"""Arrays and a library that must stay in memory, because engines contain their addresses."""


@functools.cache
def own_engine() -> npt.NDArray[np.int64]:
    """Return the engine of our own kernel alone."""
    first, constants = _constants()
    _kept.extend((first, constants))
    return np.array([0, 0, 0, 0, address_of(first), address_of(constants), 0, 0], np.int64)


def is_right(engine: npt.NDArray[np.int64]) -> bool:
    """Return whether an engine gives the hashes of hashlib, for messages of various lengths in two parts."""
    sample = np.frombuffer(bytes(range(256)) * 17, np.uint8)
    scratch, digest = np.empty(SCRATCH_BYTES, np.uint8), np.empty(DIGEST_BYTES, np.uint8)
    for size in _SELF_TEST_SIZES:
        for first in {0, size // 3, size}:
            _hash(engine, address_of(scratch), address_of(sample), first, size - first, address_of(digest))
            if digest.tobytes() != hashlib.sha256(sample[:size].tobytes()).digest():
                return False
    padded = np.frombuffer(b"abc\x80" + bytes(BLOCK_BYTES - 5) + b"\x18", np.uint8)
    _hash_blocks(engine, address_of(scratch), address_of(padded), 1, address_of(digest))
    if digest.tobytes() != hashlib.sha256(b"abc").digest():
        return False
    return engine[_LANE_FIRST] == 0 or all(
        _are_lanes_right(engine, sample, np.roll(_SELF_TEST_SIZES, by)[:LANES])
        for by in range(len(_SELF_TEST_SIZES))
    )


def _are_lanes_right(
    engine: npt.NDArray[np.int64], sample: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]
) -> bool:
    lanes, digests = np.empty(LANES * LANE_BYTES, np.uint8), np.empty(LANES * DIGEST_BYTES, np.uint8)
    data, head = address_of(sample), 29
    _hash_lanes(engine, address_of(lanes), data, head, sizes, address_of(digests))
    expected = [hashlib.sha256(sample[: head + size].tobytes()).digest() for size in sizes]
    return digests.tobytes() == b"".join(expected)


def sha256_of_files(files: Sequence[io.FileIO]) -> list[str]:
    """Return the SHA-256 of at most :data:`LANES` files, in hex.

    Several files are hashed side by side up to the end of the shortest.

    :param files: open files, each at its beginning.
    """
    engine = sha256_engine()
    if len(files) < 2 or engine[_LANE_FIRST] == 0:
        return [hashlib.file_digest(file, "sha256").hexdigest() for file in files]
    lanes = np.empty((LANES, LANE_BYTES), np.uint8)
    lanes[:, :DIGEST_BYTES] = [*ctypes.string_at(int(engine[_LANE_FIRST]), DIGEST_BYTES)]
    parts = np.empty((LANES, _PART_BYTES + 2 * BLOCK_BYTES), np.uint8)
    blocks, done = _PART_BYTES // BLOCK_BYTES, 0
    filled = [_fill(*each) for each in zip(files, parts, strict=False)]
    while min(filled) == _PART_BYTES:
        _hash_parts(engine, address_of(lanes), address_of(parts), parts.shape[1], blocks, len(files))
        done += _PART_BYTES
        filled = [_fill(*each) for each in zip(files, parts, strict=False)]
    digests = []
    for file, lane, part, rest in zip(files, lanes, parts, filled, strict=False):
        size = done + rest
        while rest == _PART_BYTES:
            _hash_parts(engine, address_of(lane), address_of(part), 0, blocks, 1)
            rest = _fill(file, part)
            size += rest
        end = BLOCK_BYTES * ((rest + 8) // BLOCK_BYTES + 1)
        part[rest:end] = 0
        part[rest] = 0x80
        part[end - 8 : end] = [*pack(">Q", 8 * size)]
        _hash_parts(engine, address_of(lane), address_of(part), 0, end // BLOCK_BYTES, 1)
        words = np.empty(8, ">u4")
        words[list(_LANE_ORDER)] = lane[:DIGEST_BYTES].view(np.uint32)
        digests.append(words.tobytes().hex())
    return digests


def _fill(file: io.FileIO, part: npt.NDArray[np.uint8]) -> int:
    """Read a file's next part, and return its size. Only at the file's end it is smaller."""
    room, done = part.data[:_PART_BYTES], 0
    while done < _PART_BYTES and (count := file.readinto(room[done:])):
        done += count
    return done


def _openssl_functions() -> list[int]:
    """Return the addresses of OpenSSL's four functions, or an empty list if they can't be found."""
    try:
        import _hashlib

        library = ctypes.CDLL(getattr(_hashlib, "__file__", None))
        functions = [getattr(library, symbol) for symbol in _SYMBOLS]
    except (ImportError, OSError, AttributeError):
        return []
    _kept.append(library)
    return [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]


def _constants() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Compute the eight words of the first state and the 64 round constants by their definition.

    Each is the first 32 bits of a root's fractional part. The words are of the square roots of the first 8
    primes, the constants of the cube roots of the first 64 primes (FIPS 180-4, 5.3.3 and 4.2.2).
    """
    primes = [n for n in range(2, 312) if all(n % divisor for divisor in range(2, n))]
    squares = [_root(prime << 64, 2) & _ALL for prime in primes[:8]]
    cubes = [_root(prime << 96, 3) & _ALL for prime in primes]
    return np.array(squares, np.uint32), np.array(cubes, np.int64)


def _root(value: int, degree: int) -> int:
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
    :param blocks: number of its blocks.
    """
    if word(engine, _LANE_FIRST) != 0:
        copy_32(scratch, word(engine, _LANE_FIRST))
        for i in range(blocks):
            compress_sha256(word(engine, _LANE_CONSTANTS), scratch, message + BLOCK_BYTES * i)
        write_lane(scratch, digest)
        return
    copy_32(scratch, word(engine, _FIRST))
    for i in range(blocks):
        if word(engine, _TRANSFORM) != 0:
            call_2(word(engine, _TRANSFORM), scratch, message + BLOCK_BYTES * i)
        else:
            _compress(word(engine, _CONSTANTS), scratch, message + BLOCK_BYTES * i)
    _write_state(scratch, digest)


@kernel
def _hash_lanes(
    engine: npt.NDArray[np.int64],
    lanes: int,
    data: int,
    head: int,
    sizes: npt.NDArray[np.int64],
    digests: int,
) -> None:
    for i in range(LANES):
        lane = lanes + LANE_BYTES * i
        copy_bytes(lane_head(lane), data, head)
        begin_lane(lane, head, data + head, sizes[i])
    hash_lanes(engine.ctypes.data, lanes, 0)
    for i in range(LANES):
        write_lane(lanes + LANE_BYTES * i, digests + DIGEST_BYTES * i)


@kernel
def _hash_parts(
    engine: npt.NDArray[np.int64], lanes: int, parts: int, step: int, blocks: int, count: int
) -> None:
    """Hash a part of each file. A lane without a file hashes whatever bytes its memory has.

    :param step: bytes from one file's part to the next file's part.
    :param blocks: number of blocks of each part.
    """
    constants = word(engine.ctypes.data, _LANE_CONSTANTS)
    for at in range(parts, parts + BLOCK_BYTES * blocks, BLOCK_BYTES):
        if count == 1:
            compress_sha256(constants, lanes, at)
        elif count == 2:
            compress_two_sha256(constants, lanes, at, lanes + LANE_BYTES, at + step)
        else:
            _compress_lanes(engine.ctypes.data, lanes, at, at + step, at + 2 * step, at + 3 * step)


@inlined
def has_lanes(engine: int) -> bool:
    """Return whether messages can be hashed side by side."""
    return word(engine, _LANE_FIRST) != 0


@inlined
def lane_head(lane: int) -> int:
    """Return the address of the beginning of a lane's message."""
    return lane + _HEAD


@inlined
def lane_tail(lane: int) -> int:
    """Return the address of a lane's memory for a message of two blocks."""
    return lane + _TAIL


@inlined
def hash_blocks_of_lanes(engine: int, lanes: int, messages: int, step: int, blocks: int) -> None:
    """Hash a short message in each lane.

    :param messages: address of the first message with its padding.
    :param step: bytes from one message to the next.
    :param blocks: number of blocks of each message.
    """
    for lane in range(LANES):
        copy_32(lanes + LANE_BYTES * lane, word(engine, _LANE_FIRST))
    for i in range(blocks):
        at = messages + BLOCK_BYTES * i
        _compress_lanes(engine, lanes, at, at + step, at + 2 * step, at + 3 * step)


@inlined
def hash_lanes(engine: int, lanes: int, ahead: int) -> None:
    """Hash the messages that were begun in all lanes, side by side up to the end of the shortest.

    :param ahead: bytes from each block to one of a later message, which is fetched into the cache meanwhile.
    """
    whole, blocks = word(lanes, _WHOLE), word(lanes, _BLOCKS)
    for lane in range(LANES):
        copy_32(lanes + LANE_BYTES * lane, word(engine, _LANE_FIRST))
        whole = min(whole, word(lanes + LANE_BYTES * lane, _WHOLE))
        blocks = min(blocks, word(lanes + LANE_BYTES * lane, _BLOCKS))
    second, third, last = lanes + LANE_BYTES, lanes + 2 * LANE_BYTES, lanes + 3 * LANE_BYTES
    for i in range(blocks):
        if i < whole:
            for lane in range(LANES):
                prefetch(word(lanes + LANE_BYTES * lane, _DATA) + BLOCK_BYTES * i + ahead)
        _compress_lanes(
            engine,
            lanes,
            _lane_block(lanes, i),
            _lane_block(second, i),
            _lane_block(third, i),
            _lane_block(last, i),
        )
    for number in range(LANES):
        lane = lanes + LANE_BYTES * number
        for i in range(blocks, word(lane, _BLOCKS)):
            compress_sha256(word(engine, _LANE_CONSTANTS), lane, _lane_block(lane, i))


@inlined
def _compress_lanes(engine: int, lanes: int, first: int, second: int, third: int, last: int) -> None:
    """Hash a block in each lane."""
    compress_four_sha256(
        word(engine, _LANE_CONSTANTS),
        lanes,
        first,
        lanes + LANE_BYTES,
        second,
        lanes + 2 * LANE_BYTES,
        third,
        lanes + 3 * LANE_BYTES,
        last,
    )


@inlined
def _blocks_of(size: int) -> int:
    return (size + 8) // BLOCK_BYTES + 1


@inlined
def begin_lane(lane: int, head: int, data: int, size: int) -> None:
    """Write a message's first block and its last one or two.

    :param head: number of bytes at :func:`lane_head`; less than a block.
    :param data: address of the message's other bytes.
    """
    whole = (head + size) // BLOCK_BYTES
    tail = lane + _TAIL
    for i in range(2 * BLOCK_BYTES // 8):
        set_word(tail, i, 0)
    copy_bytes(lane + _HEAD + head, data, min(size, BLOCK_BYTES - head))
    left = head + size - BLOCK_BYTES * whole
    copy_bytes(tail, lane + _HEAD if whole == 0 else data + size - left, left)
    store_u8(tail + left, 0x80)
    end = tail + BLOCK_BYTES * (_blocks_of(head + size) - whole)
    store_be_i64(end - 8, 8 * (head + size))
    set_word(lane, _DATA, data - head)
    set_word(lane, _WHOLE, whole)
    set_word(lane, _BLOCKS, _blocks_of(head + size))


@inlined
def _lane_block(lane: int, number: int) -> int:
    """Return the address of a block of a lane's message."""
    whole = word(lane, _WHOLE)
    if number >= whole:
        return lane + _TAIL + BLOCK_BYTES * (number - whole)
    return lane + _HEAD if number == 0 else word(lane, _DATA) + BLOCK_BYTES * number


@inlined
def write_lane(state: int, digest: int) -> None:
    """Write a lane's hash to an address."""
    store_be_i32(digest, load_u32(state + 12))
    store_be_i32(digest + 4, load_u32(state + 8))
    store_be_i32(digest + 8, load_u32(state + 28))
    store_be_i32(digest + 12, load_u32(state + 24))
    store_be_i32(digest + 16, load_u32(state + 4))
    store_be_i32(digest + 20, load_u32(state))
    store_be_i32(digest + 24, load_u32(state + 20))
    store_be_i32(digest + 28, load_u32(state + 16))


@inlined
def _write_state(scratch: int, digest: int) -> None:
    for i in range(8):
        store_be_i32(digest + 4 * i, load_u32(scratch + 4 * i))


@inlined
def sha256(
    engine: int, scratch: int, first: int, first_size: int, second: int, second_size: int, digest: int
) -> None:
    """Write the SHA-256 of two adjoined byte strings to an address.

    :param engine: address of the result of :func:`sha256_engine`.
    :param scratch: address of :data:`SCRATCH_BYTES` bytes that no other thread uses meanwhile.
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
    """Hash whole blocks, and keep the remaining bytes in the scratch memory's block.

    :param used: number of bytes in that block before.
    :return: number of bytes in that block afterwards.
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
    """Hash one block into the state (FIPS 180-4, 6.2.2)."""
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
