"""How far each consumer group is behind in all its queues together, for who looks between two cleanups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.brokers import find_broker
from storage_engine.model.broker.lag_job import LagRequest
from storage_engine.model.lag.lag import GroupLag
from storage_engine.retention.store.broker_answers import package_errors
from storage_engine.retention.store.brokers import settings_of
from storage_engine.retention.store.managed_store import ManagedStore

if TYPE_CHECKING:
    import pyarrow as pa

MOST_POSITIONS = 20_000
"""Of groups in queues; more are measured by a run's lag job alone, which may take Spark for it."""


def measure_groups(store: ManagedStore, now_ms: int) -> tuple[GroupLag, ...] | None:
    """Measure a store's groups, by name; None: its broker doesn't say who consumes, or there are too many.

    :raises BadInputError: positions or queues that can't be read.
    :raises BrokerError: the running broker can't be asked.
    """
    broker = find_broker(store.broker)
    with package_errors(store.broker, "find who consumes"):
        job = broker.lag(LagRequest(settings_of(store), (), now_ms))
    if job is None or job.positions.num_rows > MOST_POSITIONS:
        return None
    from storage_engine.arrow.lag_columns import add_risk

    return sum_up(add_risk(job.place(job.positions), job.segments))


def sum_up(table: pa.Table) -> tuple[GroupLag, ...]:
    """Sum up the groups of a table of lags, by name.

    :param table: one row a :class:`~storage_engine.model.lag.lag.QueueLag`.
    """
    import pyarrow.compute as pc

    by_group = table.group_by("group").aggregate(
        [
            ("lag_messages", "sum"),
            ("lag_messages", "count", pc.CountOptions(mode="only_null")),
            ("next_physical_offset", "min"),
            ("time_to_loss_ms", "min"),
        ]
    )
    return tuple(
        GroupLag(
            group=str(row["group"]),
            lag_messages=row["lag_messages_sum"] or 0,
            unknown_queues=row["lag_messages_count"],
            first_unread_offset=row["next_physical_offset_min"],
            time_to_loss_ms=row["time_to_loss_ms_min"],
        )
        for row in sorted(by_group.to_pylist(), key=lambda row: str(row["group"]))
    )
