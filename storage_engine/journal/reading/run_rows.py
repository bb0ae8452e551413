"""Runs in short, what they deleted, what their validations came to, and all that is kept of one of them."""

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
"""Decisions about a range of the log that is gone."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A segment that a run deleted.

    :param excuse: why it needed no receipt; "" where it had one.
    :param lineage: of its log then; 0: an older version recorded none.
    :param log_id: which log it was of; "": it isn't known.
    """

    log: str
    start_offset: int
    end_offset: int
    excuse: str
    lineage: int
    log_id: str = ""


@dataclass(frozen=True, slots=True)
class DeletingRun:
    """A run that deleted something, or in which something was found to have gone.

    :param request: as the journal has it.
    :param last_id: number of the last event that says so.
    """

    run_id: int
    run_key: str
    begun_at_ms: int
    request: Mapping[str, Any]
    plan_digest: str | None
    last_id: int


@dataclass(frozen=True, slots=True)
class JournalEnds:
    """
    :param known_id: the newest event of any store that is an hour old: transactions whose events have lower
        numbers have come to their ends. 0: there is none.
    :param last_undo: the newest event by which a run of this store brought back its deletions; 0: none.
    """

    known_id: int
    last_undo: int


@dataclass(frozen=True, slots=True)
class EventsAround:
    """The times of the events on both sides of a number, of any store, in milliseconds since the epoch.

    :param before_ms: of the last one up to this number; None: there is none.
    :param after_ms: of the first one behind it; None: there is none.
    """

    before_ms: int | None
    after_ms: int | None


def events_around(connection: Connection, event_id: int) -> EventsAround:
    """Return when the events on both sides of a number were recorded."""
    at_ms = select(events.c.at_ms).limit(1)
    before = at_ms.where(events.c.id <= event_id).order_by(events.c.id.desc())
    after = at_ms.where(events.c.id > event_id).order_by(events.c.id)
    return EventsAround(connection.execute(before).scalar(), connection.execute(after).scalar())


def journal_ends(connection: Connection, store_id: str, now_ms: int) -> JournalEnds:
    """Return the state from which a later look goes on."""
    undo = (
        select(func.max(events.c.id))
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id)
        .where(events.c.step == Step.UNDO.value, events.c.phase == Phase.RESULT.value)
    )
    old = select(events.c.id).where(events.c.at_ms <= now_ms - HOUR_MS).order_by(events.c.id.desc()).limit(1)
    return JournalEnds(connection.execute(old).scalar() or 0, connection.execute(undo).scalar() or 0)


def deleting_runs(connection: Connection, store_id: str) -> tuple[DeletingRun, ...]:
    """Return a store's runs that deleted something or lost it, in the order of their last such event."""
    kind = events.c.payload[("disturbance", "kind")].as_string()
    says_so = and_(
        events.c.phase == Phase.RESULT.value,
        or_(
            and_(events.c.step == Step.RELEASE.value, events.c.subject != ""),
            and_(events.c.step == Step.DRIFT.value, kind.in_([one.value for one in GONE])),
            events.c.step == Step.ACCEPT_LOSS.value,
        ),
    )
    last = (
        select(events.c.run_id, func.max(events.c.id).label("last_id"))
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, says_so)
        .group_by(events.c.run_id)
        .subquery()
    )
    query = (
        select(
            runs.c.id,
            runs.c.run_key,
            runs.c.created_at_ms,
            runs.c.request,
            runs.c.plan_digest,
            last.c.last_id,
        )
        .join(last, last.c.run_id == runs.c.id)
        .order_by(last.c.last_id)
    )
    return tuple(DeletingRun(*row) for row in connection.execute(query))


def events_of_deletion(connection: Connection, run_id: int) -> tuple[Event, ...]:
    """Return a run's intents and results of deletions and what was found to have gone, oldest first: of its
    events those that never expire."""
    mine = or_(
        and_(events.c.step == Step.RELEASE.value, events.c.subject != ""),
        events.c.step.in_([Step.DRIFT.value, Step.ACCEPT_LOSS.value]),
    )
    query = EVENTS.where(runs.c.id == run_id, mine).order_by(events.c.id)
    return tuple(map(to_event, connection.execute(query)))


def deletions_after(connection: Connection, store_id: str, event_id: int) -> tuple[Deletion, ...]:
    """Return the deletions of a store's runs, by events after this one, without files brought back since."""
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
    mine = set(_standing(connection, store_id, sorted({row.run_id for row in rows})))
    found = []
    for row in rows:
        if row.run_id not in mine:
            continue
        log, _, base = row.subject.rpartition("/")
        end = int(base) + int(row.size_bytes) if row.end_offset is None else int(row.end_offset)
        excuse = "" if row.receipt_hash else row.passage_detail
        found.append(Deletion(log, int(base), end, excuse, int(row.lineage or 0), row.log_id or ""))
    return tuple(found)


def _standing(connection: Connection, store_id: str, run_ids: Sequence[int]) -> Iterator[int]:
    """Yield the events of a store that were not undone."""
    for some in in_parts(run_ids):
        mine = select(runs.c.id).where(runs.c.id.in_(some), runs.c.store_id == store_id)
        yield from connection.execute(mine.where(runs.c.id.not_in(undone_among(some)))).scalars()


def undone_among(run_ids: Sequence[int]) -> Select[tuple[int]]:
    """The runs, among these, that have brought back what they deleted."""
    undone = events.c.step == Step.UNDO.value, events.c.phase == Phase.RESULT.value
    return select(events.c.run_id).where(events.c.run_id.in_(run_ids), *undone)


_MOST_UNPACKED = 200
"""Reports of older releases that one question unpacks; what the others came to is left unknown."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """:param at_ms: when the run ended, else when it began.
    :param validation: OK, WARNING or FAILURE; "" where the run had none; None: not known.
    :param lost_ranges: that it found nowhere, and that no person had accepted; None: not known.
    :param unchanged_since: the run whose report answers for this one, which did nothing.
    :param has_report: its own report is kept still.
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
    """Return the outcomes of runs that began between two moments, by time; the newest ones."""
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
    old = [one.run_id for one in verdicts if one.validation is None and one.unchanged_since is None]
    unpacked = _unpacked(connection, old[:_MOST_UNPACKED])
    for number, one in enumerate(verdicts):
        if one.run_id in unpacked:
            validation, lost_ranges = unpacked[one.run_id]
            verdicts[number] = replace(one, validation=validation, lost_ranges=lost_ranges)
    return tuple(sorted(verdicts, key=lambda one: (one.at_ms, one.run_id)))


def _unpacked(connection: Connection, run_ids: Sequence[int]) -> dict[int, tuple[str, int]]:
    query = select(reports.c.run_id, reports.c.report).where(reports.c.run_id.in_(run_ids))
    found = {}
    for row in connection.execute(query) if run_ids else ():
        if row.report is not None:
            found[row.run_id] = verdict_of(json.loads(zlib.decompress(row.report)).get("validation"))
    return found


def verdict_of(validation: Mapping[str, Any] | None) -> tuple[str, int]:
    """Return the verdict of a validation as a report has it, and how many ranges it found nowhere."""
    if validation is None:
        return "", 0
    ranges, checks = validation.get("ranges", ()), validation.get("checks", ())
    statuses = {one["status"] for one in (*ranges, *checks)}
    worst = next((one for one in ("FAILURE", "WARNING") if one in statuses), "OK")
    return worst, sum(one["where"] == "LOST" and one["status"] == "FAILURE" for one in ranges)


_root, _of_root = runs.alias("root"), reports.alias("of_root")
_ANSWERED = (
    select(_root.c.id)
    .join(_of_root, _of_root.c.run_id == _root.c.id)
    .where(_root.c.store_id == runs.c.store_id, _root.c.run_key == reports.c.unchanged_since)
    .where(_of_root.c.report.is_not(None))
    .correlate(runs, reports)
    .exists()
)
"""The report that answers for a run is there still: it may expire before the run does."""

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
"""Of runs, and reports joined to them."""


def run_row(row: Any) -> RunRow:
    """Return the run of a row with :data:`RUN_COLUMNS`."""
    causes = tuple(row.causes.split(",")) if row.causes else ()
    nothing = {"deleted_segments": 0, "freed_bytes": 0} if row.unchanged_since else {}
    return filled(RunRow, row, run_id=row.id, causes=causes, has_report=bool(row.has_report), **nothing)


@dataclass(frozen=True, slots=True)
class CleanupRun:
    """A run that deleted segments, or was due to and didn't; or several such runs shown as one.

    :param at_ms: when it ended, else when it began; of several, the first one.
    :param run_key: of several, that of the last one.
    :param deleted_segments: as ``freed_bytes``, of all of them together.
    :param runs: number of runs shown as one; all have the same causes and outcome.
    :param until_ms: as ``at_ms``, of the last one.
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
"""Outcomes of runs that are shown only if they deleted segments."""
_PARTS = 60
"""Of a span; many cleanups within one are told as one for each cause and outcome."""


def read_cleanups(
    connection: Connection, store_id: str, start_ms: int, end_ms: int, most: int = 500
) -> tuple[CleanupRun, ...]:
    """Return the runs between two moments that deleted segments, or were due to and didn't, by time.

    :param most: above this number several are shown as one, so that each is part of a shown one.
    """
    at_ms = func.coalesce(runs.c.finished_at_ms, runs.c.created_at_ms)
    where = (
        runs.c.store_id == store_id,
        at_ms >= start_ms,
        at_ms < end_ms,
        # What another run's report answers for did nothing.
        reports.c.unchanged_since.is_(None),
        or_(reports.c.deleted_segments > 0, reports.c.outcome.not_in(QUIET)),
    )
    told = (reports.c.causes, reports.c.deleted_segments, reports.c.freed_bytes, reports.c.outcome)
    of_runs = runs.join(reports, reports.c.run_id == runs.c.id)
    each = select(at_ms.label("at_ms"), runs.c.run_key, *told).select_from(of_runs).where(*where)
    rows = connection.execute(each.order_by(runs.c.id.desc()).limit(most + 1)).all()
    if len(rows) <= most:
        found = [_cleanup(row, runs_told=1, until_ms=row.at_ms) for row in rows]
        return tuple(sorted(found, key=lambda one: one.at_ms))
    part = (at_ms - start_ms) // max(1, -(-(end_ms - start_ms) // _PARTS))
    together = (
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
    query = select(together, runs.c.run_key).join(runs, runs.c.id == together.c.last_id)
    grouped = [_cleanup(row, runs_told=row.runs, until_ms=row.until_ms) for row in connection.execute(query)]
    return tuple(sorted(grouped, key=lambda one: one.at_ms))


def _cleanup(row: Any, *, runs_told: int, until_ms: int) -> CleanupRun:
    return CleanupRun(
        row.at_ms,
        row.run_key,
        tuple(row.causes.split(",")) if row.causes else (),
        int(row.deleted_segments),
        int(row.freed_bytes),
        row.outcome,
        runs_told,
        until_ms,
    )


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """A run's report as its row has it.

    :param columns: the values that lists of runs show, by name.
    :param content: None: another run's answers for it.
    """

    version: int
    at_ms: int
    columns: Mapping[str, Any]
    unchanged_since: str | None
    content: Mapping[str, Any] | None

    @property
    def verdict(self) -> tuple[str, int]:
        """Return the status of its validation, and how many ranges it found nowhere."""
        return verdict_of((self.content or {}).get("validation"))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """
    :param fault: why plan or report can't be read, so that neither is there; "": they can.
    :param plan: None: it has none, or it has expired.
    :param released: its release's result, as the journal has it; None: it isn't over, or has expired.
    :param is_undone: its deletions were brought back, or were to be.
    :param report: None: it has none, or it has expired.
    """

    state: str
    finished_at_ms: int | None
    fault: str
    plan: Plan | None
    released: Mapping[str, Any] | None
    is_undone: bool
    report: ReportRecord | None


def runs_said_to_delete(connection: Connection, store_id: str) -> tuple[DeletingRun, ...]:
    """Return the runs of a store whose reports say that something was deleted; their ``last_id`` is 0."""
    columns = runs.c.id, runs.c.run_key, runs.c.created_at_ms, runs.c.request, runs.c.plan_digest
    query = (
        select(*columns)
        .join(reports, reports.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, reports.c.unchanged_since.is_(None))
        .where(or_(reports.c.deleted_segments > 0, reports.c.freed_bytes > 0))
        .order_by(runs.c.id)
    )
    return tuple(DeletingRun(*row, last_id=0) for row in connection.execute(query))


def read_run_record(connection: Connection, run_id: int) -> RunRecord:
    """Return a journal's record of a run."""
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
        report = None if row is None else _report(row)
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


_COLUMNS = ("outcome", "causes", "deleted_segments", "freed_bytes", "validation", "lost_ranges")


def _report(row: Any) -> ReportRecord:
    content = None if row.report is None else json.loads(zlib.decompress(row.report))
    columns = {name: getattr(row, name) for name in _COLUMNS}
    return ReportRecord(row.version, row.at_ms, columns, row.unchanged_since, content)
