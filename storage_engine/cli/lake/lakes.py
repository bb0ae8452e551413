"""lake: describe, expire and compact lakes, and mend a lake that was moved, copied or lost its catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import click

from storage_engine.cli.lake.keep import keep
from storage_engine.cli.lake.witnesses import WitnessedLake, part_journal, witness_options
from storage_engine.cli.options.options import journal_of, lake_and_journal, lake_option, of_lake
from storage_engine.cli.output.output import answer, print_json, print_table, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import Group, command, json_option, said_by, wants_json
from storage_engine.cli.shell.values import NamedPath, TargetPath, reason_text
from storage_engine.commands import Command, Text, with_arguments
from storage_engine.core.clock import DAY_MS
from storage_engine.core.host import person
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.gc.garbage_kind import TRASH_MS
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.expiry_rules import REWRITE_RULE, RewriteRule

if TYPE_CHECKING:
    from storage_engine.lake.move.describing import LakeInfo, TableInfo
    from storage_engine.lake.move.moving import Relocated
    from storage_engine.lake.move.rebuilding import Rebuilt
    from storage_engine.model.keep.expiry_rules import ExpiryVerdict
    from storage_engine.retention.housekeeping.lake_expiry import LakeExpiry


Function = TypeVar("Function", bound=Callable[..., Any])


_conn_id_option = of_lake(
    "--conn-id",
    environment=True,
    metavar="ID",
    help="Airflow connection of a store that has this lake, instead of --lake.",
)


@command("expire")
@lake_option(required=False)
@witness_options
@click.option(
    "--store-gone",
    "gone",
    metavar="STORE",
    multiple=True,
    help="A store, by name or id, that no longer has any data, whatever its journal says; may be repeated.",
)
@click.option(
    "--trash-days",
    type=click.FloatRange(min=0),
    default=TRASH_MS / DAY_MS,
    show_default=True,
    metavar="DAYS",
    help="Permanently remove the files of segments that expired DAYS ago.",
)
@click.option(
    "--rewrite-at-percent",
    type=click.FloatRange(0, 100),
    default=REWRITE_RULE.at_percent,
    show_default=True,
    metavar="PERCENT",
    help="Rewrite a data file without its expired topics once they have PERCENT of a segment's bytes.",
)
@click.option(
    "--rewrite-within-days",
    type=click.FloatRange(min=0),
    default=REWRITE_RULE.within_days,
    show_default=True,
    metavar="DAYS",
    help="Also rewrite a data file once one of its topics has been expired for DAYS.",
)
@click.option(
    "--dry-run", is_flag=True, help=("Show which segments would leave the lake, and why the others stay.")
)
@click.option(
    "--undo", "undo_id", metavar="ID", help="Restore segments that expired by the act with this id."
)
@json_option
def expire(
    target: WitnessedLake,
    gone: tuple[str, ...],
    trash_days: float,
    rewrite_at_percent: float,
    rewrite_within_days: float,
    dry_run: bool,
    undo_id: str | None,
) -> int:
    """Remove from a lake segments that its rules no longer keep: all their topics have expired, and their
    store no longer has them. If only some topics have expired, the others are written into another data file.
    An unknown fact keeps a segment, and so does a hold.

    Files of removed segments stay for --trash-days, so that --undo can restore the segments. Then the files
    are permanently removed. The command may be killed at any instant and run again.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.gc.segment_expiry import undo_expiry
    from storage_engine.retention.housekeeping.lake_expiry import expire_lake

    if undo_id is not None:
        if dry_run or gone:
            raise click.UsageError("Expected only --undo ID.")
        with waiting("Reading files back"):
            act = undo_expiry(open_lake(target.config), undo_id)
        expiry_id = act.act.decision.expiry[:SHOWN_CHARACTERS]
        text = Text(
            f"Restored the segments that expired by act {expiry_id} and whose files still exist.\nNext: ",
            Command("lake keep", target.words),
            ", otherwise they expire again.",
        )
        values = {"undone": act.act.decision.expiry, "act": act.sha256}
        return answer("lake expire", values, text)
    with waiting("Looking at receipts"):
        done = expire_lake(
            open_lake(target.config),
            target.journal_url,
            gone=gone,
            trash_ms=round(trash_days * DAY_MS),
            rewrite=RewriteRule(rewrite_at_percent, rewrite_within_days),
            dry_run=dry_run,
        )
    return answer("lake expire", done, lambda _: _print(done, target, trash_days))


def _print(done: LakeExpiry, target: WitnessedLake, trash_days: float) -> None:
    if done.verdicts:
        print_table(
            "Segments",
            ("log~", "segments#", "size#", "what", "why of the first"),
            map(_verdict_row, _group_verdicts(done.verdicts)),
        )
    say(f"{done.text[:1].upper()}{done.text[1:]}." if done.text else "Nothing expires.")
    if done.dry_run:
        say("Nothing was changed.")
    for act in done.acts:
        undo = Command("lake expire", f"{target.words} --undo {act[:SHOWN_CHARACTERS]}")
        say("Next: within ", f"{trash_days:g} days, ", undo, " brings them back.")


def _group_verdicts(verdicts: Sequence[ExpiryVerdict]) -> list[list[ExpiryVerdict]]:
    def key(verdict: ExpiryVerdict) -> tuple[str, str, str]:
        identity = verdict.segment.identity
        return identity.store_id, identity.log, verdict.reason.value

    return [list(group) for _, group in groupby(sorted(verdicts, key=key), key=key)]


def _verdict_row(group: Sequence[ExpiryVerdict]) -> tuple[str, ...]:
    first = group[0]
    size_bytes = sum(
        verdict.gone_bytes if verdict.is_thinned else verdict.segment.size_bytes for verdict in group
    )
    log = first.segment.identity.log
    return log, count_text(len(group), "segment"), bytes_text(size_bytes), first.reason.value, first.detail


@command("compact")
@lake_option(required=False)
@witness_options
@click.option(
    "--dry-run", is_flag=True, help="Show which files would be joined into larger ones, change nothing."
)
@json_option
def compact(target: WitnessedLake, dry_run: bool) -> int:
    """Join small data files of one topic into larger files. Each segment is proven in the larger file before
    its small file leaves the table. gc removes the small file later.

    Damaged files stay as they are, and are named. The command may be killed at any instant and run again.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.gc.compaction import compact_lake

    with waiting("Looking at receipts"):
        done = compact_lake(open_lake(target.config), dry_run=dry_run)
    notes = (Text("\nNote: ", note) for note in (*done.faults, *done.notices))
    answer("lake compact", done, Text(f"{done.text or 'No small data files can be joined'}.", *notes))
    return 1 if done.faults else 0


_directory_option = of_lake(
    "--lake",
    "lake_dir",
    environment=True,
    type=NamedPath(file_okay=False, exists=True),
    help="Directory of the lake; its catalog may be missing.",
)


_take_over_option = click.option(
    "--take-over",
    is_flag=True,
    help="Stop using another catalog that names the same files; it is refused from then on.",
)


@click.group(cls=Group)
def lake() -> None:
    """Describe, move, copy and rebuild lakes, decide what they keep, and expire the rest."""


lake.add_command(keep)
lake.add_command(expire)
lake.add_command(compact)


@lake.command()
@_directory_option
@_conn_id_option
@json_option
def info(lake_dir: Path | None, conn_id: str | None) -> int:
    """Describe a lake: identity, tables, marks, stores, and why commands refuse it. Changes nothing."""
    from storage_engine.lake.move.describing import describe

    facts = describe(lake_and_journal(lake_dir, conn_id)[0])
    arguments = said_by(click.get_current_context())
    facts = replace(facts, refused=with_arguments(facts.refused, arguments))
    answer("lake info", facts, print_info)
    return 1 if facts.refused else 0


@lake.command()
@lake_option(required=False)
@_conn_id_option
@_take_over_option
@json_option
def relocate(lake_dir: Path | None, conn_id: str | None, take_over: bool) -> int:
    """Correct a lake's metadata to the present place of its files: after its directory was copied or moved,
    after its catalog was moved, or after a mark was lost.

    Every file is checked first. If the original still exists, this lake becomes a read-only copy. The
    original itself isn't changed.
    """
    from storage_engine.lake.move.moving import relocate as relocate_lake

    config, journal_url = lake_and_journal(lake_dir, conn_id)
    # First, since once the lake can be opened, a run may write into a journal that a copy still shares.
    part_journal(journal_url)
    with waiting("Checking"):
        done = relocate_lake(config, take_over=take_over)
    return answer("lake relocate", done, _print_relocated)


def _print_relocated(done: Relocated) -> None:
    if not done.changed:
        say(f"{done.location}: every file and mark is in its place. Nothing was changed.")
        return
    if done.former is not None:
        say(
            f"Relocated: {count_text(done.file_count, 'file')}, {bytes_text(done.file_bytes)}, each of "
            "them checked."
        )
        say(f"Before: {done.former}")
    if done.dropped_snapshots:
        say(f"Note: {done.dropped_snapshots} older snapshots can't be read any more (no data is lost).")
    if done.other_catalog is not None:
        say(f"This is the lake's catalog now; {done.other_catalog} is refused from now on.")
    if done.copy_of is not None:
        say(
            f"Lake {done.lake_id} is a copy of {done.copy_of}, which still exists: it may be read, not "
            "written. ",
            Command("lake promote"),
            " makes it writable.",
        )
    else:
        say(f"Lake {done.lake_id or 'without UUID'} is at {done.location}.")


@lake.command("copy")
@lake_option(required=False)
@_conn_id_option
@click.option(
    "--to",
    "target_dir",
    type=TargetPath(file_okay=False),
    required=True,
    help="Directory for the copy, or a directory whose lake.json names its catalog and warehouse.",
)
@json_option
def copy_command(lake_dir: Path | None, conn_id: str | None, target_dir: Path) -> int:
    """Copy a lake: a backup that verifies on its own, has its own UUID, and is read-only.

    Each data file is compared with its receipt. A later run copies only new files.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.move.copying import copy_lake

    if not target_dir.absolute().parent.is_dir():
        raise click.BadParameter(
            f"expected a directory {target_dir.absolute().parent} to make the copy {target_dir.name!r} in, "
            "found none. Make it, or mount its disk.",
            param_hint="--to",
        )
    source = open_lake(lake_and_journal(lake_dir, conn_id)[0])
    with waiting("Copying"):
        done = copy_lake(source, LakeConfig.local(target_dir))
    if wants_json():
        print_json("lake copy", done)
        return 0
    say(
        f"Copied {count_text(done.file_count, 'file')}, {bytes_text(done.file_bytes)}; lake {done.lake_id} "
        f"at {done.location} has {count_text(done.receipt_count, 'receipt')} of lake {done.copy_of}."
    )
    if done.waiting:
        say(
            f"Note: {done.waiting} data files without receipts weren't copied; a later copy can include them."
        )
    say("Next: ", Command("verify", f"--lake {quote(str(target_dir))}"))
    return 0


@lake.command()
@lake_option(required=False)
@_conn_id_option
@click.option(
    "--reason",
    callback=reason_text,
    required=True,
    help="Reason for making the copy writable, such as that the original is gone.",
)
@json_option
def promote(lake_dir: Path | None, conn_id: str | None, reason: str) -> int:
    """Make a copy writable. Its UUID stays. The lake records who decided it, and why."""
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.move.copying import promote as make_writable

    done = make_writable(open_lake(lake_and_journal(lake_dir, conn_id)[0]), person(), reason)
    stores = f"STORE --lake {quote(str(lake_dir))}"
    text = Text(
        f"Lake {done.lake_id}, a copy of {done.copy_of} until now, may be written: {done.reason} "
        f"({done.person})\nNext: ",
        "run its DAG" if conn_id else Command("archive", stores),
        ". If the original had more of a store than this copy, first: ",
        Command("stamp", f"{f'--conn-id {quote(conn_id)}' if conn_id else stores} --reason TEXT"),
    )
    return answer("lake promote", done, text)


@lake.command()
@lake_option(required=False)
@_conn_id_option
@json_option
def upgrade(lake_dir: Path | None, conn_id: str | None) -> int:
    """Raise a lake to this release's version. New receipts then have the root of a tree. Older releases
    refuse the lake from then on, so first upgrade every host that opens it. No data file is changed."""
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.catalog.writing import upgrade as raise_version

    opened = open_lake(lake_and_journal(lake_dir, conn_id)[0])
    before, now = raise_version(opened)
    text = (
        f"{opened.location}: the lake already has version {now}. Nothing was changed."
        if before == now
        else (
            f"Upgraded {opened.location} from version {before} to {now}.\nSegments that are archived from "
            "now on have a root. Older releases refuse the lake."
        )
    )
    return answer("lake upgrade", {"location": opened.location, "before": before, "now": now}, text)


@lake.command()
@_directory_option
@witness_options
@_take_over_option
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@json_option
def rebuild(target: WitnessedLake, take_over: bool, dry_run: bool) -> int:
    """Make or mend a lake's catalog from its warehouse: the catalog is lost, is older than the warehouse, or
    is one of two catalogs that were both written.

    Marks and receipts decide which state of the lake counts. A segment that only another state has is proven
    again, with a new receipt. No file is removed.
    """
    from storage_engine.lake.move.rebuilding import rebuild as rebuild_lake
    from storage_engine.retention.store.known_heads import rebuild_heads

    heads = rebuild_heads(target.journal_url, target.config.location)
    if target.directory is not None and not dry_run:
        part_journal(journal_of(target.directory))
    with waiting("Looking at the warehouse"):
        done = rebuild_lake(target.config, heads, dry_run=dry_run, take_over=take_over)
    answer("lake rebuild", done, print_rebuilt)
    return 1 if done.refused or done.conflicting or done.missing or done.unknown_heads else 0


def print_info(lake_info: LakeInfo) -> None:
    facts = [
        ("lake", lake_info.lake_id or "no UUID"),
        ("warehouse", lake_info.location),
        ("catalog", lake_info.catalog or "none that answers"),
        ("namespace", lake_info.namespace),
        (
            "segments of",
            "the first store's kind" if lake_info.broker == "" else lake_info.broker or "nobody knows",
        ),
    ]
    if lake_info.copy_of is not None:
        facts.append(("copy of", f"{lake_info.copy_of}, read-only"))
    if lake_info.promoted is not None:
        act = lake_info.promoted
        facts.append(("promoted", f"by {act['person']}: {act['reason']}; was a copy of {act['copy_of']}"))
    if lake_info.acts:
        acts = f"{lake_info.acts} on what it keeps; {Command('lake keep')} shows those in force"
        facts.append(("acts", acts))
    facts += [(f"{table.name} was at", at) for table in lake_info.tables for at in table.former_locations]
    print_table("Lake", ("what", "value"), facts)
    print_table(
        "Tables",
        ("table", "version", "files#", "size#", "rows#", "snapshots#", "metadata files#", "metadata", "mark"),
        (
            (
                table.name,
                table.schema_version,
                table.file_count,
                bytes_text(table.file_bytes),
                table.row_count,
                table.snapshot_count,
                table.metadata_count,
                table.metadata,
                table.fault or _mark(table, lake_info),
            )
            for table in lake_info.tables
        ),
    )
    print_table(
        "Stores",
        ("store~", "name~", "segments#", "size#?", "last receipt#?", "log~", "lineage#", "offsets"),
        (
            (
                store.store_id,
                store.name,
                store.segment_count,
                bytes_text(store.size_bytes),
                store.head_sequence,
                log,
                lineage,
                f"[{start}, {end}){state}",
            )
            for store in lake_info.stores
            for ranges, state in (
                (store.ranges, ""),
                (store.expired, " EXPIRED"),
                (store.in_part, " in part NOT ARCHIVED"),
            )
            for log, lineage, start, end in ranges
        ),
    )
    if lake_info.acts_fault:
        say("\nActs: ", lake_info.acts_fault)
    if lake_info.refused:
        say("\nRefused: ", lake_info.refused)


def _mark(table: TableInfo, lake_info: LakeInfo) -> str:
    """Return how a mark differs from its table and lake; "agrees" if it doesn't, "none" without a mark."""
    if table.mark is None:
        return "none"
    faults = []
    if table.mark.lake_id != lake_info.lake_id:
        faults.append(f"lake {table.mark.lake_id}")
    if table.mark.catalog != lake_info.catalog:
        faults.append(f"catalog {table.mark.catalog}")
    if table.mark.metadata != table.metadata:
        faults.append(f"metadata {table.mark.metadata}")
    return ", ".join(faults) or "agrees"


def print_rebuilt(done: Rebuilt) -> None:
    print_table(
        "The lake's present state",
        (
            "table",
            "the catalog named",
            "names" if not done.dry_run else "would name",
            "other states end with",
        ),
        (
            (
                table.table,
                table.before or "nothing",
                "the same" if table.before == table.now else table.now,
                ", ".join(table.others),
            )
            for table in done.tables
        ),
    )
    say("")
    how = "to be proven again" if done.dry_run else "proven again, with new receipts"
    brought = count_text(len(done.brought), "segment")
    say(f"Lake {done.lake_id or 'without UUID'}: {brought} {how}.")
    for location in done.brought:
        say(f"  {location}")
    if done.copy_of is not None:
        say(f"It is a copy of {done.copy_of}: it may be read, and no segment was added to it.")
    if done.other_catalog is not None:
        say(f"Another catalog, {done.other_catalog}, is refused from now on.")
    for name in sorted({name for table in done.tables for name in table.damaged}):
        say(f"Note: {name} can't be read; it was left as it is.")
    for location in done.foreign:
        say(f"Note: {location} was left as it is: its name isn't ours, or its segments can't be read.")
    for reason in done.refused:
        say("Not proven: ", reason)
    for location in done.conflicting:
        say(f"Conflict: {location} was left as it is: a receipt for the same offset names other bytes.")
    for location in done.missing:
        say(f"Missing: {location}; ", Command("verify"), " names its segments.")
    for store in done.unknown_heads:
        say(
            f"Note: the journal or the stamp knows a receipt of store {store} that no state of the lake "
            "has. So no segment of that store is deleted. Look for the receipt in a second lake or a copy. "
            "If it is lost for ever, run ",
            Command("stamp"),
            ", which records that; --conn-id names a store of Airflow.",
        )
