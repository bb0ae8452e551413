"""A segment's batch headers, read without NumPy, for callers that need only a few batches of each log.

A range of a log's offsets has a digest that doesn't depend on the files that contain the range: replicas have
equal batches, but their segments begin at different offsets. No batch is decoded and no CRC is checked:
batches are equal if their digest equals the digest in a receipt.

Constants give positions of a record batch's fields, in bytes from the batch's start. Numbers are big-endian.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from storage_engine.core import durable
from storage_engine.model.store import Segment

BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57
HEADER_BYTES: Final = 61

LENGTH_OVERHEAD: Final = 12
"""Bytes of a batch up to the end of the length field, which counts only the bytes after itself."""
MAGIC: Final = 2
"""Magic of the format since Kafka 0.11. 0 and 1 are older message sets, whose fields have other positions."""
LEGACY_CRC_AT: Final = 12
MIN_LEGACY_BYTES: Final = 26
"""Bytes of a message of format 0 without key and value, including offset and length."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
"""Flag: all records have the broker's time, which is the batch's largest timestamp."""
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
"""Flag: the records are markers, for example of a commit or an abort."""
DELETE_HORIZON: Final = 0x40
"""Flag: the base timestamp is the time from which the cleaner drops tombstones and markers."""

NO_TIMESTAMP: Final = -1
MIN_RECORD_BYTES: Final = 7
"""An empty record: a byte each for length, attributes, two deltas, key length, value length and number of
headers."""


_HEADER = struct.Struct(">qiibIhiqqqh")
_LEGACY = struct.Struct(">qiIbbq")
_INDEX_ENTRY = struct.Struct(">ii")
BLOCK_BYTES: Final = 4096
"""Bytes read at a time. A small file is read whole, so that its size is known as well."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_HASHED_BYTES = 1 << 20


class BatchHead(NamedTuple):
    """The header of a batch, or of a message of an older format.

    :param end_position: position after its last byte.
    :param newest_ms: its largest timestamp; -1 without a timestamp.
    :param producer_id: -1 if its producer has no id, or the format is older.
    """

    end_position: int
    base_offset: int
    last_offset: int
    attributes: int
    newest_ms: int
    producer_id: int
    producer_epoch: int


def open_file(path: str) -> int:
    """Open a file for reading. It must be no symbolic link. The caller closes it.

    :raises OSError: the file can't be opened.
    """
    return os.open(path, _OPEN)


def opened(path: str) -> AbstractContextManager[int]:
    """Open a file for reading, and close it when the block ends. It must be no symbolic link.

    :raises OSError: the file can't be opened.
    """
    return durable.opened(path, _OPEN)


def batch_heads(descriptor: int, position: int) -> Iterator[BatchHead]:
    """Yield the whole batches of a segment, from the batch at a position on.

    Stop where no whole batch follows, for example where the broker is writing a batch.

    :raises OSError: the file can't be read.
    """
    block, begin, size_bytes = b"", position, None
    while size_bytes is None or position < size_bytes:
        if position + _HEADER.size > begin + len(block):
            block, begin = os.pread(descriptor, BLOCK_BYTES, position), position
            if len(block) < BLOCK_BYTES and size_bytes is None:
                size_bytes = begin + len(block)
        data = block[position - begin : position - begin + _HEADER.size]
        if len(data) < MIN_LEGACY_BYTES:
            return
        head = (_legacy if data[MAGIC_AT] < MAGIC else _batch)(data, position)
        if head is None:
            return
        position = head.end_position
        if size_bytes is None and position > begin + len(block):
            size_bytes = os.fstat(descriptor).st_size
        if size_bytes is not None and position > size_bytes:
            return
        yield head


def _batch(data: bytes, position: int) -> BatchHead | None:
    if len(data) < _HEADER.size:
        return None
    base, length, _, magic, _, attributes, delta, _, newest_ms, producer_id, epoch = _HEADER.unpack(data)
    size = length + LENGTH_OVERHEAD
    if magic != MAGIC or size < HEADER_BYTES or delta < 0:
        return None
    return BatchHead(position + size, base, base + delta, attributes, newest_ms, producer_id, epoch)


def _legacy(data: bytes, position: int) -> BatchHead | None:
    """Parse a message of format 0 or 1. A wrapping message has the offset of the last message inside."""
    offset, length, _, magic, _, timestamp_ms = _LEGACY.unpack_from(data)
    size = length + LENGTH_OVERHEAD
    if size < MIN_LEGACY_BYTES:
        return None
    newest_ms = timestamp_ms if magic else NO_TIMESTAMP
    return BatchHead(position + size, offset, offset, 0, newest_ms, -1, -1)


def position_before(index: str | None, base_offset: int, offset: int) -> int:
    """Return the position of a batch before or at an offset, from a segment's index; 0 without an entry.

    :raises OSError: the index can't be read.
    """
    if index is None:
        return 0
    try:
        with opened(index) as descriptor:
            return _bisect(descriptor, offset - base_offset)
    except FileNotFoundError:
        return 0


def _bisect(descriptor: int, relative: int) -> int:
    """Return the position in the last index entry at or below a relative offset. Unused entries are zero."""
    low, high, result = 0, os.fstat(descriptor).st_size // _INDEX_ENTRY.size, 0
    while low < high:
        middle = (low + high) // 2
        offset, position = _INDEX_ENTRY.unpack(
            os.pread(descriptor, _INDEX_ENTRY.size, middle * _INDEX_ENTRY.size)
        )
        if (middle and not position) or offset > relative:
            high = middle
        else:
            low, result = middle + 1, position
    return result


def sha256_of_range(segments: Sequence[Segment], first: int, end: int) -> str | None:
    """Return the SHA-256 of the batches of the offsets [first, end), in hex.

    :param segments: segments of one log, oldest first. Segments without records of the range are ignored.
    :return: the digest; None if the segments don't contain the whole range, or if the range begins or ends
        inside a batch.
    :raises OSError: a file can't be read.
    """
    inside = [segment for segment in segments if segment.base_offset < end and segment.end_offset > first]
    if not inside or inside[0].base_offset > first or inside[-1].end_offset < end:
        return None
    digest = hashlib.sha256()
    for segment in inside:
        with opened(segment.facts.path) as descriptor:
            begin = _position(descriptor, segment, first)
            behind = _position(descriptor, segment, end)
            if begin is None or behind is None or not _hash_range(digest, descriptor, begin, behind):
                return None
    return digest.hexdigest()


def _position(descriptor: int, segment: Segment, offset: int) -> int | None:
    """Return the position of the first batch at or after an offset; None if the offset is inside a batch."""
    if offset <= segment.base_offset:
        return 0
    index = str(Path(segment.facts.path).with_suffix(".index"))
    position = position_before(index, segment.base_offset, offset)
    heads = batch_heads(descriptor, position)
    if position and ((head := next(heads, None)) is None or head.base_offset > offset):
        # The index belongs to another file, or is damaged.
        position = 0
    for head in batch_heads(descriptor, position):
        if head.base_offset >= offset:
            break
        if head.last_offset >= offset:
            return None
        position = head.end_position
    return position


def _hash_range(digest: hashlib._Hash, descriptor: int, begin: int, end: int) -> bool:
    """Hash the bytes [begin, end) of a file. Return False if the file ends earlier."""
    while begin < end:
        block = os.pread(descriptor, min(_HASHED_BYTES, end - begin), begin)
        if not block:
            return False
        digest.update(block)
        begin += len(block)
    return True
