"""How commands print: tables and progress for a person, JSON for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from storage_engine.exceptions import StorageEngineError
from storage_engine.model.jsonable import to_jsonable

_UNWRAPPED_WIDTH = 500


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False)


def print_json(value: Any) -> None:
    """Print dataclasses and plain values as one indented JSON document on stdout."""
    click.echo(json.dumps(to_jsonable(value), ensure_ascii=False, indent=2))


def print_error(error: StorageEngineError, *, as_json: bool) -> None:
    """Print an error: to stderr for a person, as a JSON document on stdout for a program."""
    if as_json:
        print_json({"error": {"type": type(error).__name__, "message": str(error)}})
    else:
        click.echo(f"{click.style('Error', fg='red', bold=True)}: {error}", err=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name ends in '#' are right-aligned numbers.

    Only the last column is ever wrapped; into a file or pipe it isn't either.
    """
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column.rstrip("#"),
            justify="right" if column.endswith("#") else "left",
            no_wrap=column is not columns[-1],
        )
    for row in rows:
        table.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
    screen = console()
    if not screen.is_terminal:
        screen.width = _UNWRAPPED_WIDTH
    screen.print(table)


def bytes_text(size_bytes: int | None) -> str:
    return "" if size_bytes is None else decimal(size_bytes)


def time_text(timestamp_ms: int | None) -> str:
    """A UTC timestamp to the second; empty for None."""
    if timestamp_ms is None:
        return ""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration_text(duration_ms: int | None) -> str:
    """A duration to the second; empty for None."""
    return "" if duration_ms is None else str(timedelta(seconds=duration_ms // 1000))


@contextmanager
def progress(description: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr while work goes on; silent where stderr is no terminal.

    :param total_bytes: None when nobody knows.
    :return: to be called with the number of bytes done since the last call.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(description, total=total_bytes)

        def advance(done_bytes: int) -> None:
            bar.advance(task, done_bytes)

        yield advance
