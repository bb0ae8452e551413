"""The course of a simulation: equal to the real plan's, pass by pass, and quick enough for a web server."""

from __future__ import annotations

import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.exceptions import BadInputError, SimulationTooLongError
from storage_engine.model.simulation import Course, CourseDeletion, CourseStart, Ingest, SegmentRun
from storage_engine.rocketmq.simulation import RULES, config_of, course
from tests.rocketmq.passes import Kept, pass_by_pass
from tests.rounds import rounds

SHANGHAI = "Asia/Shanghai"
MIB, GIB, TB = 1 << 20, 1 << 30, 10**12
MIDNIGHT = int(datetime(2026, 3, 27, tzinfo=ZoneInfo(SHANGHAI)).timestamp() * 1000)


def start_of(
    *,
    segments: int,
    segment_bytes: int,
    spread_ms: int,
    disk_bytes: int,
    ingest: Ingest,
    other_bytes: int = 0,
    now_ms: int = MIDNIGHT,
    active_bytes: int = 0,
    share: float = 0.0,
    zone: str = SHANGHAI,
) -> CourseStart:
    """A log whose segments were written evenly up to now."""
    first_ms = now_ms - spread_ms
    runs = (SegmentRun(segments, segment_bytes, first_ms, now_ms - 1_000),) if segments else ()
    return CourseStart(
        now_ms,
        disk_bytes,
        other_bytes,
        segment_bytes,
        runs,
        active_bytes,
        first_ms - 1_000,
        zone,
        ingest,
        share,
    )


def both(
    values: Mapping[str, str], start: CourseStart, horizon_ms: int
) -> tuple[Kept, Kept, tuple[int, int]]:
    config = config_of(values)
    quick, each = Kept(start, horizon_ms), Kept(start, horizon_ms)
    zone = ZoneInfo(start.time_zone)
    quick_refused = course(config, start, horizon_ms, zone, 60, quick)
    every_ms = int(values.get("cleanResourceInterval", "10000"))
    each_refused = pass_by_pass(config, start, horizon_ms, each, every_ms)
    return quick, each, (quick_refused, each_refused)  # type: ignore[return-value]


VALUES = st.fixed_dictionaries(
    {
        "fileReservedTime": st.integers(0, 6).map(str),
        "deleteWhen": st.sampled_from(["00", "01;3", "04", "99", "02;03", ";".join(map(str, range(24)))]),
        "diskMaxUsedSpaceRatio": st.integers(10, 95).map(str),
        "diskSpaceCleanForciblyRatio": st.integers(30, 90).map(str),
        "diskSpaceWarningLevelRatio": st.integers(35, 95).map(str),
        "cleanFileForciblyEnable": st.sampled_from(["true", "false"]),
        "deleteFileBatchMax": st.sampled_from(["0", "1", "2", "10"]),
        "deleteCommitLogFilesInterval": st.sampled_from(["0", "100", "30000", "45000"]),
        "cleanResourceInterval": st.sampled_from(["10000", "10000", "60000", "7000"]),
    }
)
PROFILES = st.one_of(
    st.just((1.0,) * 24),
    st.lists(st.sampled_from([0.0, 1.0, 7.0]), min_size=24, max_size=24).map(lambda w: (*w[:-1], 1.0)),
)


@st.composite
def _starts(draw: st.DrawFn) -> CourseStart:
    disk_bytes = draw(st.integers(50_000, 2_000_000))
    segment_bytes = draw(st.integers(disk_bytes // 300 + 1, disk_bytes // 5))
    segments = draw(st.integers(0, disk_bytes // segment_bytes))
    zone, day = draw(
        st.sampled_from(
            [(SHANGHAI, 0), ("Europe/Berlin", 86_400_000), ("Australia/Lord_Howe", 8 * 86_400_000)]
        )
    )
    return start_of(
        segments=segments,
        segment_bytes=segment_bytes,
        spread_ms=draw(st.integers(1_000, 8 * HOUR_MS)),
        disk_bytes=disk_bytes,
        other_bytes=draw(st.integers(0, disk_bytes // 2)),
        ingest=Ingest(draw(st.integers(0, 20 * disk_bytes)), draw(PROFILES)),
        now_ms=MIDNIGHT + day + draw(st.integers(0, DAY_MS)),
        active_bytes=draw(st.integers(0, segment_bytes - 1)),
        share=draw(st.sampled_from([0.0, 0.125, 0.5])),
        zone=zone,
    )


@settings(max_examples=rounds("STORAGE_ENGINE_COURSES", 12, 400), deadline=None)
@given(VALUES, _starts(), st.integers(10 * 60_000, 4 * HOUR_MS))
def test_the_course_is_that_of_every_pass_with_the_real_plan(
    values: dict[str, str], start: CourseStart, horizon_ms: int
) -> None:
    quick, each, refused = both(values, start, horizon_ms)
    assert quick.deletions == each.deletions
    assert quick.writes == each.writes
    assert refused[0] == refused[1]
    assert set(quick.levels) <= set(each.levels)
    assert quick.levels[-1] == each.levels[-1]


def rising(**values: str) -> Course:
    """The course of a disk of 1,000 GiB whose ingest grows by a tenth each day, from 100 GiB on."""
    start = start_of(
        segments=300,
        segment_bytes=GIB,
        spread_ms=3 * DAY_MS,
        disk_bytes=1000 * GIB,
        other_bytes=50 * GIB,
        ingest=Ingest(100 * GIB, growth_per_day=0.1),
    )
    return RULES.course(values, start, 16 * DAY_MS)


def phase(course: Course, first_day: int, last_day: int) -> list[CourseDeletion]:
    """Return what was deleted from one day to another, counted from 0."""
    low, high = MIDNIGHT + first_day * DAY_MS, MIDNIGHT + last_day * DAY_MS
    return [run for run in course.deletions if low <= run.at_ms < high]


def spread(course: Course, first_day: int, last_day: int) -> tuple[list[float], list[int]]:
    """Return levels and retention times from one day to another."""
    low, high = MIDNIGHT + first_day * DAY_MS, MIDNIGHT + last_day * DAY_MS
    found = [
        (percent, retention_ms)
        for at_ms, percent, retention_ms in zip(
            course.times_ms, course.used_percent, course.retention_ms, strict=True
        )
        if low <= at_ms < high
    ]
    return [percent for percent, _ in found], [retention_ms for _, retention_ms in found]


def test_while_the_level_is_low_each_day_drops_to_the_reserved_time_in_the_window() -> None:
    course = rising()
    runs = phase(course, 1, 8)
    assert {run.causes for run in runs} == {("time-up",)}
    assert [(run.at_ms - MIDNIGHT) // DAY_MS for run in runs] == list(range(1, 8))
    assert all(4 <= (run.at_ms - MIDNIGHT) % DAY_MS / HOUR_MS < 4.1 for run in runs)
    levels, retention_ms = spread(course, 1, 8)
    assert max(levels) < 75
    assert 72 * HOUR_MS <= min(retention_ms) < 73 * HOUR_MS
    assert 95 * HOUR_MS < max(retention_ms) < 97 * HOUR_MS


def test_above_the_ratio_cleaning_at_any_hour_no_longer_lowers_a_level_of_young_messages() -> None:
    course = rising()
    runs = phase(course, 10, 12)
    assert any(run.causes == ("space-full",) for run in runs)
    assert sum(run.unexpired_segments for run in runs) == 0
    levels, retention_ms = spread(course, 11, 12)
    assert 75 < min(levels) < levels[0] + 0.1 < max(levels) - 5
    assert levels[-1] == max(levels)
    assert max(retention_ms) < 72.2 * HOUR_MS


def test_the_level_stays_where_segments_go_by_force_and_the_retention_time_falls() -> None:
    course = rising()
    runs = phase(course, 13, 16)
    assert all(run.forced and run.unexpired_segments == run.segments for run in runs)
    levels, _ = spread(course, 13, 16)
    assert 83.5 < min(levels) <= max(levels) < 85.5
    by_day = [spread(course, day, day + 1)[1] for day in (13, 14, 15)]
    assert 72 * HOUR_MS > max(by_day[0]) > max(by_day[1]) > max(by_day[2])
    assert max(by_day[2]) < 56 * HOUR_MS
    assert course.refused == ()


def test_without_force_writes_are_refused_at_the_warning_level_until_it_is_down_to_the_forcing_one() -> None:
    course = rising(cleanFileForciblyEnable="false")
    assert course.summary.unexpired_segments == 0
    assert course.summary.highest_percent == 91
    first, second, *_ = course.refused
    at = [course.used_percent[bisect_left(course.times_ms, moment_ms)] for moment_ms in first]
    assert 90 < at[0] < 90.1
    assert 84 < at[1] < 85.2
    assert second[0] > first[1] + HOUR_MS
    assert course.summary.refused_ms == sum(until - since for since, until in course.refused)
    assert course.summary.refused_bytes > 0


def test_a_batch_that_is_too_small_for_the_ingest_refuses_writes_again_and_again() -> None:
    start = start_of(
        segments=600,
        segment_bytes=GIB // 10,
        spread_ms=3 * DAY_MS,
        disk_bytes=100 * GIB,
        ingest=Ingest(2000 * GIB),
    )
    course = RULES.course({"deleteFileBatchMax": "1"}, start, 6 * HOUR_MS)
    assert course.summary.highest_percent == 91
    assert len(course.refused) > 20
    assert RULES.course({}, start, 6 * HOUR_MS).refused == ()


def test_what_is_drawn_has_few_points_and_keeps_peaks_and_drops() -> None:
    start = start_of(
        segments=700,
        segment_bytes=GIB,
        spread_ms=3 * DAY_MS,
        disk_bytes=1000 * GIB,
        ingest=Ingest(260 * GIB, (5.0, *(1.0,) * 23)),
    )
    kept = Kept(start, 14 * DAY_MS)
    course(config_of({}), start, 14 * DAY_MS, ZoneInfo(SHANGHAI), 60, kept)
    thinned = RULES.course({}, start, 14 * DAY_MS)
    assert len(kept.levels) > 4_000 > 2_000 >= len(thinned.times_ms)
    assert list(thinned.times_ms) == sorted(thinned.times_ms)
    for day in range(14):
        levels, retention_ms = spread(thinned, day, day + 1)
        low, high = MIDNIGHT + day * DAY_MS, MIDNIGHT + (day + 1) * DAY_MS
        each = [(used, age) for at_ms, used, age in kept.levels if low <= at_ms < high]
        assert max(levels) == -(-max(used for used, _ in each) * 10_000 // start.disk_bytes) / 100
        assert min(levels) == -(-min(used for used, _ in each) * 10_000 // start.disk_bytes) / 100
        assert (min(retention_ms), max(retention_ms)) == (min(a for _, a in each), max(a for _, a in each))
    deleted = sum(cast(int, deletion[2]) for deletion in kept.deletions)
    assert deleted == sum(run.size_bytes for run in thinned.deletions) == thinned.summary.deleted_bytes
    assert len(thinned.deletions) < 500


@pytest.mark.parametrize("segment_bytes", [GIB, 100 * MIB])
def test_two_weeks_of_two_terabytes_take_less_than_a_second(segment_bytes: int) -> None:
    start = start_of(
        segments=1_400 * GIB // segment_bytes,
        segment_bytes=segment_bytes,
        spread_ms=3 * DAY_MS,
        disk_bytes=2 * TB,
        ingest=Ingest(TB * 9 // 10),
        share=0.05,
    )
    before = time.thread_time()
    found = RULES.course({}, start, 14 * DAY_MS)
    assert time.thread_time() - before < 1
    assert found.summary.deleted_bytes > 10 * TB


def test_a_course_that_takes_too_long_ends_with_one_clear_error() -> None:
    start = start_of(
        segments=0, segment_bytes=MIB, spread_ms=1, disk_bytes=2 * TB, ingest=Ingest(10 * TB), share=0.0
    )
    with pytest.raises(SimulationTooLongError, match=r"within 0 s.*Ask for fewer days"):
        RULES.course({}, start, 14 * DAY_MS, limit_seconds=0)
    with pytest.raises(BadInputError, match="at most 366 days"):
        RULES.course({}, start, 400 * DAY_MS)


def test_the_simulation_imports_nothing_that_a_web_server_should_not_have() -> None:
    heavy = {"numpy", "pandas", "pyarrow", "numba", "psutil", "sqlalchemy", "pyiceberg", "airflow"}
    code = f"""
import sys
from storage_engine.model.simulation import CourseStart, Ingest, SegmentRun
from storage_engine.rocketmq import BROKER
runs = (SegmentRun(500, 10**6, -10**8, -1),)
start = CourseStart(0, 10**9, 0, 10**6, runs, 5, -10**8, "UTC", Ingest(10**8))
course = BROKER.rules.course(BROKER.rules.values({{}}), start, 14 * 86_400_000)
assert course.deletions and BROKER.rules.advice({{}}, start)
print(sorted({heavy} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
