"""gc: files in the lake that nothing refers to."""

from __future__ import annotations

from pathlib import Path

import click

from storage_engine.cli.options import json_option, lake_option
from storage_engine.cli.output import print_json, print_table
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.garbage import collect
from storage_engine.retention.clock import clock_ms
from storage_engine.wording import bytes_text, time_text

_HOUR_MS = 3_600_000


@click.command()
@lake_option()
@click.option(
    "--grace",
    "grace_hours",
    type=click.FloatRange(min=1),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Leave files alone that were modified in the last HOURS, at least 1, and 24 to remove from an "
    "object store: an attempt may be running.",
)
@click.option("--delete", is_flag=True, help="Remove what is listed.")
@json_option
def gc(lake_dir: Path, grace_hours: float, delete: bool, as_json: bool) -> int:
    """List files in the lake that nothing refers to: of attempts that died, of commits that failed, of
    snapshots that were expired. Nothing is removed without --delete.

    What a snapshot in the tables, the tables' metadata log or a receipt refers to is never listed.
    """
    lake = open_lake(LakeConfig.local(lake_dir))
    found = collect(lake, grace_ms=round(grace_hours * _HOUR_MS), now_ms=clock_ms(), delete=delete)
    if as_json:
        print_json(
            {
                "garbage": found.garbage,
                "garbage_bytes": found.garbage_bytes,
                "deleted": [file.path for file in found.deleted],
                "deleted_bytes": found.deleted_bytes,
                "young_count": found.young_count,
                "unknown": found.unknown,
            }
        )
        return 0
    if found.garbage:
        print_table(
            f"Nothing refers to these {len(found.garbage)} files, {bytes_text(found.garbage_bytes)}",
            ("table", "size#", "last modified", "what", "file"),
            (
                (
                    file.table,
                    bytes_text(file.size_bytes),
                    time_text(file.modified_ns // 1_000_000),
                    file.kind.value,
                    file.path,
                )
                for file in found.garbage
            ),
        )
    for path in found.unknown:
        click.echo(f"Note: {path} is no file of ours or of Iceberg's; it is left alone.")
    if found.young_count:
        click.echo(f"Note: {found.young_count} more are younger than {grace_hours:g} hours.")
    if delete:
        click.echo(f"Removed {len(found.deleted)} files, {bytes_text(found.deleted_bytes)}.")
    elif found.garbage:
        click.echo("Nothing was removed; --delete removes these files.")
    else:
        click.echo("No garbage.")
    return 0
