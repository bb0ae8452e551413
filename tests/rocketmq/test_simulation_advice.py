"""Advice is true in the course that it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS
from storage_engine.model.simulation import Advice, Course, CourseStart, Ingest, SegmentRun
from storage_engine.rocketmq.simulation import RULES

GIB = 1 << 30
NOW = 1_774_540_800_000


def store(ingest: Ingest, disk_bytes: int = 1000 * GIB) -> CourseStart:
    return CourseStart(NOW, disk_bytes, 20 * GIB, GIB, (), 0, NOW, "Asia/Shanghai", ingest, 0.1)


def advice(kind: str, start: CourseStart, wished_hours: int | None = None, **values: str) -> Advice | None:
    found = RULES.advice(values, start, wished_hours=wished_hours)
    return next((one for one in found if one.kind == kind), None)


def settled(start: CourseStart, hours: int, **values: str) -> Course:
    """The course with a reserved time, until it has settled."""
    return RULES.course({"fileReservedTime": str(hours), **values}, start, hours * 3_600_000 + 6 * DAY_MS)


@settings(max_examples=12, deadline=None)
@given(st.integers(50, 900), st.lists(st.sampled_from([1.0, 4.0]), min_size=24, max_size=24))
def test_the_longest_reserved_time_keeps_each_message_so_long_and_a_longer_one_does_not(
    gib_a_day: int, profile: list[float]
) -> None:
    start = store(Ingest(gib_a_day * GIB, tuple(profile)))
    found = advice("does-not-fit", start, fileReservedTime="2000")
    assert found is not None
    hours = int(found.numbers["longest_hours"])
    assert settled(start, hours).summary.unexpired_segments == 0
    assert settled(start, hours + 3).summary.unexpired_segments > 0


def test_the_smallest_disk_keeps_the_wished_time_and_a_smaller_one_does_not() -> None:
    start = store(Ingest(300 * GIB))
    found = advice("disk-for-wish", start, 120)
    assert found is not None
    disk_bytes = int(found.numbers["disk_bytes"])
    assert settled(start.changed(disk_bytes=disk_bytes), 120).summary.unexpired_segments == 0
    smaller = start.changed(disk_bytes=disk_bytes * 98 // 100)
    assert settled(smaller, 120).summary.unexpired_segments > 0


def test_on_a_quiet_disk_the_time_of_day_alone_cleans() -> None:
    for when in ("04", "02;14", "03;04"):
        start = store(Ingest(100 * GIB), 10_000 * GIB)
        found = advice("quiet-disk", start, deleteWhen=when, fileReservedTime="48")
        assert found is not None
        disk_bytes = int(found.numbers["disk_bytes"])
        quiet = settled(start.changed(disk_bytes=disk_bytes), 48, deleteWhen=when)
        assert {run.causes for run in quiet.deletions} == {("time-up",)}
        loud = settled(start.changed(disk_bytes=disk_bytes * 96 // 100), 48, deleteWhen=when)
        assert {run.causes for run in loud.deletions} > {("time-up",)}


def test_settings_that_fit_say_so_with_the_level_to_expect() -> None:
    start = store(Ingest(100 * GIB))
    found = advice("fits", start)
    assert found is not None
    highest = settled(start, 72, diskMaxUsedSpaceRatio="10").summary.highest_percent
    assert found.numbers["level_percent"] == pytest.approx(highest, abs=1)
    assert found.numbers["longest_hours"] > 72
    # By the broker's defaults what has expired waits for 04:00, or for 75 %.
    assert found.numbers["cleans_percent"] == 75
    assert settled(store(Ingest(190 * GIB)), 72).summary.highest_percent <= 76


def test_without_force_what_does_not_fit_refuses_writes() -> None:
    start = store(Ingest(400 * GIB))
    assert advice("force-is-off", start) is None
    found = advice("force-is-off", start, cleanFileForciblyEnable="false")
    assert found is not None
    assert found.numbers == {"refuses_percent": 90}
    assert settled(start, 72, cleanFileForciblyEnable="false").summary.refused_ms > 0


def test_a_ratio_above_the_forcing_level_is_said() -> None:
    found = advice("ratio-too-high", store(Ingest(GIB)), diskMaxUsedSpaceRatio="88")
    assert found is not None
    assert found.numbers == {"ratio_percent": 88, "limit_percent": 85}
    assert advice("ratio-too-high", store(Ingest(GIB))) is None


def test_a_window_in_which_passes_can_not_delete_what_a_day_brings_is_said() -> None:
    start = replace(store(Ingest(500 * GIB)), segment_bytes=100 << 20)
    found = advice("window-too-short", start)
    assert found is not None
    assert found.numbers == {"window_bytes": 360 * 10 * (100 << 20), "day_bytes": 500 * GIB}
    assert advice("window-too-short", start, deleteWhen="04;05") is None


def test_the_share_of_the_trace_topic_is_said_with_the_time_that_messages_would_stay_without_it() -> None:
    start = store(Ingest(200 * GIB))
    assert advice("trace-topic", start) is None
    found = advice("trace-topic", replace(start, topic_bytes={"orders": 30, "RMQ_SYS_TRACE_TOPIC": 10}))
    assert found is not None
    assert (found.numbers["share_percent"], found.numbers["size_bytes"]) == (25.0, 10)
    with_it, without = advice("fits", start), advice("fits", store(Ingest(150 * GIB)))
    assert with_it is not None
    assert without is not None
    assert (
        found.numbers["longest_hours"] == without.numbers["longest_hours"] > with_it.numbers["longest_hours"]
    )


def test_a_store_to_which_nothing_comes_needs_no_advice() -> None:
    quiet = replace(store(Ingest(0)), runs=(SegmentRun(3, GIB, NOW - 10, NOW),))
    assert RULES.advice({}, quiet) == ()
