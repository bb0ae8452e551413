"""The tree of a segment's rows in plain Python, by its definition: what the compiled one is held against."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A row with bytes.

    :param key: of its run, or None, and then the salt.
    """

    stream: str
    position: int
    data: bytes
    key: bytes | None
    salt: bytes | None = None


def _hash(first: int, *parts: bytes) -> bytes:
    return hashlib.sha256(bytes([first]) + b"".join(parts)).digest()


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def leaf_of(row: Row) -> bytes:
    salt = row.salt
    if salt is None:
        assert row.key is not None
        salt = _hash(2, row.key, u64(row.position))[:16]
    return _hash(0, salt, u64(row.position), u32(len(row.data)), row.data)


def top_of(leaves: Sequence[bytes]) -> bytes:
    """RFC 6962, 2.1: split at the largest power of two below the number of leaves."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while 2 * split < len(leaves):
        split *= 2
    return _hash(1, top_of(leaves[:split]), top_of(leaves[split:]))


def stream_of(name: str, rows: Sequence[Row]) -> bytes:
    own = sorted((row for row in rows if row.stream == name), key=lambda row: row.position)
    text = name.encode()
    counts = u64(len(own)) + u64(sum(len(row.data) for row in own))
    return _hash(3, u32(len(text)), text, counts, top_of([leaf_of(row) for row in own]))


def root_of(rows: Sequence[Row], base_offset: int, sha256: bytes) -> bytes:
    names = sorted({row.stream for row in rows}, key=str.encode)
    size = sum(len(row.data) for row in rows)
    head = b"storage-engine/3" + u64(base_offset) + u64(size) + sha256 + u32(len(names))
    return _hash(4, head, *(stream_of(name, rows) for name in names))
