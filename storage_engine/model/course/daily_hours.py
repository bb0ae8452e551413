"""Hours of the day by a zone's clock, as moments: the whole hour counts. Pure.

An hour that a change of the clock leaves out is none that day, and one that comes twice is there twice.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

STEP_MS = 900_000
"""Local hours begin at a quarter of an hour in UTC, in every zone and at every change of the clock."""


def in_hours(now_ms: int, hours: Collection[int], zone: ZoneInfo) -> bool:
    """Return whether the local clock shows one of the hours."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).astimezone(zone).hour in hours


def hour_changes_ms(start_ms: int, end_ms: int, hours: Collection[int], zone: ZoneInfo) -> tuple[int, ...]:
    """Return when the hours begin, end, begin and so on: a beginning first, then in turn.

    Hours that have begun before the start begin there.

    :param end_ms: no change behind it.
    """
    found, is_open = list[int](), False
    moment_ms = start_ms
    while moment_ms <= end_ms:
        if in_hours(moment_ms, hours, zone) is not is_open:
            found.append(moment_ms)
            is_open = not is_open
        moment_ms += STEP_MS - moment_ms % STEP_MS
    return tuple(found)


def hour_spans_ms(
    start_ms: int, end_ms: int, hours: Collection[int], zone: ZoneInfo
) -> tuple[tuple[int, int], ...]:
    """Return the spans of the hours between two moments, by time, cut where the span begins and ends."""
    changes = hour_changes_ms(start_ms, end_ms, hours, zone)
    spans = zip(changes[::2], (*changes[1::2], end_ms), strict=False)
    return tuple((begin_ms, until_ms) for begin_ms, until_ms in spans if begin_ms < until_ms)
