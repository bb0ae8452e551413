"""The ``storage-engine`` command: the same calls that the DAGs make, for a person at a shell.

Exit codes: 0 done, 1 a check failed or work was refused, 2 usage or bad input.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from storage_engine import __version__
from storage_engine.cli.output import print_error
from storage_engine.exceptions import BadInputError, StorageEngineError

COMMANDS = {
    "inspect": "store",
    "plan": "store",
    "lag": "store",
    "index-lookup": "store",
    "archive": "lake",
    "verify": "lake",
    "restore": "lake",
    "clean": "clean",
    "waive": "clean",
    "adopt": "clean",
    "validate": "validate",
    "init": "project",
    "demo": "project",
    "up": "project",
}


class LazyGroup(click.Group):
    """Imports a command's module only when that command is asked for: Spark and Great Expectations
    take seconds to import, and ``inspect`` needs neither."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"storage_engine.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="storage-engine")
def cli() -> None:
    """Archive, prove, then delete: retention of message-broker storage.

    Exit codes: 0 done, 1 a check failed or work was refused, 2 usage or bad input.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit.

    :param arguments: the words after the program's name; None takes them from ``sys.argv``.
    """
    try:
        code = cli.main(args=arguments, prog_name="storage-engine", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.exceptions.Abort:
        click.echo("Aborted.", err=True)
        code = 1
    except StorageEngineError as error:
        print_error(error, as_json="--json" in (arguments or sys.argv))
        code = 2 if isinstance(error, BadInputError) else 1
    sys.exit(code if isinstance(code, int) else 0)
