"""The chart of a store: retention time and water level over one time axis, and what happened.

At most :data:`MOST_POINTS`, in which peaks and drops survive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from sqlalchemy import Connection

from storage_engine.console.refused import Column, Columns, exact_refused_spans
from storage_engine.console.rules import Rules, rules_of
from storage_engine.console.windows import Spans, window_spans
from storage_engine.journal.answers import Drift
from storage_engine.journal.queries import JournalReader
from storage_engine.journal.run_rows import Cleanup
from storage_engine.journal.sample_columns import (
    Bucket,
    Span,
    archive_lag_buckets,
    count_samples,
    disk_ids,
    level_buckets,
    read_levels,
    read_moments,
    retention_buckets,
)

MOST_POINTS = 2_000
LONGEST_MS = 3_660 * 24 * 3_600_000
"""A longer span is cut at its beginning; no journal keeps samples for so long."""
_BUCKETS = 498
"""Of four points each; the last sample is one more, and a span may begin within a bucket."""
_MOST_SAMPLES = 1_300
"""So many are shown as they are; gaps between them take points, too."""
_GAP = 3
"""A time without samples is a gap where it is so many times as long as usual."""


@dataclass(frozen=True, slots=True)
class RuleLine:
    """The levels that held from a moment on; each, above which something begins."""

    at_ms: int
    notice_percent: int | None
    cleans_percent: int | None
    forces_percent: int | None
    refuses_percent: int | None


@dataclass(frozen=True, slots=True)
class DriftMark:
    """What somebody else did to the store; see :class:`storage_engine.journal.answers.Drift`.

    :param what: the last thing.
    """

    at_ms: int
    what: str
    times: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class ChartAnswer:
    """Columns have a value for each moment; None: there was none.

    :param levels: whole percent, by path.
    :param windows: spans in which the broker deletes what has expired.
    :param refused: spans in which the broker took no message, as a disk had been too full.
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
    cleanups: tuple[Cleanup, ...] = ()
    drift: tuple[DriftMark, ...] = ()
    kind: str = "chart"
    version: int = 1


def chart(reader: JournalReader, name: str, start_ms: int, end_ms: int) -> ChartAnswer:
    """Return the chart of a store from a moment to another, which is not included.

    :param name: the id of its connection; of a store that the journal doesn't know the chart is empty.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: it is of another version.
    """
    start_ms = max(start_ms, end_ms - LONGEST_MS)
    store_id = reader.store_id(name)
    if store_id is None or start_ms >= end_ms:
        return ChartAnswer(start_ms, end_ms)
    rules = tuple(rules_of(row) for row in reader.rules(store_id, start_ms, end_ms))

    def read(connection: Connection) -> tuple[Columns, Spans]:
        columns = read_columns(connection, store_id, start_ms, end_ms)
        return columns, exact_refused_spans(connection, store_id, columns, rules, start_ms, end_ms)

    columns, refused = reader.read(read)
    return ChartAnswer(
        start_ms,
        end_ms,
        columns.times_ms,
        columns.retention_ms,
        columns.levels,
        columns.archive_lag_bytes,
        windows=_windows(rules, start_ms, end_ms),
        refused=refused,
        rules=tuple(_rule_line(one) for one in rules),
        cleanups=reader.cleanups(store_id, start_ms, end_ms),
        drift=tuple(_drift_mark(one) for one in reader.drifts(store_id, start_ms, end_ms)),
    )


def read_columns(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> Columns:
    """Return what was measured: each sample where they are few, else the extremes of equal spans."""
    count = count_samples(connection, store_id, start_ms, end_ms, _MOST_SAMPLES + 1)
    if count <= _MOST_SAMPLES:
        return _each(connection, store_id, start_ms, end_ms)
    return _thinned(connection, store_id, Span(start_ms, end_ms, -(-(end_ms - start_ms) // _BUCKETS)))


def _each(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> Columns:
    moments = {one.at_ms: one for one in read_moments(connection, store_id, start_ms, end_ms)}
    of_disks = {
        path: dict(read_levels(connection, disk_id, start_ms, end_ms))
        for path, disk_id in disk_ids(connection, store_id).items()
    }
    times = _with_gaps(sorted(moments))
    found = [moments.get(at_ms) for at_ms in times]
    return Columns(
        times,
        tuple(
            None if one is None or one.oldest_message_ms is None else one.at_ms - one.oldest_message_ms
            for one in found
        ),
        {path: tuple(levels.get(at_ms) for at_ms in times) for path, levels in of_disks.items() if levels},
        tuple(None if one is None else one.archive_lag_bytes for one in found),
    )


def _with_gaps(times: Sequence[int]) -> tuple[int, ...]:
    """Return moments with one more in the middle of each gap, at which nothing is known."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    longest = _GAP * median(steps) if steps else 0
    gaps = [earlier + step // 2 for earlier, step in zip(times, steps, strict=False) if step > longest]
    return tuple(sorted([*times, *gaps[: MOST_POINTS - len(times)]]))


def _thinned(connection: Connection, store_id: str, span: Span) -> Columns:
    of_disks = {
        path: level_buckets(connection, disk_id, span)
        for path, disk_id in disk_ids(connection, store_id).items()
    }
    retention = retention_buckets(connection, store_id, span)
    lag = archive_lag_buckets(connection, store_id, span)
    every = [retention, lag, *of_disks.values()]
    known = [any(of_one[at].values[0] is not None for of_one in every) for at in range(len(retention))]
    # Of buckets without a sample one point is enough for a gap.
    points = [
        (at, slot)
        for at, is_known in enumerate(known)
        for slot in range(4)
        if is_known or (slot == 0 and at > 0 and known[at - 1])
    ]
    starts = [bucket.start_ms for bucket in retention]

    def column(buckets: Sequence[Bucket]) -> Column:
        return tuple(buckets[at].values[slot] for at, slot in points)

    return Columns(
        tuple(starts[at] + span.bucket_ms * (2 * slot + 1) // 8 for at, slot in points),
        tuple(None if seconds is None else seconds * 1000 for seconds in column(retention)),
        {path: column(of_disk) for path, of_disk in of_disks.items()},
        column(lag),
        span.bucket_ms,
    )


def _windows(rules: Sequence[Rules], start_ms: int, end_ms: int) -> Spans:
    found: list[tuple[int, int]] = []
    for one, from_ms, to_ms in _in_effect(rules, start_ms, end_ms):
        if one.windows is not None:
            found += window_spans(one.windows, from_ms, to_ms)
    return tuple(found)


def _in_effect(rules: Sequence[Rules], start_ms: int, end_ms: int) -> Iterator[tuple[Rules, int, int]]:
    """Yield rules with the part of a span in which they held."""
    ends = [*(one.at_ms for one in rules[1:]), end_ms][: len(rules)]
    for one, until_ms in zip(rules, ends, strict=True):
        from_ms = max(start_ms, one.at_ms)
        if from_ms < min(until_ms, end_ms):
            yield one, from_ms, min(until_ms, end_ms)


def _rule_line(rules: Rules) -> RuleLine:
    levels = rules.levels
    return RuleLine(
        rules.at_ms,
        levels.notice_percent,
        levels.cleans_percent,
        levels.forces_percent,
        levels.refuses_percent,
    )


def _drift_mark(drift: Drift) -> DriftMark:
    found = drift.details["disturbance"]
    return DriftMark(drift.at_ms, f"{found['kind']}: {found['detail']}", drift.times, drift.until_ms)
