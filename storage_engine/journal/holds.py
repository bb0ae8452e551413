"""Where a broker folder keeps what it has to know again of a hold: one row of the journal a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, select

from storage_engine.clock import clock_ms
from storage_engine.journal.database import JournalDatabase
from storage_engine.journal.drift import record_under_watch
from storage_engine.journal.schema import holds, stores
from storage_engine.model.hold import Drift
from storage_engine.model.jsonable import to_jsonable

if TYPE_CHECKING:
    from storage_engine.journal.journal import Journal


class JournalHoldMemory:
    """Implements :class:`storage_engine.model.hold.HoldMemory`."""

    def __init__(self, journal: Journal, database: JournalDatabase, store_id: str) -> None:
        self._journal = journal
        self._database = database
        self._store_id = store_id

    def load(self) -> Mapping[str, Any] | None:
        query = select(holds.c.state).where(holds.c.store_id == self._store_id)
        return self._database.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def save(self, state: Mapping[str, Any] | None) -> None:
        def write(connection: Connection) -> None:
            connection.execute(delete(holds).where(holds.c.store_id == self._store_id))
            if state is not None:
                row = {"store_id": self._store_id, "state": to_jsonable(state), "at_ms": clock_ms()}
                connection.execute(insert(holds).values(**row))

        self._database.write(write)

    def of_others(self) -> Sequence[Mapping[str, Any]]:
        mine = select(stores.c.broker).where(stores.c.store_id == self._store_id).scalar_subquery()
        query = (
            select(holds.c.state)
            .join(stores, stores.c.store_id == holds.c.store_id)
            .where(holds.c.store_id != self._store_id, stores.c.broker == mine)
            .order_by(holds.c.store_id)
        )
        return self._database.read(lambda connection: connection.execute(query).scalars().all())

    def record_drift(self, found: Sequence[Drift]) -> None:
        record = self._journal.store_with_id(self._store_id)
        if found and record is not None:
            record_under_watch(self._journal, record, found)
