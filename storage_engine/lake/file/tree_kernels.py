"""Compiled code that adds leaves for some of a segment's rows to its trees.

Only the roots of a tree's complete subtrees are kept. If bit n of the number of leaves is set, level n has
the root of a subtree with 2^n leaves. New leaves are carried from level to level, as in a binary counter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_engine.lake.file.sha256_kernels import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    LANE_BYTES,
    LANES,
    SCRATCH_BYTES,
    begin_lane,
    has_lanes,
    hash_blocks_of_lanes,
    hash_lanes,
    lane_head,
    lane_tail,
    sha256,
    sha256_blocks,
    write_lane,
)
from storage_engine.native import copy_16, copy_32, inlined, kernel, store_be_i32, store_be_i64, store_u8

LEVELS = 48
"""Most levels of a tree: a segment has fewer than 2^48 leaves, because a leaf has at least one byte."""
SALT_BYTES = 16
LEAF, NODE, SALT = 0, 1, 2
"""The first byte of each hashed message. It distinguishes leaves, nodes and salts."""

_LEAF_PREFIX = 1 + SALT_BYTES + 8 + 4
_SALT_MESSAGE = 1 + SALT_BYTES + 8
_NODE_MESSAGE = 1 + 2 * DIGEST_BYTES
_LEAF_AT = SCRATCH_BYTES
_SALTS_AT = _LEAF_AT + BLOCK_BYTES
_NODE_AT = _SALTS_AT + LANES * BLOCK_BYTES
_HASH_AT = _NODE_AT + 2 * BLOCK_BYTES
_LANES_AT = _HASH_AT + DIGEST_BYTES
TREE_SCRATCH_BYTES = _LANES_AT + LANES * LANE_BYTES
"""Size of the scratch memory. In this order it has room for hashing, a leaf's first bytes, padded messages of
salts, a padded message of a node, a hash, and the lanes. The lanes hash leaves and nodes side by side."""


@kernel
def push_leaves(
    engine: int,
    scratch: int,
    data: int,
    first_position: int,
    order: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    secrets: int,
    places: npt.NDArray[np.int64],
    are_salts: npt.NDArray[np.uint8],
    hashes: int,
    subtrees: int,
    counts: npt.NDArray[np.int64],
) -> None:
    """Add a leaf for each row to the tree of its stream.

    The caller must have checked that each row lies inside the bytes, and each place inside the secrets.

    :param engine: address of the result of ``sha256_engine``.
    :param scratch: address of :data:`TREE_SCRATCH_BYTES` bytes.
    :param data: address of the segment's bytes from ``first_position`` on.
    :param order: indexes of the rows, sorted by position.
    :param slots: for each entry of ``order``, the index of its leaf among the hashes. A stream has one free
        slot, and then its leaves by position.
    :param lengths: number of each stream's slots, without the free one.
    :param secrets: address of keys and salts of 16 bytes each.
    :param places: index of each row's key or salt in ``secrets``.
    :param are_salts: 1 for each row whose secret is its salt, 0 if the secret is a key.
    :param hashes: address of memory for a hash in each slot.
    :param subtrees: address of :data:`LEVELS` hashes of each stream.
    :param counts: number of leaves of each stream so far; it is raised.
    """
    leaf, digest, salts = scratch + _LEAF_AT, scratch + _HASH_AT, scratch + _SALTS_AT
    node, lanes = scratch + _NODE_AT, scratch + _LANES_AT
    for i in range(LANES):
        _pad(salts + BLOCK_BYTES * i, SALT, _SALT_MESSAGE, 1)
    _pad(node, NODE, _NODE_MESSAGE, 2)
    beside = len(order) - len(order) % LANES if has_lanes(engine) else 0
    for i in range(0, beside, LANES):
        for k in range(LANES):
            row = order[i + k]
            _ask_salt(salts + BLOCK_BYTES * k, secrets + SALT_BYTES * places[row], positions[row])
        hash_blocks_of_lanes(engine, lanes, salts, BLOCK_BYTES, 1)
        for k in range(LANES):
            row, lane = order[i + k], lanes + LANE_BYTES * k
            write_lane(lane, digest)
            secret = secrets + SALT_BYTES * places[row] if are_salts[row] else digest
            _begin_leaf(lane_head(lane), secret, positions[row], sizes[row])
            begin_lane(lane, _LEAF_PREFIX, data + positions[row] - first_position, sizes[row])
        # Rows are adjacent, so that each next row is about as far behind its lane's row as the first one.
        following = order[min(i + LANES, len(order) - 1)]
        hash_lanes(engine, lanes, positions[following] - positions[order[i]])
        for k in range(LANES):
            write_lane(lanes + LANE_BYTES * k, hashes + DIGEST_BYTES * slots[i + k])
    for i in range(beside, len(order)):
        row = order[i]
        secret = secrets + SALT_BYTES * places[row]
        if not are_salts[row]:
            _ask_salt(salts, secret, positions[row])
            sha256_blocks(engine, scratch, salts, 1, digest)
            secret = digest
        _begin_leaf(leaf, secret, positions[row], sizes[row])
        at = data + positions[row] - first_position
        sha256(engine, scratch, leaf, _LEAF_PREFIX, at, sizes[row], hashes + DIGEST_BYTES * slots[i])
    for k in range(LANES):
        _pad(lane_tail(lanes + LANE_BYTES * k), NODE, _NODE_MESSAGE, 2)
    free = hashes
    for stream in range(len(lengths)):
        if lengths[stream] > 0:
            tops = subtrees + LEVELS * DIGEST_BYTES * stream
            _push(engine, scratch, tops, counts[stream], free, lengths[stream])
            counts[stream] += lengths[stream]
        free += DIGEST_BYTES * (lengths[stream] + 1)


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
def _push(engine: int, scratch: int, tops: int, count: int, free: int, added: int) -> None:
    """Add leaves to a stream's tree.

    :param tops: address of the roots of the tree's complete subtrees.
    :param count: number of the tree's leaves so far.
    :param free: address of memory for one hash. The new leaves follow it, and are overwritten.
    :param added: number of new leaves.
    """
    lanes, node = scratch + _LANES_AT, scratch + _NODE_AT
    level = 0
    while added > 0:
        at = free + DIGEST_BYTES
        if count >> level & 1:
            at = free
            copy_32(at, tops + DIGEST_BYTES * level)
            added += 1
        if added & 1:
            copy_32(tops + DIGEST_BYTES * level, at + DIGEST_BYTES * (added - 1))
        added //= 2
        beside = added - added % LANES if has_lanes(engine) else 0
        for i in range(0, beside, LANES):
            for k in range(LANES):
                _join(lane_tail(lanes + LANE_BYTES * k), at + 2 * DIGEST_BYTES * (i + k))
            hash_blocks_of_lanes(engine, lanes, lane_tail(lanes), LANE_BYTES, 2)
            for k in range(LANES):
                write_lane(lanes + LANE_BYTES * k, free + DIGEST_BYTES * (i + k + 1))
        for i in range(beside, added):
            _join(node, at + 2 * DIGEST_BYTES * i)
            sha256_blocks(engine, scratch, node, 2, free + DIGEST_BYTES * (i + 1))
        level += 1


@inlined
def _join(message: int, hashes: int) -> None:
    """Write the message that is hashed for a node, from two adjacent hashes."""
    copy_32(message + 1, hashes)
    copy_32(message + 1 + DIGEST_BYTES, hashes + DIGEST_BYTES)
