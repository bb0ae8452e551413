"""A store's course under other settings: computed by the broker's own rules, beside today's.

It starts from what the monitor recorded last, and from the ingest that the samples tell. Nothing is stored.
One answer takes much of a second of processor time: whoever serves it lets one at a time in.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zoneinfo import ZoneInfo

from storage_engine.brokers import find_broker
from storage_engine.console.forecast import hourly_moments
from storage_engine.console.rules import Rules, rules_of
from storage_engine.core.clock import DAY_MS
from storage_engine.core.jsonable import filled, from_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.course import (
    Advice,
    BrokerRules,
    Course,
    CourseStart,
    RuleLevels,
    SettingType,
    ingest_from,
)

INGEST_DAYS = 7
DAYS = 14
MOST_DAYS = 90
MOST_COURSE_SECONDS = 2.0
"""Seconds of processor time for each of both courses: its server has the tasks' heartbeats to answer."""
_LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class SettingLine:
    """A setting that can be changed, with its value today; see :class:`RuleSetting`."""

    name: str
    type: SettingType
    minimum: int | None
    maximum: int | None
    unit: str
    help: str
    value: str


@dataclass(frozen=True, slots=True)
class IngestLine:
    """How much comes a day, and at which hours.

    :param profile: the weight of each hour of the day, in the store's time zone.
    """

    bytes_per_day: int
    profile: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WhatIfSettings:
    """Settings that can be changed.

    :param can: a course can be computed; otherwise ``why`` says why not: no-store, not-simulated, no-rules,
        no-start, or a sentence of the broker's.
    :param at_ms: of the look from which a course starts.
    """

    settings: tuple[SettingLine, ...] = ()
    disk_bytes: int | None = None
    ingest: IngestLine | None = None
    can: bool = False
    why: str = ""
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AskedIngest:
    """How much is to come instead of what comes today.

    :param factor: of the ingest. None, as of all here: as today.
    """

    factor: float | None = None
    bytes_per_day: int | None = None
    profile: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """Settings to change; those left out stay as today.

    :param values: of settings, as text.
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
    """Both courses from the same moment on, and what follows from the changed figures.

    :param windows: spans in which the broker would delete expired segments, by the changed settings.
    """

    today: Course
    changed: Course
    levels: BothLevels
    windows: tuple[tuple[int, int], ...]
    advice: tuple[Advice, ...]
    took_ms: int


@dataclass(frozen=True, slots=True)
class _Known:
    rules: BrokerRules
    values: Mapping[str, str]
    start: CourseStart


def what_if_settings(reader: JournalReader, name: str, now_ms: int) -> WhatIfSettings:
    """Return the settings of a store that can be changed, with their values today.

    :param name: the id of its connection.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: it is of another version.
    """
    known = _known(reader, name, now_ms)
    if isinstance(known, str):
        return WhatIfSettings(why=known)
    return WhatIfSettings(
        settings=tuple(
            filled(SettingLine, one, value=known.values[one.name]) for one in known.rules.settings
        ),
        disk_bytes=known.start.disk_bytes,
        ingest=IngestLine(known.start.ingest.bytes_per_day, known.start.ingest.profile),
        can=True,
        at_ms=known.start.now_ms,
    )


def question_of(body: Any) -> WhatIfQuestion:
    """Return the question that a page sends.

    :param body: as JSON.
    :raises BadInputError: it is no question; names the fault.
    """
    asked = from_jsonable(WhatIfQuestion, body, "what-if")
    if not 1 <= asked.days <= MOST_DAYS:
        raise BadInputError(f"what-if.days: expected 1 to {MOST_DAYS}, found {asked.days}.")
    return asked


def what_if(
    reader: JournalReader,
    name: str,
    asked: WhatIfQuestion,
    now_ms: int,
    *,
    limit_seconds: float = MOST_COURSE_SECONDS,
) -> WhatIfAnswer:
    """Return the course of a store by today's settings and by others.

    :param name: the id of its connection.
    :param limit_seconds: of processor time for each course.
    :raises BadInputError: a value that the broker would not work with, or no course can be computed.
    :raises SimulationTooLongError: a course takes more than the limit.
    :raises JournalUnavailableError: the journal can't be read.
    """
    began = time.monotonic()
    known = _known(reader, name, now_ms)
    if isinstance(known, str):
        raise BadInputError(
            f"store {name}: expected one that can be simulated, found that it can't: {known}. Nothing was "
            "changed."
        )
    values, start = _changed_values(known, asked), _changed_start(known.start, asked)
    horizon_ms = asked.days * DAY_MS
    today = known.rules.course(known.values, known.start, horizon_ms, limit_seconds=limit_seconds)
    is_as_today = (values, start) == (known.values, known.start)
    return WhatIfAnswer(
        today=today,
        changed=today
        if is_as_today
        else known.rules.course(values, start, horizon_ms, limit_seconds=limit_seconds),
        levels=BothLevels(known.rules.levels(known.values), known.rules.levels(values)),
        windows=known.rules.windows(values, start.time_zone, start.now_ms, start.now_ms + horizon_ms),
        advice=known.rules.advice(values, start),
        took_ms=round((time.monotonic() - began) * 1000),
    )


def _known(reader: JournalReader, name: str, now_ms: int) -> _Known | str:
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
    found = from_jsonable(CourseStart, start, "start")
    moments = hourly_moments(reader, summary.store_id, INGEST_DAYS, now_ms)
    points = [(one.at_ms, one.max_offset) for one in moments if one.max_offset is not None]
    measured = ingest_from(points, ZoneInfo(found.time_zone))
    return _Known(
        rules,
        rules.values(recorded.settings),
        replace(
            found,
            ingest=found.ingest if measured is None else measured,
            topic_bytes=_topic_bytes(reader, summary.store_id, found.log_bytes, now_ms),
        ),
    )


def _topic_bytes(reader: JournalReader, store_id: str, log_bytes: int, now_ms: int) -> dict[str, int]:
    """Return the bytes that topics take in the log, by their shares of the last days' archived segments."""
    today = now_ms // DAY_MS
    sums: dict[str, int] = {}
    for one in reader.topic_days(store_id, today - INGEST_DAYS, today + 1):
        sums[one.topic] = sums.get(one.topic, 0) + one.size_bytes
    whole = sum(sums.values())
    return {topic: log_bytes * size // whole for topic, size in sums.items() if topic and whole}


def _changed_values(known: _Known, asked: WhatIfQuestion) -> Mapping[str, str]:
    names = {one.name for one in known.rules.settings}
    for name, value in asked.values.items():
        if name not in names:
            raise BadInputError(
                f"what-if.values: expected settings among {', '.join(sorted(names))}, found {name[:50]!r}."
            )
        if len(value) > _LONGEST_VALUE:
            raise BadInputError(
                f"what-if.values.{name}: expected at most {_LONGEST_VALUE} characters, found {len(value)}."
            )
    return known.rules.values({**known.values, **asked.values})


def _changed_start(start: CourseStart, asked: WhatIfQuestion) -> CourseStart:
    ingest = replace(
        start.ingest,
        bytes_per_day=start.ingest.bytes_per_day
        if asked.ingest.bytes_per_day is None
        else asked.ingest.bytes_per_day,
        profile=start.ingest.profile if asked.ingest.profile is None else asked.ingest.profile,
        factor=start.ingest.factor if asked.ingest.factor is None else asked.ingest.factor,
    )
    return start.changed(disk_bytes=asked.disk_bytes, ingest=ingest)
