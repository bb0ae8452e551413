"""The quiet hour of a day, and what topics cost each other."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.report.usage import (
    DeletionHours,
    Usage,
    hour_advice,
    hour_means,
    largest,
    quiet_hour,
    topic_usages,
)

MONDAY = 495_000 - 495_000 % 24
"""Hours since the epoch, at 00:00 UTC."""


def days(count: int, quiet: int, start: int = MONDAY) -> dict[int, int]:
    """Return bytes by hour: 1,000 each, 10 at one hour of the day (UTC)."""
    return {start + hour: 10 if hour % 24 == quiet else 1000 for hour in range(24 * count + 2)}


def test_the_quiet_hour_is_the_one_with_the_fewest_bytes_by_the_stores_clock() -> None:
    found = quiet_hour(days(3, quiet=20), "Asia/Shanghai")
    assert found is not None
    assert (found.hour, found.days) == (4, 3)
    assert found.share == pytest.approx(10 / 23_010)


def test_a_span_without_a_whole_day_has_no_quiet_hour() -> None:
    by_hour = days(1, quiet=4)
    assert quiet_hour(by_hour, "UTC") is not None
    # The first and the last hour may be cut.
    assert quiet_hour({hour: size for hour, size in by_hour.items() if hour > MONDAY}, "UTC") is None
    assert quiet_hour({}, "UTC") is None
    assert quiet_hour({MONDAY: 0, MONDAY + 100: 0}, "UTC") is None


def test_an_hour_without_bytes_counts_as_such() -> None:
    by_hour = {hour: size for hour, size in days(3, quiet=30).items() if hour % 24 != 7}
    found = quiet_hour(by_hour, "UTC")
    assert found is not None
    assert (found.hour, found.share) == (7, 0)


@given(
    st.sampled_from(["UTC", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe"]), st.integers(2, 400)
)
def test_means_are_of_what_was_written_in_the_hours_that_count(zone: str, count: int) -> None:
    found = hour_means({MONDAY + hour: 7 for hour in range(24 * count)}, ZoneInfo(zone))
    assert found == ((7.0,) * 24, (24 * count - 2) // 24)


def test_advice_names_the_brokers_setting_where_it_is_another_hour() -> None:
    quiet = quiet_hour(days(2, quiet=3), "UTC")
    same = hour_advice(quiet, DeletionHours("deleteWhen", (3,)))
    assert same is not None
    assert same.what == (
        "the quiet hour of the day is 03 (UTC): 0.0 % of a day's bytes, over 2 days in the lake"
    )
    assert same.advice == ""
    other = hour_advice(quiet, DeletionHours("deleteWhen", (4, 16)))
    assert other is not None
    assert other.what == f"{same.what}; deleteWhen is 04;16"
    assert other.advice == "set deleteWhen to 03"
    assert hour_advice(quiet, None) == same
    assert hour_advice(None, DeletionHours("deleteWhen", (4,))) is None


def test_a_topic_costs_what_its_space_would_hold_of_all_others() -> None:
    topics = [Usage("large", 10, 600), Usage("small", 10, 300), Usage("ended", 1, 100)]
    last = {"large": 100, "small": 100, "ended": 60}
    large, small, ended = topic_usages(topics, last, 0, 100)
    # Without it a day's space holds 400 bytes a day, so 2.5 days.
    assert large.cost_hours_a_day == pytest.approx(24 * 1.5)
    assert "its own store" in large.advice
    assert small.share == pytest.approx(0.3)
    assert "its own store" in small.advice
    assert ended.advice == "no message since 1970-01-03: where it has ended, delete the topic"
    (alone,) = topic_usages(topics[:1], last, 0, 100)
    assert (alone.cost_hours_a_day, alone.advice) == (None, "")


def test_what_is_left_out_is_counted_together() -> None:
    usages = [Usage(str(number), 1, number) for number in range(5)]
    assert largest(usages, 2) == (Usage("4", 1, 4), Usage("3", 1, 3), Usage("others", 3, 3, is_rest=True))
    assert largest(usages, 5) == tuple(reversed(usages))


def test_what_is_left_out_is_judged_as_no_topic() -> None:
    others = Usage("others", 90, 900, is_rest=True)
    named = Usage("others", 1, 100)
    rest, topic = topic_usages([others, named], {"others": 0}, 0, 100)
    assert (rest.size_bytes, rest.cost_hours_a_day, rest.advice) == (900, None, "")
    assert "no message since" in topic.advice
