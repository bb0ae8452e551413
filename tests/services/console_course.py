"""Months of a store as its monitor saw them, each look at the disk and at what was written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from storage_engine.journal import journal as journal_module
from storage_engine.journal import stores as stores_module
from storage_engine.journal.tables import rows as rows_module
from storage_engine.rocketmq.simulation import RULES

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
GIB = 1 << 30
DISK_BYTES = 1_000 * GIB
WINDOW_UTC_HOUR = 20
"""04 in Asia/Shanghai."""

RESERVED_MS = 72 * HOUR_MS
GAP_DAYS = (40.3, 41.6)
"""Days before now between which the monitor did not run."""

PLATEAU_DAYS = (12.0, 7.0)
REFUSED_DAYS = (9.0, 8.6)
LOG = "commitlog"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a store finds."""

    at_ms: int
    used_percent: int
    min_offset: int
    max_offset: int
    oldest_message_ms: int
    lag_bytes: int


def rules(reserved_hours: str) -> dict[str, object]:
    """Return the rules of a broker as the monitor records them."""
    values = RULES.values({"fileReservedTime": reserved_hours})
    windows = {"hours": RULES.hours(values), "time_zone": "Asia/Shanghai"}
    return {"settings": values, "levels": RULES.levels(values), "windows": windows}


@contextmanager
def clock_at(now_ms: int) -> Iterator[None]:
    """Let the journal write as at a moment of the past."""
    with ExitStack() as stack:
        for module in (journal_module, rows_module, stores_module):
            stack.enter_context(mock.patch.object(module, "clock_ms", return_value=now_ms))
        yield


def course(number: int, now_ms: int, days: int, every_ms: int) -> Iterator[Look]:
    """Yield what looks found, by time."""
    chance = random.Random(number)
    troubled = number == 0
    written, start_ms = 500 * GIB, now_ms - days * DAY_MS
    for at_ms in range(start_ms - start_ms % every_ms + every_ms, now_ms + 1, every_ms):
        ago = (now_ms - at_ms) / DAY_MS
        plateau = troubled and PLATEAU_DAYS[1] <= ago <= PLATEAU_DAYS[0]
        daily = (90 + 25 * number if not plateau else 260) * GIB
        hour = at_ms // HOUR_MS % 24
        written += int(
            daily * every_ms / DAY_MS * (1.5 if 1 <= hour < 14 else 0.65) * chance.uniform(0.9, 1.1)
        )
        if troubled and GAP_DAYS[1] >= ago >= GAP_DAYS[0]:
            continue
        since_window = (at_ms - WINDOW_UTC_HOUR * HOUR_MS) % DAY_MS
        kept_ms = RESERVED_MS + since_window
        log_percent = kept_ms / DAY_MS * (9 + 2.5 * (number % 16))
        used = 25 + log_percent
        if plateau:
            into = (PLATEAU_DAYS[0] - ago) / (PLATEAU_DAYS[0] - PLATEAU_DAYS[1])
            # The broker takes messages again at 85 % only.
            used = min(86.5 if ago > REFUSED_DAYS[1] else 83.5, used + 60 * into)
            kept_ms = int(kept_ms * (1 - 0.75 * min(1.0, into * 1.5)))
            if REFUSED_DAYS[1] <= ago <= REFUSED_DAYS[0]:
                used = 92.0
        log_bytes = int(DISK_BYTES * max(used - 25, 1) / 100)
        lag_hours = (at_ms // HOUR_MS) % 5
        yield Look(
            at_ms,
            min(99, int(used + chance.uniform(0, 1.2)) + 1),
            max(0, written - log_bytes) // GIB * GIB,
            written,
            at_ms - kept_ms,
            lag_hours * 3 * GIB if troubled else lag_hours * GIB // 4,
        )
