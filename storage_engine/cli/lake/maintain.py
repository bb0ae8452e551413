"""maintain, gc: remove expired data, and files that the lake has twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.lake.witnesses import WitnessedLake, witness_options, witnessed_lake
from storage_engine.cli.options.options import journal_of, lake_option
from storage_engine.cli.output.output import answer, print_table, say, say_notes
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, HOUR_MS, clock_ms
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.exceptions import LakeMissingError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.gc.garbage_kind import TRASH_MS, GarbageKind
from storage_engine.model.proof.receipt import ChainHead

if TYPE_CHECKING:
    from storage_engine.lake.catalog.catalog import Lake
    from storage_engine.lake.gc.garbage import Collection, DecidedFile
    from storage_engine.lake.gc.snapshot_expiry import LakeMaintenance
    from storage_engine.retention.housekeeping.maintaining import MaintainResult


_ALL = "all"
_METADATA = (GarbageKind.MANIFEST, GarbageKind.MANIFEST_LIST, GarbageKind.METADATA)


@command()
@lake_option()
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@click.option("--compact", is_flag=True, help="Write small data files as larger ones, as lake compact does.")
@json_option
def maintain(lake_dir: Path, dry_run: bool, compact: bool) -> int:
    """Remove expired data: segments that the lake's rules no longer keep, as lake expire does; snapshots of
    the lake's tables, and files that gc may remove then; quarantines whose window is over; reports with their
    Data Docs, runs, events and samples of the journal; and files of jobs that were killed.

    Data from which a deletion is decided is never removed: see docs/retention.md. The command may be killed
    at any instant and run again.
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
    if metadata is not None and not wants_json():
        _print_lake(metadata)
    return answer("maintain", {"lake": metadata, "history": history}, lambda _: _print_history(history))


def _maintain_lake(lake_dir: Path, *, dry_run: bool, compact: bool) -> LakeMaintenance | None:
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.gc.compaction import maintain_compaction
    from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
    from storage_engine.retention.housekeeping.lake_expiry import maintain_expiry

    target = witnessed_lake(lake_dir, None, None)
    try:
        lake = open_lake(target.config)
    except LakeMissingError:
        # A directory may have a journal and reports, but no lake.
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
        say(f"{verb} from the trash {count_text(done.deleted_files, 'file')} permanently.")
    say_notes(done.notices)


def _print_history(done: MaintainResult) -> None:
    for sentence in done.quarantines:
        say(f"{sentence[:1].upper()}{sentence[1:]}.")
    verb = "Would remove" if done.dry_run else "Removed"
    for kind, paths in (("report", done.report_directories), ("files of a dead job", done.job_directories)):
        for path in paths:
            say(f"{verb} {kind}: {path}")
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
    say_notes(done.notices)


@command()
@lake_option(required=False)
@witness_options
@click.option(
    "--grace",
    "grace_hours",
    type=click.FloatRange(min=1),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Skip files modified in the last HOURS: at least 1, or 24 on an object store or for foreign files.",
)
@click.option(
    "--trash-days",
    type=click.FloatRange(min=0),
    default=TRASH_MS / DAY_MS,
    show_default=True,
    metavar="DAYS",
    help="Permanently remove files after DAYS in the trash; on an object store, not before --grace is over.",
)
@click.option(
    "--delete",
    is_flag=True,
    help="Move the listed files into the trash; remove files that were in the trash for long enough.",
)
@click.option(
    "--undo",
    "undo_moment",
    is_flag=False,
    flag_value=_ALL,
    metavar="[PASS]",
    help=("Restore files of the named pass from the trash; without a name the files of all passes."),
)
@json_option
def gc(
    target: WitnessedLake, grace_hours: float, trash_days: float, delete: bool, undo_moment: str | None
) -> int:
    """List files that may be removed from the lake, because a live file provably has the same content: second
    copies of a segment, superseded files, and metadata of failed commits and expired snapshots. Files are
    moved into the trash only with --delete, and can be moved back.

    Files whose content no live file has are kept and listed as orphans; lake rebuild adds them to the lake.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.gc.garbage import collect

    if undo_moment is not None:
        if delete:
            raise click.UsageError("Expected either --delete or --undo.")
        return _undo(target, None if undo_moment == _ALL else undo_moment)
    lake = open_lake(target.config)
    with waiting("Looking for files that may be removed"):
        collection = collect(
            lake,
            grace_ms=round(grace_hours * HOUR_MS),
            trash_ms=round(trash_days * DAY_MS),
            delete=delete,
            known_heads=known_heads_of(lake, target.journal_url),
        )
    return answer(
        "gc", collection, lambda _: _print(collection, target.words, grace_hours, trash_days, delete=delete)
    )


def known_heads_of(lake: Lake, journal_url: str | None) -> dict[str, tuple[ChainHead, ...]]:
    """Return the receipts that a lake must have according to a journal and to the stamps of its stores."""
    from storage_engine.journal.journal import Journal
    from storage_engine.retention.store.known_heads import known_heads

    if journal_url is None:
        return {}
    journal = Journal(journal_url)
    segments = lake.segments()
    return {
        record.store_id: known_heads(journal, record).of(lake, segments) for record in journal.all_stores()
    }


def _undo(target: WitnessedLake, moment: str | None) -> int:
    from storage_engine.lake.gc.garbage import undo

    back = undo(target.config, moment)
    stay = (f"\nNote: {path} stays in the trash: another file has its name by now." for path in back.occupied)
    text = f"Put back {count_text(len(back.paths), 'file')} from the trash."
    answer("gc", back, Text(text, *stay, "\nNext: ", Command("gc", target.words)))
    return 1 if back.occupied else 0


def _print(
    collection: Collection, words: str, grace_hours: float, trash_days: float, *, delete: bool
) -> None:
    if collection.garbage:
        _print_garbage("may be removed, because no data is lost with them", collection.garbage)
    if collection.due:
        _print_garbage("in the trash for long enough", collection.due)
    _print_orphans(collection)
    for path in collection.unknown:
        say(
            f"Note: {path} is a link, or has no name that storage-engine or Iceberg gives; it is left as "
            "it is."
        )
    if collection.young_count:
        say(f"Note: {collection.young_count} more are younger than {grace_hours:g} hours.")
    if collection.waiting_count:
        text = f"{count_text(collection.waiting_count, 'file')}, {bytes_text(collection.waiting_bytes)}"
        say(f"Note: {text}, in the trash; gc --undo puts them back.")
    if not collection.garbage and not collection.due:
        say("No garbage.")
    elif not delete:
        say("Nothing was moved.")
        say("Next: ", Command("gc", f"{words} --delete"))
    if delete and collection.deleted:
        say(f"Permanently removed {_sum(collection.deleted)}.")
    if collection.moment:
        say(f"Moved to the trash: {_sum(collection.taken)}, as pass {collection.moment}.")
        say(f"Next: within {trash_days:g} days, ", Command("gc", f"{words} --undo"), " puts them back.")
    if any(file.kind not in _METADATA for file in collection.orphans):
        say("Next: ", Command("lake rebuild", words), " proves orphans and adds them to the lake.")


def _print_garbage(title: str, files: Sequence[DecidedFile]) -> None:
    print_table(
        f"{_sum(files)}: {title}",
        ("table", "size#", "last modified", "what", "why", "file"),
        (
            (
                file.table,
                bytes_text(file.size_bytes),
                time_text(file.modified_ns // 1_000_000),
                file.kind.value,
                file.reason,
                file.path,
            )
            for file in files
        ),
    )


def _print_orphans(collection: Collection) -> None:
    orphans = [file for file in collection.orphans if file.kind not in _METADATA]
    if orphans:
        print_table(
            f"{_sum(orphans)}: kept as orphans",
            ("table", "size#", "what", "file", "why"),
            (
                (file.table, bytes_text(file.size_bytes), file.kind.value, file.path, file.reason)
                for file in orphans
            ),
        )
    metadata = [file for file in collection.orphans if file.kind in _METADATA]
    if metadata:
        say(
            f"Note: {count_text(len(metadata), 'metadata file')} that no table uses are kept, such as "
            f"{metadata[0].path}: {metadata[0].reason}. --json lists all."
        )


def _sum(files: Sequence[DecidedFile]) -> str:
    return f"{count_text(len(files), 'file')}, {bytes_text(sum(file.size_bytes for file in files))}"
