"""A digest over a range of a log's offsets, whichever files its batches lie in.

Replicas have equal batches, and cut them into segments of their own. The batches of one replica's segment,
put together from another's files, have the first one's digest. Nothing is decoded and no CRC checked: only
the digest that a receipt has tells whether they are the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from storage_engine.kafka.format.batch_walk import batch_heads, opened, position_before
from storage_engine.model.store.store import Segment

_BLOCK_BYTES = 1 << 20


def sha256_of_range(segments: Sequence[Segment], first: int, end: int) -> str | None:
    """Return the SHA-256 of the batches of the offsets [first, end), in hex.

    :param segments: of one log, oldest first; those that have nothing of the range are passed over.
    :return: None where the files have no such batches: the range begins before them, ends behind them, or
        doesn't begin or end with a batch.
    :raises OSError: a file can't be read.
    """
    inside = [one for one in segments if one.base_offset < end and one.end_offset > first]
    if not inside or inside[0].base_offset > first or inside[-1].end_offset < end:
        return None
    digest = hashlib.sha256()
    for segment in inside:
        with opened(segment.facts.path) as descriptor:
            begin = _position(descriptor, segment, first)
            behind = _position(descriptor, segment, end)
            if begin is None or behind is None or not _add(digest, descriptor, begin, behind):
                return None
    return digest.hexdigest()


def _position(descriptor: int, segment: Segment, offset: int) -> int | None:
    """Return where the first batch at or behind an offset begins; None: a batch goes on beyond the offset."""
    if offset <= segment.base_offset:
        return 0
    index = str(Path(segment.facts.path).with_suffix(".index"))
    position = position_before(index, segment.base_offset, offset)
    heads = batch_heads(descriptor, position)
    if position and ((head := next(heads, None)) is None or head.base_offset > offset):
        # The index is of another file, or damaged.
        position = 0
    for head in batch_heads(descriptor, position):
        if head.base_offset >= offset:
            break
        if head.last_offset >= offset:
            return None
        position = head.end_position
    return position


def _add(digest: hashlib._Hash, descriptor: int, begin: int, end: int) -> bool:
    """Hash a part of a file; return whether it has all of it."""
    while begin < end:
        block = os.pread(descriptor, min(_BLOCK_BYTES, end - begin), begin)
        if not block:
            return False
        digest.update(block)
        begin += len(block)
    return True
