"""All commands, as a shell names them."""

from __future__ import annotations

import click

from storage_engine.cli import COMMANDS, cli


def _every_command() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": below for inner, below in command.commands.items()}
        else:
            found[name] = command
    return found


EVERY = _every_command()
"""By what is typed for them; a command that groups others stands for these."""
