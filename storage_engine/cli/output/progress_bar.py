"""The progress bar in a terminal."""

from __future__ import annotations

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

_BAR_WIDTH = 20
"""Width of the bar. In 80 columns it leaves room for the longest figures."""


class _Figures(ProgressColumn):
    """Progress figures: done, whole, rate, remaining time. If the whole is unknown, only the elapsed time."""

    _bytes = (DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
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
    """Return a bar on stderr. A quiet one shows nothing."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=_BAR_WIDTH),
        _Figures(),
        console=Console(stderr=True, highlight=False),
        transient=True,
        disable=quiet,
    )
