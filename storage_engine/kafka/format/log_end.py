"""The end of a log and the times of its newest records, read from as few bytes as possible."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from storage_engine.core.wording import reason_text
from storage_engine.kafka.format.batch_headers import BLOCK_BYTES, BatchHead, batch_heads, open_file, opened
from storage_engine.kafka.format.layout import LogDirectory, PartitionLog, SegmentFiles
from storage_engine.kafka.retention_rules import SegmentFacts

_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_MILLION = 1_000_000


class LogEnd(NamedTuple):
    """The end of a log.

    :param offset: offset after the last whole batch; 0 if the log has no segments.
    :param first_ms: largest timestamp of the active segment's first batch; -1 without a timestamp.
    :param unread: why the active segment can't be read, as a clause. Then the log ends at ``offset`` or
        later.
    """

    offset: int
    first_ms: int
    unread: str = ""


def log_end(log: PartitionLog) -> LogEnd:
    """Find the end of a log.

    Only headers are read, from the last entry of the active segment's index on.

    :raises OSError: a file can't be read.
    """
    if not log.segments:
        return LogEnd(0, -1)
    active = log.segments[-1]
    end, first_ms = active.base_offset, -1
    descriptor = open_file(active.log.path)
    try:
        first = next(batch_heads(descriptor, 0), None)
        if first is not None:
            end, first_ms = first.last_offset + 1, first.newest_ms
            # An active segment with a single batch needs no index: many logs are hardly written to.
            if first.end_position < active.log.size_bytes:
                behind = _last_position(active) or first.end_position
                for head in _heads(descriptor, active, behind):
                    end = head.last_offset + 1
    finally:
        os.close(descriptor)
    return LogEnd(max(end, active.base_offset), first_ms)


def known_end(directory: LogDirectory, log: PartitionLog) -> LogEnd:
    """Find the end of a log. If its active segment can't be read, return the lowest possible end.

    :raises FileNotFoundError: one of its files vanished.
    """
    try:
        return log_end(log)
    except FileNotFoundError:
        raise
    except OSError as error:
        least = max(log.segments[-1].base_offset, directory.high_watermarks.get(log.name.log, 0))
        return LogEnd(least, -1, f"its active segment can't be read: {reason_text(error)}")


def end_offset(log: PartitionLog) -> int:
    """Return the offset after a log's last whole batch; 0 if the log has no segments.

    :raises OSError: a file can't be read.
    """
    return log_end(log).offset


def segment_end(segment: SegmentFiles) -> int:
    """Return the offset after a segment's last whole batch; its base offset if it has no whole batch.

    :raises OSError: a file can't be read.
    """
    end = segment.base_offset
    # One read gets all of a small file, so its index would save nothing.
    small = segment.log.size_bytes < BLOCK_BYTES
    with opened(segment.log.path) as descriptor:
        for head in _heads(descriptor, segment, 0 if small else _last_position(segment)):
            end = head.last_offset + 1
    return max(end, segment.base_offset)


def segment_facts(segment: SegmentFiles, *, active: bool) -> SegmentFacts:
    """Return the facts of a segment that the rules need (LogSegment#largestTimestamp).

    The time index contains the largest timestamp of a closed segment. Headers are read if the segment is
    active, or if its time index is empty or missing. A broker that starts creates missing indexes again.

    :raises OSError: a file can't be read.
    """
    last_entry = _last_entry(segment.time_index, _TIME_ENTRY)
    largest_ms = None if last_entry is None else last_entry[0]
    if active or largest_ms is None:
        begin = 0 if largest_ms is None else _last_position(segment)
        largest_ms = -1 if largest_ms is None else largest_ms
        with opened(segment.log.path) as descriptor:
            heads = _heads(descriptor, segment, begin)
            largest_ms = max(largest_ms, max((head.newest_ms for head in heads), default=-1))
    if largest_ms < 0:
        largest_ms = segment.log.mtime_ns // _MILLION
    return SegmentFacts(segment.base_offset, segment.log.size_bytes, largest_ms)


def first_batch_ms(segment: SegmentFiles) -> int | None:
    """Return the largest timestamp of a segment's first batch; None without a timestamp.

    :raises OSError: the file can't be read.
    """
    with opened(segment.log.path) as descriptor:
        first = next(batch_heads(descriptor, 0), None)
    return first.newest_ms if first is not None and first.newest_ms >= 0 else None


def _heads(descriptor: int, segment: SegmentFiles, position: int) -> Iterator[BatchHead]:
    """Yield the batches from an index entry's position on; all batches if none of them begins there."""
    heads = batch_heads(descriptor, position)
    first = next(heads, None)
    if position and (first is None or first.base_offset < segment.base_offset):
        yield from batch_heads(descriptor, 0)
    elif first is not None:
        yield first
        yield from heads


def _last_position(segment: SegmentFiles) -> int:
    """Return the position in the last entry of a segment's offset index; 0 without a usable entry."""
    entry = _last_entry(segment.offset_index, _INDEX_ENTRY)
    return 0 if entry is None or not 0 <= entry[1] < segment.log.size_bytes else entry[1]


def _last_entry(path: str | None, entry: struct.Struct) -> tuple[int, int] | None:
    """Return the last entry that a broker has written to an index; None if the index is empty or missing."""
    if path is None:
        return None
    try:
        descriptor = open_file(path)
    except FileNotFoundError:
        return None
    try:
        return _last_used(descriptor, entry)
    finally:
        os.close(descriptor)


def _last_used(descriptor: int, entry: struct.Struct) -> tuple[int, int] | None:
    """Return the last entry that isn't zero; None if all entries are zero.

    Used entries come first, and only the very first may be zero. The rest of a preallocated file is zero.
    """

    def read(place: int) -> tuple[int, int]:
        # If the file is truncated meanwhile, a missing entry counts as zero.
        data = os.pread(descriptor, entry.size, place * entry.size).ljust(entry.size, b"\0")
        first, second = entry.unpack(data)
        return int(first), int(second)

    block = os.pread(descriptor, BLOCK_BYTES, 0)
    low = len(block) // entry.size - 1
    if len(block) < BLOCK_BYTES or not any(entry.unpack_from(block, low * entry.size)):
        for place in range(low, -1, -1):
            first, second = entry.unpack_from(block, place * entry.size)
            if first or second:
                return first, second
        return None
    high = os.fstat(descriptor).st_size // entry.size - 1
    if any(last := read(high)):
        return last
    # An active segment's index has 10 MiB preallocated, mostly zeros: search by bisection.
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if any(read(middle)) else (low, middle)
    return read(low)
