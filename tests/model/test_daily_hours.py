"""Ingest as a curve, and what a log's growth tells of it."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.model.simulation import Inflow, Ingest, ingest_from, most_bytes_within

SHANGHAI = ZoneInfo("Asia/Shanghai")
MIDNIGHT = int(datetime(2026, 3, 27, tzinfo=SHANGHAI).timestamp() * 1000)


@given(
    st.integers(0, 10**9),
    st.lists(st.sampled_from([0.0, 1.0, 5.0]), min_size=23, max_size=23),
    st.integers(0, DAY_MS),
    st.integers(1, 10**9),
)
def test_when_is_the_first_moment_by_which_so_many_bytes_have_come(
    bytes_per_day: int, weights: list[float], offset_ms: int, wanted: int
) -> None:
    inflow = Inflow(
        Ingest(bytes_per_day, (*weights, 1.0)), MIDNIGHT + offset_ms, MIDNIGHT + 2 * DAY_MS, SHANGHAI
    )
    at_ms = inflow.when(wanted)
    if at_ms is None:
        assert inflow.until(MIDNIGHT + 2 * DAY_MS) < wanted
    else:
        assert inflow.until(at_ms) >= wanted
        assert (
            at_ms == MIDNIGHT + offset_ms - (MIDNIGHT + offset_ms) % 900_000
            or inflow.until(at_ms - 1) < wanted
        )


def test_bytes_come_in_the_hours_of_the_profile_by_the_clock_of_the_zone() -> None:
    profile = tuple(1.0 if hour == 9 else 0.0 for hour in range(24))
    inflow = Inflow(Ingest(1_000, profile), MIDNIGHT, MIDNIGHT + DAY_MS, SHANGHAI)
    assert inflow.until(MIDNIGHT + 9 * HOUR_MS) == 0
    assert inflow.until(MIDNIGHT + 9 * HOUR_MS + HOUR_MS // 2) == 500
    assert inflow.until(MIDNIGHT + 10 * HOUR_MS) == inflow.until(MIDNIGHT + DAY_MS) == 1_000
    assert inflow.when(1_001) is None


def test_growth_of_a_log_tells_its_ingest_with_the_hours_of_the_day() -> None:
    points, offset = [(MIDNIGHT, 0)], 0
    for hour in range(1, 73):
        offset += 3_000 if (hour - 1) % 24 < 12 else 1_000
        points.append((MIDNIGHT + hour * HOUR_MS, offset))
    found = ingest_from(points, SHANGHAI)
    assert found is not None
    assert found.bytes_per_day == pytest.approx(48_000, rel=0.001)
    assert found.profile == pytest.approx((1.0,) * 12 + (1 / 3,) * 12, abs=0.001)


def test_hours_that_nobody_saw_count_as_the_mean_of_the_others() -> None:
    found = ingest_from([(MIDNIGHT, 0), (MIDNIGHT + 6 * HOUR_MS, 6_000)], SHANGHAI)
    assert found is not None
    assert (found.bytes_per_day, set(found.profile)) == (24_000, {1.0})


@pytest.mark.parametrize(
    "points",
    [[], [(5, 10)], [(5, 10), (5, 90)], [(5, 10), (90, 10)], [(90, 10), (5, 90)], [(5, 90), (90, 5)]],
)
def test_a_log_that_does_not_grow_tells_nothing(points: list[tuple[int, int]]) -> None:
    assert ingest_from(points, SHANGHAI) is None


def test_the_most_bytes_within_hours_are_those_of_the_busiest() -> None:
    ingest = Ingest(33_000, tuple(10.0 if hour == 23 else 1.0 for hour in range(24)))
    assert [most_bytes_within(ingest, hours) for hours in (0, 1, 2, 24, 25)] == [
        0,
        10_000,
        11_000,
        33_000,
        43_000,
    ]
