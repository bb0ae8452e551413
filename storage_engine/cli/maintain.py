"""maintain: remove what has expired."""

from __future__ import annotations

from pathlib import Path

import click

from storage_engine.cli.options import journal_of, json_option, lake_option
from storage_engine.cli.output import print_json
from storage_engine.retention.maintaining import MaintainResult, maintain_directory
from storage_engine.wording import count_text


@click.command()
@lake_option()
@click.option("--dry-run", is_flag=True, help="Say what would be removed, change nothing.")
@json_option
def maintain(lake_dir: Path, dry_run: bool, as_json: bool) -> int:
    """Remove what has expired beside the lake: reports with their Data Docs, runs, events and samples of the
    journal, and files of jobs that were killed.

    Never what a deletion is decided from: see docs/retention.md. It may be killed at any instant and run
    again.
    """
    # Each part of maintenance is one call and one key of the JSON, in the order in which they run.
    history = maintain_directory(journal_of(lake_dir), lake_dir.absolute() / "reports", dry_run=dry_run)
    if as_json:
        print_json({"history": history})
    else:
        _print_history(history)
    return 0


def _print_history(done: MaintainResult) -> None:
    verb = "Would remove" if done.dry_run else "Removed"
    for what, paths in (("report", done.report_directories), ("files of a dead job", done.job_directories)):
        for path in paths:
            click.echo(f"{verb} {what}: {path}")
    rows = done.rows
    counts = [
        count_text(number, name)
        for number, name in (
            (rows.runs, "run"),
            (rows.events, "event"),
            (rows.samples, "sample"),
            (rows.plans, "plan"),
        )
        if number
    ]
    click.echo(f"{verb} of the journal: {', '.join(counts) or 'nothing'}.")
    for notice in done.notices:
        click.echo(f"Note: {notice}")
