"""Whether anybody still looks at the stores: Airflow knows of their monitor DAGs what no journal does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from storage_engine.console.store_line import ProblemKind, StoreLine, without_monitor
from storage_engine.hooks.configured_stores import ConfiguredStore
from storage_engine.plugins.access import dag_id


def with_monitors(
    lines: Iterable[StoreLine], stores: Iterable[ConfiguredStore], dags: frozenset[str]
) -> tuple[StoreLine, ...]:
    """Return lines that say where a store's monitor DAG is paused or gone.

    :param dags: that the user may read; of others nothing is said.
    """
    monitors = {store.conn_id: dag_id(store, "monitor") for store in stores}
    troubled = _troubled(dags.intersection(monitors.values()))
    return tuple(
        without_monitor(line, monitor, troubled[monitor])
        if (monitor := monitors.get(line.store, "")) in troubled
        else line
        for line in lines
    )


def _troubled(ids: Iterable[str]) -> Mapping[str, ProblemKind]:
    query = select(DagModel.dag_id, DagModel.is_paused, DagModel.is_stale).where(DagModel.dag_id.in_(ids))
    with create_session() as session:
        rows = session.execute(query).all()
    return {
        row.dag_id: ProblemKind.MONITOR_GONE if row.is_stale else ProblemKind.MONITOR_PAUSED
        for row in rows
        if row.is_stale or row.is_paused
    }
