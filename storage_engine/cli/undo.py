"""undo: bring back what a run deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.options import check_store, json_option
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.output import print_json, say, say_notes
from storage_engine.cli.shell.command import command
from storage_engine.core.host import person
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text

if TYPE_CHECKING:
    from storage_engine.retention.quarantine.undo import UndoResult
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@click.argument("run")
@takes_store(second_lake=True, connection=True)
@json_option
def undo(run: str, managed: ManagedStore, as_json: bool) -> int:
    """Bring back what RUN deleted from STORE: segments, consume queue and index files, as they were.

    It takes a run that had --undo-window-hours, or undo_window_hours in its connection, whose window isn't
    over, and a stopped broker. A broker of Kafka must not have run since. Of several runs the newest goes
    first. It may be killed at any instant and run again.
    """
    from storage_engine.retention.quarantine.undo import undo as bring_back
    from storage_engine.retention.quarantine.undo import undone_before
    from storage_engine.retention.report.finishing import finish

    if not managed.is_live:
        check_store(managed)
    before = None if managed.is_live else undone_before(managed, run)
    done = before or bring_back(managed, run, person())
    finished = finish(managed, run)
    if as_json:
        print_json("undo", {**to_jsonable(done), "report_json": finished.report_json})
        return 0
    files = f"{count_text(done.segments, 'segment')} and {count_text(done.dependents, 'file')}"
    if before is not None:
        say(
            f"Run {run} is undone already, and nothing was done now: {files} that point into them came back "
            f"then, {bytes_text(done.size_bytes)}."
        )
        say(f"Report   {finished.report_json}")
        return 0
    say(f"{files} that point into them are back, {bytes_text(done.size_bytes)}; {_begins(done)}.")
    say_notes(done.notices)
    say(
        "The next run deletes them again, if its rules let them go: stop its schedule, or set "
        "minimum_retention_hours."
    )
    say(f"Report   {finished.report_json}")
    return 0


def _begins(done: UndoResult) -> str:
    if len(done.min_offsets) > 1:
        return f"{count_text(len(done.min_offsets), 'log')} begin as before"
    return f"the log begins at {next(iter(done.min_offsets.values()), done.min_offset)}"
