"""The list of all stores, the worst first, and the calendar of a store's validations, gaps and losses."""

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
from storage_engine.core.wording import duration_text, unexpected_text
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

    :param id: the run's number in the order of runs. A page of older runs is requested by it.
    :param dag_id: id of the run's DAG; None for a run from a shell. The same holds for ``run_id``.
    :param outcome: None if the run has not written its report yet.
    :param has_report: whether the run has a report, or refers to an earlier one. The report may have expired.
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
    """Return the ids of the DAG and of its run; None for a run from a shell."""
    dag_id, separator, run_id = run_key.partition("/")
    return (dag_id, run_id) if separator else (None, None)


def run_line(run: RunRow) -> RunLine:
    dag_id, run_id = dag_run_of(run.run_key)
    return filled(RunLine, run, id=run.run_id, dag_id=dag_id, run_id=run_id)


STALE_MS = HOUR_MS
"""The monitor looks at a store every ten minutes. After this time without a look, its state is unknown."""
_LEAST_SPAN_MS = HOUR_MS
"""A shorter span of levels doesn't show how fast a disk fills."""


@dataclass(frozen=True, slots=True)
class StoresAnswer:
    """The contents of the page of all stores.

    :param problem: why a journal can't be read, as a sentence; "" if all journals were read.
    """

    now_ms: int
    stores: tuple[StoreLine, ...]
    problem: str = ""


def all_stores(reader: JournalReader, names: Collection[str], now_ms: int) -> StoresAnswer:
    """Return the lines of the named stores. If the journal can't be read, each line has the reason."""
    try:
        return StoresAnswer(now_ms, worst_first(_read_lines(reader, names, now_ms)))
    except StorageEngineError as error:
        return unreadable(names, str(error), now_ms)


def unreadable(names: Iterable[str], problem: str, now_ms: int) -> StoresAnswer:
    """Return lines of stores whose state is unknown, since their journal can't be read."""
    lines = (StoreLine(name, problem=problem, problem_kind=ProblemKind.JOURNAL) for name in names)
    return StoresAnswer(now_ms, tuple(lines), problem)


def line_of(reader: JournalReader, name: str, now_ms: int) -> StoreLine:
    """Return the line of one store."""
    (line,) = _read_lines(reader, (name,), now_ms)
    return line


def _read_lines(reader: JournalReader, names: Collection[str], now_ms: int) -> Iterator[StoreLine]:
    summaries = {summary.name: summary for summary in reader.summaries(names, now_ms)}
    for name in names:
        if name in summaries:
            yield _line(name, summaries[name], now_ms)
        else:
            yield StoreLine(
                name,
                problem=f"{reader.name} knows no store of this name. The first run of one of its DAGs "
                "records it.",
                problem_kind=ProblemKind.NO_STORE,
            )


def _line(name: str, summary: StoreSummary, now_ms: int) -> StoreLine:
    """Return a store's line. If its records can't be read, the line has the error."""
    try:
        return store_line(name, summary, now_ms)
    except (AttributeError, BadInputError, KeyError, TypeError, ValueError) as error:
        problem = f"The journal's records of this store can't be read: {unexpected_text(error)}"
        return StoreLine(name, problem=problem, problem_kind=ProblemKind.JOURNAL)


class StoreState(StrEnum):
    """A store's state. The first value is the worst."""

    URGENT = "urgent"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


class ProblemKind(StrEnum):
    """The reason why something about a store is unknown."""

    NONE = ""
    NEVER_LOOKED = "never-looked"
    STALE = "stale"
    FUTURE = "future"
    """The time of the last look is later than now, since the hosts' clocks differ."""
    MONITOR_PAUSED = "monitor-paused"
    MONITOR_GONE = "monitor-gone"
    """The file of the monitor's DAG is missing, or doesn't define the DAG any more."""
    NO_STORE = "no-store"
    JOURNAL = "journal"
    CONNECTION = "connection"
    NOT_YET = "not-yet"
    """The connection will be looked up during one of the next visits to the page."""


class Filling(StrEnum):
    """Whether a store's disks fill up at the pace of the last day."""

    YES = "filling"
    NO = "not-filling"
    UNKNOWN = "unknown"


_LOOKED_FOR = frozenset({ProblemKind.NONE, ProblemKind.NEVER_LOOKED, ProblemKind.STALE, ProblemKind.FUTURE})
"""Problems that a line no longer shows if the store's monitor doesn't run."""
_SEVERITIES = ("urgent", "warning")
_LEVEL_FINDINGS = {
    LevelState.REFUSES: ("urgent", "disk-full", "the broker refuses messages"),
    LevelState.FORCES: ("urgent", "disk-forces", "the broker deletes its oldest segments, read or not"),
    LevelState.CLEANS: ("warning", "disk-cleans", "the broker deletes expired segments at any hour"),
}
"""Levels at which a person has to act: the finding's severity and kind, and what the broker does."""
_LOOK = "The store's page shows where, and since when."
_ROOM = "Archive and delete with proof, or add space."
_WORST_FIRST = {state: place for place, state in enumerate(StoreState)}


@dataclass(frozen=True, slots=True)
class FindingLine:
    """One finding of doctor.

    :param then: the commands that the finding's texts name.
    """

    severity: str
    kind: str
    what: str
    advice: str
    then: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LevelLine:
    """How full the disk of a path is.

    :param used_percent: None if unknown. Then ``error`` has the reason.
    """

    path: str
    used_percent: int | None
    total_bytes: int | None
    usable_bytes: int | None
    state: LevelState
    error: str


@dataclass(frozen=True, slots=True)
class StoreLine:
    """A store's line in the list of stores. A field is None if its value isn't known.

    :param urgent: the most urgent finding; None if no finding calls for action.
    :param retention_ms: age of the store's oldest message at the last look.
    :param filling: whether a disk fills. It is unknown if a disk's level is unknown and no other disk fills.
    :param time_to_full_ms: time until the first disk is full at the last day's pace; None if no disk
        fills, or it is unknown.
    :param archive_lag_bytes: bytes of sealed segments that are in no lake.
    :param lagging_groups: number of consumer groups whose first unread message may be deleted within a day.
    :param problem: the reason why values are unknown, as a sentence; "" if there is none.
    :param problem_kind: the same reason as a code, for a page in another language.
    :param full_at_earliest_ms: time until the disk is full, if only the forecast's fastest pace fills it.
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
    """Return the recorded findings of doctor."""
    return tuple(
        _finding_line(row["severity"], row["kind"], row["what"], row.get("advice", "")) for row in doctor
    )


def alarm_lines(alarms: Iterable[Any]) -> tuple[FindingLine, ...]:
    """Return the recorded alarms of a look."""
    return tuple(_finding_line("urgent", "alarm", alarm) for alarm in alarms)


def _finding_line(severity: str, kind: str, what: Any, advice: Any = "") -> FindingLine:
    text, remedy = from_jsonable(str, what), from_jsonable(str, advice)
    commands = (*commands_in(text), *commands_in(remedy))
    return FindingLine(severity, kind, str(text), str(remedy), tuple(map(str, commands)))


def store_line(name: str, summary: StoreSummary, now_ms: int) -> StoreLine:
    """Return a store's line, as a page lists it."""
    rules = None if summary.rules is None else rules_of(summary.rules)
    levels = tuple(
        filled(LevelLine, level, state=level_state(level.used_percent, rules)) for level in summary.levels
    )
    lost = (FindingLine("urgent", "lost", f"Lost: {summary.lost}.", _LOOK),) if summary.lost else ()
    recorded = (*alarm_lines(summary.alarms), *finding_lines(summary.doctor or ()))
    findings = (*lost, *recorded, *_judge_levels(levels))
    urgent = [finding for finding in findings if finding.severity in _SEVERITIES]
    last_run = None if summary.last_run is None else run_line(summary.last_run)
    kind, problem = _problem(summary, now_ms)
    filling, time_to_full_ms = _time_to_full(summary.levels, rules)
    retention_ms = None
    if summary.sampled_at_ms is not None and summary.oldest_message_ms is not None:
        retention_ms = max(0, summary.sampled_at_ms - summary.oldest_message_ms)
    return filled(
        StoreLine,
        summary,
        store=name,
        path=summary.real_path,
        state=_state(findings, last_run, is_known=not problem and summary.doctor is not None),
        urgent=min(urgent, key=lambda finding: _SEVERITIES.index(finding.severity), default=None),
        levels=levels,
        retention_ms=retention_ms,
        filling=filling,
        time_to_full_ms=time_to_full_ms,
        last_run=last_run,
        problem=problem,
        problem_kind=kind,
    )


def with_forecast(line: StoreLine, forecast: Forecast) -> StoreLine:
    """Return a line with the time to full from the store's forecast, so that one page has one answer.

    It is the forecast's middle time until the broker refuses messages, or until the disk is full. If the disk
    reaches that level only at the fastest pace, the line has the time at that pace.
    """
    times = {entry.name: entry for entry in forecast.time_to}
    if not times and line.time_to_full_ms == 0:
        return line
    if (full := times.get("refuses", times.get("full"))) is None:
        return replace(line, filling=Filling.NO if times else Filling.UNKNOWN, time_to_full_ms=None)
    earliest_ms = full.low_ms if full.mid_ms is None else None
    filling = Filling.NO if full.mid_ms is None and earliest_ms is None else Filling.YES
    return replace(line, filling=filling, time_to_full_ms=full.mid_ms, full_at_earliest_ms=earliest_ms)


def without_monitor(line: StoreLine, dag_id: str, kind: ProblemKind) -> StoreLine:
    """Return the line of a store whose monitor doesn't run. This problem replaces those in ``_LOOKED_FOR``.

    :param kind: MONITOR_PAUSED or MONITOR_GONE.
    """
    if line.problem_kind not in _LOOKED_FOR:
        return line
    if kind is ProblemKind.MONITOR_PAUSED:
        text = f"Its monitor DAG {dag_id} is paused, so this store isn't watched."
        finding = FindingLine("urgent", "dag-paused", text, "Unpause it.")
    else:
        text = f"Airflow no longer has its monitor DAG {dag_id}."
        finding = FindingLine("urgent", "dag-missing", text, "Make Airflow parse the DAG's file.")
    urgent = line.urgent if line.urgent is not None and line.urgent.severity == "urgent" else finding
    problem = f"{text} {finding.advice}"
    return replace(line, state=StoreState.URGENT, urgent=urgent, problem=problem, problem_kind=kind)


def worst_first(lines: Iterable[StoreLine]) -> tuple[StoreLine, ...]:
    """Sort stores, the worst first. Of equally bad stores, the fuller one comes first."""

    def rank(line: StoreLine) -> tuple[int, int, str]:
        fullest = max((level.used_percent or 0 for level in line.levels), default=0)
        return _WORST_FIRST[line.state], -fullest, line.store

    return tuple(sorted(lines, key=rank))


def _judge_levels(levels: Iterable[LevelLine]) -> Iterator[FindingLine]:
    """Yield findings about critical levels. Doctor's recorded findings about them may be older or missing."""
    for level in levels:
        if level.state in _LEVEL_FINDINGS:
            severity, kind, act = _LEVEL_FINDINGS[level.state]
            yield FindingLine(severity, kind, f"{level.path} is {level.used_percent} % used: {act}.", _ROOM)


def _state(findings: Iterable[FindingLine], last_run: RunLine | None, *, is_known: bool) -> StoreState:
    severities = {finding.severity for finding in findings}
    outcome = last_run.outcome if last_run else None
    if "urgent" in severities:
        return StoreState.URGENT
    if "warning" in severities or outcome in ("failed", "released-in-part"):
        return StoreState.WARNING
    return StoreState.OK if is_known else StoreState.UNKNOWN


def _problem(summary: StoreSummary, now_ms: int) -> tuple[ProblemKind, str]:
    if summary.sampled_at_ms is None:
        text = "The monitor has not looked at this store yet. Unpause its monitor DAG."
        return ProblemKind.NEVER_LOOKED, text
    ago_ms = now_ms - summary.sampled_at_ms
    if ago_ms > STALE_MS:
        text = (
            f"The monitor has not looked at this store for {duration_text(ago_ms)}. "
            "Check that its monitor DAG runs."
        )
        return ProblemKind.STALE, text
    if -ago_ms > STALE_MS:
        text = (
            f"The time of the last look at this store is {duration_text(-ago_ms)} ahead. "
            "Check the hosts' clocks."
        )
        return ProblemKind.FUTURE, text
    return ProblemKind.NONE, ""


def _time_to_full(levels: Sequence[DiskLevel], rules: Rules | None) -> tuple[Filling, int | None]:
    refuses = None if rules is None else rules.levels.refuses_percent
    fillings = [_disk_full_in(level, 100 if refuses is None else refuses) for level in levels]
    times = [time_ms for _, time_ms in fillings if time_ms is not None]
    if times:
        return Filling.YES, min(times)
    is_known = bool(fillings) and all(filling is Filling.NO for filling, _ in fillings)
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
"""Outcomes of runs that should end with a validation: they deleted, or should have deleted."""
_GONE = frozenset({"segment-gone", "given-up"})
"""Kinds of drift in which other programs deleted bytes of a log."""


@dataclass(frozen=True, slots=True)
class DayRun:
    """A run on a day of the calendar.

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
    """A day in UTC with validations, missing validations, gaps or losses.

    :param day: the date, as in 2026-11-24.
    :param passed: number of runs whose validation found no fault.
    :param failed: number of runs whose validation found a fault.
    :param not_run: number of runs that deleted segments, or failed, and have no validation.
    :param unknown: number of runs whose state is unknown.
    :param gaps: number of ranges that validations found lost, or other programs deleted.
    :param losses: number of ranges whose loss a person accepted on this day.
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
    """Days in the order of time."""

    days: tuple[Day, ...]


def validation_calendar(reader: JournalReader, name: str, year: int) -> CalendarAnswer:
    """Return the days of a year with validations, gaps or losses.

    :param name: the id of the store's connection. A store that the journal doesn't know has no days.
    :raises BadInputError: the year is out of range, or the journal is of another version.
    """
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        raise BadInputError(f"year: expected {_FIRST_YEAR} to {_LAST_YEAR}, found {year}.")
    store_id = reader.store_id(name)
    if store_id is None:
        return CalendarAnswer(())
    start_ms, end_ms = (int(datetime(y, 1, 1, tzinfo=UTC).timestamp()) * 1000 for y in (year, year + 1))
    verdicts = reader.verdicts(store_id, start_ms, end_ms)
    incidents = reader.incidents(store_id, since_ms=start_ms, until_ms=end_ms, limit=_MOST_INCIDENTS)
    return CalendarAnswer(tuple(_days(verdicts, incidents)))


def _days(verdicts: Iterable[Verdict], incidents: Iterable[Incident]) -> Iterator[Day]:
    daily_verdicts: dict[str, list[Verdict]] = defaultdict(list)
    lost: dict[str, list[Incident]] = defaultdict(list)
    for verdict in verdicts:
        if _counts(verdict):
            daily_verdicts[_day(verdict.at_ms)].append(verdict)
    for incident in incidents:
        if incident.step == Step.ACCEPT_LOSS or _is_gone(incident):
            lost[_day(incident.at_ms)].append(incident)
    for day in sorted(daily_verdicts.keys() | lost.keys()):
        yield _make_day(day, daily_verdicts[day], lost[day])


def _make_day(day: str, verdicts: Sequence[Verdict], lost: Sequence[Incident]) -> Day:
    runs = [_run(verdict) for verdict in verdicts]
    results = [run.validation for run in runs]
    return Day(
        day=day,
        passed=results.count("passed"),
        failed=results.count("failed"),
        not_run=results.count("not-run"),
        unknown=results.count("unknown"),
        gaps=sum(verdict.lost_ranges or 0 for verdict in verdicts) + sum(map(_is_gone, lost)),
        losses=sum(incident.step == Step.ACCEPT_LOSS for incident in lost),
        runs=tuple(runs[-_MOST_RUNS_A_DAY:]),
    )


def _counts(verdict: Verdict) -> bool:
    """Return whether a run validated, or should have. Most runs find nothing due, and need no validation."""
    if verdict.unchanged_since is not None:
        return False
    return bool(verdict.validation) or verdict.deleted_segments > 0 or verdict.outcome in _VALIDATED_ALWAYS


def _run(verdict: Verdict) -> DayRun:
    dag_id, run_id = dag_run_of(verdict.run_key)
    results = {None: "unknown", "": "not-run", "FAILURE": "failed"}
    validation = results.get(verdict.validation, "passed")
    return filled(DayRun, verdict, dag_id=dag_id, run_id=run_id, validation=validation)


def _is_gone(incident: Incident) -> bool:
    return incident.step == Step.DRIFT and incident.details["disturbance"]["kind"] in _GONE


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
