"""This machine's clock, in ms as in journal, plans and receipts: its jumps forward, and hours of the day.

Ages are computed from the clock. If somebody sets it forward, every segment looks expired. So it is compared
with the time since the machine was started, which can't be set.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

JUMP_MS = HOUR_MS
"""Least jump that counts, the unit of fileReservedTime. A smaller jump may be the correction of a slow clock.
"""

REMEMBERED_MS = DAY_MS
"""Time after which a changed clock counts as right: until then a person could read the refusals."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the clock and of the time since the machine was started.

    :param boottime_ms: time since the start, including time asleep.
    :param started_at_ms: time of the start, as the clock showed it. It changes only when somebody sets the
        clock.
    """

    boot_id: str
    boottime_ms: int
    started_at_ms: int


def clock_ms() -> int:
    """Return the present time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def read_clock() -> ClockReading | None:
    """Read both clocks. Return None if the system has no clock that counts from its start."""
    if not hasattr(time, "CLOCK_BOOTTIME") or not _BOOT_ID.exists():
        return None
    boottime_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return ClockReading(_BOOT_ID.read_text().strip(), boottime_ms, clock_ms() - boottime_ms)


def jumped_forward_ms(now: ClockReading | None, before: Iterable[ClockReading]) -> int:
    """Return the largest time by which the clock was set forward since a reading of the last day.

    :param before: readings in any order. Readings of other starts of the machine are ignored.
    :return: 0 if the clock wasn't set forward by at least :data:`JUMP_MS`, or if there is no reading.
    """
    if now is None:
        return 0
    starts = (
        reading.started_at_ms
        for reading in before
        if reading.boot_id == now.boot_id and now.boottime_ms - reading.boottime_ms < REMEMBERED_MS
    )
    jump_ms = max((now.started_at_ms - started_at_ms for started_at_ms in starts), default=0)
    return jump_ms if jump_ms >= JUMP_MS else 0


QUARTER_MS = 900_000
"""Local hours begin at a multiple of 15 minutes in UTC, in every zone and at every change of the clock."""


def is_in_hours(now_ms: int, hours: Collection[int], zone: ZoneInfo) -> bool:
    """Return whether the local clock shows one of the hours."""
    return local_hour(now_ms, zone) in hours


def hour_changes_ms(start_ms: int, end_ms: int, hours: Collection[int], zone: ZoneInfo) -> Iterator[int]:
    """Yield the times at which the hours begin and end, in turn. A start inside the hours is yielded first.

    :param end_ms: no later time is yielded.
    """
    is_open = False
    moment_ms = start_ms
    while moment_ms <= end_ms:
        if is_in_hours(moment_ms, hours, zone) is not is_open:
            yield moment_ms
            is_open = not is_open
        moment_ms += QUARTER_MS - moment_ms % QUARTER_MS


def hour_spans_ms(
    start_ms: int, end_ms: int, hours: Collection[int], zone: ZoneInfo
) -> tuple[tuple[int, int], ...]:
    """Return the parts of the hours that are between two moments, each as begin and end in ms."""
    changes = tuple(hour_changes_ms(start_ms, end_ms, hours, zone))
    spans = zip(changes[::2], (*changes[1::2], end_ms), strict=False)
    return tuple((begin_ms, until_ms) for begin_ms, until_ms in spans if begin_ms < until_ms)


def local_hour(time_ms: int, zone: ZoneInfo) -> int:
    return datetime.fromtimestamp(time_ms // 1000, UTC).astimezone(zone).hour
