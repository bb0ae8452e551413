"""A log as the contract has it, by its directory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from storage_engine.kafka.format.layout import LogDirectory, PartitionLog
from storage_engine.kafka.format.log_end import LogEnd
from storage_engine.model.store.store import LogSnapshot, Segment, SegmentState


def log_snapshot(directory: LogDirectory, log: PartitionLog, end: LogEnd) -> LogSnapshot:
    """Return a log as the contract has it: all segments but the last are sealed.

    What is above the checkpointed high watermark counts as not yet safe; without an entry all does.
    """
    name = log.name.log
    watermark = min(directory.high_watermarks.get(name, 0), end.offset)
    return LogSnapshot(name, tuple(_segments(log, end.offset)), end.offset, watermark, end.unread)


def _segments(log: PartitionLog, end: int) -> Iterator[Segment]:
    name = log.name.log
    for files, following in pairwise(log.segments):
        yield Segment(
            name,
            files.base_offset,
            files.log,
            SegmentState.SEALED,
            end=following.base_offset,
            companions=files.companions,
        )
    for files in log.segments[-1:]:
        yield Segment(
            name, files.base_offset, files.log, SegmentState.ACTIVE, end=end, companions=files.companions
        )
