"""Work that takes longer than a moment: how far it is, for a person at a terminal, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from storage_engine.cli.command import held_back
from storage_engine.cli.output import console


@contextmanager
def progress(description: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar with rate and time left while work goes on; nothing where stderr is no terminal.

    :param total_bytes: None when nobody knows; 0: there is nothing to show.
    :return: to be called with the number of bytes done since the last call.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with _bar(*columns, shown=total_bytes != 0) as bar:
        task = bar.add_task(description, total=total_bytes)

        def advance(done_bytes: int) -> None:
            bar.advance(task, done_bytes)

        yield advance


@contextmanager
def waiting(description: str) -> Iterator[None]:
    """Show that work goes on, and for how long, where it can't be told how much is left."""
    with _bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        bar.add_task(description, total=None)
        yield


def _bar(*columns: ProgressColumn, shown: bool = True) -> Progress:
    quiet = held_back() is not None or not sys.stderr.isatty()
    return Progress(*columns, console=console(stderr=True), transient=True, disable=quiet or not shown)
