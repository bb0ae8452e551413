"""Access to stores: users see a store's data only if they may read its retention DAG in Airflow."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException
from sqlalchemy import select

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.configured_stores import SECTION, ConfiguredStore, configured_stores

PURPOSES = ("retention", "forced_cleanup", "archive", "monitor", "flush_checkpoint", "kafka_log_manager")
"""Parts of a store's DAG ids; see :func:`dag_id`."""
_BAD_OPTION = (
    f"[{SECTION}] stores: expected connection ids separated by commas, or a JSON list of stores, found "
    "something else. See the API server's log. Nothing was read or changed. Correct the option, and "
    "restart Airflow."
)
_log = logging.getLogger(__name__)


def not_found() -> HTTPException:
    """Return the answer for a page that doesn't exist, or that the user may not read."""
    return HTTPException(404, "Not found")


def readable_dags(user: GetUserDep) -> frozenset[str]:
    """Return the ids of the DAGs that a user may read."""
    return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


ReadableDags = Annotated[frozenset[str], Depends(readable_dags)]


def readable_stores(dags: ReadableDags) -> tuple[ConfiguredStore, ...]:
    """Return the configured stores that a user may read, in the order of the option.

    :raises BadInputError: the option that lists the stores is malformed.
    """
    try:
        stores = configured_stores()
    except BadInputError as error:
        # The error may name stores that the user may not read.
        _log.error("The list of stores can't be read: %s", error)
        raise BadInputError(_BAD_OPTION) from None
    return tuple(store for store in stores if dag_id(store, PURPOSES[0]) in dags)


ReadableStores = Annotated[tuple[ConfiguredStore, ...], Depends(readable_stores)]


def readable_store(store: str, stores: ReadableStores) -> ConfiguredStore:
    """Return the store of a connection.

    :param store: id of the store's connection, from the address.
    :raises HTTPException: no such store exists, or the user may not read it.
    """
    for entry in stores:
        if entry.conn_id == store:
            return entry
    raise not_found()


ReadableStore = Annotated[ConfiguredStore, Depends(readable_store)]


def dag_id(store: ConfiguredStore, purpose: str) -> str:
    """Return the id of one of a store's DAGs."""
    return f"storage_{purpose}__{store.in_dag_ids}"


def is_own_dag(stores: Iterable[ConfiguredStore], conn_id: str, dag: str) -> bool:
    """Return whether a DAG manages a store.

    :param stores: the stores that the user may read.
    """
    entries = (store for store in stores if store.conn_id == conn_id)
    return any(dag == dag_id(store, purpose) for store in entries for purpose in PURPOSES)


def dags_of(store: ConfiguredStore, user: Any, dags: frozenset[str]) -> list[dict[str, Any]]:
    """Return a store's DAGs that a user may read, whether each is paused, and whether the user may run it."""
    ids = {dag_id(store, purpose): purpose for purpose in PURPOSES}
    with create_session() as session:
        rows = session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(
                DagModel.dag_id.in_(dags.intersection(ids)), DagModel.is_stale.is_(False)
            )
        ).all()
        teams = DagModel.get_dag_id_to_team_name_mapping([row.dag_id for row in rows], session=session)
    paused = {row.dag_id: bool(row.is_paused) for row in rows}
    may_run, run = get_auth_manager().is_authorized_dag, DagAccessEntity.RUN
    return [
        {
            "purpose": purpose,
            "dag_id": dag,
            "is_paused": paused[dag],
            "may_run": may_run(
                method="POST",
                access_entity=run,
                details=DagDetails(id=dag, team_name=teams.get(dag)),
                user=user,
            ),
        }
        for dag, purpose in ids.items()
        if dag in paused
    ]
