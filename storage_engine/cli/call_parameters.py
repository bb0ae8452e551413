"""What a command line was given, also where it can't be carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


def parameters_of(group: click.Group, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return what a call was given, by the names of its command's parameters; nothing where it names none."""
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
        return command.make_context(name, rest, parent=context, resilient_parsing=True).params
    except click.ClickException:
        return {}
