"""What a command line was given, also where it can't be carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from storage_engine.cli.shell.command import NAMED, GroupedOption

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore

_OF_THE_STORE = ("Store", "Running broker")


def said_by(context: click.Context) -> Mapping[str, Any]:
    """Return what a call says, by the names of its command's parameters.

    Beside them ``store_options`` has the words that tell of the store and its broker: a next command needs
    them, too.
    """
    typed = {
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    words: list[str] = []
    for option in context.command.params:
        is_typed = option.name in typed
        if is_typed and isinstance(option, GroupedOption) and option.group in _OF_THE_STORE:
            words += _words(option, context.params[str(option.name)])
    said = {**context.params, "store_options": tuple(words)}
    named = context.meta.get(NAMED)
    if named is None:
        return said
    has_own_lake = bool(typed & {"lake_dir", "second_lake_dir"})
    return {**said, "store": named.name, "is_named": True, "has_own_lake": has_own_lake}


def with_store_of_connection(said: Mapping[str, Any], store: ManagedStore) -> Mapping[str, Any]:
    """Return what a call says, with the store that its connection names and what its broker needs.

    Commands that take no connection can be pasted by it. Secrets stay where they are.
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
    return {**said, "store": store.root, "store_options": tuple(words)}


def _words(option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        return [option.opts[0]]
    if isinstance(value, dict):
        return [word for key, one in value.items() for word in (option.opts[0], f"{key}={one}")]
    return [option.opts[0], str(value)]


def parameters_of(group: click.Group, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return what a call was given, as :func:`said_by` does; nothing where it names no command."""
    command: click.Command = group
    context: click.Context | None = None
    name, rest = "storage-engine", list(arguments)
    try:
        while isinstance(command, click.Group):
            context = command.make_context(name, rest, parent=context, resilient_parsing=True)
            words = [*context._protected_args, *context.args]
            if not words:
                return {}
            found, subcommand, rest = command.resolve_command(context, words)
            if subcommand is None:
                return {}
            name, command = found or name, subcommand
        return said_by(command.make_context(name, rest, parent=context, resilient_parsing=True))
    except click.ClickException:
        return {}
