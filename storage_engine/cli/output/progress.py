"""Progress of long work, for a person at a terminal, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from storage_engine.cli.shell.shared_options import held_back, wants_json
from storage_engine.core.long_work import Advance, LongWork, listening

if TYPE_CHECKING:
    from rich.progress import Progress

    from storage_engine.lake.archive.archive import SegmentJob
    from storage_engine.model.proof.receipt import Receipt


@contextmanager
def progress(description: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with rate and remaining time during the work. If stderr is no terminal, show nothing.

    :param total_bytes: size of the work; 0 if there is nothing to show.
    :return: a function to call with the number of bytes done since its last call.
    """
    with _bar() as bar, _show(bar, LongWork(description, total_bytes)) as advance:
        yield advance


def archive_with_progress(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    """Archive in this process, and show the progress."""
    from storage_engine.lake.archive.archive import archive_all
    from storage_engine.lake.catalog.catalog import open_lake

    with progress("Archiving", sum(job.facts.size_bytes for job in jobs)) as advance:
        return archive_all(open_lake(jobs[0].lake), jobs, advance)


@contextmanager
def waiting(description: str) -> Iterator[None]:
    """Show that work continues, with rate and remaining time for each part that reports its progress."""
    with _bar() as bar:
        whole = bar.add_task(description, total=None, unit="")

        @contextmanager
        def listener(work: LongWork) -> Iterator[Advance]:
            bar.update(whole, visible=False)
            try:
                with _show(bar, work) as advance:
                    yield advance
            finally:
                bar.update(whole, visible=True)

        with listening(listener):
            yield


@contextmanager
def _show(bar: Progress, work: LongWork) -> Iterator[Advance]:
    """Show a part of the work on a line of its own until it is done."""
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
    # Imports rich's bars, which --help must not wait for.
    from storage_engine.cli.output.progress_bar import progress_bar

    return progress_bar(quiet=held_back() is not None or wants_json() or not sys.stderr.isatty())
