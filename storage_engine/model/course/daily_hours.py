"""Hours of the day by a zone's clock: those at which a broker deletes, and how many bytes come in each. Pure.

The whole hour counts. One that a change of the clock leaves out is none that day; one that comes twice is
there twice. All of it is in whole numbers: who steps through a course in other steps finds the same bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.model.course.course import HOURS_A_DAY, Ingest

_STEP_MS = 900_000
"""Local hours begin at a quarter of an hour in UTC, in every zone and at every change of the clock."""


def in_hours(now_ms: int, hours: Collection[int], zone: ZoneInfo) -> bool:
    """Return whether the local clock shows one of the hours."""
    return _local_hour(now_ms, zone) in hours


def hour_changes_ms(start_ms: int, end_ms: int, hours: Collection[int], zone: ZoneInfo) -> Iterator[int]:
    """Yield when the hours begin, end, begin and so on: a beginning first, then in turn.

    Hours that have begun before the start begin there.

    :param end_ms: no change behind it.
    """
    is_open = False
    moment_ms = start_ms
    while moment_ms <= end_ms:
        if in_hours(moment_ms, hours, zone) is not is_open:
            yield moment_ms
            is_open = not is_open
        moment_ms += _STEP_MS - moment_ms % _STEP_MS


def hour_spans_ms(
    start_ms: int, end_ms: int, hours: Collection[int], zone: ZoneInfo
) -> tuple[tuple[int, int], ...]:
    """Return the spans of the hours between two moments, by time, cut where the span begins and ends."""
    changes = tuple(hour_changes_ms(start_ms, end_ms, hours, zone))
    spans = zip(changes[::2], (*changes[1::2], end_ms), strict=False)
    return tuple((begin_ms, until_ms) for begin_ms, until_ms in spans if begin_ms < until_ms)


class Inflow:
    """The bytes that come from a moment on, while they are accepted.

    :param zone: in which the hours of the ingest's profile are meant.
    """

    def __init__(self, ingest: Ingest, start_ms: int, end_ms: int, zone: ZoneInfo) -> None:
        first_ms = start_ms - start_ms % _STEP_MS
        self._times: list[int] = []
        self._sums: list[int] = []
        self._rates: list[int] = []
        """Bytes an hour of each slice."""
        sum_bytes, by_day = 0, dict[int, tuple[int, ...]]()
        for time_ms in range(first_ms, end_ms + _STEP_MS, _STEP_MS):
            day = max(time_ms - start_ms, 0) // DAY_MS
            if day not in by_day:
                by_day[day] = ingest.hour_bytes(day)
            rate = by_day[day][_local_hour(time_ms, zone)]
            self._times.append(time_ms)
            self._sums.append(sum_bytes)
            self._rates.append(rate)
            sum_bytes += rate * _STEP_MS // HOUR_MS
        self._end_bytes = sum_bytes

    def until(self, time_ms: int) -> int:
        """Return the bytes that have come by a moment between start and end."""
        index = bisect_right(self._times, time_ms) - 1
        return self._sums[index] + self._rates[index] * (time_ms - self._times[index]) // HOUR_MS

    def when(self, sum_bytes: int) -> int | None:
        """Return the first moment by which so many bytes have come; None: none before the end.

        :param sum_bytes: as ``until`` counts, above 0.
        """
        if sum_bytes > self._end_bytes:
            return None
        index = bisect_right(self._sums, sum_bytes - 1) - 1
        return self._times[index] - (self._sums[index] - sum_bytes) * HOUR_MS // self._rates[index]


def ingest_from(points: Sequence[tuple[int, int]], zone: ZoneInfo) -> Ingest | None:
    """Return the ingest that a log's growth tells, with its profile over the hours of the day.

    :param points: moments and the log's max offset at each, oldest first.
    :param zone: in which the hours are meant.
    :return: None where fewer than two moments are known, or nothing came between them.
    """
    came, covered = [0.0] * HOURS_A_DAY, [0.0] * HOURS_A_DAY
    for (start_ms, start), (end_ms, end) in pairwise(points):
        if end_ms <= start_ms or end < start:
            continue
        rate = (end - start) / (end_ms - start_ms)
        time_ms = start_ms
        while time_ms < end_ms:
            until_ms = min(end_ms, time_ms - time_ms % _STEP_MS + _STEP_MS)
            hour = _local_hour(time_ms, zone)
            came[hour] += rate * (until_ms - time_ms)
            covered[hour] += until_ms - time_ms
            time_ms = until_ms
    if sum(covered) == 0 or sum(came) <= 0:
        return None
    mean = sum(came) / sum(covered)
    rates = [bytes_ / ms if ms else mean for bytes_, ms in zip(came, covered, strict=True)]
    bytes_per_day = int(sum(rates) / HOURS_A_DAY * DAY_MS)
    if bytes_per_day == 0:
        return None
    return Ingest(bytes_per_day, tuple(round(rate / max(rates), 4) for rate in rates))


def most_bytes_within(ingest: Ingest, hours: int) -> int:
    """Return the most bytes that come within so many hours, at whichever hour of the day they begin."""
    whole_days, rest = divmod(hours, HOURS_A_DAY)
    by_hour = ingest.hour_bytes(0)
    twice = (*by_hour, *by_hour)
    most = max(sum(twice[first : first + rest]) for first in range(HOURS_A_DAY))
    return whole_days * sum(by_hour) + most


def _local_hour(time_ms: int, zone: ZoneInfo) -> int:
    return datetime.fromtimestamp(time_ms // 1000, UTC).astimezone(zone).hour
