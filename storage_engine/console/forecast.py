"""Forecasts for a store: how fast it fills and empties, when its disk is at each level, how long messages
live.

The method, which is the same for each figure:

- The last fourteen days are cut into spans of a day, from the newest look backwards: a day has each hour and
  each window of deletion once. A span's rate is what an offset grew between its first and its last look, over
  the time between those two looks. So a gap within a span changes no rate; a gap over the end of a span makes
  one longer span of two, which counts once. A span in which an offset fell tells nothing: the log is another.
- Of the rates of all spans, low, middle and high are the 10th, 50th and 90th percentile. They are what days
  were like, not what is certain: one day in ten was above the high one.
- A level is reached by the net rate: ingest less what was reclaimed on the same day. At the low end of the
  band the disk fills as on the fastest days. None: at that pace it is never reached. Nothing here knows the
  broker's rules, by which it deletes more once a level is reached; a simulation does.
- Where a broker's offsets count no bytes, the net rate is what the fullest disk filled up by, whoever did.
- Messages live as long as lately, or as long as the disk has room for what comes, whichever is shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import TypeVar

from sqlalchemy import Connection

from storage_engine.brokers import find_broker
from storage_engine.console.rules import RecordedLevels, rules_of
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.journal.reading.queries import (
    BucketSpan,
    JournalReader,
    Moment,
    disk_ids,
    last_moments,
    last_used_bytes,
)
from storage_engine.journal.reading.store_summaries import DiskLevel, StoreSummary
from storage_engine.model.store import fills_in_ms, room_below

L = TypeVar("L", Moment, "Filled")
SPAN_DAYS = 14
LEAST_DAYS = 3
_LEAST_MS = DAY_MS * 3 // 4
"""A span that is shorter has not each hour of the day, and tells no day's rate."""


@dataclass(frozen=True, slots=True)
class RateBand:
    """Bytes a day."""

    low: int
    mid: int
    high: int


@dataclass(frozen=True, slots=True)
class TimeBand:
    """A span of time; None: never, at that pace."""

    low_ms: int | None
    mid_ms: int | None
    high_ms: int | None


@dataclass(frozen=True, slots=True)
class TimeToLevel:
    """Time in which a disk rises above a level; None: never, at that pace.

    :param name: of the level: notice, cleans, forces, refuses or full.
    """

    name: str
    level_percent: int
    low_ms: int | None
    mid_ms: int | None
    high_ms: int | None


@dataclass(frozen=True, slots=True)
class Room:
    """The disk that is fullest.

    :param log_bytes: bytes of it that the logs take.
    """

    total_bytes: int
    usable_bytes: int
    log_bytes: int

    def below(self, percent: int) -> int:
        """Return how many bytes fit before the disk is above a level."""
        return room_below(percent, self.total_bytes, self.usable_bytes)


@dataclass(frozen=True, slots=True)
class Filled:
    """How full a disk was at a moment."""

    at_ms: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a store by looks at its logs and its disk: the rate at which it fills, and when it reaches
    a level.

    :param enough: the looks tell something; otherwise ``why`` says why they don't.
    :param why: no-samples, too-short or another-log; "" where they do.
    :param span_ms: from the first to the last look that counts.
    :param samples: number of looks that count.
    :param ingest: None: not told by these looks; ``reclaim`` likewise.
    :param net: the rate at which the disk fills.
    """

    enough: bool
    why: str
    span_ms: int
    samples: int
    ingest: RateBand | None = None
    reclaim: RateBand | None = None
    net: RateBand | None = None
    time_to: tuple[TimeToLevel, ...] = ()
    retention: TimeBand | None = None


@dataclass(frozen=True, slots=True)
class _Day:
    ingest: float
    reclaim: float


def forecast_of(moments: Sequence[Moment], room: Room | None, levels: RecordedLevels) -> Forecast:
    """Return the forecast at the rates of the last days.

    :param moments: looks that know where the logs begin and end, by time.
    :param room: None: the disk's level isn't known, and so is no time to a level.
    """
    known = [one for one in moments if one.min_offset is not None and one.max_offset is not None]
    span_ms = known[-1].at_ms - known[0].at_ms if known else 0
    if not known:
        return Forecast(False, "no-samples", 0, 0)
    days = [*_days(known)]
    if len(days) < LEAST_DAYS:
        is_short = span_ms < LEAST_DAYS * DAY_MS
        return Forecast(False, "too-short" if is_short else "another-log", span_ms, len(known))
    ingest = _band(day.ingest for day in days)
    net = _band(day.ingest - day.reclaim for day in days)
    return Forecast(
        enough=True,
        why="",
        span_ms=span_ms,
        samples=len(known),
        ingest=RateBand(*map(round, ingest)),
        reclaim=RateBand(*map(round, _band(day.reclaim for day in days))),
        net=RateBand(*map(round, net)),
        time_to=() if room is None else tuple(_times(room, levels, net)),
        retention=_retention(known, room, levels, ingest),
    )


def forecast_of_disk(
    looks: Sequence[Filled], moments: Sequence[Moment], room: Room | None, levels: RecordedLevels
) -> Forecast:
    """Return the forecast where only the disk tells how much is written and deleted.

    :param looks: at the fullest disk, by time.
    :param moments: looks at the logs, by time.
    :param room: of that disk; None: its level isn't known now.
    """
    span_ms = looks[-1].at_ms - looks[0].at_ms if looks else 0
    if not looks or room is None:
        return Forecast(False, "no-samples", 0, 0)
    rates = [
        (later.used_bytes - earlier.used_bytes) * DAY_MS / (later.at_ms - earlier.at_ms)
        for later, earlier in _spans(looks)
    ]
    if len(rates) < LEAST_DAYS:
        return Forecast(False, "too-short", span_ms, len(looks))
    net = _band(rates)
    return Forecast(
        enough=True,
        why="",
        span_ms=span_ms,
        samples=len(looks),
        net=RateBand(*map(round, net)),
        time_to=tuple(_times(room, levels, net)),
        retention=_retention(moments, None, levels, net),
    )


def _spans(looks: Sequence[L]) -> Iterator[tuple[L, L]]:
    """Yield the last and the first look of spans of a day each, the newest first."""
    ends = [looks[-1]]
    for one in reversed(looks[:-1]):
        if ends[-1].at_ms - one.at_ms >= DAY_MS:
            ends.append(one)
    first = looks[0]
    if ends[-1].at_ms - first.at_ms >= _LEAST_MS:
        ends.append(first)
    return pairwise(ends)


def _days(moments: Sequence[Moment]) -> Iterator[_Day]:
    """Yield the rates of spans of a day each, as far as looks tell them, the newest first."""
    for later, earlier in _spans(moments):
        into, out = _grown(earlier.max_offset, later.max_offset), _grown(earlier.min_offset, later.min_offset)
        if into is not None and out is not None:
            span_ms = later.at_ms - earlier.at_ms
            yield _Day(into * DAY_MS / span_ms, out * DAY_MS / span_ms)


def _grown(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None or now < before else now - before


def _band(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the 10th, 50th and 90th percentile."""
    known = [*values]
    if len(known) == 1:
        return known[0], known[0], known[0]
    tenths = quantiles(known, n=10, method="inclusive")
    return tenths[0], tenths[4], tenths[8]


def _times(room: Room, levels: RecordedLevels, net: tuple[float, float, float]) -> Iterator[TimeToLevel]:
    named = (
        ("notice", levels.notice_percent),
        ("cleans", levels.cleans_percent),
        ("forces", levels.forces_percent),
        ("refuses", levels.refuses_percent),
        ("full", 100),
    )
    for name, percent in named:
        if percent is not None:
            free = room.below(percent)
            # The fastest days reach it first.
            yield TimeToLevel(name, percent, *(fills_in_ms(free, int(rate)) for rate in reversed(net)))


def _retention(
    moments: Sequence[Moment], room: Room | None, levels: RecordedLevels, ingest: tuple[float, float, float]
) -> TimeBand | None:
    kept = [one.at_ms - one.oldest_message_ms for one in moments if one.oldest_message_ms is not None]
    if not kept:
        return None
    lately = [round(value) for value in _band(map(float, kept))]
    if room is None:
        return TimeBand(*lately)
    above = next((one for one in (levels.forces_percent, levels.refuses_percent) if one is not None), 100)
    holds = room.log_bytes + room.below(above)
    fits = [None if rate < 1 else round(holds * DAY_MS / rate) for rate in reversed(ingest)]
    return TimeBand(
        *(
            by_age if by_space is None else min(by_age, by_space)
            for by_age, by_space in zip(lately, fits, strict=True)
        )
    )


def store_forecast(reader: JournalReader, name: str, now_ms: int) -> Forecast:
    """Return a store's forecast at the rates of the last days.

    :param name: the id of its connection; of a store that the journal doesn't know nothing is told.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: it is of another version.
    """
    summary = next(iter(reader.summaries((name,), now_ms)), None)
    if summary is None:
        return forecast_of((), None, RecordedLevels())
    moments = hourly_moments(reader, summary.store_id, SPAN_DAYS, now_ms)
    levels = RecordedLevels() if summary.rules is None else rules_of(summary.rules).levels
    if not find_broker(summary.broker).rows.offsets_count_bytes:
        looks = _hourly_looks(reader, summary, now_ms)
        return forecast_of_disk(looks, moments, _room(summary, moments), levels)
    return forecast_of(moments, _room(summary, moments), levels)


def hourly_moments(reader: JournalReader, store_id: str, days: int, now_ms: int) -> tuple[Moment, ...]:
    """Return the last sample of each hour that knows where the logs end."""
    span = BucketSpan(now_ms - days * DAY_MS, now_ms + 1, HOUR_MS)
    return reader.read(lambda connection: last_moments(connection, store_id, span))


def _hourly_looks(reader: JournalReader, summary: StoreSummary, now_ms: int) -> tuple[Filled, ...]:
    """Return the last look of each hour at the fullest disk."""
    fullest = _fullest(summary)
    if fullest is None:
        return ()
    span = BucketSpan(now_ms - SPAN_DAYS * DAY_MS, now_ms + 1, HOUR_MS)

    def read(connection: Connection) -> tuple[Filled, ...]:
        disk_id = disk_ids(connection, summary.store_id)[fullest.path]
        return tuple(Filled(*row) for row in last_used_bytes(connection, disk_id, span))

    return reader.read(read)


def _fullest(summary: StoreSummary) -> DiskLevel | None:
    known = [one for one in summary.levels if one.used_percent is not None]
    return max(known, key=lambda one: one.used_percent or 0, default=None)


def _room(summary: StoreSummary, moments: Sequence[Moment]) -> Room | None:
    fullest = _fullest(summary)
    if fullest is None or fullest.total_bytes is None or fullest.usable_bytes is None:
        return None
    log_bytes = (moments[-1].max_offset or 0) - (moments[-1].min_offset or 0) if moments else 0
    return Room(fullest.total_bytes, fullest.usable_bytes, log_bytes)
