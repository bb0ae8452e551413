"""inspect, plan, lag, index-lookup: read-only commands on a store. Nothing here changes anything."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from storage_engine.cli.options.options import REPLICAS_STOPPED
from storage_engine.cli.options.store_argument import has_lake, takes_store
from storage_engine.cli.output.live_output import live_json, look_live, print_live
from storage_engine.cli.output.output import (
    NAME_WIDTH,
    answer,
    print_json,
    print_table,
    put,
    say,
    say_notes,
    store_head,
    store_name,
    terminal_width,
)
from storage_engine.cli.output.plan_output import by_hand, plan_json, print_disks, print_pending, print_plan
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.cli.shell.values import disk_percents, key_value_pairs, moment_ms, reason_text
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text, did_you_mean, shorten, time_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.model.lag import ArchiveLag, touched_text
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.diagnosis import named_in_short, reason_of
from storage_engine.model.report.inspection import Disks, Inspection, Names, Paragraph, Table
from storage_engine.retention.proof.shielding import shield_summary

if TYPE_CHECKING:
    from storage_engine.retention.quarantine.places import QuarantineLook
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@takes_store(lake=None, second_lake=True, policy=("undo_directories",))
@click.option("--messages", is_flag=True, help="Read every segment: messages, last timestamps, damage.")
@click.option("--queues", is_flag=True, help="List every consume queue with its bounds.")
@json_option
def inspect(managed: ManagedStore, messages: bool, queues: bool) -> int:
    """Describe STORE and its contents: segments, queues, index, checkpoint, topics, settings in effect.

    Beside a running broker, also show the broker's own description, and whether the store is held.

    With --lake, also show the archive lag: sealed segments that the lake doesn't prove.
    """
    from storage_engine.retention.quarantine.places import look_at_quarantines
    from storage_engine.retention.store.brokers import inspect_store

    now_ms = clock_ms()
    look = look_live(managed, now_ms)
    with waiting("Reading"):
        snapshot = None if look is None else look.snapshot
        inspection = inspect_store(managed, now_ms, messages=messages, queues=queues, snapshot=snapshot)
    aside = look_at_quarantines(managed, inspection.data_paths)
    lag = _archive_lag(managed) if has_lake(managed) else None
    shield = shield_summary(managed.real_root)
    if wants_json():
        values = {"name": store_name(managed), **inspection.data, "quarantines": to_jsonable(aside)}
        if look is not None:
            values |= live_json(look)
        if shield is not None:
            values["shield"] = to_jsonable(shield)
        print_json("inspect", values if lag is None else {**values, "archive_lag": lag})
        return 0
    say(store_head(managed))
    if look is not None:
        print_live(look)
    print_inspection(inspection)
    print_quarantines(aside)
    if shield is not None:
        say("\nShield: ", shield.text)
        say_notes(shield.notices)
    if lag is not None:
        say("\nArchive lag: ", lag.text)
        say_notes(lag.notes)
    return 0


def _archive_lag(managed: ManagedStore) -> ArchiveLag:
    # Imports the lake's libraries, which inspect needs only for this.
    from storage_engine.retention.archive.sealed import archive_lag

    return archive_lag(managed)


@command()
@takes_store(lake=None, policy=("pending_policy", "minimum_retention_hours"))
@click.option("--at", metavar="TIME", help="Plan for this moment, such as 2026-11-21T04:10.")
@click.option(
    "--disk",
    "disks",
    metavar="PATH=RATIO",
    multiple=True,
    callback=key_value_pairs,
    help="Assume this level of a disk, such as /data/commitlog=0.86; repeatable.",
)
@click.option("--manual", is_flag=True, help="Plan a run by hand: expired segments are deleted at any hour.")
@click.option("--replicas-stopped", callback=reason_text, metavar="REASON", help=REPLICAS_STOPPED)
@json_option
def plan(
    managed: ManagedStore, at: str | None, disks: dict[str, str], manual: bool, replicas_stopped: str | None
) -> int:
    """Show the segments that a cleanup of STORE would delete or keep, each with a reason, and the files that
    would be deleted with them.

    Beside a running broker, the journal in --lake has the age of segments whose files a hold has touched.
    With --lake, also show how many segments' files were touched after they were archived. A run hashes these
    segments again.
    """
    from storage_engine.arrow.alone import load_arrow_alone

    load_arrow_alone()
    from storage_engine.retention.plan.preview import preview

    request = PlanRequest(manual=manual, replicas_stopped=replicas_stopped or "")
    levels = disk_percents(disks)
    decided = preview(
        managed,
        request,
        now_ms=None if at is None else moment_ms(at, managed.time_zone, option="--at"),
        used_percents=levels,
    )
    notices = (*decided.plan.notices, *_touch_notices(managed))
    decided = replace(decided, plan=replace(decided.plan, notices=notices))
    return answer(
        "plan",
        plan_json(managed, decided),
        lambda _: print_plan(managed, decided, by_hand(managed, request, decided, levels)),
    )


def _touch_notices(managed: ManagedStore) -> tuple[str, ...]:
    """Return a notice on archived segments that a run would hash again, or on why they aren't known."""
    if not has_lake(managed):
        return ()
    try:
        lag = _archive_lag(managed)
    except StorageEngineError as error:
        text = "it is unknown which segments' files were touched after they were archived: "
        return (Text(text, reason_of(error)),)
    return (*([touched_text(lag.touched)] if lag.touched else []), *lag.notes)


@command()
@takes_store(lake=False)
@click.option("--group", help="Only this consumer group.")
@json_option
def lag(managed: ManagedStore, group: str | None) -> int:
    """Show how far each consumer group of STORE is behind, and how much of that a cleanup would delete now.

    Then show messages that the broker still has to deliver or to decide: timers, delayed and half messages.

    Positions are those that a stopped broker last wrote to its config directory, or a running broker's
    answers. The position of a group that never committed one is unknown, not zero.
    """
    from storage_engine.brokers import find_broker
    from storage_engine.cli.output.lag import in_process_lag, print_lag
    from storage_engine.retention.plan.preview import preview

    rows: list[dict[str, Any]] = []
    groups: set[str] = set()
    with waiting("Measuring lag"):
        decided = preview(managed, PlanRequest(manual=True))
        tables = in_process_lag(managed, tuple(segment.id for segment in decided.plan.to_delete))
        # Only this command imports Arrow's compute functions.
        from pyarrow import compute as pc

        for table in tables:
            table_groups = set(map(str, table["group"].unique().to_pylist()))
            groups |= table_groups
            if group is None or group in table_groups:
                chosen = table if group is None else table.filter(pc.field("group") == group)
                rows += chosen.to_pylist()
    if group is not None and group not in groups:
        raise BadInputError(
            f"{managed.root}: expected a consumer group of this store "
            f"({', '.join(sorted(groups)) or 'none'}), found {group!r}.{did_you_mean(group, groups)}",
            page="command-line",
        )
    if wants_json():
        print_json("lag", {"rows": rows, "source": tables.source, "pending": decided.pending})
    else:
        # The plan above is one by hand. By the broker's own rules, its segments may not be deleted now.
        by_hand = not preview(managed, PlanRequest()).plan.to_delete
        by_broker = not managed.cleans_up
        unit = find_broker(managed.broker).words.queue
        print_lag(rows, tables.source, unit, by_hand=by_hand and not by_broker, by_broker=by_broker)
        if group is None:
            print_pending(decided.pending)
    return 0


@command("index-lookup")
@takes_store(lake=False)
@click.argument("topic")
@click.argument("key")
@click.option(
    "--max",
    "max_count",
    type=click.IntRange(min=1),
    help="Show this many of the newest at most; default: maxMsgsNumBatch.",
)
@json_option
def index_lookup(managed: ManagedStore, topic: str, key: str, max_count: int | None) -> int:
    """List the physical offsets of TOPIC's messages that have KEY.

    The broker's index finds them by a hash, and each entry is compared with the message in the log. KEY is
    one of a message's keys or its unique key. Entries whose message the log doesn't have are named. Exit code
    1: no message was found; then missing parts of the index are named.
    """
    from storage_engine.brokers import find_broker
    from storage_engine.retention.store.broker_answers import package_errors
    from storage_engine.retention.store.brokers import settings_of

    kind = find_broker(managed.broker)
    with package_errors(managed.broker, "look up a key"):
        index = kind.inspection
        matches = None if index is None else index.look_up(settings_of(managed), topic, key, max_count)
        unindexed = () if index is None else index.unindexed(settings_of(managed))
    if matches is None:
        title = kind.words.title
        raise BadInputError(
            f"{managed.root}: expected a broker with an index of keys, found {title}. "
            "Nothing was changed. Ask its lake for a key: ",
            Command("export"),
            ", with --key.",
        )
    if wants_json():
        values = {"topic": topic, "key": key, "physical_offsets": matches.offsets, "unindexed": unindexed}
        print_json("index-lookup", {**values, "unread": matches.unread})
        return 0 if matches.offsets else 1
    for offset in matches.offsets:
        put(offset)
    if matches.unread:
        say(f"{managed.root}: {_unread_text(matches.unread)}", err=True)
    if not matches.offsets:
        say(f"{managed.root}: {_not_found(topic, key, unindexed)}", err=True)
    return 0 if matches.offsets else 1


def _unread_text(offsets: Sequence[int]) -> str:
    return (
        f"the index lists {count_text(len(offsets), 'offset')} under this hash at which the log has no "
        f"readable message, {named_in_short(list(map(str, offsets)))}: the message was deleted, or is "
        "damaged. It is unknown whether it has this topic and key."
    )


def _not_found(topic: str, key: str, unindexed: Sequence[tuple[int, int | None]]) -> str:
    if not unindexed:
        return f"the log has no message of topic {topic!r} with key {key!r}."
    spans = " and ".join(
        f"from offset {first} on" if end is None else f"below offset {end} (from {first} on)"
        for first, end in unindexed
    )
    return Text(
        f"the index lists no message of topic {topic!r} with key {key!r}, but messages are not indexed "
        f"{spans}. ",
        Command("rebuild-queues"),
        " indexes the whole log. The broker must be stopped.",
    )


def print_inspection(inspection: Inspection) -> None:
    for section in inspection.sections:
        match section:
            case Paragraph(text):
                say(text)
            case Disks(levels):
                print_disks(levels)
            case Table(title, columns, rows):
                print_table(title, columns, rows)
            case Names(title, names):
                _print_names(title, names)


def print_quarantines(quarantines: Sequence[QuarantineLook]) -> None:
    """Print the files that runs have moved into quarantines, if there are any."""
    if not quarantines:
        return
    print_table(
        f"Quarantine: uses space until it is emptied; {Command('undo', 'RUN')} restores a run's files",
        ("run", "files#", "size#", "until", "in"),
        (
            (
                row.run_key or "unknown",
                row.files,
                bytes_text(row.size_bytes),
                time_text(row.until_ms),
                row.directory,
            )
            for row in quarantines
        ),
    )
    for row in quarantines:
        if row.error:
            say(f"{row.directory}: ", row.error)


def _print_names(title: str, names: Iterable[str]) -> None:
    width = terminal_width()
    texts = [name if width is None else shorten(name, NAME_WIDTH) for name in names]
    text = f"{title} ({len(texts)}): {', '.join(texts) or 'none'}"
    if width is not None:
        text = textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)
    say(text)
