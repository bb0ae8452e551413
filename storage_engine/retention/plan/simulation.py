"""A store's future course under its present or other settings, from its files and its journal's samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from zoneinfo import ZoneInfo

from storage_engine.brokers import find_broker
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.wording import did_you_mean
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_store import course_of
from storage_engine.model.simulation import (
    Advice,
    BrokerRules,
    Course,
    CourseStart,
    Ingest,
    RuleLevels,
    ingest_from,
)
from storage_engine.retention.store.broker_answers import take_glance
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.managed_store import ManagedStore

_SAMPLES_MS = 7 * DAY_MS
_LEAST_SPAN_MS = HOUR_MS
"""Least time that samples have to cover, in milliseconds. A shorter time doesn't show a day's growth."""


class IngestFrom(StrEnum):
    """Source of the ingest's figure."""

    SAMPLES = "samples"
    SEGMENTS = "segments"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Change:
    """Changes that a person wants in a simulation. A part that is None stays as it is.

    :param settings: settings of the broker, as texts by name.
    :param bytes_per_day: ingest to assume in place of the known one. If none is known, both courses assume
        this ingest.
    """

    settings: Mapping[str, str]
    disk_bytes: int | None = None
    ingest_factor: float | None = None
    bytes_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class Simulated:
    """One course, and the facts that it was computed from.

    :param windows: times at which age alone deletes: begin and end of each, in milliseconds since the epoch.
    """

    settings: Mapping[str, str]
    disk_bytes: int
    ingest: Ingest
    levels: RuleLevels
    windows: tuple[tuple[int, int], ...]
    course: Course
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class Simulation:
    """:param changed: the course with a person's changes, or None if no change was asked for."""

    store: str
    broker: str
    now_ms: int
    end_ms: int
    time_zone: str
    log_bytes: int
    ingest_from: IngestFrom
    today: Simulated
    changed: Simulated | None


def simulate(store: ManagedStore, change: Change, days: int, now_ms: int) -> Simulation:
    """Compute the course of a store under its settings, and under a person's changes to them.

    :raises BadInputError: broker or store can't be simulated, a setting doesn't exist, or no ingest is known.
    :raises SimulationTooLongError: the simulation takes more time than it may.
    """
    rules = find_broker(store.broker).rules
    if rules is None:
        raise BadInputError(
            f"{store.root}: expected a broker with rules that can be simulated, found {store.broker}. "
            "Nothing was changed. The command plan shows the deletions of this moment."
        )
    for name in change.settings:
        names = [setting.name for setting in rules.settings]
        if name not in names:
            raise BadInputError(
                f"--set: expected one of {', '.join(names)}, found {name!r}.{did_you_mean(name, names)}"
            )
    values, start, source = _read_start(store, rules, now_ms)
    if start.ingest.bytes_per_day == 0:
        if change.bytes_per_day is None:
            raise BadInputError(
                f"{store.root}: expected segments or samples that show how much is written a day, found "
                "none. Name the ingest: --ingest-per-day SIZE"
            )
        start, source = start.changed(ingest=Ingest(change.bytes_per_day)), IngestFrom.PERSON
    horizon_ms = days * DAY_MS
    today = _simulate_values(rules, values, start, horizon_ms)
    differs = change.settings or change.disk_bytes or change.ingest_factor is not None
    changed = None
    if differs or (change.bytes_per_day is not None and source is not IngestFrom.PERSON):
        new_values = rules.values({**values, **change.settings})
        changed = _simulate_values(rules, new_values, _apply_change(start, change), horizon_ms)
    return Simulation(
        store=store.root,
        broker=store.broker,
        now_ms=now_ms,
        end_ms=now_ms + horizon_ms,
        time_zone=start.time_zone,
        log_bytes=start.log_bytes,
        ingest_from=source,
        today=today,
        changed=changed,
    )


def _apply_change(start: CourseStart, change: Change) -> CourseStart:
    ingest = start.ingest
    if change.bytes_per_day is not None:
        ingest = replace(ingest, bytes_per_day=change.bytes_per_day)
    if change.ingest_factor is not None:
        ingest = replace(ingest, factor=change.ingest_factor)
    return start.changed(disk_bytes=change.disk_bytes, ingest=ingest)


def _simulate_values(
    rules: BrokerRules, values: Mapping[str, str], start: CourseStart, horizon_ms: int
) -> Simulated:
    return Simulated(
        settings=values,
        disk_bytes=start.disk_bytes,
        ingest=start.ingest,
        levels=rules.levels(values),
        windows=rules.windows(values, start.time_zone, start.now_ms, start.now_ms + horizon_ms),
        course=rules.course(values, start, horizon_ms),
        advice=rules.advice(values, start),
    )


def _read_start(
    store: ManagedStore, rules: BrokerRules, now_ms: int
) -> tuple[dict[str, str], CourseStart, IngestFrom]:
    """Return the settings in effect, the start of the course, and the source of its ingest."""
    samples, topic_bytes = _read_journal(store, now_ms)
    with closing(open_to_look(store)) as opened:
        config = course_of(opened).rule_config()
        if why := rules.unsupported(config):
            raise BadInputError(
                f"{store.root}: expected a store that can be simulated, found that {why}. "
                "Nothing was changed."
            )
        start = course_of(opened).start(take_glance(opened, now_ms, store.broker))
        if start is None:
            raise BadInputError(
                f"{store.root}: expected a known disk and a log with segments, found that one of these is "
                "missing. Simulate it once its broker has stored messages."
            )
        source = IngestFrom.SEGMENTS
        ingest = ingest_from(samples, _zone(start.time_zone)) if samples else None
        if ingest is not None:
            start, source = start.changed(ingest=ingest), IngestFrom.SAMPLES
    return rules.values(config), replace(start, topic_bytes=topic_bytes), source


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise BadInputError(
            f"time zone: expected an IANA name such as Asia/Shanghai, found {name!r}. Set the store's time "
            "zone."
        ) from error


def _read_journal(store: ManagedStore, now_ms: int) -> tuple[tuple[tuple[int, int], ...], dict[str, int]]:
    """Return the log's offsets in the last days, and the bytes of each topic that were archived then.

    :return: offsets and bytes are empty if no journal knows the store.
    """
    if not store.journal_url:
        return (), {}
    # Imported here, because a store without a journal doesn't need the database's libraries.
    from storage_engine.journal.journal import Journal
    from storage_engine.journal.reading.queries import JournalReader
    from storage_engine.journal.tables.database import missing_sqlite_file

    if missing_sqlite_file(store.journal_url):
        return (), {}
    journal = Journal(store.journal_url, read_only=True)
    record = journal.find_store(store.real_root, store.host)
    if record is None:
        return (), {}
    samples = journal.max_offsets(record.store_id, now_ms - _SAMPLES_MS)
    if len(samples) < 2 or samples[-1][0] - samples[0][0] < _LEAST_SPAN_MS:
        samples = ()
    days = now_ms // DAY_MS
    topics = JournalReader(store.journal_url).topic_days(record.store_id, days - 6, days + 1)
    topic_bytes: Counter[str] = Counter()
    for row in topics:
        topic_bytes[row.topic] += row.size_bytes
    return samples, dict(topic_bytes)
