"""maintain: remove what has expired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.lake.garbage import known_heads_of
from storage_engine.cli.lake.witnesses import witnessed_lake
from storage_engine.cli.options.options import journal_of, json_option, lake_option
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.shell.command import command
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import LakeMissingError
from storage_engine.lake.catalog.config import LakeConfig

if TYPE_CHECKING:
    from storage_engine.lake.gc.maintenance import LakeMaintenance
    from storage_engine.retention.housekeeping.maintaining import MaintainResult


@command()
@lake_option()
@click.option("--dry-run", is_flag=True, help="Say what would be removed, change nothing.")
@click.option("--compact", is_flag=True, help="Write small data files as larger ones, as lake compact does.")
@json_option
def maintain(lake_dir: Path, dry_run: bool, compact: bool, as_json: bool) -> int:
    """Remove what has expired: what the lake's rules no longer keep, as lake expire does; snapshots of the
    lake's tables, and then what gc may take; quarantines whose window is over; reports with their Data
    Docs, runs, events and samples of the journal, and files of jobs that were killed.

    Never what a deletion is decided from: see docs/retention.md. It may be killed at any instant and run
    again.
    """
    from storage_engine.retention.housekeeping.maintaining import maintain_directory

    # Each part of maintenance is one call and one key of the JSON, in the order in which they run.
    metadata = _maintain_lake(lake_dir, dry_run=dry_run, compact=compact)
    history = maintain_directory(
        journal_of(lake_dir),
        lake_dir.absolute() / "reports",
        dry_run=dry_run,
        lakes=(LakeConfig.local(lake_dir.absolute()),),
    )
    if as_json:
        print_json("maintain", {"lake": metadata, "history": history})
    else:
        if metadata is not None:
            _print_lake(metadata)
        _print_history(history)
    return 0


def _maintain_lake(lake_dir: Path, *, dry_run: bool, compact: bool) -> LakeMaintenance | None:
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.gc.compaction import maintain_compaction
    from storage_engine.lake.gc.maintenance import LakePolicy, maintain_lake
    from storage_engine.retention.housekeeping.lake_expiry import maintain_expiry

    target = witnessed_lake(lake_dir, None, None)
    try:
        lake = open_lake(target.config)
    except LakeMissingError:
        # A journal and reports may lie beside no lake.
        return None
    expired = maintain_expiry(lake, target.journal_url, dry_run=dry_run)
    compacted = maintain_compaction(lake, dry_run=dry_run) if compact else ()
    done = maintain_lake(
        lake, LakePolicy(), clock_ms(), dry_run=dry_run, known_heads=known_heads_of(lake, target.journal_url)
    )
    return replace(done, notices=(*done.notices, *expired, *compacted))


def _print_lake(done: LakeMaintenance) -> None:
    for table in done.tables:
        say(f"{'Would expire' if done.dry_run else 'Lake'}: {table.text}.")
    verb = "Would put" if done.dry_run else "Put"
    files = count_text(done.taken_files, "file")
    say(f"{verb} into the lake's trash {files}, {bytes_text(done.taken_bytes)}.")
    if done.deleted_files:
        verb = "Would remove" if done.dry_run else "Removed"
        say(f"{verb} from the trash {count_text(done.deleted_files, 'file')} for good.")
    for notice in done.notices:
        say(f"Note: {notice}")


def _print_history(done: MaintainResult) -> None:
    for sentence in done.quarantines:
        say(f"{sentence[:1].upper()}{sentence[1:]}.")
    verb = "Would remove" if done.dry_run else "Removed"
    for what, paths in (("report", done.report_directories), ("files of a dead job", done.job_directories)):
        for path in paths:
            say(f"{verb} {what}: {path}")
    rows = done.rows
    counts = [
        count_text(number, name)
        for number, name in (
            (rows.runs, "run"),
            (rows.events, "event"),
            (rows.samples, "sample"),
            (rows.plans, "plan"),
            (rows.topic_days, "count of a topic and day"),
        )
        if number
    ]
    say(f"{verb} of the journal: {', '.join(counts) or 'nothing'}.")
    for notice in done.notices:
        say(f"Note: {notice}")
