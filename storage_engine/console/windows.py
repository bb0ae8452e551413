"""The hours in which a broker deletes what has expired, as spans of time. Pure."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from storage_engine.console.rules import Windows
from storage_engine.model.course.daily_hours import hour_spans_ms

Spans = tuple[tuple[int, int], ...]


def window_spans(windows: Windows, start_ms: int, end_ms: int) -> Spans:
    """Return the windows between two moments, by time, cut where the span begins and ends.

    An hour that no day has is how a broker is told never to delete by age alone.
    """
    try:
        zone = ZoneInfo(windows.time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        return ()
    return hour_spans_ms(start_ms, end_ms, windows.hours, zone)
