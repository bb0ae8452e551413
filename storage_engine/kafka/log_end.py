"""Where a log ends, and how new its records are, by as few bytes as that takes."""

from __future__ import annotations

import os
import struct

from storage_engine.kafka import batch_header as header
from storage_engine.kafka.layout import PartitionLog, SegmentFiles
from storage_engine.kafka.rules import SegmentFacts
from storage_engine.model.store import FileFacts

_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_HEADER = struct.Struct(">qiibIhiqq")
_TAIL_ENTRIES = 512
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MILLION = 1_000_000


def end_offset(log: PartitionLog) -> int:
    """Return the offset behind the last whole batch; 0 of a log without segments.

    Headers alone are looked at, from the last entry of the active segment's index on.

    :raises OSError: a file can't be read.
    """
    if not log.segments:
        return 0
    active = log.segments[-1]
    end, _ = _walk(active, _last_position(active))
    return end


def segment_facts(segment: SegmentFiles, *, active: bool) -> SegmentFacts:
    """Return what the rules ask of a segment (LogSegment#largestTimestamp).

    The time index has the largest timestamp of a closed segment. Where there is none, as the broker makes it
    again when it starts, and of an active segment, the headers tell.

    :raises OSError: a file can't be read.
    """
    largest_ms = _last_time(segment)
    if active or largest_ms is None:
        begin = 0 if largest_ms is None else _last_position(segment)
        _, found_ms = _walk(segment, begin)
        largest_ms = max(found_ms, -1 if largest_ms is None else largest_ms)
    if largest_ms < 0:
        largest_ms = segment.log.mtime_ns // _MILLION
    return SegmentFacts(segment.base_offset, segment.log.size_bytes, largest_ms)


def _walk(segment: SegmentFiles, position: int) -> tuple[int, int]:
    """Return the offset behind the last whole batch and the largest timestamp, from a position on."""
    end, largest_ms = segment.base_offset, -1
    descriptor = os.open(segment.log.path, _OPEN)
    try:
        size_bytes = os.fstat(descriptor).st_size
        while position + _HEADER.size <= size_bytes:
            base, length, _, magic, _, _, delta, _, newest_ms = _HEADER.unpack(
                os.pread(descriptor, _HEADER.size, position)
            )
            size = length + header.LENGTH_OVERHEAD
            if magic != header.MAGIC or size < header.HEADER_BYTES or position + size > size_bytes:
                break
            end, largest_ms = base + delta + 1, max(largest_ms, newest_ms)
            position += size
    finally:
        os.close(descriptor)
    return max(end, segment.base_offset), largest_ms


def _last_position(segment: SegmentFiles) -> int:
    """Return the position of the last entry in a segment's index; 0 where there is none."""
    found = _last_entry(segment.offset_index, _INDEX_ENTRY)
    return 0 if found is None or not 0 <= found[1] < segment.log.size_bytes else found[1]


def _last_time(segment: SegmentFiles) -> int | None:
    """Return the timestamp of the last entry in a segment's time index; None where there is none."""
    found = _last_entry(segment.time_index, _TIME_ENTRY)
    return None if found is None else found[0]


def _last_entry(file: FileFacts | None, entry: struct.Struct) -> tuple[int, int] | None:
    """Return the last entry that a broker has written to an index; behind it a preallocated file is zero."""
    if file is None:
        return None
    try:
        descriptor = os.open(file.path, _OPEN)
    except FileNotFoundError:
        return None
    try:
        left = os.fstat(descriptor).st_size // entry.size
        count = 1
        while left:
            count = min(count, left)
            data = os.pread(descriptor, count * entry.size, (left - count) * entry.size)
            for place in range(len(data) // entry.size - 1, -1, -1):
                found = entry.unpack_from(data, place * entry.size)
                if any(found):
                    return int(found[0]), int(found[1])
            left -= count
            count = _TAIL_ENTRIES
    finally:
        os.close(descriptor)
    return None
