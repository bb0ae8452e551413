"""Draw docs/pictures/what-if.svg: two weeks of a disk under rising load, by 72 hours and by 48.

Usage: python docs/draw_what_if.py
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from storage_engine.core.clock import DAY_MS
from storage_engine.model.simulation import CourseStart, Ingest, SegmentRun
from storage_engine.pages.course_chart import ChartCourse, course_svg
from storage_engine.rocketmq import BROKER

PICTURE = Path(__file__).resolve().parent / "pictures" / "what-if.svg"
ZONE = ZoneInfo("Asia/Shanghai")
GIB = 1 << 30
BY_HOUR = (1.0, 1, 1, 1, 1, 1, 2, 3, 5, 8, 9, 9, 7, 7, 8, 9, 9, 8, 6, 5, 4, 3, 2, 1)
DAYS = 14


def draw() -> str:
    """Return the picture."""
    now_ms = int(datetime(2026, 3, 27, tzinfo=ZONE).timestamp() * 1000)
    start = CourseStart(
        now_ms=now_ms,
        disk_bytes=1000 * GIB,
        other_bytes=50 * GIB,
        segment_bytes=GIB,
        runs=(SegmentRun(400, GIB, now_ms - 3 * DAY_MS, now_ms - 1_000),),
        active_bytes=0,
        oldest_message_ms=now_ms - 3 * DAY_MS,
        time_zone=ZONE.key,
        ingest=Ingest(150 * GIB, BY_HOUR, growth_per_day=0.06),
    )
    changed = _course("changed", start, {"fileReservedTime": "48"})
    return course_svg(
        "14 days under rising load: fileReservedTime 48", _course("today", start, {}), changed, ZONE
    )


def _course(label: str, start: CourseStart, values: Mapping[str, str]) -> ChartCourse:
    rules, horizon_ms = BROKER.rules, DAYS * DAY_MS
    windows = rules.windows(values, ZONE.key, start.now_ms, start.now_ms + horizon_ms)
    return ChartCourse(label, rules.course(values, start, horizon_ms), rules.levels(values), windows)


if __name__ == "__main__":
    PICTURE.write_text(draw())
