from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import HOUR_MS, is_in_hours
from storage_engine.exceptions import BadInputError
from storage_engine.rocketmq.cleanup_rules import next_window_ms, time_zone

SHANGHAI = ZoneInfo("Asia/Shanghai")
NEW_YORK = ZoneInfo("America/New_York")
ZONES = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "America/St_Johns",
]


def ms(text: str, zone: ZoneInfo, *, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp() * 1000)


@pytest.mark.parametrize(
    ("moment", "open_"),
    [
        ("2025-06-01T03:59:59", False),
        ("2025-06-01T04:00:00", True),
        ("2025-06-01T04:59:59", True),
        ("2025-06-01T05:00:00", False),
        ("2025-06-01T14:30:00", True),
    ],
)
def test_window_is_the_whole_hour_in_the_zone_of_the_store(moment: str, open_: bool) -> None:
    assert is_in_hours(ms(moment, SHANGHAI), (4, 14), SHANGHAI) is open_


def test_the_same_moment_is_another_hour_elsewhere() -> None:
    moment = ms("2025-06-01T04:30", SHANGHAI)
    assert is_in_hours(moment, (4,), SHANGHAI)
    assert not is_in_hours(moment, (4,), NEW_YORK)


def test_next_window_is_now_while_it_is_open() -> None:
    now = ms("2025-06-01T04:59:59", SHANGHAI)
    assert next_window_ms(now, (4,), SHANGHAI) == now


def test_next_window_is_the_nearest_of_several_hours() -> None:
    now = ms("2025-06-01T05:00", SHANGHAI)
    assert next_window_ms(now, (4, 14, 22), SHANGHAI) == ms("2025-06-01T14:00", SHANGHAI)
    assert next_window_ms(now, (4,), SHANGHAI) == ms("2025-06-02T04:00", SHANGHAI)


def test_an_hour_that_the_clock_skips_has_no_window_that_day() -> None:
    now = ms("2025-03-09T00:30", NEW_YORK)
    assert next_window_ms(now, (2,), NEW_YORK) == ms("2025-03-10T02:00", NEW_YORK)


def test_an_hour_that_comes_twice_has_two_windows() -> None:
    first = ms("2025-11-02T01:00", NEW_YORK)
    second = ms("2025-11-02T01:00", NEW_YORK, fold=1)
    assert second - first == HOUR_MS
    assert is_in_hours(first, (1,), NEW_YORK)
    assert is_in_hours(second, (1,), NEW_YORK)
    assert not is_in_hours(second + HOUR_MS, (1,), NEW_YORK)


@pytest.mark.parametrize("hours", [(99,), (24,), (-1,), ()])
def test_an_hour_that_no_clock_shows_never_comes(hours: tuple[int, ...]) -> None:
    assert next_window_ms(ms("2025-06-01T00:00", SHANGHAI), hours, SHANGHAI) is None


@given(
    now=st.integers(ms("2011-01-01T00:00", ZoneInfo("UTC")), ms("2035-01-01T00:00", ZoneInfo("UTC"))),
    hours=st.sets(st.integers(0, 30), min_size=1, max_size=3),
    name=st.sampled_from(ZONES),
)
def test_next_window_is_the_first_open_moment(now: int, hours: set[int], name: str) -> None:
    zone = ZoneInfo(name)
    found = next_window_ms(now, hours, zone)
    if found is None:
        assert min(hours) > 23
        return
    assert is_in_hours(found, hours, zone)
    assert found == now or not is_in_hours(found - 1, hours, zone)
    assert not any(is_in_hours(moment, hours, zone) for moment in range(now, found, 5 * 60_000))


def test_zone_of_this_machine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert str(time_zone(None)) == "Asia/Kathmandu"


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "a\0b"])
def test_unknown_zone_is_an_error(name: str) -> None:
    with pytest.raises(BadInputError, match="time zone"):
        time_zone(name)
