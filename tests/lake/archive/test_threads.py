"""How many segments one process archives at a time."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.lake.archive.threads import archive_threads, reading_threads, threads_for, threads_here

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("processors", "memory_bytes", "segment_bytes", "bytes_per_second", "threads"),
    [
        (2, 24 * GIB, GIB, None, 2),
        (1, 24 * GIB, GIB, None, 1),
        (16, 24 * GIB, GIB, None, 4),
        (16, 64 * GIB, GIB, None, 8),
        (8, 4 * GIB, GIB, None, 1),
        (8, 256 * MIB, GIB, None, 1),
        (8, 8 * GIB, MIB, None, 8),
        (8, 64 * GIB, GIB, 20_000_000, 2),
        (8, 64 * GIB, GIB, 900_000_000, 5),
        (1, 64 * GIB, GIB, 20_000_000, 1),
    ],
)
def test_threads_are_bounded_by_processors_memory_and_pace(
    processors: int, memory_bytes: int, segment_bytes: int, bytes_per_second: int | None, threads: int
) -> None:
    assert archive_threads(processors, memory_bytes, segment_bytes, bytes_per_second) == threads


@given(
    st.integers(1, 256),
    st.integers(1, 1 << 42),
    st.integers(1, 16 * GIB),
    st.none() | st.integers(1, 10**11),
)
def test_several_threads_leave_most_of_the_memory(
    processors: int, memory_bytes: int, segment_bytes: int, bytes_per_second: int | None
) -> None:
    threads = archive_threads(processors, memory_bytes, segment_bytes, bytes_per_second)
    assert 1 <= threads <= processors
    assert threads == 1 or threads * 1.3 * segment_bytes <= memory_bytes / 4


def test_of_no_segment_there_is_one_thread() -> None:
    assert threads_for(()) == 1


def test_the_processors_that_this_process_may_use_count() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads_here(MIB, None) == 1
        # One reads while the other waits for a disk.
        assert reading_threads(MIB) == 2
    finally:
        os.sched_setaffinity(0, allowed)
    assert threads_here(MIB, None) == len(allowed)
    assert reading_threads(MIB) == max(2, len(allowed))
