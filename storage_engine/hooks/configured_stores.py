"""The stores that the option ``stores`` of the section ``[storage_engine]`` lists, for DAG files.

Nothing here looks a connection up or touches a disk: a DAG file is parsed every few seconds.
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
    """A user of this Airflow, as its auth manager has it."""

    id: str
    name: str


_ASKED_RUNS = 16
"""Runs of a DAG that asks: all but one may wait for a person, while the next one archives what falls due."""


@dataclass(frozen=True, slots=True)
class ConfiguredStore:
    """A store as DAG files know it.

    :param conn_id: of the store's connection, whose id is its name.
    :param schedule: of its monitor DAG, as Airflow takes one: when somebody looks what it needs.
    :param queue: of the workers that see its disk; None: Airflow's default.
    :param pool: that its tasks take their slots from; None: Airflow's default.
    :param executor: by which they get its tasks, where Airflow has several; None: its default.
    :param lake: names its lake, in the id of the lake's maintenance DAG and in its assets.
    :param approvers: who may approve its plans as a second person; empty: whoever may answer tasks of its
        DAGs; None: its DAGs ask nobody, so that they delete nothing where its policy asks for one.
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
        """The store's name as it stands in DAG ids."""
        return in_dag_ids(self.conn_id)

    @property
    def max_active_runs(self) -> int:
        """Return how many runs of a DAG that cleans up may be there at once."""
        return 1 if self.approvers is None else _ASKED_RUNS

    @property
    def task_arguments(self) -> Mapping[str, Any]:
        """Return the arguments that every task of the store is made with."""
        places = {"queue": self.queue, "pool": self.pool, "executor": self.executor}
        return {"storage_engine_conn_id": self.conn_id, **{name: at for name, at in places.items() if at}}


def configured_stores(option: str = "stores") -> tuple[ConfiguredStore, ...]:
    """Return the stores that an option of the section lists, each once.

    :param option: connection ids separated by commas, or a JSON list of objects as
        :class:`ConfiguredStore` has them.
    :raises BadInputError: it is neither; names the entry.
    """
    listed = conf.get(SECTION, option, fallback=DEFAULT_CONNECTION if option == "stores" else "")
    where = f"[{SECTION}] {option}"
    if listed.lstrip().startswith("["):
        try:
            entries = json.loads(listed)
        except ValueError as error:
            raise BadInputError(
                f"{where}: expected a JSON list of stores, found no JSON ({error}). Nothing was changed. "
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
    found = {store.conn_id: store for store in reversed(stores)}
    if len(found) < len(stores) and listed.lstrip().startswith("["):
        raise BadInputError(
            f"{where}: expected each conn_id once, found one again. Nothing was "
            "changed. Leave one of them out."
        )
    return tuple(reversed(found.values()))


def when_failed() -> Mapping[str, Any]:
    """Return the arguments of a task that calls for a person when it has failed.

    The option ``on_failure_callback`` names what is called each time: a notifier, a function, or a list of
    them; ``alarm_notifiers`` what is called once when an alarm begins, and once when it has ended.

    :raises AirflowConfigException: one can't be imported.
    """
    found: dict[str, Any] = {}
    if conf.get(SECTION, "on_failure_callback", fallback="").strip():
        found["on_failure_callback"] = conf.getimport(SECTION, "on_failure_callback")
    if conf.get(SECTION, "alarm_notifiers", fallback="").strip():
        named = conf.getimport(SECTION, "alarm_notifiers")
        found["alarm_notifiers"] = tuple(named) if isinstance(named, (list, tuple)) else (named,)
    return found


def stores_by_lake(option: str = "stores") -> Mapping[str, tuple[ConfiguredStore, ...]]:
    """Return the configured stores by the name that they give their lake.

    :param option: as of :func:`configured_stores`; a person's own DAG file may name another.
    """
    found: dict[str, tuple[ConfiguredStore, ...]] = {}
    for store in configured_stores(option):
        found[store.lake] = (*found.get(store.lake, ()), store)
    return found


def in_dag_ids(name: str) -> str:
    """Return a name as it may stand in a DAG id: what isn't allowed there becomes a dash and a short hash."""
    allowed = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return name if allowed == name else f"{allowed}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
