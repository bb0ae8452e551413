"""The chart of a store: retention time and disk level over one time axis, with events.

It has at most :data:`MOST_POINTS` points, among them all peaks and drops. The spans in which a broker refused
writes are computed from disk levels and the rules in effect. A broker refuses writes above one level, and
accepts writes again only at a lower level.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from statistics import median

from sqlalchemy import Connection

from storage_engine.console.recorded_rules import Rules, Spans, rules_at, rules_of, window_spans
from storage_engine.core.clock import DAY_MS
from storage_engine.core.jsonable import filled
from storage_engine.journal.reading.answers import DriftRow
from storage_engine.journal.reading.queries import (
    BucketSpan,
    Extremes,
    JournalReader,
    Moment,
    count_samples,
    disk_ids,
    last_level_outside,
    level_extremes,
    levels_at,
    moments_at,
    read_levels,
    read_moments,
    sample_extremes,
)
from storage_engine.journal.reading.run_rows import CleanupRun

MOST_POINTS = 2_000
LONGEST_MS = 3_660 * DAY_MS
"""Longest span of a chart. A longer one is cut at its beginning: no journal keeps samples for so long."""
_MOST_GAPS = 100
_BUCKETS = 498
"""Number of buckets. They are merged if they have more extremes than points. An empty bucket is a gap."""
_MOST_SAMPLES = MOST_POINTS - _MOST_GAPS
"""Largest number of samples that are shown one by one. Gaps between them take points, too."""
_GAP = 3
"""A time without samples is a gap if it exceeds the usual distance between two looks by this factor."""
_ONE_LOOK_MS = 60_000
"""Samples within this time are of one look: each of its tasks takes one. Only one has the archive lag."""
_EXACT_SHARE = 8
"""If refusals begin or end in at most 1/8 of the span's buckets, these buckets are read look by look."""

Column = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class RuleLine:
    """The levels at which the broker acts, and the moment at which they took effect."""

    at_ms: int
    notice_percent: int | None
    cleans_percent: int | None
    forces_percent: int | None
    refuses_percent: int | None


@dataclass(frozen=True, slots=True)
class DriftMark:
    """Changes to the store by other processes. One mark shows one or several neighbouring changes.

    See :class:`storage_engine.journal.reading.answers.DriftRow`.

    :param what: description of the last change.
    """

    at_ms: int
    what: str
    times: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class ChartAnswer:
    """The contents of a chart. Each column has one value for each moment; None if it is unknown.

    :param levels: used share of each disk in whole percent, by path.
    :param windows: spans in which the broker deletes expired segments.
    :param refused: spans in which the broker refused messages because a disk was too full.
    """

    start_ms: int
    end_ms: int
    times_ms: tuple[int, ...] = ()
    retention_ms: Column = ()
    levels: Mapping[str, Column] = field(default_factory=dict)
    archive_lag_bytes: Column = ()
    windows: Spans = ()
    refused: Spans = ()
    rules: tuple[RuleLine, ...] = ()
    cleanups: tuple[CleanupRun, ...] = ()
    drift: tuple[DriftMark, ...] = ()


def chart(reader: JournalReader, name: str, start_ms: int, end_ms: int) -> ChartAnswer:
    """Return the chart of a store for the moments from ``start_ms`` up to ``end_ms``, which is excluded.

    :param name: the id of the store's connection. If the journal doesn't know the store, the chart is empty.
    """
    start_ms = max(start_ms, end_ms - LONGEST_MS)
    store_id = reader.store_id(name)
    if store_id is None or start_ms >= end_ms:
        return ChartAnswer(start_ms, end_ms)
    rules = tuple(rules_of(row) for row in reader.rules(store_id, start_ms, end_ms))

    def read(connection: Connection) -> tuple[MeasuredColumns, Spans]:
        columns = read_columns(connection, store_id, start_ms, end_ms)
        return columns, exact_refused_spans(connection, store_id, columns, rules, start_ms, end_ms)

    columns, refused = reader.read(read)
    return filled(
        ChartAnswer,
        columns,
        start_ms=start_ms,
        end_ms=end_ms,
        windows=_windows(rules, start_ms, end_ms),
        refused=refused,
        rules=tuple(filled(RuleLine, entry.levels, at_ms=entry.at_ms) for entry in rules),
        cleanups=reader.cleanups(store_id, start_ms, end_ms),
        drift=tuple(_drift_mark(drift) for drift in reader.drifts(store_id, start_ms, end_ms)),
    )


def read_columns(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> MeasuredColumns:
    """Return the measured samples. If the chart can't show so many, return the extremes of equal spans."""
    if count_samples(connection, store_id, start_ms, end_ms, _MOST_SAMPLES + 1) > _MOST_SAMPLES:
        return _read_thinned(connection, store_id, start_ms, end_ms)
    moments = read_moments(connection, store_id, start_ms, end_ms)
    levels = {
        path: dict(read_levels(connection, disk_id, start_ms, end_ms))
        for path, disk_id in disk_ids(connection, store_id).items()
    }
    return _columns(_with_gaps([moment.at_ms for moment in moments]), moments, levels)


def _columns(
    times: Sequence[int],
    moments: Sequence[Moment],
    disk_levels: Mapping[str, Mapping[int, int | None]],
    buckets: Buckets | None = None,
) -> MeasuredColumns:
    holds_ms = _ONE_LOOK_MS if buckets is None else max(_ONE_LOOK_MS, buckets.length_ms)
    by_time = {moment.at_ms: moment for moment in moments}
    looks = [by_time.get(at_ms) for at_ms in times]
    return MeasuredColumns(
        tuple(times),
        tuple(
            None if look is None or look.oldest_message_ms is None else look.at_ms - look.oldest_message_ms
            for look in looks
        ),
        {path: tuple(map(levels.get, times)) for path, levels in disk_levels.items() if levels},
        tuple(_archive_lags(looks, holds_ms)),
        buckets,
    )


def _archive_lags(moments: Sequence[Moment | None], holds_ms: int) -> Iterator[int | None]:
    """Yield the archive lag at each moment. A moment without a measurement gets the previous value.

    :param holds_ms: longest time after a measurement for which later moments get its value.
    """
    last: Moment | None = None
    for moment in moments:
        if moment is None or moment.archive_lag_bytes is not None:
            last = moment
        is_held = moment is not None and last is not None and moment.at_ms - last.at_ms <= holds_ms
        yield last.archive_lag_bytes if is_held and last is not None else None


def _with_gaps(times: Sequence[int]) -> tuple[int, ...]:
    """Return the moments, with one more in the middle of each gap."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    between_looks = [step for step in steps if step > _ONE_LOOK_MS] or steps
    longest = _GAP * median(between_looks) if steps else 0
    gaps = [earlier + step // 2 for earlier, step in zip(times, steps, strict=False) if step > longest]
    return tuple(sorted([*times, *gaps[: MOST_POINTS - len(times)]]))


def _read_thinned(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> MeasuredColumns:
    """Return each bucket's first and last look, and the looks with an extreme value."""
    disks = disk_ids(connection, store_id)
    span = BucketSpan(start_ms, end_ms, -(-(end_ms - start_ms) // _BUCKETS))
    looks, *values = sample_extremes(connection, store_id, span)
    values += [level_extremes(connection, disk_id, span) for disk_id in disks.values()]
    together, times = _choose_moments((looks, *values), MOST_POINTS - _MOST_GAPS)
    moments = moments_at(connection, store_id, times)
    return _columns(
        sorted({*times, *_gaps(looks, span)}),
        moments,
        {path: levels_at(connection, disk_id, times) for path, disk_id in disks.items()},
        Buckets(span.first_ms, together * span.bucket_ms),
    )


def _choose_moments(values: Sequence[Sequence[Extremes | None]], most: int) -> tuple[int, set[int]]:
    """Return how many buckets to merge into one, and at most ``most`` moments of merged buckets' extremes."""
    together = 1
    while len(moments := {at_ms for extremes in values for at_ms in _moments(extremes, together)}) > most:
        together = max(together + 1, together * len(moments) // (2 * most))
    return together, moments


def _moments(extremes: Sequence[Extremes | None], together: int) -> Iterator[int]:
    for first in range(0, len(extremes), together):
        pairs = [pair for pair in extremes[first : first + together] if pair is not None]
        if pairs:
            yield min(low for low, _ in pairs)[1]
            yield max(high for _, high in pairs)[1]


def _gaps(looks: Sequence[Extremes | None], span: BucketSpan) -> list[int]:
    """Return one moment in each of the longest gaps, except at the span's ends."""
    runs = [(is_empty, len([*group])) for is_empty, group in groupby(look is None for look in looks)]
    ends = [*accumulate(length for _, length in runs)]
    inner = [
        (length, span.first_ms + (end - length) * span.bucket_ms)
        for (is_empty, length), end in zip(runs[1:-1], ends[1:-1], strict=True)
        if is_empty
    ]
    return [at_ms for _, at_ms in sorted(inner, reverse=True)[:_MOST_GAPS]]


def _windows(rules: Sequence[Rules], start_ms: int, end_ms: int) -> Spans:
    spans: list[tuple[int, int]] = []
    for entry, from_ms, to_ms in _find_rules(rules, start_ms, end_ms):
        if entry.windows is not None:
            spans += window_spans(entry.windows, from_ms, to_ms)
    return tuple(spans)


def _find_rules(rules: Sequence[Rules], start_ms: int, end_ms: int) -> Iterator[tuple[Rules, int, int]]:
    """Yield each set of rules with the part of the span in which it was in effect."""
    ends = [*(entry.at_ms for entry in rules[1:]), end_ms][: len(rules)]
    for entry, until_ms in zip(rules, ends, strict=True):
        from_ms = max(start_ms, entry.at_ms)
        if from_ms < min(until_ms, end_ms):
            yield entry, from_ms, min(until_ms, end_ms)


def _drift_mark(drift: DriftRow) -> DriftMark:
    change = drift.details["disturbance"]
    return DriftMark(drift.at_ms, f"{change['kind']}: {change['detail']}", drift.times, drift.until_ms)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Spans of equal length from a moment on. A chart shows each one's first look, last look and extremes."""

    first_ms: int
    length_ms: int

    def start_of(self, at_ms: int) -> int:
        return at_ms - (at_ms - self.first_ms) % self.length_ms


@dataclass(frozen=True, slots=True)
class MeasuredColumns:
    """Measured values, aligned by time.

    :param buckets: the buckets by which looks were chosen; None if the columns have every look.
    """

    times_ms: tuple[int, ...]
    retention_ms: Column
    levels: Mapping[str, Column]
    archive_lag_bytes: Column
    buckets: Buckets | None = None


def refused_spans(columns: MeasuredColumns, rules: Sequence[Rules], before: Collection[str] = ()) -> Spans:
    """Return the spans in which writes were refused.

    :param before: paths of disks that made the broker refuse writes before the first look.
    """
    spans: list[tuple[int, int]] = []
    refusing, begun = set(before), None
    last_ms = columns.times_ms[0] if columns.times_ms else 0
    for at, at_ms in enumerate(columns.times_ms):
        current = rules_at(rules, at_ms)
        percents = {
            path: percent for path, column in columns.levels.items() if (percent := column[at]) is not None
        }
        for path, percent in percents.items():
            if current is None or (refuses := current.levels.refuses_percent) is None:
                refusing.discard(path)
            elif percent > refuses:
                refusing.add(path)
            elif percent <= _accepts_percent(current, refuses):
                refusing.discard(path)
        is_refused = bool(percents) and not refusing.isdisjoint(columns.levels)
        if is_refused and begun is None:
            begun = at_ms
        if begun is not None and not is_refused:
            # A gap, in which the level is unknown, ends the span at the last look.
            spans.append((begun, at_ms if percents else last_ms))
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
    """Return the spans of refused writes. If the columns are thinned, the journal shows the spans' ends."""
    disks = disk_ids(connection, store_id)
    before = _refused_before(connection, disks, rules, start_ms)
    spans, buckets = refused_spans(columns, rules, before), columns.buckets
    if buckets is None:
        return spans
    edges = {buckets.start_of(at_ms) for span in spans for at_ms in span}
    if len(edges) * buckets.length_ms * _EXACT_SHARE > end_ms - start_ms:
        return spans
    by_time: dict[int, dict[str, int | None]] = {
        at_ms: {path: column[at] for path, column in columns.levels.items()}
        for at, at_ms in enumerate(columns.times_ms)
        if buckets.start_of(at_ms) not in edges
    }
    for path, disk_id in disks.items():
        for edge_ms in edges:
            until_ms = min(edge_ms + buckets.length_ms, end_ms)
            for at_ms, percent in read_levels(connection, disk_id, max(edge_ms, start_ms), until_ms):
                by_time.setdefault(at_ms, {})[path] = percent
    times = tuple(sorted(by_time))
    levels = {path: tuple(by_time[at_ms].get(path) for at_ms in times) for path in columns.levels}
    return refused_spans(MeasuredColumns(times, (), levels, ()), rules, before)


def _refused_before(
    connection: Connection, disks: Mapping[str, int], rules: Sequence[Rules], start_ms: int
) -> Collection[str]:
    """Return the disks that made the broker refuse writes when the span began.

    A disk's last level that is above the refusing level, or not above the accepting level, decides.
    """
    current = rules_at(rules, start_ms)
    if current is None or (refuses := current.levels.refuses_percent) is None:
        return ()
    accepts = _accepts_percent(current, refuses)
    percents = {
        path: last_level_outside(connection, disk_id, current.at_ms, start_ms, accepts, refuses)
        for path, disk_id in disks.items()
    }
    return [path for path, percent in percents.items() if percent is not None and percent > refuses]


def _accepts_percent(rules: Rules, refuses_percent: int) -> int:
    # An older release recorded no such level.
    accepts = rules.levels.accepts_percent
    return refuses_percent if accepts is None else min(accepts, refuses_percent)
