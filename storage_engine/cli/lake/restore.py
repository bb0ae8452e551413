"""restore, export: archived data from the lake, as identical files or as messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from storage_engine.cli.options.options import lake_option, second_lake_option
from storage_engine.cli.output.next_line import say_next
from storage_engine.cli.output.output import answer, print_table, say, say_notes
from storage_engine.cli.output.progress import progress, waiting
from storage_engine.cli.shell.shared_options import command, json_option
from storage_engine.cli.shell.values import NamedPath, TargetPath, moment_ms
from storage_engine.commands import Command, Text
from storage_engine.core.wording import bytes_text, time_text
from storage_engine.exceptions import BadInputError, LakeUnavailableError, RestoreError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.restore.export_format import ExportFormat
from storage_engine.model.broker.codec import RestoredSetting

if TYPE_CHECKING:
    from storage_engine.lake.catalog.catalog import Lake
    from storage_engine.lake.restore.export import Selection
    from storage_engine.lake.restore.restore import ChosenSegments, RestoredSegment
    from storage_engine.lake.restore.restore_span import LineageRange


def _parse_offsets(
    _context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted({int(name) for name in text.split(",")}))
    except ValueError:
        raise click.BadParameter(
            f"expected names or base offsets of segments such as 0,1073741824; found {text!r}",
            param=parameter,
        ) from None


def _parse_time_ms(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    return None if text is None else moment_ms(text, None, option=parameter.opts[0])


from_time_option = click.option(
    "--from-time",
    "from_ms",
    metavar="TIME",
    callback=_parse_time_ms,
    help="Messages stored at or after TIME.",
)
to_time_option = click.option(
    "--to-time", "to_ms", metavar="TIME", callback=_parse_time_ms, help="Messages stored before TIME."
)


@command()
@lake_option()
@second_lake_option
@click.option("--to", "to_dir", type=TargetPath(), required=True, help="New directory to restore into.")
@click.option("--store-id", help="Id of the store; needed only if the lake has several.")
@click.option("--lineage", type=int, help="Number of the lineage; default: the newest.")
@click.option("--log", help="Name of the log; default: all logs of the store.")
@click.option(
    "--segments",
    metavar="NAMES",
    callback=_parse_offsets,
    help="Only these segments, by file name or base offset, separated by commas.",
)
@click.option("--from-offset", type=int, help="First offset.")
@click.option("--to-offset", type=int, help="Offset after the last byte or record.")
@from_time_option
@to_time_option
@click.option(
    "--for-store",
    "serving",
    type=NamedPath(dir_okay=False),
    multiple=True,
    help=(
        "The broker that will serve the store: its broker.conf, or a stopped node's server.properties. If "
        "several nodes have a replica, name each, beginning with the node to restore for."
    ),
)
@click.option(
    "--files-only",
    is_flag=True,
    help="Only segments, without the queues, index and configuration that a broker needs to serve them.",
)
@click.option(
    "--with-filler",
    is_flag=True,
    help="Also restore partly expired segments, with empty frames in place of the expired messages.",
)
@click.option(
    "--keep-mtime",
    is_flag=True,
    help="Give files their old modification time; a broker then deletes them at its next window.",
)
@json_option
def restore(
    lake_dir: Path,
    second_lake_dir: Path | None,
    to_dir: Path,
    store_id: str | None,
    lineage: int | None,
    log: str | None,
    serving: tuple[Path, ...],
    files_only: bool,
    with_filler: bool,
    keep_mtime: bool,
    **limits: Any,
) -> int:
    """Restore archived segments as identical files, in a store directory that a broker can serve.

    Whole segments are restored: all that have a part of the requested span. Existing files are never
    overwritten. Identical files are kept, so an interrupted restore continues where it stopped.
    """
    from storage_engine.lake.restore.restore import choose_segments, write_segments
    from storage_engine.lake.restore.restore_span import Span

    if files_only and serving:
        raise click.BadParameter(
            f"expected none with --files-only, which restores no files for a broker, found {serving[0]}. "
            "Nothing was written. Leave out one of the two options.",
            param_hint="--for-store",
        )
    lake, second = _open_either(lake_dir, second_lake_dir)
    store_id = _choose_store(lake, store_id)
    chosen = choose_segments(
        lake,
        store_id,
        second=second,
        span=Span(**limits),
        lineage=lineage,
        log=log,
        serving=serving,
        files_only=files_only,
        with_filler=with_filler,
    )
    with progress("Restoring", sum(receipt.size_bytes for receipt in chosen.receipts)) as advance:
        restored = write_segments(chosen, to_dir, keep_mtime=keep_mtime, progress=advance)
    values = {
        "store_id": store_id,
        "to": str(to_dir),
        "restored": restored,
        "extended": chosen.extensions,
        "settings": chosen.settings,
        "other_lineages": chosen.others,
        "expired": chosen.expired,
    }
    return answer("restore", values, lambda _: _print_restored(chosen, restored, to_dir, bool(serving)))


def _print_restored(
    chosen: ChosenSegments, restored: Sequence[RestoredSegment], to_dir: Path, is_named: bool
) -> None:
    """Print the restored files, the broker's settings, ranges that aren't restored, and the next command."""
    from storage_engine.brokers import find_broker, kind_option
    from storage_engine.lake.restore.restore_span import expired_line, read_filled

    print_table(
        f"Restored into {to_dir}",
        ("file~", "size#", "SHA-256", ""),
        (
            (
                Path(row.path).relative_to(to_dir),
                bytes_text(row.size_bytes),
                row.sha256[:16],
                ", ".join(
                    ["with filler"] * (row.sha256 != row.archived_sha256)
                    + ["was there already"] * row.existed
                ),
            )
            for row in restored
        ),
    )
    notes = [f"{filled}." for filled in read_filled(to_dir)]
    notes += [
        f"log {extension.log} was restored up to offset {extension.end}. The requested span ends at "
        f"{extension.asked_end}, up to which {extension.why}."
        for extension in chosen.extensions
    ]
    notes += [f"{expired_line(span)}. Nothing of it was restored." for span in chosen.expired]
    say_notes(notes, err=True)
    _print_others(chosen.receipts[0].lineage, chosen.others)
    broker = chosen.receipts[0].broker
    kind = kind_option(broker)
    if chosen.config is None:
        say(f"These are only the segments. {find_broker(broker).words.files_only}")
        return
    _print_settings(chosen.settings, is_named)
    if os.path.realpath(to_dir) == os.path.realpath(chosen.receipts[0].store_root):
        say(
            "This is the store's old directory. Once its broker continues there, ",
            Command("stamp"),
            " records that it is the same store. After that, adopt records that its log continues "
            "differently from the archived one.",
        )
    say_next(
        Command("inspect", f"{quote(str(to_dir))}{kind}"),
        "A broker serves these messages once its settings name the new directory. Look at it first",
    )


def _print_settings(settings: Sequence[RestoredSetting], is_named: bool) -> None:
    """Print the settings for which queues and index were made, except those that the broker certainly has.

    :param is_named: whether the broker's own file was named. Settings missing there have the broker's
        defaults.
    """
    unsure = [setting for setting in settings if setting.source == "lake" or not is_named]
    if not unsure:
        return
    print_table(
        "Queues and index are for a broker with these settings",
        ("setting", "value", "from"),
        ((setting.name, setting.value, setting.source) for setting in unsure),
    )
    or_again = "" if is_named else ", or restore into a new directory with --for-store BROKER.CONF"
    say(
        "A broker with other settings doesn't start on them, or serves only a part. Set the same values "
        f"in its broker.conf{or_again}."
    )
    for note in filter(None, (setting.note for setting in unsure)):
        say(note)


def _print_others(lineage: int, others: Sequence[LineageRange]) -> None:
    """Print the segments of the store's other lineages, which are not restored here."""
    for number, ranges in groupby(others, key=lambda row: row.lineage):
        held = ", ".join(f"{row.log} [{row.start_offset}, {row.end_offset})" for row in ranges)
        say(
            f"Note: this is lineage {lineage}. Lineage {number} has {held}, and none of that was restored: "
            f"--lineage {number} restores it into a directory of its own.",
            err=True,
        )


def _open_either(lake_dir: Path, second_dir: Path | None) -> tuple[Lake, Lake | None]:
    """Open both lakes. If only one can be opened, everything is restored from that lake."""
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.retention.proof.proofs import unreachable_error

    if second_dir is None:
        return open_lake(LakeConfig.local(lake_dir)), None
    opened: list[Lake] = []
    failures: list[LakeUnavailableError] = []
    for directory in (lake_dir, second_dir):
        try:
            opened.append(open_lake(LakeConfig.local(directory)))
        except LakeUnavailableError as error:
            failures.append(error)
    if not opened:
        raise unreachable_error([Text(failure) for failure in failures])
    for failure in failures:
        say("Note: a lake could not be asked: ", failure, err=True)
    return opened[0], opened[1] if len(opened) > 1 else None


def _choose_store(lake: Lake, store_id: str | None) -> str:
    from storage_engine.brokers import store_text
    from storage_engine.lake.soundness.receipts import list_stores

    stores = {row.store_id: row for row in list_stores(lake)}
    if not stores:
        raise RestoreError(
            f"lake {lake.location}: expected archived segments, found none. Nothing was "
            "written. Name another lake, or archive the store first."
        )
    if store_id is None and len(stores) > 1:
        listed = "; ".join(
            f"{row.store_id} ({store_text(row.store_name, row.broker, row.store_root)}, {row.store_root}, "
            f"last proven {time_text(row.newest_proof_ms)})"
            for row in stores.values()
        )
        raise BadInputError(
            f"lake {lake.location}: it has several stores; choose one with --store-id: {listed}.",
            page="restore",
        )
    chosen = store_id or next(iter(stores))
    if chosen not in stores:
        raise BadInputError(
            f"lake {lake.location}: expected one of its stores {', '.join(stores)}, found {chosen!r}.",
            page="restore",
        )
    return chosen


def _no_match_text(selection: Selection, lake: Lake) -> str:
    criteria = {
        "topic": selection.topic,
        "topic id": selection.topic_id,
        "key": selection.key,
        "queue": selection.queue_id,
        "store": selection.store_id,
        "lineage": selection.lineage,
    }
    named = ", ".join(f"{name} {value!r}" for name, value in criteria.items() if value is not None)
    return (
        f"Note: no archived message in {lake.location} matches"
        + (f" {named}" if named else "")
        + (" in the requested span of time" if (selection.from_ms, selection.to_ms) != (None, None) else "")
        + ", so the file has none. Names are compared letter by letter."
    )


def _format_of(target: Path, option: str | None) -> ExportFormat:
    """Return the format of a file. Its name must not contradict the format.

    :raises click.BadParameter: its name has the ending of another format, or no known one.
    """
    by_ending = {f".{kind.value}": kind for kind in ExportFormat}
    named = by_ending.get(target.suffix.lower())
    if option is not None and named in (None, ExportFormat(option)):
        return ExportFormat(option)
    if option is None and (named is not None or not target.suffix):
        return named or ExportFormat.PARQUET
    raise click.BadParameter(
        f"expected a name that ends in {' or '.join(by_ending)}, as its --format says, found "
        f"{target.name}. Nothing was written. Rename it, or give --format; DuckDB makes CSV from Parquet.",
        param_hint="--to",
    )


@command()
@lake_option()
@click.option("--to", "to_file", type=TargetPath(), required=True, help="New file to write; see --format.")
@click.option("--topic", help="Messages of this topic.")
@click.option(
    "--topic-id", help=("Of several topics with the same name, the topic with this id, in Kafka's form.")
)
@click.option("--key", help="Messages with this key or unique key.")
@click.option("--queue", "queue_id", type=int, help="Messages of this queue, or partition.")
@from_time_option
@to_time_option
@click.option("--store-id", help="Messages of this store; default: all stores.")
@click.option("--lineage", type=int, help="Messages of this lineage; default: all lineages.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice([file_format.value for file_format in ExportFormat]),
    help="parquet: typed columns; jsonl: a JSON object a line; default: by the name's ending, or parquet.",
)
@click.option("--decompress", is_flag=True, help="Decompress bodies that producers have compressed.")
@json_option
def export(lake_dir: Path, to_file: Path, file_format: str | None, decompress: bool, **selected: Any) -> int:
    """Write archived messages into a new file, selected by topic, key, queue and time.

    Only files and row groups that may contain them are read. An existing file is never overwritten.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.restore.export import Selection, check_topic, export_messages
    from storage_engine.lake.restore.restore_span import expired_line

    chosen = _format_of(to_file, file_format)
    selection = Selection(**selected)
    lake = open_lake(LakeConfig.local(lake_dir))
    if selection.topic is not None:
        check_topic(lake, selection.topic)
    with waiting("Exporting"):
        result = export_messages(lake, to_file, selection, file_format=chosen, decompress=decompress)
    for span in result.expired:
        say(f"Note: {expired_line(span)}. None of it was exported.", err=True)
    if not result.message_count:
        say(_no_match_text(selection, lake), err=True)
    first, last = time_text(result.first_store_timestamp_ms), time_text(result.last_store_timestamp_ms)
    text = (
        f"{result.path}: {result.message_count:,} messages, {bytes_text(result.size_bytes)}"
        + (f", stored {first} to {last}" if result.message_count else "")
        + (f", {result.still_compressed:,} with compressed bodies" if result.still_compressed else "")
        + f". Read {bytes_text(result.bytes_read)} in {result.row_groups_read} row groups of "
        f"{result.files_read} of {result.files_total} files."
    )
    return answer("export", result, text)
