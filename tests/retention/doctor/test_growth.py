"""How fast logs grow is told by samples, else by segments' times, else by nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS
from storage_engine.retention.doctor.growth import Growth, GrowthFrom, growth_of, room_bytes, time_to_fill_ms
from tests.retention.doctor.stores import GIB, HOUR_MS, NOW_MS, disk, log_of, segment


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


def test_disks_count_once_and_an_unknown_one_makes_the_room_unknown() -> None:
    assert room_bytes([disk(50)], 90) == 40 * GIB
    assert room_bytes([disk(50), disk(50, path="/s/other")], 90) == 40 * GIB
    assert room_bytes([disk(50), disk(80, device=2)], 90) == 50 * GIB
    assert room_bytes([disk(95)], 90) == 0
    assert room_bytes([disk(50), disk(None)], 90) is None
    assert room_bytes([], 90) is None


@given(room=st.integers(0, 1 << 60), per_day=st.integers(-5, 1 << 50))
def test_what_grows_fills_its_room_in_just_that_time(room: int, per_day: int) -> None:
    found = time_to_fill_ms(room, Growth(per_day, GrowthFrom.SAMPLES))
    if per_day <= 0:
        assert found is None
    else:
        assert found is not None
        assert found * per_day <= room * DAY_MS < (found + 1) * per_day
    assert time_to_fill_ms(None, Growth(per_day, GrowthFrom.SAMPLES)) is None
    assert time_to_fill_ms(room, None) is None
