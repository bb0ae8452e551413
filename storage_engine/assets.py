"""The assets of stores and lakes, by which DAGs wait for what others have done; docs/airflow.md says which.

Their names and URIs never change: DAGs of others wait for them. An event comes only when something went, so
it goes through a store's alias: a plain outlet has one at each success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from storage_engine.hooks.configured_stores import DEFAULT_LAKE, in_dag_ids

if TYPE_CHECKING:
    from airflow.sdk import Context

GROUP = "storage-engine"
_SCHEME = "x-storage-engine"


def tell(context: Context, outlets: Iterable[object], asset: Asset, extra: Mapping[str, Any]) -> None:
    """Have an event of an asset come when the task succeeds, where an alias is among its outlets.

    :param extra: the event's fields.
    """
    for alias in outlets:
        if isinstance(alias, AssetAlias):
            context["outlet_events"][alias].add(asset, extra=dict(extra))


def store_alias(conn_id: str) -> AssetAlias:
    """Return the alias that every event of a store goes through.

    :param conn_id: of the store's connection.
    """
    return AssetAlias(name=f"storage-engine/{in_dag_ids(conn_id)}", group=GROUP)


def cleanup_due(conn_id: str) -> Asset:
    """Return the asset that has an event when a run of a store would do something."""
    return _of_store(conn_id, "cleanup-due")


def archive_due(conn_id: str) -> Asset:
    """Return the asset that has an event when sealed segments of a store wait to be archived ahead."""
    return _of_store(conn_id, "archive-due")


def segments_archived(conn_id: str) -> Asset:
    """Return the asset that has an event when segments of a store are archived and proven."""
    return _of_store(conn_id, "archived")


def segments_deleted(conn_id: str) -> Asset:
    """Return the asset that has an event when segments of a store are deleted."""
    return _of_store(conn_id, "deleted")


def lake_messages(lake: str = DEFAULT_LAKE, *, second: bool = False) -> Asset:
    """Return the asset that has an event when a lake's table of rows grows, whatever the table is called.

    :param lake: its name in ``[storage_engine] stores``.
    :param second: the second lake of the stores that name this one.
    """
    table = "second-messages" if second else "messages"
    return _asset("lakes", lake, table)


def _of_store(conn_id: str, what: str) -> Asset:
    return _asset("stores", conn_id, what)


def _asset(kind: str, name: str, what: str) -> Asset:
    path = f"{kind}/{in_dag_ids(name)}/{what}"
    return Asset(name=f"storage-engine/{path}", uri=f"{_SCHEME}://{path}", group=GROUP)
