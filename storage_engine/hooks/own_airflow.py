"""What an Airflow says of itself to who sets it up: where it keeps its files, and what is in it already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.configuration import AIRFLOW_CONFIG
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException, BaseHook, conf
from airflow.secrets.environment_variables import CONN_ENV_PREFIX
from sqlalchemy import select

from storage_engine.core.extras import EDGE
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.hooks.configured_stores import DEFAULT_CONNECTION, DEFAULT_LAKE, in_dag_ids
from storage_engine.hooks.connection import managed_store, store_queue
from storage_engine.hooks.storage_engine import SPARK_TYPE, airflow_home, section_defaults
from storage_engine.project.into_airflow import PAGE, SECTION, STORES, OwnAirflow, add_words
from storage_engine.project.spark_connection import SPARK_CONNECTION

_AIRFLOWS_EXTRA = {"queue": "root.default"}
"""Of the connection spark_default as Airflow makes it, with the host yarn."""
_LOCAL_BUNDLE = "LocalDagBundle"


def own_airflow(dags_folder: Path | None, *conn_ids: str) -> OwnAirflow:
    """Ask this environment's Airflow.

    :param dags_folder: where DAG files go; None: where Airflow says.
    :raises BadInputError: Airflow reads no DAG from its DAGs folder.
    """
    return OwnAirflow(
        home=airflow_home(),
        settings_file=Path(AIRFLOW_CONFIG),
        dags_folder=dags_folder or _dags_folder(),
        stores=str(conf.get(SECTION, STORES, fallback=DEFAULT_CONNECTION) or ""),
        by_environment=frozenset(name for name in os.environ if name.startswith("AIRFLOW__")),
        may_test=conf.get("core", "test_connection", fallback="Disabled").strip().lower() == "enabled",
        connections=frozenset(conn_id for conn_id in {DEFAULT_CONNECTION, *conn_ids} if _is_there(conn_id)),
        spark_connections=_spark_connections(),
        executor=conf.get("core", "executor"),
        has_edge=EDGE.is_installed,
        address=conf.get("api", "base_url", fallback="") or "",
        serves_edge=conf.getboolean("edge", "api_enabled", fallback=False),
    )


def dags_of(conn_id: str, lake: str = DEFAULT_LAKE) -> str:
    """Return what the ids of a store's DAGs, and of its lake's, match."""
    names = "|".join(re.escape(in_dag_ids(name)) for name in (conn_id, lake))
    return f"storage_.*__({names})$"


def check_fields(conn_id: str, extra: Mapping[str, Any]) -> None:
    """Make sure that a connection would do.

    :raises BadInputError: a field that can't be used; names it.
    """
    managed_store(conn_id, extra, None, section_defaults())


def queue_of(conn_id: str) -> str | None:
    """Return the queue that a connection names, which is there; None: none."""
    return store_queue(BaseHook.get_connection(conn_id).extra_dejson)


def add_connection(conn_id: str, definition: Mapping[str, Any]) -> None:
    """Add a connection by Airflow's own command.

    :raises StorageEngineError: Airflow refuses; has its words.
    """
    words = [sys.executable, "-m", *add_words(conn_id, definition)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise StorageEngineError(
            f"connection {conn_id}: expected airflow connections add to add it, found status "
            f"{done.returncode}: {' '.join(said[-3:])}"
        )


def _dags_folder() -> Path:
    bundles = conf.getjson("dag_processor", "dag_bundle_config_list", fallback=None)
    found = bundles if isinstance(bundles, list) else []
    local = [one for one in found if str(one.get("classpath", "")).endswith(_LOCAL_BUNDLE)]
    if found and not local:
        names = ", ".join(str(one.get("name")) for one in found)
        raise BadInputError(
            f"[dag_processor] dag_bundle_config_list: expected a bundle of the DAGs folder, found {names}. "
            "Nothing was changed. Name a directory that gets there: --dags DIRECTORY.",
            page=PAGE,
        )
    paths = [(one.get("kwargs") or {}).get("path") for one in local]
    return Path(next(filter(None, paths), None) or conf.get("core", "dags_folder"))


def _spark_connections() -> frozenset[str]:
    """Return the connections of the type spark, without Airflow's own that nobody has touched."""
    from airflow.models import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        known = session.scalars(select(Connection.conn_id).where(Connection.conn_type == SPARK_TYPE)).all()
    said = {
        name.removeprefix(CONN_ENV_PREFIX).lower() for name in os.environ if name.startswith(CONN_ENV_PREFIX)
    }
    return frozenset(conn_id for conn_id in said.union(known) if _may_be_used(conn_id))


def _may_be_used(conn_id: str) -> bool:
    """Return whether a connection is one of Spark's that somebody has set up, and that can be read."""
    try:
        found = BaseHook.get_connection(conn_id)
    except (AirflowException, ValueError):
        return False
    others = (found.login, found.password, found.schema, found.port)
    untouched = found.host == "yarn" and not any(others) and found.extra_dejson in ({}, _AIRFLOWS_EXTRA)
    return found.conn_type == SPARK_TYPE and not (found.conn_id == SPARK_CONNECTION and untouched)


def _is_there(conn_id: str) -> bool:
    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return False
    return True
