"""The page of one store: the store's summary, rules, ranges, consumer groups, topics, and open decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storage_engine.brokers import find_broker
from storage_engine.console.forecast import store_forecast
from storage_engine.console.recorded_rules import Rules, rules_of
from storage_engine.console.stores import (
    FindingLine,
    RunLine,
    StoreLine,
    alarm_lines,
    finding_lines,
    line_of,
    run_line,
    with_forecast,
)
from storage_engine.core.clock import DAY_MS
from storage_engine.core.jsonable import filled
from storage_engine.journal.reading.answers import GroupRow, Standing
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.broker.broker_words import Aside
from storage_engine.model.store import TopicDay

TOPIC_DAYS = 14
MOST_LOGS = 200
"""Largest number of logs whose ranges a page lists. The page's totals cover all logs."""
MOST_RUNS = 200
"""Largest number of runs on one page."""


@dataclass(frozen=True, slots=True)
class RangeLine:
    """Offsets [start_offset, end_offset) of a log that are in the same place for the same reason.

    :param where: a word of :class:`storage_engine.retention.ranges.offset_ranges.Place`.
    :param detail: details of the range's first segment.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    where: str
    reason: str
    detail: str


_WORST_FIRST = {
    place: at
    for at, place in enumerate(
        ("lost", "unknown", "accepted", "due", "local", "both", "archived", "expired", "not_archived"),
    )
}


@dataclass(frozen=True, slots=True)
class PlaceTotal:
    """All ranges with the same place.

    :param place: the ranges' ``where``, or "accepted" for a loss that a person has accepted.
    """

    place: str
    ranges: int
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ShieldLine:
    """Segments to which a store's shield gave second names, because no lake proves these segments yet.

    :param mode: the policy's setting, on or off.
    :param gone_segments: number of ``segments`` that were deleted from the log, but are in the shield.
    :param foreign_files: number of files that other programs put into the shield's directory.
    """

    mode: str
    segments: int
    size_bytes: int
    gone_segments: int
    gone_bytes: int
    foreign_files: int


@dataclass(frozen=True, slots=True)
class StandingLine(Standing):
    """Open decisions about a store; see :class:`storage_engine.journal.reading.answers.Standing`.

    :param shield: None if no shield is recorded.
    :param has_shield: whether stores of this kind of broker can have a shield.
    """

    shield: ShieldLine | None
    has_shield: bool = True


@dataclass(frozen=True, slots=True)
class FoundLine:
    """Findings of the monitor's last look between two cleanups."""

    at_ms: int
    alarms: tuple[FindingLine, ...]
    notices: tuple[str, ...]
    causes: tuple[str, ...]
    doctor: tuple[FindingLine, ...]


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """Contents of a store's page.

    :param rules: None if no rules are recorded.
    :param ranges: ranges of the worst and largest :data:`MOST_LOGS` logs; None if no ranges are recorded.
    :param totals: sums of all ranges, by place.
    :param logs: number of logs that have ranges.
    """

    now_ms: int
    row: StoreLine
    rules: Rules | None = None
    ranges: tuple[RangeLine, ...] | None = None
    totals: tuple[PlaceTotal, ...] = ()
    logs: int = 0
    groups: tuple[GroupRow, ...] = ()
    topics: tuple[TopicDay, ...] = ()
    standing: StandingLine | None = None
    findings: FoundLine | None = None


@dataclass(frozen=True, slots=True)
class RunsAnswer:
    """Runs of a store, the newest first."""

    runs: tuple[RunLine, ...]


def one_store(reader: JournalReader, name: str, now_ms: int) -> StoreAnswer:
    """Return a store's page. If the journal doesn't know the store, the page has only its summary."""
    row = line_of(reader, name, now_ms)
    if row.store_id is None:
        return StoreAnswer(now_ms, row)
    findings = reader.findings(row.store_id)
    found = {} if findings is None else findings.found
    today = now_ms // DAY_MS
    recorded = found.get("ranges")
    ranges = None if recorded is None else tuple(filled(RangeLine, range_row) for range_row in recorded)
    return StoreAnswer(
        now_ms,
        with_forecast(row, store_forecast(reader, name, now_ms)),
        rules=next((rules_of(record) for record in reader.rules(row.store_id, now_ms, now_ms + 1)), None),
        ranges=None if ranges is None else _keep_worst_logs(ranges),
        totals=_totals(ranges or ()),
        logs=len({line.log for line in ranges or ()}),
        groups=reader.groups(row.store_id),
        topics=reader.topic_days(row.store_id, today - TOPIC_DAYS, today + 1),
        standing=_standing(reader, row, found.get("shield"), now_ms),
        findings=None
        if findings is None
        else FoundLine(
            findings.at_ms,
            alarm_lines(found.get("alarms", ())),
            tuple(found.get("notices", ())),
            tuple(found.get("causes", ())),
            finding_lines(found.get("doctor", ())),
        ),
    )


def runs_page(reader: JournalReader, name: str, before_id: int | None = None) -> RunsAnswer:
    """Return one page of a store's runs.

    :param before_id: id of the run before which the runs began; None for the newest page.
    """
    store_id = reader.store_id(name)
    if store_id is None:
        return RunsAnswer(())
    runs = reader.runs(store_id, before_id=before_id, limit=MOST_RUNS)
    return RunsAnswer(tuple(run_line(run) for run in runs))


def _standing(reader: JournalReader, row: StoreLine, shield: Any, now_ms: int) -> StandingLine:
    assert row.store_id is not None
    assert row.broker is not None
    return filled(
        StandingLine,
        reader.standing(row.store_id, now_ms),
        shield=None if shield is None else filled(ShieldLine, shield),
        has_shield=find_broker(row.broker).aside is Aside.IN_STORE,
    )


def _place(line: RangeLine) -> str:
    return "accepted" if (line.where, line.reason) == ("lost", "accepted") else line.where


def _keep_worst_logs(ranges: Sequence[RangeLine]) -> tuple[RangeLine, ...]:
    """Return the ranges of the worst and largest :data:`MOST_LOGS` logs, in the given order."""
    worst, size = dict[str, int](), dict[str, int]()
    for line in ranges:
        rank = _WORST_FIRST.get(_place(line), 0)
        worst[line.log] = min(worst.get(line.log, rank), rank)
        size[line.log] = size.get(line.log, 0) + line.size_bytes
    worst_logs = set(sorted(worst, key=lambda log: (worst[log], -size[log], log))[:MOST_LOGS])
    return tuple(line for line in ranges if line.log in worst_logs)


def _totals(ranges: Iterable[RangeLine]) -> tuple[PlaceTotal, ...]:
    by_place: dict[str, list[RangeLine]] = {}
    for line in ranges:
        by_place.setdefault(_place(line), []).append(line)
    return tuple(
        PlaceTotal(place, len(rows), sum(row.segments for row in rows), sum(row.size_bytes for row in rows))
        for place, rows in by_place.items()
    )
