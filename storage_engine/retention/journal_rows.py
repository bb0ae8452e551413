"""Between the journal's rows and what they mean; each runs in the transaction of its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from storage_engine.exceptions import RunStateError, StoreIdentityError
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.host import ANY_HOST, is_this_host, this_host
from storage_engine.retention.journal_records import Event, Phase, Run, RunState, Step, StoreRecord, Waiver
from storage_engine.retention.journal_schema import events, leases, runs, stores, waivers
from storage_engine.retention.plan_storage import read_plan

Subjects = Sequence[tuple[str, Mapping[str, Any]]]


def find_store_row(connection: Connection, where: Any) -> StoreRecord | None:
    row = connection.execute(select(stores).where(where)).first()
    return None if row is None else StoreRecord(**row._mapping)


def store_row_at(connection: Connection, real_path: str, host: str | None) -> StoreRecord | None:
    """Return the store at a path of this machine.

    A store that was recorded elsewhere is this one only where nothing says that this machine has its own.

    :param host: where the store lies, by its settings: this machine, all (``ANY_HOST``), or nobody says.
    :raises StoreIdentityError: several machines have a store at this path, this one has none yet, and
        nothing says which it is.
    """
    query = select(stores).where(stores.c.real_path == real_path)
    found = [StoreRecord(**row._mapping) for row in connection.execute(query)]
    # Its id tells a machine better than its name, which another may have had.
    own = sorted((row for row in found if is_this_host(row.host)), key=lambda row: row.host != this_host())
    if own:
        return own[0]
    if host not in (None, ANY_HOST):
        found = [row for row in found if row.host is None]
    if len(found) > 1:
        hosts = ", ".join(sorted(row.host or "unknown" for row in found))
        raise StoreIdentityError(
            f"{real_path}: expected the journal to have one store at this path, found those of machines "
            f"{hosts}. Nothing was changed. Say in the store's connection on which machine it lies "
            "(store_host)."
        )
    return found[0] if found else None


def ensure_store_row(
    connection: Connection, store_id: str, real_path: str, broker: str, lineage: int, host: str | None
) -> StoreRecord:
    """Return the store at a place; one with this id, where there is none.

    :param host: as of :func:`store_row_at`.
    :raises StoreIdentityError: the store with this id is at another place.
    """
    found = store_row_at(connection, real_path, host)
    if found is not None:
        return found
    other = find_store_row(connection, stores.c.store_id == store_id)
    if other is not None and other.real_path == real_path:
        # Its stamp says who it is: another machine has its disk by now.
        return move_store_row(connection, store_id, real_path)
    if other is not None:
        raise StoreIdentityError(
            f"{real_path}: expected store {store_id} where the journal knows it, at {other.real_path}, found "
            "it here. Nothing was changed. If this is the store, run storage-engine stamp on it; if it is a "
            "copy, storage-engine stamp --new. A store of Airflow is named by --conn-id."
        )
    made = StoreRecord(store_id, real_path, broker, lineage, clock_ms(), this_host())
    connection.execute(insert(stores).values(**to_jsonable(made)))
    connection.execute(insert(leases).values(store_id=store_id, owner="", expires_at_ms=0))
    return made


def move_store_row(connection: Connection, store_id: str, real_path: str) -> StoreRecord:
    """Record that a store lies at another place, on this machine.

    :raises RunStateError: there is no such store.
    :raises StoreIdentityError: there is another store at this place.
    """
    where = stores.c.store_id == store_id
    there = store_row_at(connection, real_path, this_host())
    if there is not None and there.store_id != store_id:
        raise StoreIdentityError(
            f"{real_path}: expected a place without a store in the journal, found store {there.store_id}. "
            f"Store {store_id} stays where it was recorded. Manage it with a lake and journal of its own."
        )
    connection.execute(update(stores).where(where).values(real_path=real_path, host=this_host()))
    record = find_store_row(connection, where)
    if record is None:
        raise RunStateError(f"store {store_id}: expected in the journal, not found")
    return record


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
