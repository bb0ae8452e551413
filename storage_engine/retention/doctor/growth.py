"""How fast a store's logs grow: by the journal's samples, else by the times of its segments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.model.store.store import LogSnapshot

LEAST_SPAN_MS = HOUR_MS
"""Samples of a shorter time say too little."""
LEAST_SPREAD_MS = 6 * HOUR_MS
"""Between the oldest and the newest sealed segment: those of one burst say too little of a day."""


class GrowthFrom(StrEnum):
    SAMPLES = "samples"
    SEGMENTS = "segments"


@dataclass(frozen=True, slots=True)
class Growth:
    """:param bytes_per_day: that the logs grew lately.
    :param source: what tells it.
    """

    bytes_per_day: int
    source: GrowthFrom


def growth_of(samples: Sequence[tuple[int, int]], logs: Sequence[LogSnapshot], now_ms: int) -> Growth | None:
    """Return how fast the logs grew in the last day; None: nothing tells it.

    :param samples: (moment, sum of the logs' max offsets), oldest first.
    """
    by_samples = _by_samples([one for one in samples if now_ms - DAY_MS <= one[0] <= now_ms])
    if by_samples is not None:
        return Growth(by_samples, GrowthFrom.SAMPLES)
    found = [one for log in logs if (one := _by_segments(log, now_ms)) is not None]
    return Growth(sum(found), GrowthFrom.SEGMENTS) if found else None


def _by_samples(samples: Sequence[tuple[int, int]]) -> int | None:
    if len(samples) < 2 or samples[-1][0] - samples[0][0] < LEAST_SPAN_MS:
        return None
    grown = samples[-1][1] - samples[0][1]
    return None if grown < 0 else grown * DAY_MS // (samples[-1][0] - samples[0][0])


def _by_segments(log: LogSnapshot, now_ms: int) -> int | None:
    """Return what came behind the segment that was sealed a day ago, or behind the oldest one.

    :return: None where the sealed segments are of too short a time.
    """
    known = [segment for segment in log.sealed if segment.mtime_ns // 1_000_000 < now_ms]
    if not known or (known[-1].mtime_ns - known[0].mtime_ns) // 1_000_000 < LEAST_SPREAD_MS:
        return None
    before = [one for one in known if one.mtime_ns // 1_000_000 <= now_ms - DAY_MS]
    since = before[-1] if before else known[0]
    behind = [one for one in log.segments if one.base_offset > since.base_offset]
    grown = 0
    for segment in behind:
        if segment.end is None:
            grown += max(0, min(segment.end_offset, log.max_offset) - segment.base_offset)
        else:
            grown += segment.disk_bytes
    return grown * DAY_MS // max(1, now_ms - since.mtime_ns // 1_000_000)
