"""--conn-id: an Airflow connection instead of a command line that names store, lake and journal."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from storage_engine.cli.options import (
    lake_option,
    managed_store,
    second_lake_option,
    store_options,
)
from storage_engine.cli.stated import named_broker_type, stated_name
from storage_engine.model.live import LiveBroker
from storage_engine.retention.managed_store import ManagedStore

Command = TypeVar("Command", bound=Callable[..., Any])

conn_id_option = click.option(
    "--conn-id", metavar="ID", help="Airflow connection of the store, which says where lake and journal are."
)


def store_of_connection(conn_id: str) -> ManagedStore:
    """What an Airflow connection amounts to.

    :raises BadInputError: there is no such connection, or a field of it can't be used.
    """
    # Airflow takes seconds to import, and only this option needs it.
    from storage_engine.hooks.storage_engine import managed_store_of

    return managed_store_of(conn_id)


def store_or_connection(command: Command) -> Command:
    """Give a command STORE with its options and lakes, or --conn-id; what they amount to it gets as
    ``managed``."""

    @wraps(command)
    def called(
        *arguments: Any,
        store: Path | None,
        broker_conf: Path | None,
        overrides: dict[str, str],
        time_zone: str | None,
        live: LiveBroker | None,
        lake_dir: Path | None,
        second_lake_dir: Path | None,
        conn_id: str | None,
        **values: Any,
    ) -> Any:
        if conn_id is not None:
            _refuse_others(
                {
                    "STORE": store,
                    "--broker-conf": broker_conf,
                    "--set": overrides,
                    "--time-zone": time_zone,
                    "--broker-type": named_broker_type(),
                    "--name": stated_name(),
                    "--broker or --name-servers": live,
                    "--lake": lake_dir,
                    "--second-lake": second_lake_dir,
                }
            )
            return command(*arguments, managed=store_of_connection(conn_id), **values)
        if store is None or lake_dir is None:
            missing = "STORE" if store is None else "--lake"
            raise click.UsageError(
                f"Expected STORE and --lake DIRECTORY, or --conn-id ID; found no {missing}."
            )
        managed = managed_store(
            store,
            lake_dir,
            broker_conf,
            overrides,
            time_zone,
            second_lake_dir=second_lake_dir,
            live=live,
        )
        return command(*arguments, managed=managed, **values)

    decorated: Any = called
    for decorate in (conn_id_option, second_lake_option, lake_option(required=False)):
        decorated = decorate(decorated)
    return store_options(required=False)(decorated)  # type: ignore[no-any-return]


def journal_or_connection(lake_dir: Path | None, conn_id: str | None) -> str:
    """The URL of the journal beside a lake, or of a connection's.

    :raises click.UsageError: both are given, or neither.
    """
    if (lake_dir is None) == (conn_id is None):
        raise click.UsageError("Expected either --lake DIRECTORY or --conn-id ID.")
    if conn_id is not None:
        return store_of_connection(conn_id).journal_url
    return managed_store(Path(), lake_dir).journal_url


def _refuse_others(given: dict[str, object]) -> None:
    if names := [name for name, value in given.items() if value]:
        raise click.UsageError(
            f"--conn-id: expected nothing that the connection says itself, found {', '.join(names)}."
        )
