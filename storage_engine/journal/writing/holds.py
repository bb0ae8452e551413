"""Where a broker folder keeps what it has to know again of a hold: one row of the journal a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.turns import turn_wait_seconds
from storage_engine.exceptions import JournalConflictError, StoreBusyError
from storage_engine.journal.tables.database import JournalDatabase
from storage_engine.journal.tables.leases import Lease, give_up, renew, take_cluster
from storage_engine.journal.tables.schema import cluster_leases, holds, stores
from storage_engine.model.hold.hold import Drift

_ASK_AGAIN_SECONDS: Final = 0.5


class JournalHoldMemory:
    """Implements :class:`storage_engine.model.hold.hold.HoldMemory`."""

    def __init__(
        self, database: JournalDatabase, store_id: str, record_drift: Callable[[Sequence[Drift]], None]
    ) -> None:
        self._database = database
        self._store_id = store_id
        self._record_drift = record_drift

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

    @contextmanager
    def alone(self, cluster: str) -> Iterator[Callable[[], None]]:
        lease = self._cluster_lease(cluster)
        try:
            yield partial(self._database.write, lambda connection: renew(connection, lease, cluster_leases))
        finally:
            self._database.write(lambda connection: give_up(connection, lease, cluster_leases))

    def _cluster_lease(self, cluster: str) -> Lease:
        deadline = time.monotonic() + turn_wait_seconds()
        while True:
            try:
                return self._database.write(lambda connection: take_cluster(connection, cluster))
            except (StoreBusyError, JournalConflictError):
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_ASK_AGAIN_SECONDS)

    def record_drift(self, found: Sequence[Drift]) -> None:
        self._record_drift(found)
