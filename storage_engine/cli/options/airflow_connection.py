"""--conn-id: an Airflow connection instead of a command line that names store, lake and journal."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.options import journal_of, with_option
from storage_engine.cli.shell.command import GroupedOption
from storage_engine.core.extras import AIRFLOW
from storage_engine.model.settings.policy import ApprovalPolicy
from storage_engine.model.settings.spark_from import places_text

if TYPE_CHECKING:
    from storage_engine.retention.doctor.pipeline_findings import PipelineFacts
    from storage_engine.retention.store.managed_store import ManagedStore

CONN_ID = GroupedOption(
    ["--conn-id"],
    group="Lake",
    environment=True,
    metavar="ID",
    help="Airflow connection of the store, which says where lake and journal are.",
)
conn_id_option = with_option(CONN_ID)


def store_of_connection(conn_id: str) -> ManagedStore:
    """Return what an Airflow connection amounts to.

    :raises BadInputError: there is no such connection, or a field of it can't be used.
    :raises MissingExtraError: Airflow isn't installed.
    """
    AIRFLOW.require("--conn-id")
    before_airflow()
    # What Airflow logs must not stand among a command's results.
    with redirect_stdout(sys.stderr):
        # Airflow takes seconds to import, and only this option needs it.
        from storage_engine.hooks.storage_engine import managed_store_of

        store = managed_store_of(conn_id)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setLevel(logging.WARNING)
    return store


def pipeline_of(conn_id: str, store: ManagedStore) -> tuple[PipelineFacts, str]:
    """Return what Airflow says of a store's DAGs, and the id of the one that cleans it."""
    with redirect_stdout(sys.stderr):
        from storage_engine.hooks.pipeline import read_pipeline

        asks = store.policy.approval is not ApprovalPolicy.NONE
        return read_pipeline(conn_id, archives_ahead=store.archives_ahead, asks=asks)


def places_of(conn_id: str, store: ManagedStore) -> str:
    """Return where the tasks of a store archive and measure consumer lag, for a person.

    :raises BadInputError: its Spark connection can't be used.
    """
    from storage_engine.retention.store.managed_store import archive_threads_of

    with redirect_stdout(sys.stderr):
        from storage_engine.hooks.storage_engine import StorageEngineHook

        spark = StorageEngineHook(conn_id).spark
    return places_text(spark, archive_threads_of(store))


def before_airflow() -> None:
    """Say, before Airflow is imported, that a command asks it, whose terminal isn't for its warnings."""
    # As Airflow's own commands do: without it, it looks for connections in the environment alone.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "ERROR")


def journal_or_connection(lake_dir: Path | None, conn_id: str | None) -> str:
    """The URL of the journal beside a lake, or of a connection's.

    :raises click.UsageError: both are given, or neither.
    """
    if (lake_dir is None) == (conn_id is None):
        raise click.UsageError("Expected either --lake DIRECTORY or --conn-id ID.")
    if lake_dir is not None:
        return journal_of(lake_dir)
    return store_of_connection(str(conn_id)).journal_url
