"""The spans in which a broker refused writes, by the levels of its disks and the rules that held.

Writes are refused from one level on, and accepted again only at a lower one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from storage_engine.console.rules import Rules, rules_at
from storage_engine.console.windows import Spans
from storage_engine.journal.reading.sample_columns import disk_ids, last_level_outside, read_levels

_EXACT_SHARE = 8
"""At most this part of a span is read look by look. Where writes began or ceased to be refused in more of it,
that is told by the thinned samples alone."""

Column = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Spans of one length, from a moment on: of each the first, the last and the extreme looks are told."""

    first_ms: int
    length_ms: int

    def start_of(self, at_ms: int) -> int:
        return at_ms - (at_ms - self.first_ms) % self.length_ms


@dataclass(frozen=True, slots=True)
class MeasuredColumns:
    """What was measured, aligned by time.

    :param buckets: by which looks were chosen; None: each look is there.
    """

    times_ms: tuple[int, ...]
    retention_ms: Column
    levels: Mapping[str, Column]
    archive_lag_bytes: Column
    buckets: Buckets | None = None


def refused_spans(columns: MeasuredColumns, rules: Sequence[Rules], before: Collection[str] = ()) -> Spans:
    """Return the spans in which writes were refused.

    :param before: paths of the disks for which they were refused when the first look came.
    """
    spans: list[tuple[int, int]] = []
    refusing, begun = set(before), None
    last_ms = columns.times_ms[0] if columns.times_ms else 0
    for at, at_ms in enumerate(columns.times_ms):
        held = rules_at(rules, at_ms)
        known = {
            path: percent for path, column in columns.levels.items() if (percent := column[at]) is not None
        }
        for path, percent in known.items():
            if held is None or (refuses := held.levels.refuses_percent) is None:
                refusing.discard(path)
            elif percent > refuses:
                refusing.add(path)
            elif percent <= _accepts_percent(held, refuses):
                refusing.discard(path)
        is_refused = bool(known) and not refusing.isdisjoint(columns.levels)
        if is_refused and begun is None:
            begun = at_ms
        if begun is not None and not is_refused:
            # A gap ends it at the last look: what was within it is not known.
            spans.append((begun, at_ms if known else last_ms))
            begun = None
        last_ms = at_ms
    if begun is not None:
        spans.append((begun, last_ms))
    return tuple(spans)


def exact_refused_spans(
    connection: Connection,
    store_id: str,
    columns: MeasuredColumns,
    rules: Sequence[Rules],
    start_ms: int,
    end_ms: int,
) -> Spans:
    """Return the spans of refused writes, with ends at the samples' own times where columns are thinned."""
    disks = disk_ids(connection, store_id)
    before = _refused_before(connection, disks, rules, start_ms)
    spans, buckets = refused_spans(columns, rules, before), columns.buckets
    if buckets is None:
        return spans
    edges = {buckets.start_of(at_ms) for span in spans for at_ms in span}
    if len(edges) * buckets.length_ms * _EXACT_SHARE > end_ms - start_ms:
        return spans
    found: dict[int, dict[str, int | None]] = {
        at_ms: {path: column[at] for path, column in columns.levels.items()}
        for at, at_ms in enumerate(columns.times_ms)
        if buckets.start_of(at_ms) not in edges
    }
    for path, disk_id in disks.items():
        for edge_ms in edges:
            until_ms = min(edge_ms + buckets.length_ms, end_ms)
            for at_ms, percent in read_levels(connection, disk_id, max(edge_ms, start_ms), until_ms):
                found.setdefault(at_ms, {})[path] = percent
    times = tuple(sorted(found))
    levels = {path: tuple(found[at_ms].get(path) for at_ms in times) for path in columns.levels}
    return refused_spans(MeasuredColumns(times, (), levels, ()), rules, before)


def _refused_before(
    connection: Connection, disks: Mapping[str, int], rules: Sequence[Rules], start_ms: int
) -> Collection[str]:
    """Return the disks for which writes were refused when a span began: by the last level that decides."""
    held = rules_at(rules, start_ms)
    if held is None or (refuses := held.levels.refuses_percent) is None:
        return ()
    accepts = _accepts_percent(held, refuses)
    found = {
        path: last_level_outside(connection, disk_id, held.at_ms, start_ms, accepts, refuses)
        for path, disk_id in disks.items()
    }
    return [path for path, percent in found.items() if percent is not None and percent > refuses]


def _accepts_percent(rules: Rules, refuses_percent: int) -> int:
    # A release before recorded no such level.
    accepts = rules.levels.accepts_percent
    return refuses_percent if accepts is None else min(accepts, refuses_percent)
