"""Between the journal's rows and what they mean; each runs in the transaction of its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.journal.records import Event, Phase, Run, RunState, Step, Waiver
from storage_engine.journal.tables.heads import ARCHIVING, project
from storage_engine.journal.tables.plan_storage import read_plan
from storage_engine.journal.tables.schema import events, runs, samples, waivers
from storage_engine.model.lag.archive_lag import ArchiveLag
from storage_engine.model.plan.plan import PlanRequest

Subjects = Sequence[tuple[str, Mapping[str, Any]]]


def find_run_row(connection: Connection, store_id: str, run_key: str) -> Run | None:
    row = connection.execute(
        select(runs).where(runs.c.store_id == store_id, runs.c.run_key == run_key)
    ).first()
    return None if row is None else _to_run(connection, row)


def _to_run(connection: Connection, row: Row[Any]) -> Run:
    return Run(
        run_id=row.id,
        store_id=row.store_id,
        run_key=row.run_key,
        state=RunState(row.state),
        request=from_jsonable(PlanRequest, row.request),
        plan=None if row.plan is None else read_plan(connection, row.plan),
        plan_digest=row.plan_digest,
        created_at_ms=row.created_at_ms,
        finished_at_ms=row.finished_at_ms,
    )


def to_event(row: Row[Any]) -> Event:
    return Event(row.run_key, row.step, Phase(row.phase), row.subject, row.payload, row.at_ms, row.id)


def find_waiver_row(connection: Connection, plan_digest: str) -> Waiver | None:
    row = connection.execute(select(waivers).where(waivers.c.plan_digest == plan_digest)).first()
    return None if row is None else Waiver(**row._mapping)


def put_archive_lag(connection: Connection, store_id: str, at_ms: int, lag: ArchiveLag) -> None:
    """Add the archive lag to the sample of a moment, which keeps what else it has."""
    connection.execute(
        update(samples)
        .where(samples.c.store_id == store_id, samples.c.at_ms == at_ms)
        .values(archive_lag=to_jsonable(lag), archive_lag_bytes=lag.size_bytes)
    )


def insert_events(connection: Connection, run_id: int, step: Step, phase: Phase, subjects: Subjects) -> None:
    at_ms = clock_ms()
    rows = [
        {
            "run_id": run_id,
            "step": step.value,
            "phase": phase.value,
            "subject": subject,
            "payload": to_jsonable(payload),
            "at_ms": at_ms,
        }
        for subject, payload in subjects
    ]
    if rows:
        connection.execute(insert(events), rows)
        if step in ARCHIVING and phase is Phase.RESULT:
            project(connection, run_id, [row["payload"] for row in rows])
