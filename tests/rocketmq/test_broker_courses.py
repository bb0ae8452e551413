"""The simulation takes the course that the broker's own classes took, pass by pass.

Their clock and disk were driven. What drives them computes ingest, seals and level by itself, so that two
readings of the broker's source are compared. Where the two part, a test says so by name.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import pytest

from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError, BrokerConfigError
from storage_engine.model.disk import percent_rounded_up
from storage_engine.model.simulation import Course
from storage_engine.rocketmq.simulation import RULES
from tests.courses import PassCourse, kept_courses, scenario, scenarios, simulated

PARTED = {"unknown-disk", "unreadable-hour", "empty-last-file"}
"""Where the broker does what no cleanup of ours does, or what a simulation can't know."""


@pytest.fixture(scope="module")
def broker() -> dict[str, PassCourse]:
    return kept_courses()


def test_the_broker_took_each_scenario(broker: dict[str, PassCourse]) -> None:
    assert set(broker) == set(scenarios())
    assert set(broker) > PARTED
    assert sum(len(course.deletions) for course in broker.values()) > 8_000


@pytest.mark.parametrize("name", sorted(scenarios().keys() - PARTED))
def test_each_pass_deletes_what_the_broker_deletes(broker: dict[str, PassCourse], name: str) -> None:
    drawn, course = simulated(scenario(name))

    assert course.deletions == broker[name].deletions
    assert course.refused == broker[name].refused
    assert drawn.summary.deleted_segments == sum(each.segments for each in broker[name].deletions)
    highest = broker[name].highest
    assert highest is not None
    disk_bytes = scenario(name).values["disk_bytes"]
    assert drawn.summary.highest_percent == percent_rounded_up(highest.used_bytes, disk_bytes)
    assert drawn.summary.unexpired_segments == sum(each.unexpired_segments for each in broker[name].deletions)


@pytest.mark.parametrize("name", sorted(scenarios().keys() - PARTED))
def test_what_is_drawn_holds_the_broker_s_level_and_retention_time_of_each_hour(
    broker: dict[str, PassCourse], name: str
) -> None:
    given = scenario(name)
    drawn, _ = simulated(given)
    hours = broker[name].hours

    assert len(hours) == given.horizon_ms // HOUR_MS + 1
    for number, hour in enumerate(hours):
        # A few points stand for the time of a pixel: within it they hold the extremes.
        near = _within(drawn, given.start_ms + number * HOUR_MS, given.horizon_ms // 300)
        used = hour.used_bytes * 100 / given.values["disk_bytes"]
        assert min(near.used_percent) - 0.01 <= used <= max(near.used_percent) + 0.01
        assert min(near.retention_ms) - 60_000 <= hour.retention_ms <= max(near.retention_ms) + 60_000


def test_an_unmeasured_disk_makes_the_broker_clean_and_is_no_disk_to_simulate(
    broker: dict[str, PassCourse],
) -> None:
    given, course = scenario("unknown-disk"), broker["unknown-disk"]

    # It takes the disk for one at -1 %, and cleans at any hour.
    assert {hour.percent for hour in course.hours} == {-100}
    assert all(each.space_full for each in course.deletions)
    assert sum(not each.time_up for each in course.deletions) > 100
    with pytest.raises(BadInputError, match="disk_bytes"):
        given.start()


def test_an_hour_that_cant_be_read_stops_the_broker_and_is_refused_by_the_simulation(
    broker: dict[str, PassCourse],
) -> None:
    given, course = scenario("unreadable-hour"), broker["unreadable-hour"]

    # It gives up each pass outside the first hour: it neither frees space nor refuses writes, at any level.
    assert all(each.time_up for each in course.deletions)
    refuses = RULES.levels({}).refuses_percent
    above = [number * HOUR_MS for number, hour in enumerate(course.hours) if hour.percent > refuses]
    assert above[0] + 4 * HOUR_MS < course.refused[0][0]
    with pytest.raises(BrokerConfigError, match="deleteWhen"):
        RULES.course(given.settings, given.start(), given.horizon_ms)


def test_the_broker_deletes_the_last_file_with_content_where_it_has_made_the_next(
    broker: dict[str, PassCourse],
) -> None:
    _, course = simulated(scenario("empty-last-file"))

    segments = scenario("empty-last-file").values["segments"]["count"]
    assert sum(each.segments for each in broker["empty-last-file"].deletions) == segments
    assert sum(each.segments for each in course.deletions) == segments - 1
    assert course.deletions[:2] == broker["empty-last-file"].deletions[:2]
    assert course.refused == broker["empty-last-file"].refused == ((0, None),)


class _Near(NamedTuple):
    used_percent: tuple[float, ...]
    retention_ms: tuple[int, ...]


def _within(drawn: Course, moment_ms: int, span_ms: int) -> _Near:
    """The points of a page's lines around a moment, with the next ones outside."""
    first = max(bisect_left(drawn.times_ms, moment_ms - span_ms) - 1, 0)
    last = bisect_right(drawn.times_ms, moment_ms + span_ms) + 1
    return _Near(drawn.used_percent[first:last], drawn.retention_ms[first:last])
