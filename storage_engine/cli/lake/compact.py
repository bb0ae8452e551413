"""lake compact: small data files become larger ones."""

from __future__ import annotations

from pathlib import Path

import click

from storage_engine.cli.lake.witnesses import witness_options, witnessed_lake
from storage_engine.cli.options.options import json_option, lake_option
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.command import command


@command("compact")
@lake_option(required=False)
@witness_options
@click.option("--dry-run", is_flag=True, help="Say what would become larger files, change nothing.")
@json_option
def compact(
    lake_dir: Path | None, journal_url: str | None, conn_id: str | None, dry_run: bool, as_json: bool
) -> int:
    """Write small data files of one topic again as larger ones. Each segment is proven in the larger file
    before its small one leaves the table; gc takes that later.

    What is damaged stays as it is, and is named. The command may be killed at any instant and run again.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.gc.compaction import compact_lake

    target = witnessed_lake(lake_dir, journal_url, conn_id)
    with waiting("Looking at receipts"):
        done = compact_lake(open_lake(target.config), dry_run=dry_run)
    if as_json:
        print_json("lake compact", done)
    else:
        say(f"{done.text or 'No small data files become larger ones'}.")
        for notice in (*done.faults, *done.notices):
            say(f"Note: {notice}")
    return 1 if done.faults else 0
