"""All stores on one page, the worst first.

The validations of a store by day, in which no gap and no loss can be overlooked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from storage_engine.commands import commands_in
from storage_engine.console.forecast import Forecast
from storage_engine.console.recorded_rules import LevelState, Rules, level_state, rules_of
from storage_engine.core.clock import HOUR_MS
from storage_engine.core.jsonable import filled, from_jsonable
from storage_engine.core.wording import duration_text, unexpected
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.reading.answers import Incident, RunRow
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import Verdict
from storage_engine.journal.reading.store_summaries import DiskLevel, StoreSummary
from storage_engine.journal.records import Step
from storage_engine.model.disk import fills_in_ms, room_below


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in short.

    :param id: orders runs; a page of older ones is asked for by it.
    :param dag_id: of the DAG that ran it; None: a person did, at a shell. ``run_id`` likewise.
    :param outcome: None: it has not come to its report.
    :param has_report: its report, or the one that answers for it, can be asked for; it may have expired.
    """

    id: int
    run_key: str
    dag_id: str | None
    run_id: str | None
    outcome: str | None
    state: str
    created_at_ms: int
    finished_at_ms: int | None
    causes: tuple[str, ...]
    deleted_segments: int | None
    freed_bytes: int | None
    unchanged_since: str | None
    has_report: bool


def dag_run_of(run_key: str) -> tuple[str | None, str | None]:
    """Return the ids of the DAG and of its run; None and None: a person ran it, at a shell."""
    dag_id, of_dag, run_id = run_key.partition("/")
    return (dag_id, run_id) if of_dag else (None, None)


def run_line(run: RunRow) -> RunLine:
    """Return a run as a page lists it."""
    dag_id, run_id = dag_run_of(run.run_key)
    return filled(RunLine, run, id=run.run_id, dag_id=dag_id, run_id=run_id)


STALE_MS = HOUR_MS
"""A store is looked at every ten minutes; so long after its last look nothing is known of it."""
_LEAST_SPAN_MS = HOUR_MS
"""Levels of a shorter time say too little of how fast a disk fills."""


@dataclass(frozen=True, slots=True)
class StoresAnswer:
    """What the page of all stores shows.

    :param problem: why a journal can't be asked, as a sentence; "" where all were.
    """

    now_ms: int
    stores: tuple[StoreLine, ...]
    problem: str = ""


def all_stores(reader: JournalReader, names: Collection[str], now_ms: int) -> StoresAnswer:
    """Return the stores of a journal that are asked for; where it doesn't tell of them, why.

    :param names: ids of their connections.
    """
    try:
        return StoresAnswer(now_ms, worst_first(_of_journal(reader, names, now_ms)))
    except StorageEngineError as error:
        return unreadable(names, str(error), now_ms)


def unreadable(names: Iterable[str], problem: str, now_ms: int) -> StoresAnswer:
    """Return stores of which nothing is known, as their journal can't be read.

    :param problem: why, as a sentence.
    """
    lines = (StoreLine(name, problem=problem, problem_kind=ProblemKind.JOURNAL) for name in names)
    return StoresAnswer(now_ms, tuple(lines), problem)


def line_of(reader: JournalReader, name: str, now_ms: int) -> StoreLine:
    """Return one store.

    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: it is of another version.
    """
    (line,) = _of_journal(reader, (name,), now_ms)
    return line


def _of_journal(reader: JournalReader, names: Collection[str], now_ms: int) -> Iterator[StoreLine]:
    found = {one.name: one for one in reader.summaries(names, now_ms)}
    for name in names:
        if name in found:
            yield _line(name, found[name], now_ms)
        else:
            yield StoreLine(
                name,
                problem=f"{reader.name} knows no store of this name. The first run of a DAG on it "
                "records it.",
                problem_kind=ProblemKind.NO_STORE,
            )


def _line(name: str, summary: StoreSummary, now_ms: int) -> StoreLine:
    """Return a store's line; what another release wrote of it hides no other store."""
    try:
        return store_line(name, summary, now_ms)
    except (AttributeError, BadInputError, KeyError, TypeError, ValueError) as error:
        problem = f"What the journal has of this store can't be read: {unexpected(error)}"
        return StoreLine(name, problem=problem, problem_kind=ProblemKind.JOURNAL)


class StoreState(StrEnum):
    """A store's state; the first one is the worst."""

    URGENT = "urgent"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


class ProblemKind(StrEnum):
    """Reason why something about a store is unknown."""

    NONE = ""
    NEVER_LOOKED = "never-looked"
    STALE = "stale"
    FUTURE = "future"
    """Its last look is dated after now: clocks differ."""
    MONITOR_PAUSED = "monitor-paused"
    MONITOR_GONE = "monitor-gone"
    """Its DAG's file is there no more, or no longer makes it."""
    NO_STORE = "no-store"
    JOURNAL = "journal"
    CONNECTION = "connection"
    NOT_YET = "not-yet"
    """Its connection is looked up with one of the next looks at the page."""


class Filling(StrEnum):
    """Whether a store's disks fill up, at the pace of the last day."""

    YES = "filling"
    NO = "not-filling"
    UNKNOWN = "unknown"


_LOOKED_FOR = frozenset({ProblemKind.NONE, ProblemKind.NEVER_LOOKED, ProblemKind.STALE, ProblemKind.FUTURE})
"""Faults that show where the journal knows the store: that its monitor doesn't run is more urgent than
these."""
_SEVERITIES = ("urgent", "warning")
_LEVEL_FINDINGS = {
    LevelState.REFUSES: ("urgent", "disk-full", "the broker refuses messages"),
    LevelState.FORCES: ("urgent", "disk-forces", "the broker deletes its oldest segments, read or not"),
    LevelState.CLEANS: ("warning", "disk-cleans", "the broker deletes expired segments at any hour"),
}
"""Of the levels that somebody has to act on: severity and kind as doctor has them, and what follows."""
_LOOK = "The store's page shows where, and since when."
_ROOM = "Archive and delete with proof, or add space."
_WORST_FIRST = {state: place for place, state in enumerate(StoreState)}


@dataclass(frozen=True, slots=True)
class FindingLine:
    """One thing that doctor found.

    :param then: the commands that its texts name.
    """

    severity: str
    kind: str
    what: str
    advice: str
    then: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LevelLine:
    """How full the disk under a path is.

    :param used_percent: None: not known, and ``error`` says why.
    """

    path: str
    used_percent: int | None
    total_bytes: int | None
    usable_bytes: int | None
    state: LevelState
    error: str


@dataclass(frozen=True, slots=True)
class StoreLine:
    """One store; None where something isn't known.

    :param store: the id of its connection.
    :param urgent: the most urgent thing that doctor found; None: nothing that anybody has to act on.
    :param retention_ms: age of its oldest message at the last look.
    :param filling: of its disks: unknown where one is not known, and none of the others fills.
    :param time_to_full_ms: until its first disk is full, at the last day's pace; None: none, or unknown.
    :param archive_lag_bytes: sealed, and in no lake.
    :param lagging_groups: consumer groups whose first unread message may be deleted within a day.
    :param problem: why something is not known, as a sentence; "" where nothing is wrong.
    :param problem_kind: the same, for who says it in other words.
    :param full_at_earliest_ms: of a disk that only the fastest course of its forecast fills.
    """

    store: str
    store_id: str | None = None
    broker: str | None = None
    host: str | None = None
    path: str | None = None
    state: StoreState = StoreState.UNKNOWN
    urgent: FindingLine | None = None
    levels: tuple[LevelLine, ...] = ()
    sampled_at_ms: int | None = None
    retention_ms: int | None = None
    filling: Filling = Filling.UNKNOWN
    time_to_full_ms: int | None = None
    archive_lag_bytes: int | None = None
    lagging_groups: int | None = None
    last_run: RunLine | None = None
    problem: str = ""
    problem_kind: ProblemKind = ProblemKind.NONE
    full_at_earliest_ms: int | None = None


def finding_lines(doctor: Iterable[Mapping[str, Any]]) -> tuple[FindingLine, ...]:
    """Return doctor's findings as they were recorded."""
    return tuple(
        _finding_line(one["severity"], one["kind"], one["what"], one.get("advice", "")) for one in doctor
    )


def alarm_lines(alarms: Iterable[Any]) -> tuple[FindingLine, ...]:
    """Return the alarms of a look as they were recorded."""
    return tuple(_finding_line("urgent", "alarm", what) for what in alarms)


def _finding_line(severity: str, kind: str, what: Any, advice: Any = "") -> FindingLine:
    """Return a finding whose texts are as they were recorded."""
    said, todo = from_jsonable(str, what), from_jsonable(str, advice)
    then = (*commands_in(said), *commands_in(todo))
    return FindingLine(severity, kind, str(said), str(todo), tuple(map(str, then)))


def store_line(name: str, summary: StoreSummary, now_ms: int) -> StoreLine:
    """Return a store as a page lists it.

    :param name: the id of its connection.
    """
    rules = None if summary.rules is None else rules_of(summary.rules)
    levels = tuple(
        filled(LevelLine, one, state=level_state(one.used_percent, rules)) for one in summary.levels
    )
    found = (*_of_look(summary), *finding_lines(summary.doctor or ()), *_of_levels(levels))
    last_run = None if summary.last_run is None else run_line(summary.last_run)
    kind, problem = _problem(summary, now_ms)
    filling, time_to_full_ms = _time_to_full(summary.levels, rules)
    return filled(
        StoreLine,
        summary,
        store=name,
        path=summary.real_path,
        state=_state(found, last_run, is_known=not problem and summary.doctor is not None),
        urgent=_most_urgent(found),
        levels=levels,
        retention_ms=_retention_ms(summary),
        filling=filling,
        time_to_full_ms=time_to_full_ms,
        last_run=last_run,
        problem=problem,
        problem_kind=kind,
    )


def with_forecast(line: StoreLine, found: Forecast) -> StoreLine:
    """Return a line with the time to full that its store's forecast tells: one page has one answer.

    That is the middle one of when its broker refuses messages, else of when its disk has no room; where only
    the fastest course gets there, how long that takes.
    """
    times = {one.name: one for one in found.time_to}
    if not times and line.time_to_full_ms == 0:
        return line
    if (full := times.get("refuses", times.get("full"))) is None:
        return replace(line, filling=Filling.NO if times else Filling.UNKNOWN, time_to_full_ms=None)
    earliest_ms = full.low_ms if full.mid_ms is None else None
    filling = Filling.NO if full.mid_ms is None and earliest_ms is None else Filling.YES
    return replace(line, filling=filling, time_to_full_ms=full.mid_ms, full_at_earliest_ms=earliest_ms)


def without_monitor(line: StoreLine, dag_id: str, kind: ProblemKind) -> StoreLine:
    """Return the line of a store at which nobody looks any more: what it says gets older and older.

    :param dag_id: of the DAG that looked.
    :param kind: why it doesn't.
    """
    if line.problem_kind not in _LOOKED_FOR:
        return line
    if kind is ProblemKind.MONITOR_PAUSED:
        what = f"Its monitor DAG {dag_id} is paused, so that this store isn't watched."
        found = FindingLine("urgent", "dag-paused", what, "Unpause it.")
    else:
        what = f"Airflow no longer has its monitor DAG {dag_id}."
        found = FindingLine("urgent", "dag-missing", what, "Make Airflow parse the DAG's file.")
    told = line.urgent if line.urgent is not None and line.urgent.severity == "urgent" else found
    problem = f"{what} {found.advice}"
    return replace(line, state=StoreState.URGENT, urgent=told, problem=problem, problem_kind=kind)


def worst_first(lines: Iterable[StoreLine]) -> tuple[StoreLine, ...]:
    """Return stores, the worst first; of equally bad ones the fullest."""

    def rank(line: StoreLine) -> tuple[int, int, str]:
        fullest = max((one.used_percent or 0 for one in line.levels), default=0)
        return _WORST_FIRST[line.state], -fullest, line.store

    return tuple(sorted(lines, key=rank))


def _of_look(summary: StoreSummary) -> Iterator[FindingLine]:
    """Yield losses found at the last look, and its alarms."""
    if summary.lost:
        yield FindingLine("urgent", "lost", f"Lost: {summary.lost}.", _LOOK)
    yield from alarm_lines(summary.alarms)


def _of_levels(levels: Iterable[LevelLine]) -> Iterator[FindingLine]:
    """Describe the state at a level, as doctor does, whose findings may be older, or unknown."""
    for one in levels:
        if one.state in _LEVEL_FINDINGS:
            severity, kind, then = _LEVEL_FINDINGS[one.state]
            yield FindingLine(severity, kind, f"{one.path} is {one.used_percent} % used: {then}.", _ROOM)


def _most_urgent(found: Iterable[FindingLine]) -> FindingLine | None:
    """Return doctor's finding where it is at least as urgent as the level."""
    told = [one for one in found if one.severity in _SEVERITIES]
    return min(told, key=lambda one: _SEVERITIES.index(one.severity), default=None)


def _state(found: Iterable[FindingLine], last_run: RunLine | None, *, is_known: bool) -> StoreState:
    severities = {one.severity for one in found}
    outcome = last_run.outcome if last_run else None
    if "urgent" in severities:
        return StoreState.URGENT
    if "warning" in severities or outcome in ("failed", "released-in-part"):
        return StoreState.WARNING
    return StoreState.OK if is_known else StoreState.UNKNOWN


def _problem(summary: StoreSummary, now_ms: int) -> tuple[ProblemKind, str]:
    if summary.sampled_at_ms is None:
        said = "Nobody has looked at this store yet. Its monitor DAG does; unpause it."
        return ProblemKind.NEVER_LOOKED, said
    ago_ms = now_ms - summary.sampled_at_ms
    if ago_ms > STALE_MS:
        said = (
            f"Nobody has looked at this store for {duration_text(ago_ms)}. Check that its monitor DAG runs."
        )
        return ProblemKind.STALE, said
    if -ago_ms > STALE_MS:
        said = (
            f"The last look at this store is dated {duration_text(-ago_ms)} ahead. Check the hosts' clocks."
        )
        return ProblemKind.FUTURE, said
    return ProblemKind.NONE, ""


def _retention_ms(summary: StoreSummary) -> int | None:
    if summary.sampled_at_ms is None or summary.oldest_message_ms is None:
        return None
    return max(0, summary.sampled_at_ms - summary.oldest_message_ms)


def _time_to_full(levels: Sequence[DiskLevel], rules: Rules | None) -> tuple[Filling, int | None]:
    refuses = None if rules is None else rules.levels.refuses_percent
    found = [_disk_full_in(one, 100 if refuses is None else refuses) for one in levels]
    times = [time_ms for _, time_ms in found if time_ms is not None]
    if times:
        return Filling.YES, min(times)
    is_known = bool(found) and all(filling is Filling.NO for filling, _ in found)
    return Filling.NO if is_known else Filling.UNKNOWN, None


def _disk_full_in(level: DiskLevel, full_percent: int) -> tuple[Filling, int | None]:
    if level.total_bytes is None or level.usable_bytes is None:
        return Filling.UNKNOWN, None
    room = room_below(full_percent, level.total_bytes, level.usable_bytes)
    if room == 0:
        return Filling.YES, 0
    if level.earlier_usable_bytes is None or level.earlier_ms is None:
        return Filling.UNKNOWN, None
    span_ms = level.at_ms - level.earlier_ms
    if span_ms < _LEAST_SPAN_MS:
        return Filling.UNKNOWN, None
    in_ms = fills_in_ms(room, level.earlier_usable_bytes - level.usable_bytes, span_ms)
    return (Filling.NO if in_ms is None else Filling.YES), in_ms


_FIRST_YEAR, _LAST_YEAR = 1970, 9998
_MOST_INCIDENTS = 10_000
_MOST_RUNS_A_DAY = 200
_VALIDATED_ALWAYS = frozenset({"done", "released-in-part", "failed"})
"""Outcomes of runs that delete, or were to, and so end with a validation."""
_GONE = frozenset({"segment-gone", "given-up"})
"""Drift by which bytes of a log went without any of our runs."""


@dataclass(frozen=True, slots=True)
class DayRun:
    """A run that a day has to show.

    :param outcome: of the run.
    :param validation: passed, failed, not-run or unknown.
    """

    run_key: str
    dag_id: str | None
    run_id: str | None
    outcome: str
    validation: str
    at_ms: int
    has_report: bool


@dataclass(frozen=True, slots=True)
class Day:
    """A day in UTC on which something was validated, was to be, or was lost.

    :param day: as in 2026-11-24.
    :param passed: runs whose validation found no fault; ``failed`` those in which it did.
    :param not_run: runs that deleted something, or failed, and have no validation.
    :param unknown: runs whose state is unknown.
    :param gaps: ranges that validations found nowhere, and ranges that others deleted.
    :param losses: ranges that a person accepted as lost on this day.
    """

    day: str
    passed: int
    failed: int
    not_run: int
    unknown: int
    gaps: int
    losses: int
    runs: tuple[DayRun, ...]


@dataclass(frozen=True, slots=True)
class CalendarAnswer:
    """Days by time."""

    days: tuple[Day, ...]


def validation_calendar(reader: JournalReader, name: str, year: int) -> CalendarAnswer:
    """Return the days of a year on which a store was validated, or something was lost.

    :param name: the id of its connection; a store that the journal doesn't know has no day.
    :raises BadInputError: there is no such year, or the journal is of another version.
    :raises JournalUnavailableError: the journal can't be read.
    """
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        raise BadInputError(f"year: expected {_FIRST_YEAR} to {_LAST_YEAR}, found {year}.")
    store_id = reader.store_id(name)
    if store_id is None:
        return CalendarAnswer(())
    start_ms, end_ms = (int(datetime(one, 1, 1, tzinfo=UTC).timestamp()) * 1000 for one in (year, year + 1))
    verdicts = reader.verdicts(store_id, start_ms, end_ms)
    incidents = reader.incidents(store_id, since_ms=start_ms, until_ms=end_ms, limit=_MOST_INCIDENTS)
    return CalendarAnswer(tuple(_days(verdicts, incidents)))


def _days(verdicts: Iterable[Verdict], incidents: Iterable[Incident]) -> Iterator[Day]:
    of_day: dict[str, list[Verdict]] = defaultdict(list)
    lost: dict[str, list[Incident]] = defaultdict(list)
    for verdict in verdicts:
        if _counts(verdict):
            of_day[_day(verdict.at_ms)].append(verdict)
    for incident in incidents:
        if incident.step == Step.ACCEPT_LOSS or _is_gone(incident):
            lost[_day(incident.at_ms)].append(incident)
    for day in sorted(of_day.keys() | lost.keys()):
        yield _told(day, of_day[day], lost[day])


def _told(day: str, verdicts: Sequence[Verdict], lost: Sequence[Incident]) -> Day:
    runs = [_run(one) for one in verdicts]
    found = [one.validation for one in runs]
    return Day(
        day=day,
        passed=found.count("passed"),
        failed=found.count("failed"),
        not_run=found.count("not-run"),
        unknown=found.count("unknown"),
        gaps=sum(one.lost_ranges or 0 for one in verdicts) + sum(map(_is_gone, lost)),
        losses=sum(one.step == Step.ACCEPT_LOSS for one in lost),
        runs=tuple(runs[-_MOST_RUNS_A_DAY:]),
    )


def _counts(verdict: Verdict) -> bool:
    """Return whether a run validated something or had to; most runs find nothing due."""
    if verdict.unchanged_since is not None:
        return False
    return bool(verdict.validation) or verdict.deleted_segments > 0 or verdict.outcome in _VALIDATED_ALWAYS


def _run(verdict: Verdict) -> DayRun:
    dag_id, run_id = dag_run_of(verdict.run_key)
    if verdict.validation is None:
        validation = "unknown"
    elif verdict.validation == "":
        validation = "not-run"
    else:
        validation = "failed" if verdict.validation == "FAILURE" else "passed"
    return filled(DayRun, verdict, dag_id=dag_id, run_id=run_id, validation=validation)


def _is_gone(incident: Incident) -> bool:
    return incident.step == Step.DRIFT and incident.details["disturbance"]["kind"] in _GONE


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
