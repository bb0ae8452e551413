"""How commands print: tables and progress for a person, JSON for a program."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from storage_engine.cli.command import held_back
from storage_engine.model.jsonable import to_jsonable
from storage_engine.next_commands import with_arguments
from storage_engine.wording import printable, printable_json, shortened

JSON_VERSION = 1
"""Of all that --json prints: it grows where a key goes or means something else, not where one is added."""

_UNWRAPPED_WIDTH = 100_000
NAME_WIDTH = 26
"""Of a long name in a terminal's table, in characters."""


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False)


def print_json(kind: str, value: Any) -> None:
    """Print what a command came to as one indented JSON object on stdout, as every command with --json does.

    :param kind: the command as it is typed, such as ``lake info``; programs tell objects apart by it.
    :param value: a dataclass or mapping; a list stands in it under a name.
    """
    found = to_jsonable(value)
    shown = {"kind": kind, "version": JSON_VERSION, **found}
    if len(shown) != len(found) + 2:
        raise TypeError(f"{kind}: expected a value without the keys kind and version, found {sorted(found)}")
    _write(printable_json(json.dumps(shown, ensure_ascii=False, indent=2)))


def say(text: object = "", *, err: bool = False) -> None:
    """Print lines for a person, with what a terminal would act upon written out, and commands that they name
    with this call's arguments.

    :param err: to stderr.
    """
    context = click.get_current_context(silent=True)
    told = str(text) if context is None else with_arguments(str(text), context.params)
    _echo(printable(told, keep="\n"), err=err)


def say_styled(text: str = "") -> None:
    """Print a line that has styles; what others have chosen in it is :func:`printable` already."""
    _echo(text)


def put(data: object) -> None:
    """Print what another program reads, such as versions for pip: also where the command is quiet."""
    _write(printable(str(data), keep="\n"))


def _echo(text: str, *, err: bool = False) -> None:
    held = held_back()
    if held is None:
        _write(text, err=err)
    else:
        held.append(text)


def _write(text: str, *, err: bool = False) -> None:
    """Write lines; end the process where nobody reads them any more, as ``head`` after its ten."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        # What is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        sys.exit(128 + signal.SIGPIPE)


def print_error(error: Exception, said: Mapping[str, Any], *, as_json: bool) -> None:
    """Print an error: to stderr for a person, as a JSON document on stdout for a program.

    :param said: what this call was given, by the names of its parameters.
    """
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    message = with_arguments(message, said)
    if as_json:
        print_json("error", {"error": {"type": type(error).__name__, "message": message}})
    else:
        shown = printable(message, keep="\n")
        click.echo(f"{click.style('Error', fg='red', bold=True)}: {shown}", err=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns that end in '#' are right-aligned numbers, those that end in '~' long names.

    In a terminal, long names are shortened in their middle, and only the last column is ever wrapped. A
    file or pipe gets everything whole, one row a line.
    """
    screen = console()
    if not screen.is_terminal:
        screen.width = _UNWRAPPED_WIDTH
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.rstrip("#~"),
            justify="right" if column.endswith("#") else "left",
            no_wrap=column is not columns[-1],
        )
    for row in rows:
        cells = ("" if cell is None else printable(str(cell)) for cell in row)
        shown = (
            shortened(cell, NAME_WIDTH) if screen.is_terminal and column.endswith("~") else cell
            for column, cell in zip(columns, cells, strict=True)
        )
        table.add_row(*map(escape, shown))
    with screen.capture() as capture:
        screen.print(table)
    _echo(f"\n{click.style(printable(title), bold=True)}")
    for line in capture.get().splitlines():
        _echo(f"  {line.rstrip()}")


@contextmanager
def progress(description: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr while work goes on; silent where stderr is no terminal.

    :param total_bytes: None when nobody knows; 0: there is nothing to show.
    :return: to be called with the number of bytes done since the last call.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        disable=total_bytes == 0 or held_back() is not None or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(description, total=total_bytes)

        def advance(done_bytes: int) -> None:
            bar.advance(task, done_bytes)

        yield advance
