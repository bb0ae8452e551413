"""How far consumer groups are behind in a node's logs, in offsets, bytes and time.

A group's next offset is looked up in its log: by the offset index and the headers behind it, and in the one
batch that holds it. Offsets are counted as Kafka's own tools do, markers and what a cleaner took included.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from storage_engine.kafka.batch_walk import BatchHead, batch_heads, opened, position_before
from storage_engine.lag_columns import LAG_SCHEMA

_MAX_DECODED_BYTES = 64 << 20
"""Of a longer batch its newest timestamp stands for all of its records."""


@dataclass(frozen=True, slots=True)
class SegmentOfLag:
    """A segment that groups read.

    :param index_path: of its offset index; None: there is none.
    :param going: it is in the plan that was asked about.
    :param time_to_loss_ms: until age alone may take it; None: never, or not known.
    """

    base_offset: int
    path: str
    index_path: str | None
    size_bytes: int
    going: bool
    time_to_loss_ms: int | None


@dataclass(frozen=True, slots=True)
class LogOfLag:
    """A log that groups read.

    :param begin: first offset that can be read.
    :param end: offset behind the last that can be.
    :param newest_ms: timestamp of its newest record; None: it has none.
    """

    name: str
    begin: int
    end: int
    newest_ms: int | None
    segments: tuple[SegmentOfLag, ...]


@dataclass(frozen=True, slots=True)
class LagContext:
    """What lag is measured against; picklable.

    :param logs: by name.
    """

    logs: Mapping[str, LogOfLag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """Where an offset lies in its log.

    :param segment: that holds it, or the first one behind it where a cleaner took it.
    :param bytes_from_there: of the log from its batch on.
    :param timestamp_ms: of the record; None: it has none.
    """

    segment: SegmentOfLag
    bytes_from_there: int
    timestamp_ms: int | None


def partition_lags(context: LagContext, positions: pa.Table | pa.RecordBatch) -> pa.Table:
    """Work out the lag of each row.

    A group whose next records are gone goes on at the log's start. A group without a committed offset is
    unknown, and at risk with the log's oldest record, since it may need it.

    :param positions: of :data:`~storage_engine.lag_columns.POSITIONS_SCHEMA`.
    :return: of :data:`~storage_engine.lag_columns.LAG_SCHEMA`, in the order of ``positions``.
    """
    look = lru_cache(maxsize=None)(lambda name, offset: find(context.logs[name], offset))
    rows = [
        _row(context.logs[f"{one['topic']}-{one['queue_id']}"], one, look)
        for one in positions.to_pylist()
        if f"{one['topic']}-{one['queue_id']}" in context.logs
    ]
    return pa.Table.from_pylist(rows, schema=LAG_SCHEMA)


def _row(log: LogOfLag, position: Mapping[str, Any], look: Any) -> dict[str, Any]:
    committed = position["committed_offset"]
    is_known = committed is not None
    following = log.begin if committed is None else max(committed, log.begin)
    behind = following < log.end
    found: Found | None = look(log.name, following) if behind else None
    lag_ms = 0 if is_known and not behind else None
    if is_known and found is not None and found.timestamp_ms is not None and log.newest_ms is not None:
        lag_ms = max(log.newest_ms - found.timestamp_ms, 0)
    located = found if is_known else None
    # Where its next record lies isn't known: it may be in any segment.
    nowhere = is_known and behind and found is None and any(one.going for one in log.segments)
    return {
        "group": position["group"],
        "topic": position["topic"],
        "queue_id": position["queue_id"],
        "committed_offset": committed,
        "min_offset": log.begin,
        "max_offset": log.end,
        "lag_messages": max(log.end - committed, 0) if is_known else None,
        "lag_ms": lag_ms,
        "next_physical_offset": following if located else None,
        "next_segment_base_offset": located.segment.base_offset if located else None,
        "at_risk": nowhere or bool(found and found.segment.going),
        "lost_messages": max(log.begin - committed, 0) if is_known else 0,
        "time_to_loss_ms": located.segment.time_to_loss_ms if located else None,
        "log": log.name,
        "lag_bytes": (located.bytes_from_there if located else 0 if is_known and not behind else None),
    }


def find(log: LogOfLag, offset: int) -> Found | None:
    """Look an offset up; None: no segment has it or anything behind it, or it went away meanwhile."""
    bases = [one.base_offset for one in log.segments]
    first = max(bisect_right(bases, offset) - 1, 0)
    for place in range(first, len(log.segments)):
        segment = log.segments[place]
        try:
            found = _find_in(segment, offset)
        except FileNotFoundError:
            return None
        if found is not None:
            position, timestamp_ms = found
            rest = sum(one.size_bytes for one in log.segments[place + 1 :])
            return Found(segment, max(segment.size_bytes - position, 0) + rest, timestamp_ms)
    return None


def _find_in(segment: SegmentOfLag, offset: int) -> tuple[int, int | None] | None:
    """Return the position of the batch that holds an offset or comes behind it, and the record's time."""
    with opened(segment.path) as descriptor:
        begin = position_before(segment.index_path, segment.base_offset, offset)
        for position, head in _batches(descriptor, begin):
            if head.last_offset >= offset:
                return position, _timestamp_ms(descriptor, position, head, offset)
    return None


def _batches(descriptor: int, position: int) -> Iterator[tuple[int, BatchHead]]:
    for head in batch_heads(descriptor, position):
        yield position, head
        position = head.end_position


def _timestamp_ms(descriptor: int, position: int, head: BatchHead, offset: int) -> int | None:
    """Return the timestamp of the first record at or behind an offset; the batch's newest where none has."""
    # Arrow takes longer to load than many a store takes to be looked at.
    from storage_engine.kafka.codec import CODEC

    newest_ms = head.newest_ms if head.newest_ms >= 0 else None
    size = head.end_position - position
    if size > _MAX_DECODED_BYTES or head.base_offset >= head.last_offset:
        return newest_ms
    data = os.pread(descriptor, size, position)
    for rows, _ in CODEC.decode(memoryview(data), 0):
        for row in rows.select(["kind", "offset", "timestamp"]).to_pylist():
            if row["kind"] in ("message", "control") and row["offset"] >= offset:
                return newest_ms if row["timestamp"] is None else int(row["timestamp"].timestamp() * 1000)
    return newest_ms


def partition_shares(positions: pa.Table, most_rows: int) -> Sequence[tuple[int, int]]:
    """Cut positions, which are in the order of their partitions, into shares of whole partitions.

    :param most_rows: a share has no more than these, and the rest of its last partition.
    """
    keys = list(zip(positions["topic"].to_pylist(), positions["queue_id"].to_pylist(), strict=True))
    starts = [0, *(place for place, (one, other) in enumerate(pairwise(keys), 1) if one != other)]
    cuts = [0]
    while cuts[-1] < len(keys):
        cuts.append(next((start for start in starts if start >= cuts[-1] + most_rows), len(keys)))
    return list(pairwise(cuts))
