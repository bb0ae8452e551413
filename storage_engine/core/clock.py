"""This machine's clock, in the unit that journal, plans and receipts share, and whether it jumped.

Ages are computed from the clock. Set forward, it makes every segment look expired; the time since the
machine was started can't be set, so the two are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

JUMP_MS = HOUR_MS
"""Less moves no age by a unit of fileReservedTime, and is what correcting a slow clock may come to."""

REMEMBERED_MS = DAY_MS
"""A clock that has kept its new time for so long, with a person able to read every refusal, is right."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clock beside the time since the machine was started.

    :param boot_id: of this start of the machine.
    :param boottime_ms: since then, time asleep included.
    :param started_at_ms: when that was, by the clock: it moves only when somebody sets the clock.
    """

    boot_id: str
    boottime_ms: int
    started_at_ms: int


def clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def read_clock() -> ClockReading | None:
    """Both clocks; None where the system has no clock that counts from its start."""
    if not hasattr(time, "CLOCK_BOOTTIME") or not _BOOT_ID.exists():
        return None
    boottime_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return ClockReading(_BOOT_ID.read_text().strip(), boottime_ms, clock_ms() - boottime_ms)


def jumped_forward_ms(now: ClockReading | None, before: Iterable[ClockReading]) -> int:
    """Return by how much the clock was set forward since one of the readings of the last day.

    :param before: readings in any order; those of other starts of the machine tell nothing.
    :return: 0 when it wasn't, by less than :data:`JUMP_MS`, or nothing is known.
    """
    if now is None:
        return 0
    known = (
        reading.started_at_ms
        for reading in before
        if reading.boot_id == now.boot_id and now.boottime_ms - reading.boottime_ms < REMEMBERED_MS
    )
    jumped = max((now.started_at_ms - started_at_ms for started_at_ms in known), default=0)
    return jumped if jumped >= JUMP_MS else 0
