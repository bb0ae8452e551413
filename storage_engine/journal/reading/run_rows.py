"""Runs in short, with their deletions and validation verdicts; and the whole record of one run."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Select, and_, func, or_, select
from sqlalchemy.exc import NoResultFound

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.jsonable import filled
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.answers import RunRow
from storage_engine.journal.records import Event, Phase, Step
from storage_engine.journal.tables.rows import EVENTS, in_parts, read_plan, to_event
from storage_engine.journal.tables.schema import events, reports, runs
from storage_engine.model.hold import DriftKind
from storage_engine.model.plan import Plan

GONE = frozenset({DriftKind.SEGMENT_GONE, DriftKind.GIVEN_UP})
"""Kinds of drift that mean that a range of the log is gone."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A segment that a run deleted.

    :param excuse: why the deletion needed no receipt; "" if it had a receipt.
    :param lineage: lineage of the log at that time; 0 if an older version recorded none.
    :param log_id: identity of its log; "" if not known.
    """

    log: str
    start_offset: int
    end_offset: int
    excuse: str
    lineage: int
    log_id: str = ""


@dataclass(frozen=True, slots=True)
class DeletingRun:
    """A run that deleted segments, found that segments were gone, or accepted a loss.

    :param request: the request, as in the journal.
    :param last_id: number of the run's last event of these kinds; 0 if only a report has the deletions.
    """

    run_id: int
    run_key: str
    begun_at_ms: int
    request: Mapping[str, Any]
    plan_digest: str | None
    last_id: int


@dataclass(frozen=True, slots=True)
class JournalEnds:
    """:param known_id: the newest event of any store that is at least an hour old; 0 if there is none. All
        transactions with lower event numbers have ended by then.
    :param last_undo: the newest event by which deletions of this store were undone; 0 if none.
    """

    known_id: int
    last_undo: int


@dataclass(frozen=True, slots=True)
class EventsAround:
    """The times of two events of any store, around an event number, in ms since the epoch.

    :param before_ms: time of the last event up to this number; None if there is no such event.
    :param after_ms: time of the first event with a higher number; None if there is no such event.
    """

    before_ms: int | None
    after_ms: int | None


def events_around(connection: Connection, event_id: int) -> EventsAround:
    """Return the time of the last event up to this number, and of the first event after it."""
    at_ms = select(events.c.at_ms).limit(1)
    before = at_ms.where(events.c.id <= event_id).order_by(events.c.id.desc())
    after = at_ms.where(events.c.id > event_id).order_by(events.c.id)
    return EventsAround(connection.execute(before).scalar(), connection.execute(after).scalar())


def journal_ends(connection: Connection, store_id: str, now_ms: int) -> JournalEnds:
    """Return up to which event the journal is complete, and the store's last undo."""
    undo = (
        select(func.max(events.c.id))
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id)
        .where(events.c.step == Step.UNDO.value, events.c.phase == Phase.RESULT.value)
    )
    old = select(events.c.id).where(events.c.at_ms <= now_ms - HOUR_MS).order_by(events.c.id.desc()).limit(1)
    return JournalEnds(connection.execute(old).scalar() or 0, connection.execute(undo).scalar() or 0)


_DELETING_RUN = (runs.c.id, runs.c.run_key, runs.c.created_at_ms, runs.c.request, runs.c.plan_digest)


def deleting_runs(connection: Connection, store_id: str) -> tuple[DeletingRun, ...]:
    """Return a store's runs with deletions, missing segments or accepted losses, by their last such event."""
    kind = events.c.payload[("disturbance", "kind")].as_string()
    deletes = and_(
        events.c.phase == Phase.RESULT.value,
        or_(
            and_(events.c.step == Step.RELEASE.value, events.c.subject != ""),
            and_(events.c.step == Step.DRIFT.value, kind.in_([drift_kind.value for drift_kind in GONE])),
            events.c.step == Step.ACCEPT_LOSS.value,
        ),
    )
    last = (
        select(events.c.run_id, func.max(events.c.id).label("last_id"))
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, deletes)
        .group_by(events.c.run_id)
        .subquery()
    )
    query = (
        select(*_DELETING_RUN, last.c.last_id).join(last, last.c.run_id == runs.c.id).order_by(last.c.last_id)
    )
    return tuple(DeletingRun(*row) for row in connection.execute(query))


def events_of_deletion(connection: Connection, run_id: int) -> tuple[Event, ...]:
    """Return a run's intents and results of deletions, drift and accepted losses, oldest first.

    These events never expire.
    """
    where = or_(
        and_(events.c.step == Step.RELEASE.value, events.c.subject != ""),
        events.c.step.in_([Step.DRIFT.value, Step.ACCEPT_LOSS.value]),
    )
    query = EVENTS.where(runs.c.id == run_id, where).order_by(events.c.id)
    return tuple(map(to_event, connection.execute(query)))


def deletions_after(connection: Connection, store_id: str, event_id: int) -> tuple[Deletion, ...]:
    """Return the deletions that a store's runs recorded after an event, without undone deletions."""
    payload = events.c.payload
    # As text: PostgreSQL's integers are too short for offsets.
    query = (
        select(
            events.c.run_id,
            events.c.subject,
            payload["end"].as_string().label("end_offset"),
            payload[("facts", "size_bytes")].as_string().label("size_bytes"),
            payload["lineage"].as_string().label("lineage"),
            payload["log_id"].as_string().label("log_id"),
            payload["receipt_hash"].as_string().label("receipt_hash"),
            payload["passage_detail"].as_string().label("passage_detail"),
        )
        .where(events.c.id > event_id, events.c.subject != "")
        .where(events.c.step == Step.RELEASE.value, events.c.phase == Phase.RESULT.value)
        .order_by(events.c.id)
    )
    rows = connection.execute(query).all()
    standing = set(_standing(connection, store_id, sorted({row.run_id for row in rows})))
    deletions = []
    for row in rows:
        if row.run_id not in standing:
            continue
        log, _, base = row.subject.rpartition("/")
        end = int(base) + int(row.size_bytes) if row.end_offset is None else int(row.end_offset)
        excuse = "" if row.receipt_hash else row.passage_detail
        deletions.append(Deletion(log, int(base), end, excuse, int(row.lineage or 0), row.log_id or ""))
    return tuple(deletions)


def _standing(connection: Connection, store_id: str, run_ids: Sequence[int]) -> Iterator[int]:
    """Yield the ids of the given runs that belong to the store and were not undone."""
    for batch in in_parts(run_ids):
        query = select(runs.c.id).where(runs.c.id.in_(batch), runs.c.store_id == store_id)
        yield from connection.execute(query.where(runs.c.id.not_in(undone_among(batch)))).scalars()


def undone_among(run_ids: Sequence[int]) -> Select[tuple[int]]:
    """Return a query for the given runs whose deletions were undone."""
    undone = events.c.step == Step.UNDO.value, events.c.phase == Phase.RESULT.value
    return select(events.c.run_id).where(events.c.run_id.in_(run_ids), *undone)


_MOST_UNPACKED = 200
"""Most reports of older releases that one query unpacks. Verdicts of further reports stay unknown."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """:param at_ms: when the run ended, or when it began if it hasn't ended.
    :param validation: OK, WARNING or FAILURE; "" if the run had no validation; None if not known.
    :param lost_ranges: number of lost ranges, without losses that a person has accepted; None if not known.
    :param unchanged_since: the run whose report is also this run's report, because this run did nothing.
    :param has_report: whether its own report is still stored.
    """

    run_id: int
    run_key: str
    at_ms: int
    outcome: str
    deleted_segments: int
    validation: str | None
    lost_ranges: int | None
    unchanged_since: str | None
    has_report: bool


def read_verdicts(
    connection: Connection, store_id: str, start_ms: int, end_ms: int, limit: int = 20_000
) -> tuple[Verdict, ...]:
    """Return the verdicts on the newest runs with reports that began between two moments, by time."""
    query = (
        select(
            runs.c.id.label("run_id"),
            runs.c.run_key,
            func.coalesce(runs.c.finished_at_ms, runs.c.created_at_ms).label("at_ms"),
            reports.c.outcome,
            reports.c.deleted_segments,
            reports.c.validation,
            reports.c.lost_ranges,
            reports.c.unchanged_since,
            reports.c.report.is_not(None).label("has_report"),
        )
        .join(reports, reports.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id)
        .where(runs.c.created_at_ms >= start_ms, runs.c.created_at_ms < end_ms)
        .order_by(runs.c.id.desc())
        .limit(limit)
    )
    rows = connection.execute(query).all()
    verdicts = [Verdict(**row._mapping) for row in rows]
    old = [row.run_id for row in verdicts if row.validation is None and row.unchanged_since is None]
    unpacked = _unpack_verdicts(connection, old[:_MOST_UNPACKED])
    for number, verdict in enumerate(verdicts):
        if verdict.run_id in unpacked:
            validation, lost_ranges = unpacked[verdict.run_id]
            verdicts[number] = replace(verdict, validation=validation, lost_ranges=lost_ranges)
    return tuple(sorted(verdicts, key=lambda row: (row.at_ms, row.run_id)))


def _unpack_verdicts(connection: Connection, run_ids: Sequence[int]) -> dict[int, tuple[str, int]]:
    query = select(reports.c.run_id, reports.c.report).where(reports.c.run_id.in_(run_ids))
    verdicts = {}
    for row in connection.execute(query) if run_ids else ():
        if row.report is not None:
            verdicts[row.run_id] = verdict_of(json.loads(zlib.decompress(row.report)).get("validation"))
    return verdicts


def verdict_of(validation: Mapping[str, Any] | None) -> tuple[str, int]:
    """Return the verdict of a validation in a report, and its number of lost ranges that nobody accepted."""
    if validation is None:
        return "", 0
    ranges, checks = validation.get("ranges", ()), validation.get("checks", ())
    statuses = {row["status"] for row in (*ranges, *checks)}
    worst = next((status for status in ("FAILURE", "WARNING") if status in statuses), "OK")
    return worst, sum(row["where"] == "LOST" and row["status"] == "FAILURE" for row in ranges)


_root, _of_root = runs.alias("root"), reports.alias("of_root")
_ANSWERED = (
    select(_root.c.id)
    .join(_of_root, _of_root.c.run_id == _root.c.id)
    .where(_root.c.store_id == runs.c.store_id, _root.c.run_key == reports.c.unchanged_since)
    .where(_of_root.c.report.is_not(None))
    .correlate(runs, reports)
    .exists()
)
"""SQL condition that the report of run ``unchanged_since`` exists. It may expire before the run that
refers to it."""

RUN_COLUMNS: Final = (
    runs.c.id,
    runs.c.run_key,
    runs.c.state,
    runs.c.created_at_ms,
    runs.c.finished_at_ms,
    reports.c.outcome,
    reports.c.causes,
    reports.c.deleted_segments,
    reports.c.freed_bytes,
    reports.c.unchanged_since,
    or_(reports.c.report.is_not(None), _ANSWERED).label("has_report"),
)
"""Columns of runs and of the reports joined to them."""


def run_row(row: Any) -> RunRow:
    """Return the run in a row with :data:`RUN_COLUMNS`."""
    causes = tuple(row.causes.split(",")) if row.causes else ()
    nothing = {"deleted_segments": 0, "freed_bytes": 0} if row.unchanged_since else {}
    return filled(RunRow, row, run_id=row.id, causes=causes, has_report=bool(row.has_report), **nothing)


@dataclass(frozen=True, slots=True)
class CleanupRun:
    """A run that deleted segments, or should have but didn't; or several such runs shown as one.

    :param at_ms: when the first run ended, or began if it hasn't ended.
    :param run_key: key of the last run.
    :param deleted_segments: number of segments that these runs deleted. ``freed_bytes`` is a sum, too.
    :param runs: number of runs shown as one; all have the same causes and outcome.
    :param until_ms: when the last run ended, or began if it hasn't ended.
    """

    at_ms: int
    run_key: str
    causes: tuple[str, ...]
    deleted_segments: int
    freed_bytes: int
    outcome: str
    runs: int
    until_ms: int


QUIET: Final = ("nothing-to-do", "dry-run", "done")
"""Outcomes with which a run is shown only if it deleted segments."""
_PARTS = 60
"""Number of parts of a span. Many cleanups in one part are shown as one per causes and outcome."""


def read_cleanups(
    connection: Connection, store_id: str, start_ms: int, end_ms: int, most: int = 500
) -> tuple[CleanupRun, ...]:
    """Return the runs between two moments that deleted segments, or should have but didn't, by time.

    :param most: if there are more runs, runs in one part of the span are shown as one. No run is left out.
    """
    at_ms = func.coalesce(runs.c.finished_at_ms, runs.c.created_at_ms)
    where = (
        runs.c.store_id == store_id,
        at_ms >= start_ms,
        at_ms < end_ms,
        # A run for which another run's report counts did nothing.
        reports.c.unchanged_since.is_(None),
        or_(reports.c.deleted_segments > 0, reports.c.outcome.not_in(QUIET)),
    )
    columns = (reports.c.causes, reports.c.deleted_segments, reports.c.freed_bytes, reports.c.outcome)
    of_runs = runs.join(reports, reports.c.run_id == runs.c.id)
    each = select(at_ms.label("at_ms"), runs.c.run_key, *columns).select_from(of_runs).where(*where)
    rows = connection.execute(each.order_by(runs.c.id.desc()).limit(most + 1)).all()
    if len(rows) <= most:
        cleanups = [_cleanup(row, run_count=1, until_ms=row.at_ms) for row in rows]
        return tuple(sorted(cleanups, key=lambda run: run.at_ms))
    part = (at_ms - start_ms) // max(1, -(-(end_ms - start_ms) // _PARTS))
    by_part = (
        select(
            func.min(at_ms).label("at_ms"),
            func.max(at_ms).label("until_ms"),
            func.count().label("runs"),
            func.max(runs.c.id).label("last_id"),
            reports.c.causes,
            func.sum(reports.c.deleted_segments).label("deleted_segments"),
            func.sum(reports.c.freed_bytes).label("freed_bytes"),
            reports.c.outcome,
        )
        .select_from(of_runs)
        .where(*where)
        .group_by(part, reports.c.causes, reports.c.outcome)
        .subquery()
    )
    query = select(by_part, runs.c.run_key).join(runs, runs.c.id == by_part.c.last_id)
    grouped = [_cleanup(row, run_count=row.runs, until_ms=row.until_ms) for row in connection.execute(query)]
    return tuple(sorted(grouped, key=lambda run: run.at_ms))


def _cleanup(row: Any, *, run_count: int, until_ms: int) -> CleanupRun:
    return CleanupRun(
        row.at_ms,
        row.run_key,
        tuple(row.causes.split(",")) if row.causes else (),
        int(row.deleted_segments),
        int(row.freed_bytes),
        row.outcome,
        run_count,
        until_ms,
    )


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """A run's row in the table of reports.

    :param columns: the values that lists of runs show, by name.
    :param content: the report; None if another run's report counts for it.
    """

    version: int
    at_ms: int
    columns: Mapping[str, Any]
    unchanged_since: str | None
    content: Mapping[str, Any] | None

    @property
    def verdict(self) -> tuple[str, int]:
        """Return the status of its validation, and the number of lost ranges; see :func:`verdict_of`."""
        return verdict_of((self.content or {}).get("validation"))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """:param fault: why plan or report can't be read, so that both are None; "" if they can be read.
    :param plan: the run's plan; None if the run has no plan, or if the plan has expired.
    :param released: the result of the step release, as in the journal; None if the step isn't finished, or if
        the result has expired.
    :param is_undone: whether its deletions were undone, or an undo has begun.
    :param report: the run's report; None if the run has no report, or if the report has expired.
    """

    state: str
    finished_at_ms: int | None
    fault: str
    plan: Plan | None
    released: Mapping[str, Any] | None
    is_undone: bool
    report: ReportRecord | None


def runs_said_to_delete(connection: Connection, store_id: str) -> tuple[DeletingRun, ...]:
    """Return a store's runs whose reports count deleted segments or freed bytes. Their ``last_id`` is 0."""
    query = (
        select(*_DELETING_RUN)
        .join(reports, reports.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, reports.c.unchanged_since.is_(None))
        .where(or_(reports.c.deleted_segments > 0, reports.c.freed_bytes > 0))
        .order_by(runs.c.id)
    )
    return tuple(DeletingRun(*row, last_id=0) for row in connection.execute(query))


_COLUMNS = ("outcome", "causes", "deleted_segments", "freed_bytes", "validation", "lost_ranges")


def read_run_record(connection: Connection, run_id: int) -> RunRecord:
    run = connection.execute(select(runs).where(runs.c.id == run_id)).one()
    result = select(events.c.payload).where(
        events.c.run_id == run_id, events.c.phase == Phase.RESULT.value, events.c.subject == ""
    )
    released = connection.execute(
        result.where(events.c.step == Step.RELEASE.value).order_by(events.c.id).limit(1)
    ).scalar()
    undo = select(events.c.id).where(events.c.run_id == run_id, events.c.step == Step.UNDO.value).limit(1)
    row = connection.execute(select(reports).where(reports.c.run_id == run_id)).first()
    plan = report = None
    fault = ""
    try:
        plan = None if run.plan is None else read_plan(connection, run.plan)
        if row is not None:
            content = None if row.report is None else json.loads(zlib.decompress(row.report))
            columns = {name: getattr(row, name) for name in _COLUMNS}
            report = ReportRecord(row.version, row.at_ms, columns, row.unchanged_since, content)
    except (BadInputError, NoResultFound, *MALFORMED) as error:
        fault = reason_text(error)
    return RunRecord(
        state=run.state,
        finished_at_ms=run.finished_at_ms,
        fault=fault,
        plan=plan,
        released=released,
        is_undone=connection.execute(undo).first() is not None,
        report=report,
    )
