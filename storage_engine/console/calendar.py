"""The validations of a store by day, in which no gap and no loss can be overlooked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from storage_engine.console.stores import dag_run_of
from storage_engine.core.jsonable import filled
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.answers import Incident
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import Verdict
from storage_engine.journal.records import Step

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
