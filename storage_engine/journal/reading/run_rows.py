"""A run in short, with what its report came to; and the runs that changed something, or were to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, or_, select

from storage_engine.journal.reading.answers import RunRow
from storage_engine.journal.tables.schema import reports, runs

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
    return RunRow(
        run_id=row.id,
        run_key=row.run_key,
        state=row.state,
        created_at_ms=row.created_at_ms,
        finished_at_ms=row.finished_at_ms,
        outcome=row.outcome,
        causes=tuple(row.causes.split(",")) if row.causes else (),
        deleted_segments=0 if row.unchanged_since else row.deleted_segments,
        freed_bytes=0 if row.unchanged_since else row.freed_bytes,
        unchanged_since=row.unchanged_since,
        has_report=bool(row.has_report),
    )


@dataclass(frozen=True, slots=True)
class CleanupRun:
    """A run that deleted something, or was to and didn't; or several that are told as one.

    :param at_ms: when it ended, else when it began; of several, the first one.
    :param run_key: of several, that of the last one.
    :param deleted_segments: as ``freed_bytes``, of all of them together.
    :param runs: how many are told; all have the same causes and the same outcome.
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
"""Outcomes of runs that are told only where they deleted something."""
_PARTS = 60
"""Of a span; many cleanups within one are told as one for each cause and outcome."""


def read_cleanups(
    connection: Connection, store_id: str, start_ms: int, end_ms: int, most: int
) -> tuple[CleanupRun, ...]:
    """Return the cleanups from a moment to another, which is not included, by time.

    :param most: more are told together, so that each is part of what is told.
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
        found = [_cleanup(row, row.run_key, runs_told=1, until_ms=row.at_ms) for row in rows]
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
    grouped = [
        _cleanup(row, row.run_key, runs_told=row.runs, until_ms=row.until_ms)
        for row in connection.execute(query)
    ]
    return tuple(sorted(grouped, key=lambda one: one.at_ms))


def _cleanup(row: Any, run_key: str, *, runs_told: int, until_ms: int) -> CleanupRun:
    return CleanupRun(
        row.at_ms,
        run_key,
        tuple(row.causes.split(",")) if row.causes else (),
        int(row.deleted_segments),
        int(row.freed_bytes),
        row.outcome,
        runs_told,
        until_ms,
    )
