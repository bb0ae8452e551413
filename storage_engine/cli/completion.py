"""completion: what a shell runs to complete commands, options, choices and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from storage_engine.cli.output.output import put
from storage_engine.cli.shell.command import command
from storage_engine.exceptions import StorageEngineError

PROGRAM = "storage-engine"
VARIABLE = "_STORAGE_ENGINE_COMPLETE"
"""Environment variable by which a shell's script asks for completions."""
SHELLS = ("bash", "zsh", "fish")


@command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which SHELL completes commands, options, choices and files.

    Evaluate it where the shell starts, such as in ~/.bashrc: eval "$(storage-engine completion bash)".
    """
    found = get_completion_class(shell)
    if found is None:
        raise StorageEngineError(
            f"{shell}: expected a shell that click {click.__version__} completes for, found none. Update it."
        )
    put(found(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())
