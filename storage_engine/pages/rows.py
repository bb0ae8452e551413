"""How a page lists what may be many: equal neighbours together, and no list without an end. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from storage_engine.model.report.validation import RangeStatus

LISTED = 100
"""Rows of a list that a page shows; its JSON has all of them."""
BAR_WIDTH = 1000
BARS = 20
"""Logs whose ranges are drawn."""
_SHORTEST = 8
"""Units of the bar's width that even the smallest range gets, so that no loss is too small to see."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the ranges' picture, in units of its width."""

    x: float
    width: float
    range: RangeStatus


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Neighbours in a log that the same became of, for the same reason.

    :param listed: those of them that are shown one by one.
    """

    log: str
    fate: str
    reason: str
    proof: str
    first_offset: int
    last_offset: int
    count: int
    size_bytes: int
    listed: tuple[Mapping[str, Any], ...]

    @property
    def more(self) -> int:
        return self.count - len(self.listed)


def segment_groups(segments: Sequence[Mapping[str, Any]]) -> Iterator[SegmentGroup]:
    """Group the segments of a report, as JSON, in their order; :data:`LISTED` of all are shown one by one."""
    left = LISTED
    for (log, fate, reason, proof), group in groupby(segments, _alike):
        rows = tuple(group)
        listed = rows[:left]
        left -= len(listed)
        yield SegmentGroup(
            log=log,
            fate=fate,
            reason=reason,
            proof=proof,
            first_offset=rows[0]["base_offset"],
            last_offset=rows[-1]["base_offset"],
            count=len(rows),
            size_bytes=sum(row["size_bytes"] for row in rows),
            listed=listed,
        )


def bars(ranges: Sequence[RangeStatus]) -> tuple[Bar, ...]:
    """Lay ranges side by side: in proportion to their bytes, but none too narrow to see."""
    total = sum(row.offset_count for row in ranges)
    spare = max(0, BAR_WIDTH - _SHORTEST * len(ranges))
    least = min(_SHORTEST, BAR_WIDTH / max(1, len(ranges)))
    placed = []
    x = 0.0
    for row in ranges:
        width = least + (spare * row.offset_count / total if total else 0)
        placed.append(Bar(x, width, row))
        x += width
    return tuple(placed)


def bars_by_log(ranges: Sequence[RangeStatus]) -> dict[str, tuple[Bar, ...]]:
    """Return the picture of each log, of the first :data:`BARS` by name."""
    logs = sorted({row.log for row in ranges})[:BARS]
    return {log: bars([row for row in ranges if row.log == log]) for log in logs}


def _alike(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["log"], row["fate"], row["reason"], row["proof"]
