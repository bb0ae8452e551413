"""This machine's clock, in the unit that journal, plans and receipts share."""

from __future__ import annotations

import time


def clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
