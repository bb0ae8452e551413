"""The hook: one Airflow connection is one managed store."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowNotFoundException,
    BaseHook,
    Connection,
    conf,
    mask_secret,
)

from storage_engine.brokers import client_connection_of
from storage_engine.commands import Command
from storage_engine.core.credentials import property_secrets, url_secrets
from storage_engine.exceptions import BadInputError, NoSuchConnectionError, StorageEngineError
from storage_engine.hooks.configured_stores import DEFAULT_CONNECTION, SECTION
from storage_engine.hooks.connection import (
    AGENT_FILES,
    PAGE,
    Defaults,
    agent_of,
    broker_connection,
    managed_store,
    moved_fields,
    spark_connection,
    spark_from_of,
    store_queue,
    with_broker_credentials,
    with_credentials,
)
from storage_engine.model.settings.policy import SparkUse, places_text
from storage_engine.retention.store.managed_store import ManagedStore, archive_threads_of

if TYPE_CHECKING:
    from storage_engine.lake.file.jobs import AgentAccess

SPARK_TYPE = "spark"
"""Type of connections with which the apache-spark provider submits jobs."""
_MADE_UP_CHARACTERS = 8
"""Length of the random id, of letters and digits, that Airflow gives a connection for one test
(``airflow.utils.helpers.get_random_string``).
"""
_SUBMITTED_BY = (SPARK_TYPE, "k8s")
"""Types of connections from which the provider makes a Spark master; ``k8s`` is for k8s://HOST."""


class StorageEngineHook(BaseHook):
    """Makes the store's settings for the engine from a ``storage_engine`` connection.

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
        """Return the Airflow connection of the hook's store.

        :raises NoSuchConnectionError: there is no connection with this id.
        :raises BadInputError: the connection has another type.
        """
        conn_id = self.storage_engine_conn_id
        try:
            conn = self.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise NoSuchConnectionError(
                f"connection {conn_id}: expected a connection of this Airflow, found none. Nothing was "
                f"read or changed. The option stores of [{SECTION}] lists the stores' connections: "
                f"{conf.get(SECTION, 'stores', fallback=DEFAULT_CONNECTION)}. Name your "
                "connections' ids in that option, or add this connection: ",
                Command("init", f"--airflow --conn-id {quote(conn_id)}"),
                ". The command airflow connections list shows all connections. AIRFLOW_HOME decides which "
                "Airflow is used.",
                page=PAGE,
            ) from error
        if conn.conn_type != self.conn_type:
            raise BadInputError(
                f"connection {conn_id}: expected the type {self.conn_type}, found {conn.conn_type!r}. "
                "Nothing was read or changed. Choose the type Storage Engine in the connection's form.",
                page=PAGE,
            )
        return conn

    def get_conn(self) -> ManagedStore:
        """Return the managed store.

        :raises BadInputError: a field of the connection can't be used. The error names it.
        """
        return self.managed_store

    @cached_property
    def managed_store(self) -> ManagedStore:
        conn_id, extra = self.storage_engine_conn_id, self.connection.extra_dejson
        store = managed_store(conn_id, extra, self.connection.password, section_defaults())
        second, live = store.second_lake, store.live
        store = replace(
            store,
            lake=with_credentials(store.lake, self._named_by("lake")),
            second_lake=second and with_credentials(second, self._named_by("second_lake")),
            live=live
            and with_broker_credentials(
                live,
                broker_connection(conn_id, extra),
                self._named_by("broker_conn_id"),
                client_connection_of(store.broker),
            ),
        )
        # Airflow itself masks only the secrets that it knows.
        secrets = {secret for lake in store.lakes for secret in lake.secrets} | url_secrets(store.journal_url)
        if store.live:
            secrets |= property_secrets(store.live.client) | {*filter(None, (store.live.secret_key,))}
        for secret in sorted(secrets):
            mask_secret(secret)
        if self.spark_conn_id is not None:
            # Without this check spark-submit would use, at the end, a YARN cluster that nobody named.
            conn = self._named_by("spark_conn_id")(self.spark_conn_id)
            if conn.conn_type not in _SUBMITTED_BY:
                raise BadInputError(
                    f"connection {conn_id}: field spark_conn_id: expected a connection of the type "
                    f"{SPARK_TYPE}, found {conn.conn_id!r} of the type {conn.conn_type!r}. Nothing was read "
                    "or changed. Name a connection of the type Spark, or leave the field empty to work "
                    "without Spark.",
                    page=PAGE,
                )
        return store

    @cached_property
    def spark(self) -> SparkUse | None:
        """The master of the store's Spark connection, and the least work for it; None without a connection.

        :raises BadInputError: there is no such connection, or the provider can't read it.
        """
        if self.spark_conn_id is None:
            return None
        # This import loads the Kubernetes client, if it is installed.
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        limits = spark_from_of(self.storage_engine_conn_id, self.connection.extra_dejson)
        try:
            # Only the provider knows which master it makes of a connection.
            master: str = SparkSubmitHook(conn_id=self.spark_conn_id)._connection["master"]
        except Exception as error:
            # The provider doesn't catch errors of its libraries, such as the Kubernetes client.
            raise BadInputError(
                f"connection {self.spark_conn_id}: expected a connection that spark-submit can use, found: "
                f"{error}. Nothing was read or changed.",
                page=PAGE,
            ) from error
        return SparkUse(master, limits)

    @cached_property
    def journal_url(self) -> str:
        """The URL of the store's journal. Only the store's own connection is looked up for it."""
        extra, password = self.connection.extra_dejson, self.connection.password
        url = managed_store(self.storage_engine_conn_id, extra, password, section_defaults()).journal_url
        for secret in url_secrets(url):
            mask_secret(secret)
        return url

    @cached_property
    def spark_conn_id(self) -> str | None:
        """The connection that submits this store's Spark jobs, or None if its tasks do the work."""
        return spark_connection(self.connection.extra_dejson)

    @property
    def agent(self) -> AgentAccess | None:
        """The agent that serves the store to executors of Spark jobs, or None if they see its disk.

        :raises BadInputError: one of the agent's files can't be used, or other users can read the token.
        """
        fields = agent_of(self.storage_engine_conn_id, self.connection.extra_dejson)
        if not fields:
            return None
        # Imported only here: a DAG's file needs none of the lake's libraries.
        from storage_engine.lake.file.agent_files import read_access

        paths = (Path(fields[name]) if name in fields else None for name in AGENT_FILES)
        access = read_access(fields["address"], *paths)
        mask_secret(access.token)
        return access

    @property
    def spark_fields(self) -> dict[str, Any]:
        """Return the extra fields of the Spark connection; empty if the store names none."""
        conn_id = self.spark_conn_id
        extra: dict[str, Any] = {} if conn_id is None else self.get_connection(conn_id).extra_dejson
        return extra

    def _named_by(self, field: str) -> Callable[[str], Connection]:
        """Return a function that looks up a connection by its id. Its error names ``field``."""

        def find(conn_id: str) -> Connection:
            try:
                return self.get_connection(conn_id)
            except AirflowNotFoundException as error:
                empty = " Leave the field empty to work without Spark." if field == "spark_conn_id" else ""
                raise BadInputError(
                    f"connection {self.storage_engine_conn_id}: field {field}: expected a connection of "
                    f"this Airflow, found none with the id {conn_id!r}. Nothing was read or changed. Add it, "
                    f"or correct the field.{empty}",
                    page=PAGE,
                ) from error

        return find

    @cached_property
    def queue(self) -> str | None:
        """The Airflow queue whose workers see the store's disk, or None if the connection names no queue."""
        return store_queue(self.connection.extra_dejson)

    def test_connection(self) -> tuple[bool, str]:
        """Look at store, broker, journal and lake, for the form's Test button. This changes none of them.

        :return: whether the connection works, and a text about it.
        """
        from storage_engine.hooks.check import check_store

        try:
            checked = check_store(self.managed_store)
            places = places_text(self.spark, archive_threads_of(self.managed_store))
            moved = moved_fields(self.connection.extra_dejson)
            works = True
            text = " ".join(filter(None, (checked, f"Archive and consumer lag: {places}.", moved)))
        except StorageEngineError as error:
            works, text = False, str(error)
        conn_id = self.storage_engine_conn_id
        is_made_up = len(conn_id) == _MADE_UP_CHARACTERS and conn_id.isalnum()
        if is_made_up and f"AIRFLOW_CONN_{conn_id.upper()}" in os.environ:
            # Airflow's form made up this id for one test, and never uses it again.
            text = text.replace(f"connection {conn_id}", "this connection").replace(conn_id, "ID")
        return works, text


def managed_store_of(conn_id: str) -> ManagedStore:
    """Return the managed store that a connection describes, for a command line.

    :raises BadInputError: there is no such connection, or a field of it can't be used.
    """
    return StorageEngineHook(conn_id).managed_store


def airflow_home() -> Path:
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()


def section_defaults() -> Defaults:
    """Return the defaults from Airflow's settings, for fields that a connection leaves empty."""

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
