"""What the samples of a span say, thinned by the database where they are many; each read by its index.

A bucket has its first, lowest, highest and last value in the order in which they came. So peaks and drops
stay, and so does each crossing of a level that lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    ScalarSelect,
    Text,
    cast,
    func,
    literal,
    select,
)

from storage_engine.journal.schema import disks, levels, samples


@dataclass(frozen=True, slots=True)
class Moment:
    """What one look at the logs found; None: not known."""

    at_ms: int
    oldest_message_ms: int | None
    min_offset: int | None
    max_offset: int | None
    archive_lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a value was within a span of time: its first, two extremes by time, its last; None: not known.

    :param start_ms: of the span.
    """

    start_ms: int
    values: tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Span:
    """The moments [start_ms, end_ms) in buckets of one length, each from a multiple of it."""

    start_ms: int
    end_ms: int
    bucket_ms: int

    @property
    def first_ms(self) -> int:
        return self.start_ms - self.start_ms % self.bucket_ms


_UNKNOWN = (None, None, None, None)
_MOST_MOMENTS = 500
"""In one query; databases take a bounded number of parameters."""
_MOMENT = (
    samples.c.at_ms,
    samples.c.oldest_message_ms,
    samples.c.min_offset,
    samples.c.max_offset,
    samples.c.archive_lag_bytes,
)


def count_samples(connection: Connection, store_id: str, start_ms: int, end_ms: int, most: int) -> int:
    """Return how many samples there are from a moment to another; it counts no further than ``most``."""
    some = select(samples.c.at_ms).where(*_within(store_id, start_ms, end_ms)).limit(most).subquery()
    return connection.execute(select(func.count()).select_from(some)).scalar_one()


def read_moments(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> tuple[Moment, ...]:
    """Return every sample from a moment to another, which is not included, by time."""
    query = select(*_MOMENT).where(*_within(store_id, start_ms, end_ms)).order_by(samples.c.at_ms)
    return tuple(Moment(*row) for row in connection.execute(query))


def last_moments(connection: Connection, store_id: str, span: Span) -> tuple[Moment, ...]:
    """Return the last sample of each bucket that knows where the logs end, by time."""
    buckets = _starts(span)
    known = (samples.c.store_id == store_id, samples.c.max_offset.is_not(None))
    last = select(samples.c.at_ms).where(*known, *_inside(samples.c.at_ms, buckets, span))
    # Not joined to their samples: a database may begin with all of those.
    newest = select(last.order_by(samples.c.at_ms.desc()).limit(1).scalar_subquery()).select_from(buckets)
    moments = [at_ms for at_ms in connection.execute(newest).scalars() if at_ms is not None]
    query = select(*_MOMENT).order_by(samples.c.at_ms)
    found = {
        row.at_ms: Moment(*row)
        for first in range(0, len(moments), _MOST_MOMENTS)
        for row in connection.execute(
            query.where(*known, samples.c.at_ms.in_(moments[first : first + _MOST_MOMENTS]))
        )
    }
    return tuple(found.values())


def retention_buckets(connection: Connection, store_id: str, span: Span) -> tuple[Bucket, ...]:
    """Return for how many seconds messages had been kept."""
    retention = (samples.c.at_ms - samples.c.oldest_message_ms) // 1000
    return _buckets(connection, samples.c.at_ms, retention, samples.c.store_id == store_id, span)


def archive_lag_buckets(connection: Connection, store_id: str, span: Span) -> tuple[Bucket, ...]:
    """Return how many bytes were sealed and in no lake.

    Of the extremes the lowest is taken for the earlier one where the lag grew, else the highest.
    """
    lag = samples.c.archive_lag_bytes
    where = (samples.c.store_id == store_id, lag.is_not(None))
    buckets = _starts(span)
    inside = _inside(samples.c.at_ms, buckets, span)
    query = select(
        buckets.c.start_ms,
        _end_value(samples.c.at_ms, lag, (*where, *inside), last=False).label("first"),
        _extremes(lag, (*where, *inside), buckets).label("extremes"),
        _end_value(samples.c.at_ms, lag, (*where, *inside), last=True).label("last"),
    )
    found = []
    for row in connection.execute(query):
        if row.first is None:
            found.append(Bucket(row.start_ms, _UNKNOWN))
            continue
        least, most = map(int, row.extremes.split())
        extremes = (least, most) if row.first <= row.last else (most, least)
        found.append(Bucket(row.start_ms, (row.first, *extremes, row.last)))
    return tuple(found)


def disk_ids(connection: Connection, store_id: str) -> dict[str, int]:
    """Return the numbers of a store's disks, by path."""
    query = select(disks.c.path, disks.c.id).where(disks.c.store_id == store_id).order_by(disks.c.path)
    return {row.path: row.id for row in connection.execute(query)}


def read_levels(
    connection: Connection, disk_id: int, start_ms: int, end_ms: int
) -> tuple[tuple[int, int | None], ...]:
    """Return every level of a disk from a moment to another, by time; None: not known."""
    query = (
        select(levels.c.at_ms, levels.c.used_percent)
        .where(levels.c.disk_id == disk_id, levels.c.at_ms >= start_ms, levels.c.at_ms < end_ms)
        .order_by(levels.c.at_ms)
    )
    return tuple((row.at_ms, row.used_percent) for row in connection.execute(query))


def last_level_outside(
    connection: Connection, disk_id: int, start_ms: int, end_ms: int, low_percent: int, high_percent: int
) -> int | None:
    """Return the last level from a moment to another that was at a low one, or above a high one."""
    used = levels.c.used_percent
    query = (
        select(used)
        .where(levels.c.disk_id == disk_id, levels.c.at_ms >= start_ms, levels.c.at_ms < end_ms)
        .where((used <= low_percent) | (used > high_percent))
        .order_by(levels.c.at_ms.desc())
        .limit(1)
    )
    return connection.execute(query).scalar()


def level_buckets(connection: Connection, disk_id: int, span: Span) -> tuple[Bucket, ...]:
    """Return the level of a disk."""
    return _buckets(connection, levels.c.at_ms, levels.c.used_percent, levels.c.disk_id == disk_id, span)


def _buckets(
    connection: Connection,
    at_ms: ColumnElement[int],
    value: ColumnElement[int],
    where: ColumnElement[bool],
    span: Span,
) -> tuple[Bucket, ...]:
    """Return all buckets of a span. Each looks for its own rows: to group all rows would sort them all."""
    buckets = _starts(span)
    inside = (where, value.is_not(None), *_inside(at_ms, buckets, span))
    # One number has both the value and its moment within the bucket, so that it tells when an extreme was.
    bucket_ms = literal(span.bucket_ms, BigInteger)
    both = cast(value, BigInteger) * bucket_ms + at_ms - buckets.c.start_ms
    first, last = (_end_value(at_ms, value, inside, last=is_last) for is_last in (False, True))
    query = select(
        buckets.c.start_ms,
        first.label("first"),
        _extremes(both, inside, buckets).label("extremes"),
        last.label("last"),
    )
    return tuple(_bucket(row, span.bucket_ms) for row in connection.execute(query))


def _bucket(row: Any, bucket_ms: int) -> Bucket:
    if row.first is None:
        return Bucket(row.start_ms, _UNKNOWN)
    lowest, highest = map(int, row.extremes.split())
    low, low_after = divmod(lowest, bucket_ms)
    high, high_after = divmod(highest, bucket_ms)
    extremes = (low, high) if low_after < high_after else (high, low)
    return Bucket(row.start_ms, (row.first, *extremes, row.last))


def _extremes(
    value: ColumnElement[int], where: Sequence[ColumnElement[bool]], buckets: CTE
) -> ScalarSelect[str]:
    """Return the lowest and the highest value as one text, so that a bucket's rows are read once."""
    both = cast(func.min(value), Text) + literal(" ", Text) + cast(func.max(value), Text)
    return select(both).where(*where).correlate(buckets).scalar_subquery()


def _end_value(
    at_ms: ColumnElement[int], value: ColumnElement[int], where: Sequence[ColumnElement[bool]], *, last: bool
) -> ScalarSelect[int]:
    query = select(value).where(*where)
    return query.order_by(at_ms.desc() if last else at_ms).limit(1).scalar_subquery()


def _starts(span: Span) -> CTE:
    """Return the beginnings of a span's buckets as a table."""
    first = select(cast(literal(span.first_ms, BigInteger), BigInteger).label("start_ms"))
    starts = first.cte("buckets", recursive=True)
    following = starts.c.start_ms + span.bucket_ms
    return starts.union_all(select(following).where(following < span.end_ms))


def _inside(at_ms: ColumnElement[int], buckets: CTE, span: Span) -> tuple[ColumnElement[bool], ...]:
    return at_ms >= buckets.c.start_ms, at_ms < buckets.c.start_ms + span.bucket_ms, at_ms < span.end_ms


def _within(store_id: str, start_ms: int, end_ms: int) -> tuple[ColumnElement[bool], ...]:
    return samples.c.store_id == store_id, samples.c.at_ms >= start_ms, samples.c.at_ms < end_ms
