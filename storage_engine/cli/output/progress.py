"""Work that takes longer than a moment: how far it is, for a person at a terminal, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from storage_engine.cli.shell.command import held_back
from storage_engine.core.long_work import Advance, LongWork, listening

if TYPE_CHECKING:
    from rich.progress import Progress


_BAR_WIDTH = 20
"""Leaves 80 columns room for the longest figures."""


class _Figures(ProgressColumn):
    """How much is done of how much, at what rate, and how long the rest takes; where no total is known, the
    time since the beginning."""

    _bytes = (
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    _counted = TimeRemainingColumn(compact=True)
    _elapsed = TimeElapsedColumn()

    def render(self, task: Task) -> Text:
        if task.total is None:
            return self._elapsed.render(task)
        unit = task.fields["unit"]
        if not unit:
            return Text(" ").join(column.render(task) for column in self._bytes)
        rate = "?" if task.speed is None else f"{task.speed:,.0f}/s"
        done = Text(f"{task.completed:,.0f}/{task.total:,.0f} {unit} {rate} ")
        return done + self._counted.render(task)


def progress_bar(*, quiet: bool) -> Progress:
    """Return a bar on stderr. :param quiet: it shows nothing."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=_BAR_WIDTH),
        _Figures(),
        console=Console(stderr=True, highlight=False),
        transient=True,
        disable=quiet,
    )


@contextmanager
def progress(description: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with rate and time left while work goes on; nothing where stderr is no terminal.

    :param total_bytes: 0: there is nothing to show.
    :return: to be called with the number of bytes done since the last call.
    """
    with _bar() as bar, _shown(bar, LongWork(description, total_bytes)) as advance:
        yield advance


@contextmanager
def waiting(description: str) -> Iterator[None]:
    """Show that work goes on, and of each part that tells how far it is, its rate and the time left."""
    with _bar() as bar:
        whole = bar.add_task(description, total=None, unit="")

        @contextmanager
        def listener(work: LongWork) -> Iterator[Advance]:
            bar.update(whole, visible=False)
            try:
                with _shown(bar, work) as advance:
                    yield advance
            finally:
                bar.update(whole, visible=True)

        with listening(listener):
            yield


@contextmanager
def _shown(bar: Progress, work: LongWork) -> Iterator[Advance]:
    """Show a part of the work as a line of its own, until it is done."""
    if not work.total:
        yield lambda _done: None
        return
    task = bar.add_task(work.what, total=work.total, unit=work.unit)

    def advance(done: int) -> None:
        bar.advance(task, done)

    try:
        yield advance
        bar.refresh()
    finally:
        bar.remove_task(task)


def _bar() -> Progress:
    # Rich's bars, which a command's help doesn't need.
    context = click.get_current_context(silent=True)
    for_program = context is not None and bool(context.params.get("as_json"))
    return progress_bar(quiet=held_back() is not None or for_program or not sys.stderr.isatty())
