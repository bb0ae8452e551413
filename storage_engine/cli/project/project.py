"""Commands that put a project in place and run it on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import click

from storage_engine.cli.output.output import put, say
from storage_engine.cli.shell.command import command
from storage_engine.cli.shell.values import NamedPath
from storage_engine.core.extras import require_provider


@command()
def constraints() -> None:
    """Print the versions of all dependencies that this release was tested with, for pip's option -c."""
    from storage_engine.resources import project_path

    put(project_path("constraints.txt").read_text().rstrip())


@command()
@click.argument("directory", type=NamedPath(file_okay=False), default=".demo/up")
def up(directory: Path) -> int:
    """Start Airflow on loopback for the project in DIRECTORY until Ctrl-C.

    A missing project is created, with the sample store.
    """
    require_provider("up")
    from storage_engine.project.up import up as run_up

    started = time.monotonic()

    def say_with_time(line: str) -> None:
        say(f"[{time.monotonic() - started:5.1f} s] {line}")

    return run_up(directory, say_with_time)
