"""What each run's validation came to, in columns; of runs of older releases, out of their reports."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from storage_engine.journal.tables.schema import reports, runs

_MOST_UNPACKED = 200
"""Reports of older releases that one question unpacks; what the others came to is left unknown."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """:param at_ms: when the run ended, else when it began.
    :param validation: OK, WARNING or FAILURE; "" where the run had none; None: not known.
    :param lost_ranges: that it found nowhere, and that nobody had excused; None: not known.
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
    connection: Connection, store_id: str, start_ms: int, end_ms: int, limit: int
) -> tuple[Verdict, ...]:
    """Return what the runs that began between two moments came to, by time; the newest ones."""
    query = (
        select(
            runs.c.id,
            runs.c.run_key,
            runs.c.created_at_ms,
            runs.c.finished_at_ms,
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
    old = [row.id for row in rows if row.validation is None and row.unchanged_since is None]
    unpacked = _unpacked(connection, old[:_MOST_UNPACKED])
    found = []
    for row in rows:
        validation, lost = unpacked.get(row.id, (row.validation, row.lost_ranges))
        at_ms = row.created_at_ms if row.finished_at_ms is None else row.finished_at_ms
        found.append(
            Verdict(
                row.id,
                row.run_key,
                at_ms,
                row.outcome,
                row.deleted_segments,
                validation,
                lost,
                row.unchanged_since,
                bool(row.has_report),
            )
        )
    return tuple(sorted(found, key=lambda one: (one.at_ms, one.run_id)))


def _unpacked(connection: Connection, run_ids: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Return verdict and lost ranges by the reports of runs."""
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
