"""init, up, constraints: set up and run Airflow for a store, in a project or in your own Airflow."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import click
import tzlocal

from storage_engine.cli.options.options import before_airflow
from storage_engine.cli.options.stores_file import add_store, named_stores
from storage_engine.cli.output.output import put, say
from storage_engine.cli.shell.shared_options import AIRFLOW_GROUP, NAMED, GroupedOption, command
from storage_engine.cli.shell.values import NamedPath, TargetPath
from storage_engine.cli.shell.values import time_zone as known_time_zone
from storage_engine.commands import Command, Text
from storage_engine.core.extras import EDGE, require_provider
from storage_engine.exceptions import BadInputError
from storage_engine.project import init as project_files
from storage_engine.project import into_airflow as own
from storage_engine.project.init import (
    SPARK_CONNECTION,
    SparkProposal,
    propose_spark,
    spark_definition,
    wrapped,
)
from storage_engine.project.into_airflow import PAGE, parsed

_CONN_ID = re.compile(r"[\w.-]{1,200}")
"""An id that Airflow's REST API accepts."""
_QUEUE = re.compile(r"[^\s,]+")
"""Name of a single queue. A worker takes several queues, separated by commas."""
_of_airflow = partial(click.option, cls=GroupedOption, group=AIRFLOW_GROUP)


@command()
@click.argument("directory", required=False, type=TargetPath(file_okay=False))
@click.option(
    "--airflow", "into_airflow", is_flag=True, help="Set up the Airflow of AIRFLOW_HOME instead of a project."
)
@click.option(
    "--store",
    type=NamedPath(),
    help="The broker's storePathRootDir, for the connection; with --name also a node's server.properties.",
)
@click.option(
    "--broker-conf", type=NamedPath(dir_okay=False), help="The broker's own config file, for the connection."
)
@click.option(
    "--time-zone",
    metavar="ZONE",
    default=tzlocal.get_localzone_name,
    show_default="this machine's",
    callback=known_time_zone,
    help="IANA time zone of deleteWhen.",
)
@_of_airflow(
    "--conn-id",
    metavar="ID",
    default=project_files.STORE_CONNECTION,
    show_default=True,
    help="The store's connection, whose id is its name.",
)
@_of_airflow("--broker", metavar="HOST:PORT", help="The running broker's listen port, for the connection.")
@_of_airflow(
    "--lake",
    "lake_dir",
    metavar="DIRECTORY",
    type=NamedPath(file_okay=False),
    help="The store's lake, for the connection; default: the option lake of [storage_engine].",
)
@_of_airflow(
    "--spark-conn-id",
    metavar="ID",
    help="Connection for Spark jobs, '' for none; default: an existing one, or a new one with local[*].",
)
@_of_airflow(
    "--dags",
    metavar="DIRECTORY",
    type=NamedPath(file_okay=False),
    help="Directory for DAG files; default: this Airflow's dags_folder.",
)
@_of_airflow(
    "--env", is_flag=True, help="Print the new settings as environment variables; edit no airflow.cfg."
)
@_of_airflow(
    "--edge",
    metavar="QUEUE",
    help="Queue of an edge worker on the host of the store's disk, if that is another host.",
)
@_of_airflow("--add-connection", is_flag=True, help="Add the connection instead of printing the command.")
@_of_airflow("--yes", is_flag=True, help="Make the changes without asking.")
@click.option("--name", metavar="NAME", help="Only write STORE into the file of stores, under this name.")
@click.option(
    "--older-dag-ids",
    is_flag=True,
    help="Add the DAGs of older releases, which had one DAG for all stores, so that their runs can end.",
)
def init(directory: Path | None, into_airflow: bool, name: str | None, **given: Any) -> None:
    """Write DAGs, Spark jobs, expectations, Airflow's settings and the connections into DIRECTORY.

    With --airflow it sets up your own Airflow: it writes DAG files into its DAGs folder, and the store's id
    into its configuration. It first shows every change, and asks. A second run changes nothing.

    With --name it writes --store, --lake, --broker-conf and --broker into stores.toml, and nothing else.
    """
    if given["edge"] is None or not into_airflow:
        _check_paths(given["store"], given["broker_conf"])
    if name is not None:
        _write_name(name, directory is not None or into_airflow, **given)
        return
    if given["store"] is not None and given["store"].is_file():
        raise click.BadParameter(f"Directory '{given['store']}' is a file.", param_hint="--store")
    if into_airflow == (directory is not None):
        raise click.UsageError("Expected either DIRECTORY, for a project of its own, or --airflow.")
    if into_airflow:
        _set_up(**given)
        return
    context = click.get_current_context()
    for option in context.command.params:
        is_typed = context.get_parameter_source(str(option.name)) is click.core.ParameterSource.COMMANDLINE
        if is_typed and isinstance(option, GroupedOption) and option.group == AIRFLOW_GROUP:
            raise click.UsageError(f"{option.opts[0]}: expected --airflow with it.")
    assert directory is not None
    project = project_files.init_project(
        directory,
        store_root=given["store"],
        broker_conf=given["broker_conf"],
        time_zone=given["time_zone"],
        older_dag_ids=given["older_dag_ids"],
    )
    say(project_files.next_steps(project, store_is_known=given["store"] is not None))


def _check_paths(*paths: Path | None) -> None:
    """Make sure that the named paths exist. Paths on another host aren't checked."""
    for option, path in zip(("--store", "--broker-conf"), paths, strict=True):
        if path is not None and not path.exists():
            raise click.BadParameter(f"Path '{path}' does not exist.", param_hint=option)


def _write_name(name: str, is_more: bool, store: Path | None, lake_dir: Path | None, **given: Any) -> None:
    from storage_engine.brokers import broker_of, default_broker

    if is_more or store is None or lake_dir is None:
        raise click.UsageError("--name: expected --store and --lake with it, and no DIRECTORY or --airflow.")
    if lake_dir.parts and lake_dir.parts[0].endswith(":"):
        raise click.UsageError(
            f"--lake: expected a directory, found {lake_dir}. For an object store, name a directory with a "
            "lake.json."
        )
    context = click.get_current_context()
    fields = {"root": str(store.resolve()), "lake": str(lake_dir.absolute())}
    if (broker := broker_of(store)) != default_broker():
        fields["broker_type"] = broker
    if given["broker_conf"]:
        fields["broker_conf"] = str(given["broker_conf"].resolve())
    if given["broker"]:
        fields |= {"mode": "live", "broker_address": given["broker"]}
    if context.get_parameter_source("time_zone") is click.core.ParameterSource.COMMANDLINE:
        fields["time_zone"] = given["time_zone"]
    say(f"{add_store(name, fields)}: {name} is {store}")
    # The next command needs only the name, and no option of this call.
    context.params.clear()
    context.meta[NAMED] = named_stores()[name]
    say("\nNext: ", Command("doctor"))


def _set_up(
    *,
    store: Path | None,
    broker_conf: Path | None,
    time_zone: str,
    conn_id: str,
    broker: str | None,
    lake_dir: Path | None,
    spark_conn_id: str | None,
    dags: Path | None,
    env: bool,
    edge: str | None,
    add_connection: bool,
    yes: bool,
    older_dag_ids: bool,
) -> None:
    """Show the changes in an Airflow, make them, and print the next commands."""
    _check_names(conn_id, edge)
    if add_connection and store is None:
        raise click.UsageError("--add-connection: expected --store DIRECTORY with it.")
    hook = _airflow_hook()
    fields = project_files.store_fields(store, broker_conf, time_zone, is_here=edge is None)
    fields |= {"mode": "live", "broker_address": broker} if broker else {}
    fields |= {"lake": str(lake_dir.absolute())} if lake_dir else {}
    fields |= {"queue": edge} if edge else {}
    with redirect_stdout(sys.stderr):
        airflow = hook.own_airflow(dags, conn_id, SPARK_CONNECTION, *filter(None, [spark_conn_id]))
        spark = propose_spark(spark_conn_id, airflow.spark_connections, airflow.connections)
        fields |= {"spark_conn_id": spark.conn_id}
        hook.check_fields(conn_id, fields)
    if edge is not None and not airflow.has_edge:
        raise EDGE.missing("init --edge")
    definition = project_files.store_definition(fields)
    stores = own.stores_with(airflow, conn_id, project_files.STORE_CONNECTION, edge)
    listed = own.Option(own.SECTION, own.STORES, stores)
    options = (listed, *(() if edge is None else own.edge_options(airflow)))
    by_variable = [option for option in options if env or option.variable in airflow.by_environment]
    changes = own.settings_change(airflow, *(option for option in options if option not in by_variable))
    changes += own.dag_changes(airflow.dags_folder, older_dag_ids=older_dag_ids)
    adds = add_connection and conn_id not in airflow.connections
    # A person who names a Spark connection makes it.
    adds_spark = add_connection and spark.is_new and spark_conn_id is None
    say(f"Airflow in {airflow.home}")
    for change in changes:
        say(change.text)
    if adds:
        say(f"new      connection {conn_id}")
    if adds_spark:
        say(f"new      connection {spark.conn_id}")
    if not changes and not adds and not adds_spark:
        say("Nothing to change: files and configuration are as they should be.")
    elif not yes:
        _ask()
    for copy in own.make(changes):
        say(f"The file as it was: {copy}")
    if adds:
        with redirect_stdout(sys.stderr):
            hook.add_connection(conn_id, definition)
    if adds_spark:
        with redirect_stdout(sys.stderr):
            hook.add_connection(spark.conn_id, spark_definition({}))
    is_there = adds or conn_id in airflow.connections
    is_misplaced = edge is not None and is_there and not adds and hook.queue_of(conn_id) != edge
    if changes or adds or adds_spark:
        say("Done.")
    say("\nNext, in this order:")
    for number, step in enumerate(
        (
            *_settings_steps([item for item in by_variable if item != listed or stores != airflow.stores]),
            *_connection_steps(conn_id, definition, is_there=is_there, is_known=store is not None),
            *(() if adds_spark else _spark_steps(spark)),
            *([_queue_step(conn_id, str(edge))] if is_misplaced else ()),
            *(() if edge is None else _edge_steps(edge, listed, airflow.address)),
            *_try_steps(conn_id, hook, lake_dir, may_test=airflow.may_test, is_here=edge is None),
        ),
        start=1,
    ):
        say(f"{number}. {step}")
    say(f"\n{wrapped(spark.text)}")


def _check_names(conn_id: str, edge: str | None) -> None:
    if not _CONN_ID.fullmatch(conn_id):
        raise click.BadParameter(
            f"expected only letters, digits, _ . and -, as in ids of Airflow, found {conn_id!r}",
            param_hint="--conn-id",
        )
    if edge is not None and not _QUEUE.fullmatch(edge):
        raise click.BadParameter(
            f"expected the name of one queue, without spaces and commas, found {edge!r}", param_hint="--edge"
        )


def _airflow_hook() -> Any:
    """Return the hook that asks Airflow, after a check that Airflow can start.

    :raises MissingExtraError: the provider isn't installed.
    :raises BadInputError: there is no Airflow, or it would not start.
    """
    require_provider("init --airflow")
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    settings = Path(os.environ.get("AIRFLOW_CONFIG") or home / "airflow.cfg").expanduser()
    if not settings.is_file():
        raise BadInputError(
            f"{settings}: expected the settings of an Airflow that has been started before, found none. "
            "Nothing was changed. Set AIRFLOW_HOME to your Airflow's directory, or make an Airflow: "
            "airflow db migrate.",
            page=PAGE,
        )
    parsed(settings.read_text(), settings)
    before_airflow()
    with redirect_stdout(sys.stderr):
        from storage_engine.hooks import pipeline
    return pipeline


def _ask() -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("Nothing was changed. Look at the changes above; --yes makes them.")
    if not click.confirm("Make these changes?"):
        raise click.Abort


def _settings_steps(options: Sequence[own.Option]) -> list[str]:
    if not options:
        return []
    noun = "these" if len(options) > 1 else "this"
    lines = [f"   export {option.variable}={shlex.quote(option.value)}" for option in options]
    return ["\n".join([f"Set {noun} in the environment of every part of Airflow:", *lines])]


def _queue_step(conn_id: str, queue: str) -> str:
    return (
        f"Set the field queue of the connection {conn_id}, which already existed, to {queue}: a task on "
        "any other queue is refused."
    )


def _edge_steps(queue: str, listed: own.Option, address: str) -> list[str]:
    url = f"{address.rstrip('/') or 'https://AIRFLOW'}/edge_worker/v1/rpcapi"
    options = (own.Option("core", "executor", own.EDGE_EXECUTOR), own.Option("edge", "api_url", url), listed)
    lines = [f"   export {option.variable}={shlex.quote(option.value)}" for option in options]
    lines += [
        "   export AIRFLOW__API_AUTH__JWT_SECRET=…       # of [api_auth], as all parts of Airflow have it",
        "   export AIRFLOW__STORAGE_ENGINE__JOURNAL_URL=… # PostgreSQL, as all parts of Airflow have it",
        f"   airflow edge worker --queues {shlex.quote(queue)}",
    ]
    return [
        "On the store's host, as a user who may delete from the store, and with the packages, DAG files and "
        "options of [storage_engine] that Airflow has, start:\n" + "\n".join(lines)
    ]


def _connection_steps(
    conn_id: str, definition: dict[str, object], *, is_there: bool, is_known: bool
) -> list[str]:
    if is_there:
        return []
    edit = "" if is_known else ", with your store's root instead of /path/to/store"
    return [f"Add the connection{edit}:\n   {_add(conn_id, definition)}"]


def _spark_steps(spark: SparkProposal) -> list[str]:
    if spark.conn_id is None or not spark.is_new:
        return []
    return [f"Add the Spark connection:\n   {_add(spark.conn_id, spark_definition({}))}"]


def _lake_step(conn_id: str, hook: Any, lake_dir: Path | None, *, is_here: bool) -> str:
    place = str(lake_dir.absolute()) if lake_dir else hook.section_defaults().lake
    if is_here or place.lstrip().startswith("{"):
        return Text(
            "Make its lake; add --allow-same-disk if it may be on the store's disk:\n   ",
            Command("init-lake", f"--conn-id {shlex.quote(conn_id)}"),
        )
    usual = '"$AIRFLOW_HOME"/storage_engine'
    around, directory = ("", shlex.quote(place)) if place else (f"   mkdir -p {usual}\n", f"{usual}/lake")
    return Text(
        f"Make its lake on that host, as the same user:\n{around}   ",
        Command("init-lake", f"--lake {directory}"),
    )


def _try_steps(conn_id: str, hook: Any, lake_dir: Path | None, *, may_test: bool, is_here: bool) -> list[str]:
    """Return the steps that try the store. The connection is tested only on the host of the store's disk."""
    named = shlex.quote(conn_id)
    forced = f"storage_forced_cleanup__{named}"
    off = (
        ""
        if may_test
        else f"\n   Without that setting Airflow says: {own.TEST_IS_OFF!r} It is off by default."
    )
    variable = "" if may_test else f"{own.TEST_VARIABLE}=Enabled "
    test = f"Test it:\n   {variable}airflow connections test {named}{off}"
    return [
        _lake_step(conn_id, hook, lake_dir, is_here=is_here),
        *([test] if is_here else []),
        "Restart Airflow, wait until it has read its DAGs, and do a dry run, which deletes nothing:\n"
        f"   airflow dags unpause {forced}\n"
        f'   airflow dags trigger {forced} --conf \'{{"reason": "a first look", "dry_run": true}}\'',
        "Start its schedule, which archives, proves and then deletes:\n   airflow dags unpause --yes "
        f"--treat-dag-id-as-regex {shlex.quote(hook.dags_of(conn_id))}",
    ]


def _add(conn_id: str, definition: dict[str, object]) -> str:
    return shlex.join(own.add_words(conn_id, definition))


@command()
def constraints() -> None:
    """Print the versions of all dependencies that this release was tested with, for pip's option -c."""
    from storage_engine.resources import project_path

    put(project_path("constraints.txt").read_text().rstrip())


@command()
@click.argument("directory", type=NamedPath(file_okay=False), default=".demo/up")
def up(directory: Path) -> int:
    """Start Airflow on loopback for the project in DIRECTORY until Ctrl-C.

    A missing project is created, with a sample store.
    """
    require_provider("up")
    from storage_engine.project.up import up as run_up

    started = time.monotonic()

    def say_with_time(line: str) -> None:
        say(f"[{time.monotonic() - started:5.1f} s] {line}")

    return run_up(directory, say_with_time)
