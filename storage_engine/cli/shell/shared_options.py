"""Parts that all commands share: groups of options, --quiet, and options from the environment."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from storage_engine.commands import Arguments, Command
from storage_engine.core.turns import WAIT_SECONDS, waiting_at_most
from storage_engine.core.wording import did_you_mean

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore

ENVIRONMENT = "STORAGE_ENGINE_"
"""Prefix of environment variables that stand for options."""
_QUIET = "storage_engine.quiet"
_JSON = "storage_engine.json"
_TYPED = "storage_engine.typed"
NAMED = "storage_engine.named"
"""Key in a call's ``meta``, if the call names a store of the file of stores. Its value is that store."""
_HELD_LINES = 10_000
_OWN = "Options"
_OUTPUT = "Output"
AIRFLOW_GROUP = "With --airflow"
GROUPS = (_OWN, AIRFLOW_GROUP, "Lake", "Store", "Policy", "Running broker", _OUTPUT)
"""Headings in the order of a command's help."""
SHARED_GROUPS = ("Store", "Running broker")
"""Groups of which a command's help only has the number of options. The command ``options`` lists them."""


class GroupedOption(click.Option):
    """An option that several commands share, under a heading of its own in their help.

    :param group: one of :data:`GROUPS`.
    :param environment: whether an environment variable may give it. Typed options win. The variable is
        ignored if the call has a typed ``--conn-id`` or a store's name. Options of a store also ignore it if
        the call has no STORE.
    """

    def __init__(self, *arguments: Any, group: str = _OWN, environment: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.group = group
        if environment:
            self.envvar = ENVIRONMENT + self.opts[0].lstrip("-").upper().replace("-", "_")
            self.show_envvar = True

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        ctx.meta[_TYPED] = {
            name for name, value in opts.items() if value and isinstance(value, str | list | tuple)
        }
        return super().consume_value(ctx, opts)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        # A store's name also gives its lake.
        return None if value is None and NAMED in ctx.meta else super().process_value(ctx, value)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the environment's value; None if a typed option excludes it."""
        typed = ctx.meta.get(_TYPED, set())
        beside = {"store", "lake_dir"} if self.name == "conn_id" else {"conn_id", "conn_ids"}
        stores = {"store", "stores"} & {str(parameter.name) for parameter in ctx.command.params}
        of_no_store = self.group in SHARED_GROUPS and stores and not stores & typed
        is_in_file = NAMED in ctx.meta and self.group in ("Lake", *SHARED_GROUPS)
        if of_no_store or beside & typed or is_in_file:
            return None
        return super().resolve_envvar_value(ctx)


def _keep_quiet(context: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    context.find_root().meta[_QUIET] = deque(maxlen=_HELD_LINES) if quiet else None


QUIET = GroupedOption(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_keep_quiet,
    group=_OUTPUT,
    help="Print nothing if all is well, except requested data, such as --json.",
)


def _keep_json(context: click.Context, parameter: click.Parameter, as_json: bool) -> None:
    context.find_root().meta[_JSON] = as_json


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    expose_value=False,
    callback=_keep_json,
    help="Print JSON instead of text.",
)


def wants_json() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().meta.get(_JSON))


def _wait(context: click.Context, parameter: click.Parameter, minutes: float) -> None:
    context.with_resource(waiting_at_most(minutes * 60))


WAIT = GroupedOption(
    ["--wait"],
    type=click.FloatRange(min=0),
    default=WAIT_SECONDS / 60,
    metavar="MINUTES",
    expose_value=False,
    environment=True,
    callback=_wait,
    group=_OUTPUT,
    help="Wait at most this long while another of our runs changes the same store or lake. Default: 10.",
)
_SHARED = {"store", "stores", "lake", "lake_dir", "lake_dirs", "conn_id", "conn_ids"}
"""Parameters that name stores or lakes, on which another process may work."""


def held_back() -> deque[str] | None:
    """Return the lines that a quiet command prints only if it fails. None if the command isn't quiet."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_root().meta.get(_QUIET)


class ShellCommand(click.Command):
    """A command whose help shows its own options, and names the command that lists the shared ones.

    If a quiet command fails, its lines are printed after all, because an exit code alone gives no reason.
    """

    def invoke(self, ctx: click.Context) -> Any:
        code: Any = 1
        try:
            code = super().invoke(ctx)
            return code
        finally:
            held = ctx.find_root().meta.get(_QUIET)
            if held and code:
                sys.stderr.write("\n".join([*held, ""]))
                held.clear()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        shares = any(parameter.name in _SHARED for parameter in own)
        return [*own, *([WAIT] if shares else ()), QUIET, help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = records_of(self, ctx)
        shared = [row for name in SHARED_GROUPS for row in groups.pop(name)]
        for option in (WAIT, QUIET):
            row = option.get_help_record(ctx)
            if row in groups[_OUTPUT]:
                groups[_OUTPUT].remove(row)
                shared.append(row)
        for name, rows in groups.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)
        if shared:
            of_store = "of the store, its running broker and " if len(shared) > len((WAIT, QUIET)) else "of "
            formatter.write_paragraph()
            formatter.write_text(
                f"{len(shared)} more that many commands share, {of_store}the output: {Command('options')}"
            )


def records_of(shown: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return a command's options with their help texts, by the headings of their groups."""
    groups: dict[str, list[tuple[str, str]]] = {name: [] for name in GROUPS}
    for parameter in shown.get_params(ctx):
        record = parameter.get_help_record(ctx)
        # The command's own text describes its arguments.
        if record is not None and isinstance(parameter, click.Option):
            groups[_group_of(parameter)].append(record)
    return groups


class Group(click.Group):
    """A command with subcommands. For an unknown subcommand, it names the most similar one."""

    command_class = ShellCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word, names = args[0], self.list_commands(ctx)
        if not ctx.resilient_parsing and not word.startswith("-") and word not in names:
            raise click.UsageError(f"No such command {word!r}.{did_you_mean(word, names)}", ctx)
        return super().resolve_command(ctx, args)


def command(name: str | None = None) -> Callable[[Callable[..., Any]], ShellCommand]:
    """Make a function a command of the shell. Only this decorator and :class:`Group` make commands."""
    return click.command(name, cls=ShellCommand)


def _group_of(parameter: click.Parameter) -> str:
    if isinstance(parameter, GroupedOption):
        return parameter.group
    return _OUTPUT if {"--help", "--json"} & set(parameter.opts) else _OWN


def said_by(context: click.Context) -> Arguments:
    """Return a call's arguments that name a store and its lakes. The next command needs them, too."""
    typed = {
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    options: list[str] = []
    for option in context.command.params:
        is_typed = option.name in typed
        if is_typed and isinstance(option, GroupedOption) and option.group in SHARED_GROUPS:
            options += _option_words(option, context.params[str(option.name)])
    store, first, second, conn_id = (
        os.fspath(value) if isinstance(value := context.params.get(name), (str, os.PathLike)) else None
        for name in ("store", "lake_dir", "second_lake_dir", "conn_id")
    )
    named = context.meta.get(NAMED)
    return Arguments(
        store=store if named is None else named.name,
        lake_dir=first,
        second_lake_dir=second,
        conn_id=conn_id,
        places=()
        if not (first and second)
        else tuple(f"{os.path.realpath(lake)}/" for lake in (first, second)),
        store_options=tuple(options),
        is_named=named is not None,
        has_own_lake=bool(typed & {"lake_dir", "second_lake_dir"}),
    )


def with_store_of_connection(arguments: Arguments, store: ManagedStore) -> Arguments:
    """Return a call's arguments with its connection's store and the options for that store's broker. The
    options complete commands that take no connection. They include no secrets.
    """
    from storage_engine.brokers import default_broker

    words: list[str] = ["--broker-type", store.broker] if store.broker != default_broker() else []
    words += [] if store.broker_conf is None else ["--broker-conf", store.broker_conf]
    words += [word for name, value in store.overrides.items() for word in ("--set", f"{name}={value}")]
    words += [] if store.time_zone is None else ["--time-zone", store.time_zone]
    if store.live is not None:
        words += ["--broker", store.live.address] if store.live.address else []
        words += ["--name-servers", store.live.name_servers] if store.live.name_servers else []
        words += ["--broker-name", store.live.broker_name] if store.live.broker_name else []
    return replace(arguments, store=store.root, store_options=tuple(words))


def _option_words(option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        return [option.opts[0]]
    if isinstance(value, dict):
        return [word for key, item in value.items() for word in (option.opts[0], f"{key}={item}")]
    return [option.opts[0], str(value)]


def parameters_of(group: click.Group, arguments: Sequence[str]) -> Arguments:
    """Return a command line's arguments, as :func:`said_by` does for a context. Empty without a command."""
    command: click.Command = group
    context: click.Context | None = None
    name, rest = "storage-engine", list(arguments)
    try:
        while isinstance(command, click.Group):
            context = command.make_context(name, rest, parent=context, resilient_parsing=True)
            words = [*context._protected_args, *context.args]
            if not words:
                return Arguments()
            typed, subcommand, rest = command.resolve_command(context, words)
            if subcommand is None:
                return Arguments()
            name, command = typed or name, subcommand
        return said_by(command.make_context(name, rest, parent=context, resilient_parsing=True))
    except click.ClickException:
        return Arguments()
