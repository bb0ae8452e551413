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
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, conf

from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.hooks.configured_stores import DEFAULT_CONNECTION, DEFAULT_LAKE, in_dag_ids
from storage_engine.hooks.connection import managed_store
from storage_engine.hooks.storage_engine import airflow_home, section_defaults
from storage_engine.project.into_airflow import SECTION, STORES, VARIABLE, OwnAirflow, add_words
from storage_engine.project.settings_text import PAGE

_LOCAL_BUNDLE = "LocalDagBundle"


def own_airflow(dags_folder: Path | None, *conn_ids: str) -> OwnAirflow:
    """Ask this environment's Airflow.

    :param dags_folder: where DAG files go; None: where Airflow says.
    :param conn_ids: connections that are looked for.
    :raises BadInputError: Airflow reads no DAG from its DAGs folder.
    """
    return OwnAirflow(
        home=airflow_home(),
        settings_file=Path(AIRFLOW_CONFIG),
        dags_folder=dags_folder or _dags_folder(),
        stores=str(conf.get(SECTION, STORES, fallback=DEFAULT_CONNECTION) or ""),
        set_by_environment=VARIABLE in os.environ,
        may_test=conf.get("core", "test_connection", fallback="Disabled").strip().lower() == "enabled",
        connections=frozenset(conn_id for conn_id in {DEFAULT_CONNECTION, *conn_ids} if _is_there(conn_id)),
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


def _is_there(conn_id: str) -> bool:
    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return False
    return True
