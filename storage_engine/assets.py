"""The assets of stores and lakes, with which DAGs wait for the results of other DAGs; see docs/airflow.md.

Their names and URIs never change, because users' DAGs wait for them. Events go through a store's alias,
because a plain outlet would add an event at each success, even without a result.
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
    """Add an event of an asset when the task succeeds, if an alias is among the task's outlets.

    :param extra: the event's fields.
    """
    for alias in outlets:
        if isinstance(alias, AssetAlias):
            context["outlet_events"][alias].add(asset, extra=dict(extra))


def store_alias(conn_id: str) -> AssetAlias:
    """Return the alias for all events of the store with this connection."""
    return AssetAlias(name=f"storage-engine/{in_dag_ids(conn_id)}", group=GROUP)


def cleanup_due(conn_id: str) -> Asset:
    """Return the asset with an event when a cleanup of a store is due."""
    return _store_asset(conn_id, "cleanup-due")


def archive_due(conn_id: str) -> Asset:
    """Return the asset with an event when sealed segments of a store wait to be archived ahead."""
    return _store_asset(conn_id, "archive-due")


def segments_archived(conn_id: str) -> Asset:
    """Return the asset with an event when segments of a store have been archived and proven."""
    return _store_asset(conn_id, "archived")


def segments_deleted(conn_id: str) -> Asset:
    """Return the asset with an event when segments of a store have been deleted."""
    return _store_asset(conn_id, "deleted")


def lake_messages(lake: str = DEFAULT_LAKE, *, second: bool = False) -> Asset:
    """Return the asset with an event when a lake's table of rows grows, whatever the table's name.

    :param lake: the lake's name in ``[storage_engine] stores``.
    :param second: whether the table is in the second lake of the stores that name ``lake``.
    """
    return _asset("lakes", lake, "second-messages" if second else "messages")


def _store_asset(conn_id: str, event: str) -> Asset:
    return _asset("stores", conn_id, event)


def _asset(kind: str, name: str, event: str) -> Asset:
    path = f"{kind}/{in_dag_ids(name)}/{event}"
    return Asset(name=f"storage-engine/{path}", uri=f"{_SCHEME}://{path}", group=GROUP)
