"""Leaves of a segment's rows, and the trees that they make: a run of rows a call.

Of a tree no more is kept than the tops of its whole subtrees: the one of 2^n leaves at level n, where bit n
of the number of leaves is set. A leaf is added as a binary counter carries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_engine.lake.file.sha256_kernels import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    LANE_BYTES,
    SCRATCH_BYTES,
    has_lanes,
    lane_head,
    sha256,
    sha256_blocks,
    sha256_two,
    sha256_two_blocks,
    write_two,
)
from storage_engine.native import copy_16, copy_32, inlined, kernel, store_be_i32, store_be_i64, store_u8

LEVELS = 48
"""Of a tree at most: so many bits has the number of its leaves, each of at least one byte."""
SALT_BYTES = 16
LEAF, NODE, SALT = 0, 1, 2
"""First bytes of what is hashed, so that none is taken for another."""

_LEAF_PREFIX = 1 + SALT_BYTES + 8 + 4
_SALT_MESSAGE = 1 + SALT_BYTES + 8
_NODE_MESSAGE = 1 + 2 * DIGEST_BYTES
_LEAF_AT = SCRATCH_BYTES
_SALT_AT = _LEAF_AT + BLOCK_BYTES
_NODE_AT = _SALT_AT + BLOCK_BYTES
_HASH_AT = _NODE_AT + 2 * BLOCK_BYTES
_OTHER_SALT_AT = _HASH_AT + 2 * DIGEST_BYTES
_LANES_AT = _OTHER_SALT_AT + BLOCK_BYTES
TREE_SCRATCH_BYTES = _LANES_AT + 2 * LANE_BYTES
"""Behind what a hash needs: a leaf's first bytes, a salt's and a node's message with its padding, two hashes;
and for two leaves side by side another salt's message, and lanes."""


@kernel
def push_leaves(
    engine: int,
    scratch: int,
    data: int,
    first_position: int,
    order: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    streams: npt.NDArray[np.int32],
    secrets: int,
    places: npt.NDArray[np.int64],
    are_salts: npt.NDArray[np.uint8],
    subtrees: int,
    counts: npt.NDArray[np.int64],
    size_bytes: npt.NDArray[np.int64],
) -> None:
    """Add a leaf for each row to the tree of its stream.

    The caller has proven that each row lies inside the bytes, and each place inside the secrets.

    :param engine: address of what ``sha256_engine`` returns.
    :param scratch: address of :data:`TREE_SCRATCH_BYTES`.
    :param data: address of the segment's bytes from ``first_position`` on.
    :param order: of the rows, by position.
    :param secrets: address of keys and salts of 16 bytes each.
    :param places: of each row's among them.
    :param are_salts: whether it is the salt itself, and no key.
    :param subtrees: address of :data:`LEVELS` hashes of each stream.
    :param counts: leaves of each stream.
    :param size_bytes: of each stream's leaves.
    """
    leaf, digest = scratch + _LEAF_AT, scratch + _HASH_AT
    salted, node = scratch + _SALT_AT, scratch + _NODE_AT
    _pad(salted, SALT, _SALT_MESSAGE, 1)
    _pad(node, NODE, _NODE_MESSAGE, 2)
    other_salted, lanes = scratch + _OTHER_SALT_AT, scratch + _LANES_AT
    _pad(other_salted, SALT, _SALT_MESSAGE, 1)
    paired = len(order) - len(order) % 2 if has_lanes(engine) else 0
    for i in range(0, paired, 2):
        row, other = order[i], order[i + 1]
        _ask_salt(salted, secrets + SALT_BYTES * places[row], positions[row])
        _ask_salt(other_salted, secrets + SALT_BYTES * places[other], positions[other])
        sha256_two_blocks(engine, lanes, salted, other_salted)
        write_two(lanes, digest, digest + DIGEST_BYTES)
        head, other_head = lane_head(lanes, 0), lane_head(lanes, 1)
        salt = secrets + SALT_BYTES * places[row] if are_salts[row] else digest
        _begin_leaf(head, salt, positions[row], sizes[row])
        salt = secrets + SALT_BYTES * places[other] if are_salts[other] else digest + DIGEST_BYTES
        _begin_leaf(other_head, salt, positions[other], sizes[other])
        first, second = data + positions[row] - first_position, data + positions[other] - first_position
        sha256_two(engine, lanes, _LEAF_PREFIX, first, sizes[row], second, sizes[other])
        write_two(lanes, digest, digest + DIGEST_BYTES)
        _push(engine, scratch, subtrees, counts, size_bytes, streams[row], sizes[row])
        copy_32(digest, digest + DIGEST_BYTES)
        _push(engine, scratch, subtrees, counts, size_bytes, streams[other], sizes[other])
    for i in range(paired, len(order)):
        row = order[i]
        secret = secrets + SALT_BYTES * places[row]
        if not are_salts[row]:
            _ask_salt(salted, secret, positions[row])
            sha256_blocks(engine, scratch, salted, 1, digest)
            secret = digest
        _begin_leaf(leaf, secret, positions[row], sizes[row])
        at = data + positions[row] - first_position
        sha256(engine, scratch, leaf, _LEAF_PREFIX, at, sizes[row], digest)
        _push(engine, scratch, subtrees, counts, size_bytes, streams[row], sizes[row])


@inlined
def _ask_salt(message: int, key: int, position: int) -> None:
    copy_16(message + 1, key)
    store_be_i64(message + 1 + SALT_BYTES, position)


@inlined
def _begin_leaf(message: int, salt: int, position: int, size: int) -> None:
    store_u8(message, LEAF)
    copy_16(message + 1, salt)
    store_be_i64(message + 1 + SALT_BYTES, position)
    store_be_i32(message + 1 + SALT_BYTES + 8, size)


@inlined
def _pad(message: int, first: int, size: int, blocks: int) -> None:
    """Write a message's first byte and its padding (FIPS 180-4, 5.1.1)."""
    store_u8(message, first)
    store_u8(message + size, 0x80)
    end = message + BLOCK_BYTES * blocks
    for at in range(message + size + 1, end - 8):
        store_u8(at, 0)
    store_be_i64(end - 8, 8 * size)


@inlined
def _push(
    engine: int,
    scratch: int,
    subtrees: int,
    counts: npt.NDArray[np.int64],
    size_bytes: npt.NDArray[np.int64],
    stream: int,
    size: int,
) -> None:
    """Add the leaf that lies in the scratch to its stream's tree."""
    node, digest = scratch + _NODE_AT, scratch + _HASH_AT
    tops, count, level = subtrees + LEVELS * DIGEST_BYTES * stream, counts[stream], 0
    counts[stream] = count + 1
    size_bytes[stream] += size
    while count & 1:
        copy_32(node + 1, tops + DIGEST_BYTES * level)
        copy_32(node + 1 + DIGEST_BYTES, digest)
        sha256_blocks(engine, scratch, node, 2, digest)
        count >>= 1
        level += 1
    copy_32(tops + DIGEST_BYTES * level, digest)
