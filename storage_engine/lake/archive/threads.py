"""The number of segments that one process archives or reads at a time: by processors, memory and pace."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_engine.lake.file.jobs import SegmentJob

_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with a container's memory limit, in version 2 and in version 1 of control groups."""
_THREAD_BYTES_PER_SECOND = 200_000_000
"""Bytes that one thread takes from a pace in a second, for reading and writing (docs/performance.md)."""
_MOST = 8
"""Maximum of threads in one process, because another process may archive beside it."""
_OVERLAPPING = 2
"""Minimum of threads at any pace: while one thread waits for a disk, another works."""


def archive_threads(
    processors: int, memory_bytes: int, segment_bytes: int, bytes_per_second: int | None
) -> int:
    """Return how many segments are archived at a time, at least one.

    Together they take at most a quarter of the memory, because another process may archive as well. A segment
    takes up to 1.3 times its size in memory, plus the windows in which it is read back.

    :param processors: number of processors that this process may use.
    :param memory_bytes: memory that this process may use.
    :param segment_bytes: size of the largest segment.
    :param bytes_per_second: limit of the pace; None means no limit.
    """
    by_memory = memory_bytes // 4 // (segment_bytes * 13 // 10 + (64 << 20))
    by_pace = processors
    if bytes_per_second is not None:
        by_pace = max(_OVERLAPPING, -(-bytes_per_second // _THREAD_BYTES_PER_SECOND))
    return max(1, min(processors, by_memory, by_pace, _MOST))


def threads_for(jobs: Sequence[SegmentJob]) -> int:
    """Return how many of these jobs this process does at a time. Only jobs and host decide that number."""
    if not jobs:
        return 1
    largest_bytes = max(job.facts.size_bytes for job in jobs)
    return min(threads_here(largest_bytes, jobs[0].bytes_per_second), len(jobs))


def threads_here(segment_bytes: int, bytes_per_second: int | None) -> int:
    """Return how many segments of a size this process archives at a time."""
    return archive_threads(len(os.sched_getaffinity(0)), _memory_bytes(), segment_bytes, bytes_per_second)


def reading_threads(segment_bytes: int) -> int:
    """Return how many segments of a size are read back at a time."""
    return max(_OVERLAPPING, threads_here(segment_bytes, None))


@cache
def _memory_bytes() -> int:
    size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in (*_MEMORY_LIMITS, *_own_limits()):
        with suppress(OSError, ValueError):
            size_bytes = min(size_bytes, int(Path(path).read_text()))
    return size_bytes


def _own_limits() -> Iterator[str]:
    """Yield the paths of the memory limits of this process's control group and its parents, in version 2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                group = Path("/sys/fs/cgroup") / line.removeprefix("0::/")
                yield from (str(path / "memory.max") for path in (group, *group.parents) if path.is_dir())
