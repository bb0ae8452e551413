"""What a simulation of a store starts from: its disk, its segments, and how fast they were filled."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from zoneinfo import ZoneInfo

from storage_engine.core.clock import DAY_MS
from storage_engine.model.course.course import CourseStart, Ingest, condensed
from storage_engine.model.course.ingest import ingest_from
from storage_engine.model.store.store import LogSnapshot, StoreSnapshot
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.rules.rules import least_used, mtime_ms

_INGEST_MS = 7 * DAY_MS
"""Of so long the ingest is told by the segments' last writes."""
_BLOCK_BYTES = 512


def course_start(
    snapshot: StoreSnapshot,
    layout: StoreLayout,
    zone: ZoneInfo,
    oldest_message_ms: int | None,
) -> CourseStart | None:
    """Return what a simulation starts from; None where the disk's level, or its log, isn't known.

    Its ingest is as the last writes of the last seven days tell it; 0 bytes where they tell nothing.
    """
    disk, (log,) = least_used(snapshot.log_disks), snapshot.logs
    if disk is None or not disk.total_bytes or disk.usable_bytes is None or not log.segments:
        return None
    full = [segment for segment in log.segments if segment.end_offset <= log.max_offset]
    behind = full[-1].end_offset if full else log.min_offset
    sizes = Counter(segment.facts.size_bytes for segment in log.segments)
    segment_bytes = layout.segment_size_bytes or sizes.most_common(1)[0][0]
    log_bytes = log.max_offset - log.min_offset
    on_disk = snapshot.dependents_disk.device == disk.device
    dependents_bytes = sum(_allocated(layout)) if on_disk else 0
    if oldest_message_ms is None:
        oldest_message_ms = mtime_ms(log.segments[0])
    ingest = ingest_from(_growth(log, oldest_message_ms, snapshot.taken_at_ms), zone) or Ingest(0)
    return CourseStart(
        now_ms=snapshot.taken_at_ms,
        disk_bytes=disk.total_bytes,
        other_bytes=max(disk.total_bytes - disk.usable_bytes - log_bytes - dependents_bytes, 0),
        segment_bytes=segment_bytes,
        runs=condensed([(segment.facts.size_bytes, mtime_ms(segment)) for segment in full]),
        active_bytes=min(log.max_offset - behind, segment_bytes - 1),
        oldest_message_ms=oldest_message_ms,
        time_zone=zone.key,
        ingest=ingest,
        dependents_share=round(min(dependents_bytes / log_bytes, 100), 6) if log_bytes else 0.0,
    )


def _growth(log: LogSnapshot, oldest_message_ms: int, now_ms: int) -> list[tuple[int, int]]:
    """Return the log's max offset over the last days, by the last writes of its segments."""
    ends = [(mtime_ms(segment), segment.end_offset) for segment in log.sealed]
    begin = [(oldest_message_ms, log.min_offset)] if len(ends) < 2 else []
    points = [*begin, *ends, (now_ms, log.max_offset)]
    first = next((i for i, (at_ms, _) in enumerate(points) if at_ms >= now_ms - _INGEST_MS), 0)
    return points[max(first - 1, 0) :]


def _allocated(layout: StoreLayout) -> Iterator[int]:
    """Yield the bytes that each file of queues and indexes takes of the disk; one that is gone takes none."""
    for directory in (layout.consumequeue, layout.batchconsumequeue, layout.index):
        for root, _, names in os.walk(directory):
            for name in names:
                with suppress(FileNotFoundError):
                    stat = (Path(root) / name).lstat()
                    if S_ISREG(stat.st_mode):
                        yield stat.st_blocks * _BLOCK_BYTES
