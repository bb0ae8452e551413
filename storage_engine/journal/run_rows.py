"""A run in short, with what its report came to; and the runs that changed something, or were to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, or_, select

from storage_engine.journal.answers import RunRow
from storage_engine.journal.schema import reports, runs

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
class Cleanup:
    """A run that deleted something, or was to and didn't.

    :param at_ms: when it ended, else when it began.
    """

    at_ms: int
    run_key: str
    causes: tuple[str, ...]
    deleted_segments: int
    freed_bytes: int
    outcome: str


QUIET: Final = ("nothing-to-do", "dry-run", "done")
"""Outcomes of runs that are told only where they deleted something."""


def read_cleanups(
    connection: Connection, store_id: str, start_ms: int, end_ms: int, limit: int
) -> tuple[Cleanup, ...]:
    """Return the cleanups from a moment to another, which is not included, by time; the newest ones."""
    at_ms = func.coalesce(runs.c.finished_at_ms, runs.c.created_at_ms)
    query = (
        select(
            at_ms.label("at_ms"),
            runs.c.run_key,
            reports.c.causes,
            reports.c.deleted_segments,
            reports.c.freed_bytes,
            reports.c.outcome,
        )
        .join(reports, reports.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, at_ms >= start_ms, at_ms < end_ms)
        # What another run's report answers for did nothing.
        .where(reports.c.unchanged_since.is_(None))
        .where(or_(reports.c.deleted_segments > 0, reports.c.outcome.not_in(QUIET)))
        .order_by(runs.c.id.desc())
        .limit(limit)
    )
    found = [
        Cleanup(
            row.at_ms,
            row.run_key,
            tuple(row.causes.split(",")) if row.causes else (),
            row.deleted_segments,
            row.freed_bytes,
            row.outcome,
        )
        for row in connection.execute(query)
    ]
    return tuple(sorted(found, key=lambda one: one.at_ms))
