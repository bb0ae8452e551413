"""The stores in the option ``stores`` of the section ``[storage_engine]``, for DAG files.

Nothing here looks up a connection or reads a disk, because a DAG file is parsed every few seconds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import conf

from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import BadInputError

SECTION = "storage_engine"
DEFAULT_CONNECTION = "storage_engine_default"
DEFAULT_LAKE = "lake"


@dataclass(frozen=True, slots=True)
class Approver:
    """A user of this Airflow, as its auth manager names the user."""

    id: str
    name: str


_ASKED_RUNS = 16
"""The highest number of active runs of a DAG that asks for approval. All but one may wait for a person. The
remaining run archives segments that have become due.
"""


@dataclass(frozen=True, slots=True)
class ConfiguredStore:
    """A store as DAG files see it.

    :param conn_id: id of the store's connection. It is also the store's name.
    :param schedule: schedule of the store's monitor DAG, in Airflow's format.
    :param queue: queue of the workers that see the store's disk, or None for Airflow's default.
    :param pool: pool of the store's tasks, or None for Airflow's default.
    :param executor: executor of the store's tasks, if Airflow has several, or None for Airflow's default.
    :param lake: the lake's name, for the id of its maintenance DAG and for its assets.
    :param approvers: users who may approve plans as a second person. If empty, everybody who may answer the
        DAGs' tasks. If None, nobody is asked, and a plan that needs a second person isn't released.
    """

    conn_id: str
    schedule: str = "*/10 * * * *"
    queue: str | None = None
    pool: str | None = None
    lake: str = DEFAULT_LAKE
    approvers: tuple[Approver, ...] | None = None
    executor: str | None = None

    @property
    def in_dag_ids(self) -> str:
        """The store's name in the form that DAG ids use."""
        return in_dag_ids(self.conn_id)

    @property
    def max_active_runs(self) -> int:
        """Return how many runs of a cleanup DAG may be active at the same time."""
        return 1 if self.approvers is None else _ASKED_RUNS

    @property
    def task_arguments(self) -> Mapping[str, Any]:
        places = {"queue": self.queue, "pool": self.pool, "executor": self.executor}
        return {"storage_engine_conn_id": self.conn_id, **{name: at for name, at in places.items() if at}}


def configured_stores(option: str = "stores") -> tuple[ConfiguredStore, ...]:
    """Return the stores that an option of the section lists, without repetition.

    :param option: name of the option. Its value is connection ids separated by commas, or a JSON list of
        objects with the fields of :class:`ConfiguredStore`.
    :raises BadInputError: the value is neither. The error names the entry.
    """
    listed = conf.get(SECTION, option, fallback=DEFAULT_CONNECTION if option == "stores" else "")
    where = f"[{SECTION}] {option}"
    if listed.lstrip().startswith("["):
        try:
            entries = json.loads(listed)
        except ValueError as error:
            raise BadInputError(
                f"{where}: expected a JSON list of stores, found text that isn't JSON ({error}). Nothing was "
                "changed. "
                'Write ids separated by commas, or a list such as [{"conn_id": "orders"}].'
            ) from None
        stores = [from_jsonable(ConfiguredStore, entry, f"{where}[{i}]") for i, entry in enumerate(entries)]
    else:
        stores = [ConfiguredStore(name.strip()) for name in listed.split(",") if name.strip()]
    for i, store in enumerate(stores):
        if not store.conn_id.strip():
            raise BadInputError(
                f"{where}[{i}].conn_id: expected the id of a connection, found none. Nothing "
                "was changed. Write the connection's id there."
            )
    by_id = {store.conn_id: store for store in reversed(stores)}
    if len(by_id) < len(stores) and listed.lstrip().startswith("["):
        raise BadInputError(
            f"{where}: expected each conn_id once, found the same conn_id twice. Nothing was changed. Remove "
            "one of the two entries."
        )
    return tuple(reversed(by_id.values()))


def when_failed() -> Mapping[str, Any]:
    """Return the arguments that make a task notify people when it has failed.

    The option ``on_failure_callback`` names a notifier, a function, or a list of these, to be called after
    each failure. The notifiers in ``alarm_notifiers`` are called when an alarm begins and when it ends.

    :raises AirflowConfigException: a named object can't be imported.
    """
    arguments: dict[str, Any] = {}
    if conf.get(SECTION, "on_failure_callback", fallback="").strip():
        arguments["on_failure_callback"] = conf.getimport(SECTION, "on_failure_callback")
    if conf.get(SECTION, "alarm_notifiers", fallback="").strip():
        named = conf.getimport(SECTION, "alarm_notifiers")
        arguments["alarm_notifiers"] = tuple(named) if isinstance(named, (list, tuple)) else (named,)
    return arguments


def stores_by_lake(option: str = "stores") -> Mapping[str, tuple[ConfiguredStore, ...]]:
    """Return the configured stores, grouped by their lake's name.

    :param option: as for :func:`configured_stores`. A user's own DAG file may pass another name.
    """
    by_lake: dict[str, tuple[ConfiguredStore, ...]] = {}
    for store in configured_stores(option):
        by_lake[store.lake] = (*by_lake.get(store.lake, ()), store)
    return by_lake


def in_dag_ids(name: str) -> str:
    """Return a name for DAG ids. Dashes replace forbidden characters; a short hash is then appended."""
    allowed = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return name if allowed == name else f"{allowed}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
