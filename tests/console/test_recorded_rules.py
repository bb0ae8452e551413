"""What a broker does at a level, and when its windows are."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.console.recorded_rules import (
    LevelState,
    RecordedLevels,
    Rules,
    Windows,
    level_state,
    window_spans,
)
from storage_engine.rocketmq.simulation import RULES

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("percent", "state"),
    [
        (None, "unknown"),
        (70, "ok"),
        (71, "notice"),
        (75, "notice"),
        (76, "cleans"),
        (86, "forces"),
        (91, "refuses"),
    ],
)
def test_a_state_begins_above_its_level(percent: int | None, state: str) -> None:
    assert level_state(percent, Rules(0, levels=RecordedLevels(70, 75, 85, 90))) is LevelState(state)
    assert level_state(percent, None) is LevelState.UNKNOWN
    assert level_state(50, Rules(0)) is LevelState.NO_LEVEL


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def test_an_hour_that_the_clock_skips_is_no_window_and_one_that_comes_twice_is_two_hours() -> None:
    windows = Windows((2,), "Europe/Berlin")
    # 2026-03-29 has no 02 h there, and 2026-10-25 has two.
    assert window_spans(windows, ms("2026-03-29"), ms("2026-03-30")) == ()
    (span,) = window_spans(windows, ms("2026-10-24T12:00"), ms("2026-10-25T12:00"))
    assert span == (ms("2026-10-25T00:00"), ms("2026-10-25T02:00"))


def test_half_an_hour_that_comes_twice_is_half_an_hour_more() -> None:
    # On 2026-04-05 the clock of Lord Howe goes from 02:00 back to 01:30.
    (span,) = window_spans(
        Windows((1,), "Australia/Lord_Howe"), ms("2026-04-04T12:00"), ms("2026-04-05T12:00")
    )
    assert span == (ms("2026-04-04T14:00"), ms("2026-04-04T15:30"))


def test_hours_that_no_day_has_and_zones_that_there_are_not_are_no_window() -> None:
    assert window_spans(Windows((99,), "UTC"), 0, 9 * DAY_MS) == ()
    assert window_spans(Windows((4,), "Nowhere/Atall"), 0, 9 * DAY_MS) == ()


@given(
    st.sets(st.integers(0, 23), min_size=1),
    st.sampled_from(["UTC", "Asia/Shanghai", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"]),
    st.integers(0, 400 * DAY_MS),
    st.integers(1, 5 * DAY_MS),
)
def test_windows_are_those_of_the_broker_itself(
    hours: set[int], zone: str, start_ms: int, span_ms: int
) -> None:
    start_ms += 1_750_000_000_000
    values = RULES.values({"deleteWhen": ";".join(map(str, hours))})
    theirs = RULES.windows(values, zone, start_ms, start_ms + span_ms)
    assert window_spans(Windows(tuple(hours), zone), start_ms, start_ms + span_ms) == theirs
