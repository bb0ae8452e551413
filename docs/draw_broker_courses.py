"""Draw docs/pictures/course-*.svg: what a broker's own cleaning classes did, and what the simulation says.

The broker's course is a broad grey line, from what tests/fixtures/courses keeps of it for each hour; the
simulated one is the line of colour in front of it.

Usage: python -m docs.draw_broker_courses
"""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

from storage_engine.model.plan import Cause
from storage_engine.model.simulation import Course, CourseRecord
from storage_engine.pages.course_chart import ChartCourse, course_svg
from storage_engine.rocketmq import BROKER
from tests.courses import PassCourse, Scenario, kept_courses, scenario, simulated

PICTURES = Path(__file__).resolve().parent / "pictures"
TITLES = {
    "rising": "Ingest grows by 9 % a day: the broker (grey), the simulation (colour)",
    "not-forced": "Without cleanFileForciblyEnable: the broker (grey), the simulation (colour)",
}
_HOUR_MS = 3_600_000
_BEHIND, _BROAD = "stroke-width: 1.2;", "stroke-width: 6; stroke-opacity: .45;"


def draw() -> dict[Path, str]:
    """Return the pictures."""
    broker = kept_courses()
    return {PICTURES / f"course-{name}.svg": _picture(name, broker[name]) for name in TITLES}


def _picture(name: str, broker: PassCourse) -> str:
    given = scenario(name)
    drawn, _ = simulated(given)
    zone = ZoneInfo(given.start().time_zone)
    svg = course_svg(
        TITLES[name],
        _chart_course("the broker", given, _recorded(given, broker)),
        _chart_course("simulated", given, drawn),
        zone,
    )
    assert svg.count(_BEHIND) == 1
    return svg.replace(_BEHIND, _BROAD)


def _recorded(given: Scenario, broker: PassCourse) -> Course:
    """The broker's course, as a simulation keeps its own."""
    start = given.start()
    record = CourseRecord(start, given.horizon_ms)
    for each in broker.deletions:
        causes = [Cause.TIME_UP] * each.time_up + [Cause.SPACE_FULL] * each.space_full
        record.deletion(
            start.now_ms + each.after_ms,
            each.segments,
            each.segments * start.segment_bytes,
            tuple(cause.value for cause in causes),
            forced=each.forced,
            unexpired=each.unexpired_segments,
        )
    for from_ms, until_ms in broker.refused:
        record.accepts(start.now_ms + from_ms, accepted=False)
        if until_ms is not None:
            record.accepts(start.now_ms + until_ms, accepted=True)
    points = [
        (number * _HOUR_MS, hour.used_bytes, hour.retention_ms) for number, hour in enumerate(broker.hours)
    ]
    for after_ms, used_bytes, retention_ms in sorted({*points, broker.highest or points[0]}):
        record.point(start.now_ms + after_ms, used_bytes, retention_ms)
    return record.result(refused_bytes=0)


def _chart_course(label: str, given: Scenario, drawn: Course) -> ChartCourse:
    rules, settings = BROKER.rules, given.settings
    end_ms = given.start_ms + given.horizon_ms
    windows = rules.windows(settings, given.start().time_zone, given.start_ms, end_ms)
    return ChartCourse(label, drawn, rules.levels(settings), windows)


if __name__ == "__main__":
    for path, picture in draw().items():
        path.write_text(picture)
