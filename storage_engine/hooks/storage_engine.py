"""The hook: one Airflow connection is one managed store."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from airflow.providers.common.compat.sdk import (
    AirflowNotFoundException,
    BaseHook,
    Connection,
    conf,
    mask_secret,
)

from storage_engine.credentials import url_secrets
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.hooks.configured_stores import DEFAULT_CONNECTION, SECTION
from storage_engine.hooks.connection import (
    Defaults,
    broker_connection,
    managed_store,
    moved_fields,
    spark_connection,
    store_queue,
)
from storage_engine.hooks.lake_credentials import with_credentials
from storage_engine.hooks.live_broker import with_broker_credentials
from storage_engine.retention.managed_store import ManagedStore


class StorageEngineHook(BaseHook):
    """Turns a ``storage_engine`` connection into what the engine's calls take.

    :param storage_engine_conn_id: the :ref:`connection <howto/connection:storage_engine>` of a store.
    """

    conn_name_attr = "storage_engine_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "storage_engine"
    hook_name = "Storage Engine"

    def __init__(self, storage_engine_conn_id: str = DEFAULT_CONNECTION) -> None:
        super().__init__()
        self.storage_engine_conn_id = storage_engine_conn_id

    @cached_property
    def connection(self) -> Connection:
        return self.get_connection(self.storage_engine_conn_id)

    def get_conn(self) -> ManagedStore:
        """The managed store.

        :raises BadInputError: a field of the connection that can't be used; names it.
        """
        return self.managed_store

    @cached_property
    def managed_store(self) -> ManagedStore:
        store = managed_store(
            self.storage_engine_conn_id, self.connection.extra_dejson, self.connection.password, _defaults()
        )
        second, live = store.second_lake, store.live
        store = replace(
            store,
            lake=with_credentials(store.lake, self.get_connection),
            second_lake=second and with_credentials(second, self.get_connection),
            live=live
            and with_broker_credentials(
                live,
                broker_connection(self.storage_engine_conn_id, self.connection.extra_dejson),
                self.get_connection,
            ),
        )
        _mask_secrets(store)
        return store

    @cached_property
    def spark_conn_id(self) -> str | None:
        """The connection that this store's Spark jobs are submitted with; None: its tasks do their work."""
        return spark_connection(self.connection.extra_dejson)

    @cached_property
    def queue(self) -> str | None:
        """The Airflow queue whose workers see the store's disk; None: the connection names none."""
        return store_queue(self.connection.extra_dejson)

    def test_connection(self) -> tuple[bool, str]:
        """Look at store, broker, journal and lake without changing any; for the form's Test button.

        :return: whether it works, and a sentence about it.
        """
        from storage_engine.hooks.check import check_store

        try:
            found = check_store(self.managed_store)
            return True, " ".join(filter(None, (found, moved_fields(self.connection.extra_dejson))))
        except StorageEngineError as error:
            return False, str(error)


def managed_store_of(conn_id: str) -> ManagedStore:
    """The store that a connection leads to, for a command line.

    :raises BadInputError: there is no such connection, or a field of it can't be used.
    """
    try:
        return StorageEngineHook(conn_id).managed_store
    except AirflowNotFoundException as error:
        raise BadInputError(
            f"--conn-id {conn_id}: expected a connection of Airflow, found none ({error}). Nothing was "
            "changed. Use this Airflow's AIRFLOW_HOME and its environment; airflow connections list names "
            "those it has."
        ) from error


def airflow_home() -> Path:
    """Return where this Airflow keeps its own files."""
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()


def _defaults() -> Defaults:
    def option(name: str) -> str:
        return str(conf.get(SECTION, name, fallback="") or "")

    return Defaults(
        home=str(airflow_home()),
        journal_url=option("journal_url"),
        lake=option("lake"),
        report_dir=option("report_dir"),
        second_lake=option("second_lake"),
        policies=option("policies"),
    )


def _mask_secrets(store: ManagedStore) -> None:
    """Keep what the engine may mention in an error out of the logs: Airflow masks only what it knows."""
    secrets = {secret for lake in store.lakes for secret in lake.secrets} | url_secrets(store.journal_url)
    if store.live and store.live.secret_key:
        secrets.add(store.live.secret_key)
    for secret in sorted(secrets):
        mask_secret(secret)
