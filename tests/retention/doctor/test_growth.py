"""How fast logs grow is told by samples, else by segments' times, else by nothing."""

from __future__ import annotations

from storage_engine.retention.doctor.space_and_time import Growth, GrowthFrom, growth_of
from tests.retention.doctor.stores import GIB, HOUR_MS, NOW_MS, log_of, segment


def test_samples_of_the_last_day_come_first() -> None:
    samples = [(NOW_MS - 48 * HOUR_MS, 0), (NOW_MS - 12 * HOUR_MS, 10 * GIB), (NOW_MS, 16 * GIB)]
    assert growth_of(samples, (log_of([30, 1]),), NOW_MS) == Growth(12 * GIB, GrowthFrom.SAMPLES)


def test_samples_of_a_moment_or_of_another_log_say_nothing() -> None:
    close = [(NOW_MS - 59 * 60_000, 0), (NOW_MS, 5 * GIB)]
    shrunk = [(NOW_MS - 12 * HOUR_MS, 10 * GIB), (NOW_MS, GIB)]
    for samples in ([], close, shrunk):
        found = growth_of(samples, (log_of([48, 24, 12]),), NOW_MS)
        assert found == Growth(GIB, GrowthFrom.SEGMENTS)


def test_segments_tell_by_what_came_behind_the_one_of_a_day_ago() -> None:
    assert growth_of((), (log_of([48, 24, 12, 6], active_bytes=GIB // 2),), NOW_MS) == Growth(
        5 * GIB // 2, GrowthFrom.SEGMENTS
    )
    # A young store: behind its oldest segment.
    assert growth_of((), (log_of([8, 2]),), NOW_MS) == Growth(3 * GIB, GrowthFrom.SEGMENTS)


def test_segments_of_one_burst_say_nothing_of_a_day() -> None:
    for ages in ([0.2, 0.1], [5.9, 0], [100.1, 100], [30]):
        assert growth_of((), (log_of(ages),), NOW_MS) is None


def test_without_a_sealed_segment_nothing_is_known() -> None:
    assert growth_of((), (log_of([]),), NOW_MS) is None
    assert growth_of((), (log_of([-5]),), NOW_MS) is None  # written in the future
    assert segment(0, NOW_MS).mtime_ns == NOW_MS * 10**6
