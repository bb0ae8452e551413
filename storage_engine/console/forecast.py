"""Forecasts for a store: how fast it fills and empties, when its disk reaches levels, how long messages live.

The method is the same for each figure:

- The last fourteen days are cut into spans of one day, from the newest look backwards. So each span has each
  hour and each window of deletion once. The rate of a span is the growth of an offset between its first and
  its last look, divided by the time between these looks. So a gap within a span changes no rate. A gap over
  the end of a span joins two spans into one, which counts once. A span in which an offset fell isn't
  counted, since another log has replaced the log.

- Low, middle and high are the 10th, 50th and 90th percentile of the spans' rates. They describe past days:
  one day in ten was above the high rate.

- A level is reached at the net rate: ingest minus the bytes reclaimed on the same day. The low time is at the
  pace of the fastest days. Only a simulation applies the rules by which a broker deletes more above a level.

- If a broker's offsets count no bytes, the net rate is the growth of the fullest disk, whatever wrote to it.

- Messages live as long as in the last days, or as long as the disk has room for new ones: the shorter time.

The course under other settings is computed by the broker's own rules, beside today's course. It starts from
the monitor's last record, and from the ingest that the samples show. Nothing is stored. One answer takes a
large part of a second of processor time, so a server must compute only one at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import quantiles
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from storage_engine.brokers import find_broker
from storage_engine.console.recorded_rules import RecordedLevels, Rules, rules_of
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.jsonable import filled, from_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.queries import (
    BucketSpan,
    JournalReader,
    Moment,
    disk_ids,
    last_moments,
    last_used_bytes,
)
from storage_engine.journal.reading.store_summaries import DiskLevel, StoreSummary
from storage_engine.model.disk import fills_in_ms, room_below
from storage_engine.model.simulation import (
    Advice,
    BrokerRules,
    Course,
    CourseStart,
    RuleLevels,
    SettingType,
    ingest_from,
)

L = TypeVar("L", Moment, "Filled")
SPAN_DAYS = 14
LEAST_DAYS = 3
_LEAST_MS = DAY_MS * 3 // 4
"""Least length of a span with a rate: a shorter span lacks too many hours of the day."""


@dataclass(frozen=True, slots=True)
class RateBand:
    """Rates in bytes a day."""

    low: int
    mid: int
    high: int


@dataclass(frozen=True, slots=True)
class TimeBand:
    """How long messages live: the low, middle and high time; None for ever."""

    low_ms: int | None
    mid_ms: int | None
    high_ms: int | None


@dataclass(frozen=True, slots=True)
class TimeToLevel:
    """Time until a disk rises above a level: the low, middle and high time; None for never.

    The low time is at the highest rate.

    :param name: the level's name: notice, cleans, forces, refuses or full.
    """

    name: str
    level_percent: int
    low_ms: int | None
    mid_ms: int | None
    high_ms: int | None


@dataclass(frozen=True, slots=True)
class Room:
    """The size of the fullest disk.

    :param log_bytes: size of the logs.
    """

    total_bytes: int
    usable_bytes: int
    log_bytes: int

    def below(self, percent: int) -> int:
        """Return the bytes that can be written before the disk is above a level."""
        return room_below(percent, self.total_bytes, self.usable_bytes)


@dataclass(frozen=True, slots=True)
class Filled:
    """How full a disk was at a moment."""

    at_ms: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a store from looks at its logs and disk.

    :param enough: whether the looks are enough for a forecast.
    :param why: no-samples, too-short or another-log; "" if the looks are enough.
    :param span_ms: time from the first to the last counted look.
    :param samples: number of counted looks.
    :param ingest: rate of written bytes. ``reclaim`` is for deleted bytes. None if the looks don't show the
        rate.
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

    :param moments: looks at the logs, in the order of time.
    :param room: None if the disk's level is unknown. Then the forecast has no time to a level.
    """
    samples = [look for look in moments if look.min_offset is not None and look.max_offset is not None]
    span_ms = samples[-1].at_ms - samples[0].at_ms if samples else 0
    if not samples:
        return Forecast(False, "no-samples", 0, 0)
    days = [*_days(samples)]
    if len(days) < LEAST_DAYS:
        is_short = span_ms < LEAST_DAYS * DAY_MS
        return Forecast(False, "too-short" if is_short else "another-log", span_ms, len(samples))
    ingest = _band(day.ingest for day in days)
    net = _band(day.ingest - day.reclaim for day in days)
    return Forecast(
        enough=True,
        why="",
        span_ms=span_ms,
        samples=len(samples),
        ingest=RateBand(*map(round, ingest)),
        reclaim=RateBand(*map(round, _band(day.reclaim for day in days))),
        net=RateBand(*map(round, net)),
        time_to=() if room is None else tuple(_times(room, levels, net)),
        retention=_retention(samples, room, levels, ingest),
    )


def forecast_of_disk(
    looks: Sequence[Filled], moments: Sequence[Moment], room: Room | None, levels: RecordedLevels
) -> Forecast:
    """Return the forecast from the disk's growth, for a broker whose offsets count no bytes.

    :param looks: looks at the fullest disk, in the order of time.
    :param moments: looks at the logs, in the order of time.
    :param room: size of that disk; None if its level is unknown.
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
    """Yield the last and the first look of each span of a day, the newest span first."""
    ends = [looks[-1]]
    for look in reversed(looks[:-1]):
        if ends[-1].at_ms - look.at_ms >= DAY_MS:
            ends.append(look)
    if ends[-1].at_ms - looks[0].at_ms >= _LEAST_MS:
        ends.append(looks[0])
    return pairwise(ends)


def _days(moments: Sequence[Moment]) -> Iterator[_Day]:
    """Yield the rates of each span of a day, the newest first. A span has none if an offset fell in it."""
    for later, earlier in _spans(moments):
        written = (later.max_offset or 0) - (earlier.max_offset or 0)
        reclaimed = (later.min_offset or 0) - (earlier.min_offset or 0)
        if written >= 0 and reclaimed >= 0:
            span_ms = later.at_ms - earlier.at_ms
            yield _Day(written * DAY_MS / span_ms, reclaimed * DAY_MS / span_ms)


def _band(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the 10th, 50th and 90th percentile."""
    numbers = [*values]
    if len(numbers) == 1:
        return numbers[0], numbers[0], numbers[0]
    tenths = quantiles(numbers, n=10, method="inclusive")
    return tenths[0], tenths[4], tenths[8]


def _times(room: Room, levels: RecordedLevels, net: tuple[float, float, float]) -> Iterator[TimeToLevel]:
    levels_by_name = (
        ("notice", levels.notice_percent),
        ("cleans", levels.cleans_percent),
        ("forces", levels.forces_percent),
        ("refuses", levels.refuses_percent),
        ("full", 100),
    )
    for name, percent in levels_by_name:
        if percent is not None:
            free = room.below(percent)
            # The highest rate gives the shortest time.
            yield TimeToLevel(name, percent, *(fills_in_ms(free, int(rate)) for rate in reversed(net)))


def _retention(
    moments: Sequence[Moment], room: Room | None, levels: RecordedLevels, ingest: tuple[float, float, float]
) -> TimeBand | None:
    ages_ms = [look.at_ms - look.oldest_message_ms for look in moments if look.oldest_message_ms is not None]
    if not ages_ms:
        return None
    lately = [round(value) for value in _band(map(float, ages_ms))]
    if room is None:
        return TimeBand(*lately)
    above = next((mark for mark in (levels.forces_percent, levels.refuses_percent) if mark is not None), 100)
    holds = room.log_bytes + room.below(above)
    fits = [None if rate < 1 else round(holds * DAY_MS / rate) for rate in reversed(ingest)]
    times = zip(lately, fits, strict=True)
    return TimeBand(*(by_age if by_space is None else min(by_age, by_space) for by_age, by_space in times))


def store_forecast(reader: JournalReader, name: str, now_ms: int) -> Forecast:
    """Return a store's forecast at the rates of the last days.

    :param name: the id of the store's connection. If the journal doesn't know it, the forecast is empty.
    """
    summary = next(iter(reader.summaries((name,), now_ms)), None)
    if summary is None:
        return forecast_of((), None, RecordedLevels())
    moments = hourly_moments(reader, summary.store_id, SPAN_DAYS, now_ms)
    levels = RecordedLevels() if summary.rules is None else rules_of(summary.rules).levels
    room = _room(summary, moments)
    if find_broker(summary.broker).rows.offsets_count_bytes:
        return forecast_of(moments, room, levels)
    return forecast_of_disk(_hourly_looks(reader, summary, now_ms), moments, room, levels)


def hourly_moments(reader: JournalReader, store_id: str, days: int, now_ms: int) -> tuple[Moment, ...]:
    """Return each hour's last sample with a known last offset of the logs."""
    span = BucketSpan(now_ms - days * DAY_MS, now_ms + 1, HOUR_MS)
    return reader.read(lambda connection: last_moments(connection, store_id, span))


def _hourly_looks(reader: JournalReader, summary: StoreSummary, now_ms: int) -> tuple[Filled, ...]:
    """Return each hour's last look at the fullest disk."""
    fullest = _fullest(summary)
    if fullest is None:
        return ()
    span = BucketSpan(now_ms - SPAN_DAYS * DAY_MS, now_ms + 1, HOUR_MS)

    def read(connection: Connection) -> tuple[Filled, ...]:
        disk_id = disk_ids(connection, summary.store_id)[fullest.path]
        return tuple(Filled(*row) for row in last_used_bytes(connection, disk_id, span))

    return reader.read(read)


def _fullest(summary: StoreSummary) -> DiskLevel | None:
    levels = [level for level in summary.levels if level.used_percent is not None]
    return max(levels, key=lambda level: level.used_percent or 0, default=None)


def _room(summary: StoreSummary, moments: Sequence[Moment]) -> Room | None:
    fullest = _fullest(summary)
    if fullest is None or fullest.total_bytes is None or fullest.usable_bytes is None:
        return None
    log_bytes = (moments[-1].max_offset or 0) - (moments[-1].min_offset or 0) if moments else 0
    return Room(fullest.total_bytes, fullest.usable_bytes, log_bytes)


INGEST_DAYS = 7
DAYS = 14
MOST_DAYS = 90
MOST_COURSE_SECONDS = 2.0
"""Most processor time of each of the two courses, since the server must also answer tasks' heartbeats."""
_LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class SettingLine:
    """A setting that can be changed, with its current value; see :class:`RuleSetting`."""

    name: str
    type: SettingType
    minimum: int | None
    maximum: int | None
    unit: str
    help: str
    value: str


@dataclass(frozen=True, slots=True)
class IngestLine:
    """Bytes a day, and their distribution over the hours.

    :param profile: the weight of each hour of the day, in the store's time zone.
    """

    bytes_per_day: int
    profile: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WhatIfSettings:
    """Settings that can be changed.

    :param can: whether a course can be computed.
    :param why: why no course can be computed: no-store, not-simulated, no-rules, no-start, or a
        sentence of the broker's package.
    :param at_ms: time of the look from which a course starts.
    """

    settings: tuple[SettingLine, ...] = ()
    disk_bytes: int | None = None
    ingest: IngestLine | None = None
    can: bool = False
    why: str = ""
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AskedIngest:
    """The ingest to compute with. A field is None to keep today's value.

    :param factor: factor by which the ingest is multiplied.
    """

    factor: float | None = None
    bytes_per_day: int | None = None
    profile: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """Settings to change. The other settings keep their current values.

    :param values: new values of settings, as text.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    disk_bytes: int | None = None
    ingest: AskedIngest = AskedIngest()
    days: int = DAYS


@dataclass(frozen=True, slots=True)
class BothLevels:
    """The levels at which the broker acts."""

    today: RuleLevels
    changed: RuleLevels


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """Both courses from the same moment on, and advice about the changed settings.

    :param windows: spans in which the broker would delete expired segments, by the changed settings.
    """

    today: Course
    changed: Course
    levels: BothLevels
    windows: tuple[tuple[int, int], ...]
    advice: tuple[Advice, ...]
    took_ms: int


@dataclass(frozen=True, slots=True)
class _Basis:
    rules: BrokerRules
    values: Mapping[str, str]
    start: CourseStart


def what_if_settings(reader: JournalReader, name: str, now_ms: int) -> WhatIfSettings:
    """Return the settings of a store that can be changed, with their current values."""
    basis = _read_basis(reader, name, now_ms)
    if isinstance(basis, str):
        return WhatIfSettings(why=basis)
    return WhatIfSettings(
        settings=tuple(
            filled(SettingLine, setting, value=basis.values[setting.name]) for setting in basis.rules.settings
        ),
        disk_bytes=basis.start.disk_bytes,
        ingest=IngestLine(basis.start.ingest.bytes_per_day, basis.start.ingest.profile),
        can=True,
        at_ms=basis.start.now_ms,
    )


def question_of(body: Any) -> WhatIfQuestion:
    """Parse the question in a request's JSON body.

    :raises BadInputError: the body isn't a question.
    """
    question = from_jsonable(WhatIfQuestion, body, "what-if")
    if not 1 <= question.days <= MOST_DAYS:
        raise BadInputError(f"what-if.days: expected 1 to {MOST_DAYS}, found {question.days}.")
    return question


def what_if(
    reader: JournalReader,
    name: str,
    asked: WhatIfQuestion,
    now_ms: int,
    *,
    limit_seconds: float = MOST_COURSE_SECONDS,
) -> WhatIfAnswer:
    """Return the courses of a store under today's and under changed settings.

    :param limit_seconds: largest processor time of each course.
    :raises BadInputError: the broker would not accept a value, or no course can be computed.
    :raises SimulationTooLongError: a course takes more than the limit.
    """
    began = time.monotonic()
    basis = _read_basis(reader, name, now_ms)
    if isinstance(basis, str):
        raise BadInputError(
            f"store {name}: expected a store that can be simulated, found that it can't be: {basis}. "
            "Nothing was changed."
        )
    values = _changed_values(basis, asked)
    fields = {name: getattr(asked.ingest, name) for name in ("bytes_per_day", "profile", "factor")}
    changes = {name: value for name, value in fields.items() if value is not None}
    ingest = replace(basis.start.ingest, **changes)
    start = basis.start.changed(disk_bytes=asked.disk_bytes, ingest=ingest)
    horizon_ms = asked.days * DAY_MS
    today = basis.rules.course(basis.values, basis.start, horizon_ms, limit_seconds=limit_seconds)
    changed = today
    if (values, start) != (basis.values, basis.start):
        changed = basis.rules.course(values, start, horizon_ms, limit_seconds=limit_seconds)
    return WhatIfAnswer(
        today=today,
        changed=changed,
        levels=BothLevels(basis.rules.levels(basis.values), basis.rules.levels(values)),
        windows=basis.rules.windows(values, start.time_zone, start.now_ms, start.now_ms + horizon_ms),
        advice=basis.rules.advice(values, start),
        took_ms=round((time.monotonic() - began) * 1000),
    )


def _read_basis(reader: JournalReader, name: str, now_ms: int) -> _Basis | str:
    summary = next(iter(reader.summaries((name,), now_ms)), None)
    if summary is None:
        return "no-store"
    recorded: Rules | None = None if summary.rules is None else rules_of(summary.rules)
    rules = find_broker(summary.broker).rules
    if rules is None:
        return "not-simulated"
    if recorded is None:
        return "no-rules"
    if recorded.unsupported:
        return recorded.unsupported
    findings = reader.findings(summary.store_id)
    start = None if findings is None else findings.found.get("start")
    if start is None:
        return "no-start"
    course = from_jsonable(CourseStart, start, "start")
    moments = hourly_moments(reader, summary.store_id, INGEST_DAYS, now_ms)
    points = [(moment.at_ms, moment.max_offset) for moment in moments if moment.max_offset is not None]
    measured = ingest_from(points, ZoneInfo(course.time_zone))
    return _Basis(
        rules,
        rules.values(recorded.settings),
        replace(
            course,
            ingest=course.ingest if measured is None else measured,
            topic_bytes=_topic_bytes(reader, summary.store_id, course.log_bytes, now_ms),
        ),
    )


def _topic_bytes(reader: JournalReader, store_id: str, log_bytes: int, now_ms: int) -> dict[str, int]:
    """Return each topic's bytes in the log, by its share of the segments archived in the last days."""
    today = now_ms // DAY_MS
    sums = Counter[str]()
    for row in reader.topic_days(store_id, today - INGEST_DAYS, today + 1):
        sums[row.topic] += row.size_bytes
    total = sums.total()
    return {topic: log_bytes * size // total for topic, size in sums.items() if topic and total}


def _changed_values(basis: _Basis, question: WhatIfQuestion) -> Mapping[str, str]:
    names = {setting.name for setting in basis.rules.settings}
    for name, value in question.values.items():
        if name not in names:
            raise BadInputError(
                f"what-if.values: expected settings among {', '.join(sorted(names))}, found {name[:50]!r}."
            )
        if len(value) > _LONGEST_VALUE:
            raise BadInputError(
                f"what-if.values.{name}: expected at most {_LONGEST_VALUE} characters, found {len(value)}."
            )
    return basis.rules.values({**basis.values, **question.values})
