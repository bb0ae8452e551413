"""What stands for a store: its hold, who works on it, what people decided, what was verified."""

from __future__ import annotations

from sqlalchemy import Connection, column, func, inspect, select, table

from storage_engine.journal.reading.answers import HoldRow, LossRow, Standing, VerifiedRow, WaiverRow
from storage_engine.journal.records import Phase, Step
from storage_engine.journal.tables.schema import events, leases, runs, waivers

_LOSS = ("log", "lineage", "start_offset", "end_offset", "person", "reason")

_verifications = table(
    "storage_engine_verifications",
    *map(column, ("store_id", "receipt_hash", "level", "at_ms", "fault")),
)
"""Verification makes it where it first remembers something; a journal may be without it."""


def read_standing(connection: Connection, store_id: str, now_ms: int) -> Standing:
    """Read it."""
    query = select(leases.c.owner, leases.c.expires_at_ms).where(
        leases.c.store_id == store_id, leases.c.token.is_not(None), leases.c.expires_at_ms > now_ms
    )
    lease = connection.execute(query).first()
    return Standing(
        hold=_hold(connection, store_id),
        worker=None if lease is None else lease.owner,
        worker_until_ms=None if lease is None else lease.expires_at_ms,
        waivers=_waivers(connection, store_id),
        losses=_losses(connection, store_id),
        verified=_verified(connection, store_id),
    )


def _hold(connection: Connection, store_id: str) -> HoldRow | None:
    query = (
        select(runs.c.run_key, events.c.payload, events.c.at_ms)
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, events.c.step == Step.HOLD, events.c.phase == Phase.RESULT)
        .order_by(events.c.id.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    status = row.payload["result"]
    described = status["described"] if status.get("left_to_broker") else ""
    return HoldRow(status["held"], status.get("ends_at_ms"), row.run_key, row.at_ms, described)


def _waivers(connection: Connection, store_id: str) -> tuple[WaiverRow, ...]:
    of_store = select(runs.c.plan_digest).where(runs.c.store_id == store_id)
    query = select(waivers).where(waivers.c.plan_digest.in_(of_store)).order_by(waivers.c.at_ms)
    return tuple(WaiverRow(**row._mapping) for row in connection.execute(query))


def _losses(connection: Connection, store_id: str) -> tuple[LossRow, ...]:
    query = (
        select(events.c.payload, events.c.at_ms)
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, events.c.step == Step.ACCEPT_LOSS, events.c.phase == Phase.RESULT)
        .order_by(events.c.id)
    )
    return tuple(
        LossRow(**{name: row.payload["loss"][name] for name in _LOSS}, at_ms=row.at_ms)
        for row in connection.execute(query)
    )


def _verified(connection: Connection, store_id: str) -> VerifiedRow | None:
    if not inspect(connection).has_table(_verifications.name):
        return None
    found = _verifications.c
    query = select(
        func.count(found.receipt_hash.distinct()),
        func.min(found.at_ms),
        func.max(found.at_ms),
        func.count(found.receipt_hash.distinct()).filter(found.fault != ""),
    ).where(found.store_id == store_id)
    count, oldest_ms, newest_ms, faulty = connection.execute(query).one()
    return VerifiedRow(count, oldest_ms, newest_ms, faulty) if count else None
