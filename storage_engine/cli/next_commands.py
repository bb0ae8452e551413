"""Commands that a message names, with the arguments that they take here: what can be pasted helps.

What finds out that a lake or a store needs another command doesn't know what a person called them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

_OF_LAKE = ("lake relocate", "lake rebuild", "lake promote", "gc --undo", "verify --level bytes --renew")
_OF_STORE = ("archive", "stamp --new", "stamp", "adopt")
_REASON = ("lake promote", "stamp --new", "stamp", "adopt")
_OF_CONNECTION = ("lake rebuild", "gc --undo", "stamp --new", "stamp", "adopt")
"""Commands that take ``--conn-id`` in the place of directories."""

_NAMED = re.compile(
    rf"storage-engine (?P<command>{'|'.join((*_OF_LAKE, *_OF_STORE, 'init-lake'))})"
    r"(?![\w-])(?! (?:-|STORE|DIRECTORY|LAKE|/))"
)


def with_arguments(text: str, said: Mapping[str, Any]) -> str:
    """Give each command in a text that has none the arguments that stand for this call's store and lake.

    :param said: what this call was given, by the names of its parameters.
    """
    lake, store, connection = _lake_of(text, said), said.get("store"), said.get("conn_id")

    def complete(found: re.Match[str]) -> str:
        command = found["command"]
        words = [str(store)] if command in _OF_STORE and store is not None else []
        if isinstance(connection, str) and command in _OF_CONNECTION:
            words = ["--conn-id", connection]
        elif lake is None or (command in _OF_STORE and not words):
            return found[0]
        else:
            words += ["--lake", str(lake)]
        reason = " --reason TEXT" if command in _REASON else ""
        return f"{found[0]} {shlex.join(words)}{reason}"

    return _NAMED.sub(complete, text)


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


def _lake_of(text: str, said: Mapping[str, Any]) -> object:
    """Return the lake's directory that a text is about: the one that it names first."""
    first, second = said.get("lake_dir"), said.get("second_lake_dir")
    if first is None or second is None:
        return first
    at_first, at_second = (text.find(f"{os.path.realpath(lake)}/") for lake in (first, second))
    return second if at_second >= 0 and not 0 <= at_first < at_second else first
