"""What the samples of a span say, thinned by the database where they are many; each read by its index.

Of each bucket it tells the first and the last sample, and when each value was lowest and highest. With those
peaks and drops stay, and so does each crossing of a level that lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Text,
    cast,
    func,
    literal,
    select,
)

from storage_engine.journal.tables.rows import in_parts
from storage_engine.journal.tables.schema import disks, levels, samples


@dataclass(frozen=True, slots=True)
class Moment:
    """What one look at the logs found; None: not known."""

    at_ms: int
    oldest_message_ms: int | None
    min_offset: int | None
    max_offset: int | None
    archive_lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """The moments [start_ms, end_ms) in buckets of one length, each from a multiple of it."""

    start_ms: int
    end_ms: int
    bucket_ms: int

    @property
    def first_ms(self) -> int:
        return self.start_ms - self.start_ms % self.bucket_ms


Extremes = tuple[tuple[int, int], tuple[int, int]]
"""The lowest value of a bucket with its first moment, and the highest with its last one."""

_MIB = 1 << 20
_NONE = "-"
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


def last_moments(connection: Connection, store_id: str, span: BucketSpan) -> tuple[Moment, ...]:
    """Return the last sample of each bucket that knows where the logs end, by time."""
    buckets = _starts(span)
    known = (samples.c.store_id == store_id, samples.c.max_offset.is_not(None))
    last = select(samples.c.at_ms).where(*known, *_inside(samples.c.at_ms, buckets, span))
    # Not joined to their samples: a database may begin with all of those.
    newest = select(last.order_by(samples.c.at_ms.desc()).limit(1).scalar_subquery()).select_from(buckets)
    moments = [at_ms for at_ms in connection.execute(newest).scalars() if at_ms is not None]
    return moments_at(connection, store_id, moments)


def moments_at(connection: Connection, store_id: str, moments: Collection[int]) -> tuple[Moment, ...]:
    """Return the samples of these moments, by time."""
    query = select(*_MOMENT).where(samples.c.store_id == store_id).order_by(samples.c.at_ms)
    return tuple(
        Moment(*row)
        for some in in_parts(sorted(moments))
        for row in connection.execute(query.where(samples.c.at_ms.in_(some)))
    )


def levels_at(connection: Connection, disk_id: int, moments: Collection[int]) -> dict[int, int | None]:
    """Return the level of a disk at these moments; None: not known."""
    query = select(levels.c.at_ms, levels.c.used_percent).where(levels.c.disk_id == disk_id)
    return {
        row.at_ms: row.used_percent
        for some in in_parts(sorted(moments))
        for row in connection.execute(query.where(levels.c.at_ms.in_(some)))
    }


def sample_extremes(
    connection: Connection, store_id: str, span: BucketSpan
) -> tuple[Sequence[Extremes | None], Sequence[Extremes | None], Sequence[Extremes | None]]:
    """Return the extremes, bucket by bucket, of the moments themselves and of two values. None: no sample.

    These are the retention time in whole seconds, and what is in no lake in whole MiB.
    """
    buckets, mine = _starts(span), samples.c.store_id == store_id
    at_ms = samples.c.at_ms
    inside = _inside(at_ms, buckets, span)
    ends = [select(end(at_ms)).where(mine, *inside).scalar_subquery() for end in (func.min, func.max)]
    query = select(*ends).select_from(buckets)
    moments: list[Extremes | None] = [
        None if first is None else ((first, first), (last, last)) for first, last in connection.execute(query)
    ]
    retention = (at_ms - samples.c.oldest_message_ms) // 1000
    values = (retention, samples.c.archive_lag_bytes // _MIB)
    kept, lagging = _extremes(connection, at_ms, values, mine, span)
    return moments, kept, lagging


def last_used_bytes(connection: Connection, disk_id: int, span: BucketSpan) -> tuple[tuple[int, int], ...]:
    """Return how many bytes of a disk were used at the last look of each bucket that knows it, by time."""
    buckets = _starts(span)
    used_bytes = levels.c.total_bytes - levels.c.usable_bytes
    known = (levels.c.disk_id == disk_id, used_bytes.is_not(None))
    last = select(levels.c.at_ms).where(*known, *_inside(levels.c.at_ms, buckets, span))
    newest = select(last.order_by(levels.c.at_ms.desc()).limit(1).scalar_subquery()).select_from(buckets)
    moments = [at_ms for at_ms in connection.execute(newest).scalars() if at_ms is not None]
    query = select(levels.c.at_ms, used_bytes.label("used_bytes")).where(*known).order_by(levels.c.at_ms)
    return tuple(
        (row.at_ms, row.used_bytes)
        for some in in_parts(sorted(moments))
        for row in connection.execute(query.where(levels.c.at_ms.in_(some)))
    )


def level_extremes(connection: Connection, disk_id: int, span: BucketSpan) -> Sequence[Extremes | None]:
    """Return the extremes of a disk's level, bucket by bucket. None: nobody knows it."""
    mine = levels.c.disk_id == disk_id
    (found,) = _extremes(connection, levels.c.at_ms, (levels.c.used_percent,), mine, span)
    return found


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


def _extremes(
    connection: Connection,
    at_ms: ColumnElement[int],
    values: Sequence[ColumnElement[int]],
    where: ColumnElement[bool],
    span: BucketSpan,
) -> list[list[Extremes | None]]:
    """Return the extremes of each value, bucket by bucket.

    Each bucket looks for its own rows, and reads them once: to group all rows would sort them all.
    """
    buckets = _starts(span)
    # One number has both a value and its moment within the bucket, so that it tells when an extreme was.
    bucket_ms = literal(span.bucket_ms, BigInteger)
    keys = [value * bucket_ms + at_ms - buckets.c.start_ms for value in values]
    texts: list[ColumnElement[str]] = [
        func.coalesce(cast(extreme(key), Text), literal(_NONE, Text))
        for key in keys
        for extreme in (func.min, func.max)
    ]
    all_in_one = reduce(lambda one, other: one + literal(" ", Text) + other, texts)
    told = select(all_in_one).where(where, *_inside(at_ms, buckets, span)).correlate(buckets)
    found: list[list[Extremes | None]] = [[] for _ in values]
    for start_ms, text in connection.execute(select(buckets.c.start_ms, told.scalar_subquery())):
        keys_of = text.split()
        for of_value, lowest, highest in zip(found, keys_of[::2], keys_of[1::2], strict=True):
            if lowest == _NONE:
                of_value.append(None)
                continue
            low, low_after = divmod(int(lowest), span.bucket_ms)
            high, high_after = divmod(int(highest), span.bucket_ms)
            of_value.append(((low, start_ms + low_after), (high, start_ms + high_after)))
    return found


def _starts(span: BucketSpan) -> CTE:
    first = select(cast(literal(span.first_ms, BigInteger), BigInteger).label("start_ms"))
    starts = first.cte("buckets", recursive=True)
    following = starts.c.start_ms + span.bucket_ms
    return starts.union_all(select(following).where(following < span.end_ms))


def _inside(at_ms: ColumnElement[int], buckets: CTE, span: BucketSpan) -> tuple[ColumnElement[bool], ...]:
    return at_ms >= buckets.c.start_ms, at_ms < buckets.c.start_ms + span.bucket_ms, at_ms < span.end_ms


def _within(store_id: str, start_ms: int, end_ms: int) -> tuple[ColumnElement[bool], ...]:
    return samples.c.store_id == store_id, samples.c.at_ms >= start_ms, samples.c.at_ms < end_ms
