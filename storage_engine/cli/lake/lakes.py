"""lake: what a lake is, and what to do when it was moved, copied, or has lost its catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from storage_engine.cli.lake.compact import compact
from storage_engine.cli.lake.expire import expire
from storage_engine.cli.lake.keep import keep
from storage_engine.cli.lake.witnesses import part_journal, witness_options, witnessed_lake
from storage_engine.cli.options.airflow_connection import store_of_connection
from storage_engine.cli.options.options import journal_of, json_option, lake_option
from storage_engine.cli.output.lake_output import print_info, print_rebuilt
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.command import Group, GroupedOption
from storage_engine.cli.shell.values import NamedPath, TargetPath, reason_text
from storage_engine.core.host import person
from storage_engine.core.next_commands import with_arguments
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.lake.catalog.config import LakeConfig

Function = TypeVar("Function", bound=Callable[..., Any])


_conn_id_option = click.option(
    "--conn-id",
    cls=GroupedOption,
    group="Lake",
    environment=True,
    metavar="ID",
    help="Airflow connection of a store whose lake it is, instead of --lake.",
)


def _lake_of(lake_dir: Path | None, conn_id: str | None) -> tuple[LakeConfig, str]:
    """Return a lake, and the URL of the journal that belongs to it.

    :raises click.UsageError: both are given, or neither.
    """
    if (lake_dir is None) == (conn_id is None):
        raise click.UsageError("Expected either --lake DIRECTORY or --conn-id ID.")
    if lake_dir is not None:
        return LakeConfig.local(lake_dir), journal_of(lake_dir)
    assert conn_id is not None
    store = store_of_connection(conn_id)
    return store.lake, store.journal_url


def _directory_option(*, required: bool = True) -> Callable[[Function], Function]:
    return click.option(
        "--lake",
        "lake_dir",
        cls=GroupedOption,
        group="Lake",
        environment=True,
        type=NamedPath(file_okay=False, exists=True),
        required=required,
        help="Directory of the lake; its catalog need not be there.",
    )


_take_over_option = click.option(
    "--take-over",
    is_flag=True,
    help="Another catalog that names the same files is not to be used any more; it is refused from then on.",
)


@click.group(cls=Group)
def lake() -> None:
    """Describe, move, copy and rebuild lakes, say what they keep, and expire the rest."""


lake.add_command(keep)
lake.add_command(expire)
lake.add_command(compact)


@lake.command()
@_directory_option(required=False)
@_conn_id_option
@json_option
def info(lake_dir: Path | None, conn_id: str | None, as_json: bool) -> int:
    """Say what a lake is: identity, tables, marks and stores; also of one that other commands refuse, and
    then why. Nothing is changed.
    """
    from storage_engine.lake.move.describing import describe

    found = describe(_lake_of(lake_dir, conn_id)[0])
    said = {"lake_dir": lake_dir, "conn_id": conn_id}
    found = replace(found, refused=with_arguments(found.refused, said))
    if as_json:
        print_json("lake info", found)
    else:
        print_info(found)
    return 1 if found.refused else 0


@lake.command()
@lake_option(required=False)
@_conn_id_option
@_take_over_option
@json_option
def relocate(lake_dir: Path | None, conn_id: str | None, take_over: bool, as_json: bool) -> int:
    """Bring a lake's metadata to where its files are, after a plain copy or a move of its directory, after
    its catalog was moved, or when a mark is lost.

    Every file is looked at first. Where the original is still there, this one is a copy from then on, and
    read-only. Nothing at the other place is changed.
    """
    from storage_engine.lake.move.relocating import relocate as relocate_lake

    config, journal_url = _lake_of(lake_dir, conn_id)
    # First: once the lake can be opened, a run may write into a journal that a copy still shares.
    part_journal(journal_url)
    with waiting("Checking"):
        done = relocate_lake(config, take_over=take_over)
    if as_json:
        print_json("lake relocate", done)
        return 0
    if not done.changed:
        say(f"{done.location}: every file and mark is where it belongs. Nothing was changed.")
        return 0
    if done.former is not None:
        say(
            f"Relocated: {count_text(done.file_count, 'file')}, {bytes_text(done.file_bytes)}, "
            "each looked at."
        )
        say(f"Before: {done.former}")
    if done.dropped_snapshots:
        say(f"Note: {done.dropped_snapshots} older snapshots can't be read any more (no data is lost).")
    if done.other_catalog is not None:
        say(f"This catalog is the lake's now; {done.other_catalog} is refused from now on.")
    if done.copy_of is not None:
        say(
            f"Lake {done.lake_id} is a copy of {done.copy_of}, which is still there: it may be read, not "
            "written. storage-engine lake promote makes it writable."
        )
    else:
        say(f"Lake {done.lake_id or 'without UUID'} is at {done.location}.")
    return 0


@lake.command("copy")
@lake_option(required=False)
@_conn_id_option
@click.option(
    "--to",
    "target_dir",
    type=TargetPath(file_okay=False),
    required=True,
    help="Directory for the copy, or one whose lake.json says where its catalog and warehouse are.",
)
@json_option
def copy_command(lake_dir: Path | None, conn_id: str | None, target_dir: Path, as_json: bool) -> int:
    """Copy a lake: a backup that verifies on its own, has its own UUID, and is read-only.

    Each data file is compared with its receipt on the way. Run again later, it copies what is new.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.move.copying import copy_lake

    if not target_dir.absolute().parent.is_dir():
        raise click.BadParameter(
            f"expected a directory {target_dir.absolute().parent} to make the copy {target_dir.name!r} in, "
            "found none. Make it, or mount its disk.",
            param_hint="--to",
        )
    source = open_lake(_lake_of(lake_dir, conn_id)[0])
    with waiting("Copying"):
        done = copy_lake(source, LakeConfig.local(target_dir))
    if as_json:
        print_json("lake copy", done)
        return 0
    say(
        f"Copied {count_text(done.file_count, 'file')}, {bytes_text(done.file_bytes)}; lake {done.lake_id} "
        f"at {done.location} has {count_text(done.receipt_count, 'receipt')} of lake {done.copy_of}."
    )
    if done.waiting:
        say(f"Note: {done.waiting} data files have no receipt yet; the next copy brings them.")
    say(f"Next: storage-engine verify --lake {target_dir}")
    return 0


@lake.command()
@lake_option(required=False)
@_conn_id_option
@click.option(
    "--reason",
    callback=reason_text,
    metavar="TEXT",
    required=True,
    help="Why the copy is to be written, such as that the original is gone.",
)
@json_option
def promote(lake_dir: Path | None, conn_id: str | None, reason: str, as_json: bool) -> int:
    """Make a copy a lake that may be written. Its UUID stays; who decided it, and why, is recorded in it."""
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.move.promoting import promote as make_writable

    done = make_writable(open_lake(_lake_of(lake_dir, conn_id)[0]), person(), reason)
    if as_json:
        print_json("lake promote", done)
    else:
        say(
            f"Lake {done.lake_id}, a copy of {done.copy_of} until now, may be written: {done.reason} "
            f"({done.person})"
        )
        stores = f"STORE --lake {lake_dir}"
        archiving = "run its DAG" if conn_id else f"storage-engine archive {stores}"
        say(
            f"Next: {archiving}. For a store of which the original had more than this copy, first: "
            f"storage-engine stamp {f'--conn-id {conn_id}' if conn_id else stores} --reason TEXT"
        )
    return 0


@lake.command()
@lake_option(required=False)
@_conn_id_option
@json_option
def upgrade(lake_dir: Path | None, conn_id: str | None, as_json: bool) -> int:
    """Raise a lake to this release's version, so that receipts from then on have the root of a tree. Older
    releases refuse it from then on: upgrade every host that opens it first. No data file is changed.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.catalog.writing import upgrade as raise_version

    opened = open_lake(_lake_of(lake_dir, conn_id)[0])
    before, now = raise_version(opened)
    if as_json:
        print_json("lake upgrade", {"location": opened.location, "before": before, "now": now})
    elif before == now:
        say(f"{opened.location}: the lake is of version {now} already. Nothing was changed.")
    else:
        say(f"Upgraded {opened.location} from version {before} to {now}.")
        say("What is archived from now on has a root. Older releases refuse the lake.")
    return 0


@lake.command()
@_directory_option(required=False)
@witness_options
@_take_over_option
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
def rebuild(
    lake_dir: Path | None,
    journal_url: str | None,
    conn_id: str | None,
    take_over: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Make or mend the catalog of a lake whose warehouse is there: the catalog is lost, older than the
    warehouse, or one of two that both went on.

    Segments that only another state of the lake had are proven again and get new receipts. No file is
    removed.
    """
    from storage_engine.lake.move.rebuilding import rebuild as rebuild_lake
    from storage_engine.retention.ranges.rebuild_heads import rebuild_heads

    target = witnessed_lake(lake_dir, journal_url, conn_id)
    heads = rebuild_heads(target.journal_url, target.config.location)
    if lake_dir is not None and not dry_run:
        part_journal(journal_of(lake_dir))
    with waiting("Looking at the warehouse"):
        done = rebuild_lake(target.config, heads, dry_run=dry_run, take_over=take_over)
    if as_json:
        print_json("lake rebuild", done)
    else:
        print_rebuilt(done)
    return 1 if done.refused or done.conflicting or done.missing or done.unknown_heads else 0
