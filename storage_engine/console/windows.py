"""The hours in which a broker deletes what has expired, as spans of time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from storage_engine.console.rules import Windows

HOUR_MS = 3_600_000
HOURS_A_DAY = 24

Spans = tuple[tuple[int, int], ...]


def window_spans(windows: Windows, start_ms: int, end_ms: int) -> Spans:
    """Return the windows between two moments, by time, cut where the span begins and ends.

    An hour that a change of the clock leaves out is none, and one that comes twice is there twice.
    """
    try:
        zone = ZoneInfo(windows.time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        return ()
    # An hour that no day has is how a broker is told never to delete by age alone.
    hours = frozenset(hour for hour in windows.hours if 0 <= hour < HOURS_A_DAY)
    found: list[tuple[int, int]] = []
    for at_ms in _hours(zone, hours, start_ms, end_ms):
        start, end = max(at_ms, start_ms), min(at_ms + HOUR_MS, end_ms)
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return tuple(found)


def _hours(zone: ZoneInfo, hours: frozenset[int], start_ms: int, end_ms: int) -> Iterator[int]:
    """Yield the moments at which such an hour begins, by time."""
    first = datetime.fromtimestamp(start_ms / 1000, zone).date() - timedelta(days=1)
    last = datetime.fromtimestamp(end_ms / 1000, zone).date() + timedelta(days=1)
    day = first
    while day <= last:
        yield from sorted({at_ms for hour in hours for at_ms in _moments(zone, day, hour)})
        day += timedelta(days=1)


def _moments(zone: ZoneInfo, day: date, hour: int) -> Iterator[int]:
    for fold in (0, 1):
        local = datetime(day.year, day.month, day.day, hour, tzinfo=zone, fold=fold)
        moment = local.astimezone(UTC)
        if moment.astimezone(zone).hour == hour:
            yield int(moment.timestamp()) * 1000
