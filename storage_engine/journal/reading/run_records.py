"""What a journal keeps of a run that deleted something, besides its events: plan, result, end, report."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, or_, select
from sqlalchemy.exc import NoResultFound

from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.deletions import DeletingRun
from storage_engine.journal.reading.verdicts import verdict_of
from storage_engine.journal.records import Phase, Step
from storage_engine.journal.tables.plan_storage import read_plan
from storage_engine.journal.tables.schema import events, reports, runs
from storage_engine.model.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """A run's report as its row has it.

    :param columns: what lists of runs show, by name.
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
    :param released: what its release came to, as the journal has it; None: it isn't over, or has expired.
    :param is_undone: what it deleted was brought back, or was to be.
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
    """Return what a journal keeps of a run."""
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
        report = None if row is None else _report(row._mapping)
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


def _report(row: Mapping[Any, Any]) -> ReportRecord:
    content = None if row["report"] is None else json.loads(zlib.decompress(row["report"]))
    columns = {name: row[name] for name in _COLUMNS}
    return ReportRecord(row["version"], row["at_ms"], columns, row["unchanged_since"], content)
