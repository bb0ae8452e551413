"""Where readers go on: in the lake, at the cluster, or behind offsets that neither has. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from storage_engine.lake.coverage.coverage import merge_intervals, subtract_intervals
from storage_engine.lake_server.archived_partitions import ArchivedPartition


class LogSource(Enum):
    """Who answers."""

    LAKE = "lake"
    CLUSTER = "cluster"
    OUTSIDE = "outside"
    """Nobody: the offset is before the first, or behind the end."""
    BEHIND = "behind"
    """Nobody: the cluster's log ends before the archived one, and would give its offsets to other records."""


@dataclass(frozen=True, slots=True)
class SeamStep:
    """What answers a reader at an offset.

    :param offset: from which it is read; higher than the asked one where nothing has that.
    :param end: of the lake's offsets without a hole from there on; of other sources the same as ``offset``.
    :param missing: offsets that are skipped and never expired, as (first, end): nobody has them.
    """

    source: LogSource
    offset: int
    end: int
    missing: tuple[tuple[int, int], ...] = ()


def next_step(partition: ArchivedPartition, offset: int, cluster: tuple[int, int] | None) -> SeamStep:
    """Return what answers a reader at an offset.

    :param cluster: the first offset and the end of the cluster's log; None: it has not been asked, and may
        have whatever the lake lacks.
    """
    at = max(offset, partition.start)
    archived = partition.range_at(at) if at < partition.end else None
    is_archived = archived is not None and archived.first <= offset and partition.start <= offset
    if is_archived and archived is not None and not archived.refused:
        return SeamStep(LogSource.LAKE, offset, _contiguous_end(partition, offset))
    if cluster is None:
        return SeamStep(LogSource.CLUSTER, offset, offset)
    first, end = cluster
    is_served = first <= offset <= end
    if is_served and (offset < end or end >= partition.end):
        return SeamStep(LogSource.CLUSTER, offset, offset)
    if is_archived:
        # The reader says why it isn't served.
        return SeamStep(LogSource.LAKE, offset, _contiguous_end(partition, offset))
    starts = [first, *([partition.start] if partition.ranges else [])]
    if offset < min(starts) or offset > max(end, partition.end):
        return SeamStep(LogSource.OUTSIDE, offset, offset)
    if archived is None and end < partition.end:
        return SeamStep(LogSource.BEHIND, offset, offset)
    following = [] if archived is None else [max(archived.first, partition.start)]
    # A log that is empty, and ends before the archived one, has nothing to go on with.
    begins = [first] if first < end or end >= partition.end else []
    target = min(one for one in (*begins, *following) if one > offset)
    missing = tuple(subtract_intervals(offset, target, merge_intervals(row[:2] for row in partition.expired)))
    if following == [target]:
        return SeamStep(LogSource.LAKE, target, _contiguous_end(partition, target), missing)
    return SeamStep(LogSource.CLUSTER, target, target, missing)


def _contiguous_end(partition: ArchivedPartition, offset: int) -> int:
    """Return up to where the lake serves all offsets from an archived one on; the end if it refuses that."""
    end = offset
    for one in partition.ranges_from(offset):
        if one.first > end or one.refused:
            break
        end = one.end
    return end if end > offset else partition.end
