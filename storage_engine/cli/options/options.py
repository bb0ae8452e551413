"""Options that several commands share."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from storage_engine.cli.shell.shared_options import GroupedOption
from storage_engine.cli.shell.values import LakePath, NamedPath, absolute_paths, parse_speed
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.extras import AIRFLOW
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import CATALOG_FILE, DESCRIPTION, LakeConfig
from storage_engine.model.settings.policy import ApprovalPolicy, Policy, places_text, settings_of
from storage_engine.model.settings.store_settings import SETTINGS, Kind

if TYPE_CHECKING:
    from storage_engine.retention.doctor.pipeline_findings import PipelineFacts
    from storage_engine.retention.store.managed_store import ManagedStore


Function = TypeVar("Function", bound=Callable[..., Any])

_JOURNAL = "journal.db"
"""Name of the journal in a lake's directory, for stores managed at a shell."""

REPLICAS_STOPPED = (
    "State how you know that all other nodes with a replica are stopped; without this, segments with "
    "replicas stay."
)
"""Help of the option with which a person states a fact that this node can't know."""

POLICY_SETTINGS = {setting.name: setting for setting in settings_of(Policy)}

CLEAN = (
    "archive",
    "lag_policy",
    "pending_policy",
    "minimum_retention_hours",
    "approval",
    "undo_window_hours",
    "undo_directories",
    "archive_bytes_per_second",
)
"""Names of the policy's settings that have options in a whole cleanup at the shell."""

_FLAGS = {"archive": "--archive-policy", "undo_directories": "--undo-directory"}
_UNITS = {"hours": "HOURS", "percent": "PERCENT"}


def setting_option(name: str, **more: Any) -> click.Option:
    """Return the option for a setting of a store, as described in the table of settings.

    :param more: further arguments for click.
    """
    setting = SETTINGS[name]
    more |= {"help": setting.at_a_shell, "group": "Running broker" if setting.live else "Store"}
    more |= {"environment": setting.kind not in (Kind.FLAG, Kind.WHOLE_NUMBER, Kind.OBJECT)}
    if setting.kind in (Kind.FLAG, Kind.CHOICE):
        more["is_flag"] = True
    else:
        more["metavar"] = setting.argument
    if setting.kind is Kind.PATH:
        more.setdefault("type", NamedPath(path_type=str))
    if setting.kind is Kind.WHOLE_NUMBER:
        more["type"] = click.IntRange(min=1)
    return GroupedOption([setting.option, setting.own_field], **more)


def lake_of(*, required: bool) -> click.Option:
    """Return the option for the lake that a command works with.

    The lake must exist: only ``init-lake`` makes one.
    """
    return GroupedOption(
        ["--lake", "lake_dir"],
        group="Lake",
        environment=True,
        type=LakePath(),
        required=required,
        callback=_check_lake,
        help="Directory of the lake, with its catalog, warehouse, journal and reports.",
    )


def with_option(option: click.Option) -> Callable[[Function], Function]:
    """Return a decorator that gives a command an option."""

    def decorate(command: Function) -> Function:
        command.__dict__.setdefault("__click_params__", []).append(option)
        return command

    return decorate


of_lake = partial(click.option, cls=GroupedOption, group="Lake")
"""Decorator that gives a command an option, under the heading of lakes."""


def lake_option(*, required: bool = True) -> Callable[[Function], Function]:
    """Give a command the option of :func:`lake_of`."""
    return with_option(lake_of(required=required))


def is_lake_there(lake: Path) -> bool:
    """Return whether a directory contains any part of a lake."""
    return any(os.path.lexists(lake / name) for name in (CATALOG_FILE, DESCRIPTION, _JOURNAL))


def _check_lake(context: click.Context, parameter: click.Parameter, lake: Path | None) -> Path | None:
    """Refuse a directory without a lake before anything is written: perhaps its disk isn't mounted.

    doctor needs only the store, and reports such a directory as a finding.
    """
    if lake is not None and context.command.name != "doctor" and not is_lake_there(lake):
        raise click.BadParameter(
            Text(
                f"expected a lake in {lake.absolute()}, found none. Nothing was created. Mount its disk, "
                "name another directory, or make a lake ",
                make_commands(lake, _kind_of_call(context)),
            ),
            context,
            parameter,
        )
    return lake


def _kind_of_call(context: click.Context) -> str:
    """Return the kind of broker that a call names; "" if the parameters read so far name none."""
    from storage_engine.brokers import broker_of

    broker, store = context.params.get("broker_type"), context.params.get("store")
    if broker is None and store is not None:
        # A later check reports a store that several brokers could have written.
        with suppress(BadInputError):
            broker = broker_of(store)
    return str(broker or "")


def make_commands(lake: Path, broker: str) -> str:
    """Return a clause on where the missing lake may be made, and by which command.

    :param broker: the kind of broker whose segments it is for; "" if not known.
    """
    from storage_engine.brokers import kind_option

    # Imports libraries that only a call without its lake needs.
    from storage_engine.lake.catalog.nesting import place_around

    kind = kind_option(broker) if broker else ""
    if around := place_around(LakeConfig.local(lake)):
        return Text(
            f"elsewhere, as this is inside {around}: ", Command("init-lake", f"--lake DIRECTORY{kind}")
        )
    return Text("there: ", Command("init-lake", f"--lake {shlex.quote(str(lake))}{kind}"))


SECOND_LAKE = GroupedOption(
    ["--second-lake", "second_lake_dir"],
    group="Lake",
    environment=True,
    type=NamedPath(file_okay=False),
    help="Directory of a second lake, used while the lake can't be reached; receipts in either one count.",
)
second_lake_option = with_option(SECOND_LAKE)


def journal_of(lake_dir: Path) -> str:
    return f"sqlite:///{lake_dir.absolute() / _JOURNAL}"


def check_store(managed: ManagedStore) -> None:
    """Check that the store can be read before anything is recorded: bad input leaves no trace and no run.

    :raises BadInputError: the path is no store, or no plan can be made for the store.
    """
    from storage_engine.model.broker.broker_store import check_manageable
    from storage_engine.retention.store.broker_answers import take_snapshot
    from storage_engine.retention.store.brokers import open_store

    with closing(open_store(managed)) as broker:
        check_manageable(broker)
        take_snapshot(broker, clock_ms(), managed.broker)


def policy_option(name: str) -> click.Option:
    setting = POLICY_SETTINGS[name]
    flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
    more: dict[str, Any] = {"help": setting.help}
    if setting.choices:
        more |= {"type": click.Choice(setting.choices), "default": setting.default_text, "show_default": True}
    elif setting.kind is tuple:
        more |= {"metavar": "DIRECTORY", "type": NamedPath(file_okay=False), "multiple": True}
        more |= {"callback": absolute_paths, "help": f"{setting.help} Repeatable."}
    elif name.endswith("_bytes_per_second"):
        more |= {"metavar": "SIZE", "callback": parse_speed}
    else:
        more |= {"type": click.IntRange(setting.minimum, setting.maximum), "default": setting.default}
        more |= {"show_default": setting.default is not None, "metavar": _UNITS[name.rpartition("_")[2]]}
    return GroupedOption([flag, name], group="Policy", **more)


def policy_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options' values, by the fields of the policy."""
    return {
        name: setting.kind(value) if (setting := POLICY_SETTINGS[name]).choices else value
        for name, value in values.items()
    }


CONN_ID = GroupedOption(
    ["--conn-id"],
    group="Lake",
    environment=True,
    metavar="ID",
    help="Airflow connection of the store, which names lake and journal.",
)
conn_id_option = with_option(CONN_ID)


def store_of_connection(conn_id: str) -> ManagedStore:
    """Return the store that an Airflow connection describes.

    :raises BadInputError: the connection doesn't exist, or a field of it can't be used.
    :raises MissingExtraError: Airflow isn't installed.
    """
    AIRFLOW.require("--conn-id")
    before_airflow()
    # Lines that Airflow logs must not be among a command's results.
    with redirect_stdout(sys.stderr):
        # Airflow takes seconds to import, and only this option needs it.
        from storage_engine.hooks.storage_engine import managed_store_of

        store = managed_store_of(conn_id)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setLevel(logging.WARNING)
    return store


def pipeline_of(conn_id: str, store: ManagedStore) -> tuple[PipelineFacts, str]:
    """Return Airflow's view of a store's DAGs, and the id of the DAG that cleans the store."""
    with redirect_stdout(sys.stderr):
        from storage_engine.hooks.pipeline import read_pipeline

        asks = store.policy.approval is not ApprovalPolicy.NONE
        return read_pipeline(conn_id, archives_ahead=store.archives_ahead, asks=asks)


def places_of(conn_id: str, store: ManagedStore) -> str:
    """Return a text about where a store's tasks archive and measure consumer lag.

    :raises BadInputError: its Spark connection can't be used.
    """
    from storage_engine.retention.store.managed_store import archive_threads_of

    with redirect_stdout(sys.stderr):
        from storage_engine.hooks.storage_engine import StorageEngineHook

        spark = StorageEngineHook(conn_id).spark
    return places_text(spark, archive_threads_of(store))


def before_airflow() -> None:
    """Before Airflow's import, let Airflow find connections as a server does, and log only errors."""
    # As Airflow's own commands do. Otherwise it looks for connections only in the environment.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "ERROR")


def check_either(lake_dir: Path | None, conn_id: str | None) -> None:
    """Make sure that a call names either a lake or a connection.

    :raises click.UsageError: both are given, or neither.
    """
    if (lake_dir is None) == (conn_id is None):
        raise click.UsageError(
            "Expected either --lake DIRECTORY or --conn-id ID, or one of STORAGE_ENGINE_LAKE and "
            "STORAGE_ENGINE_CONN_ID."
        )


def lake_and_journal(lake_dir: Path | None, conn_id: str | None) -> tuple[LakeConfig, str]:
    """Return a lake, and the URL of the journal that belongs to it.

    :raises click.UsageError: the call names both a lake and a connection, or neither.
    """
    check_either(lake_dir, conn_id)
    if lake_dir is not None:
        return LakeConfig.local(lake_dir), journal_of(lake_dir)
    store = store_of_connection(str(conn_id))
    return store.lake, store.journal_url
