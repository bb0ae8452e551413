"""How an inspected store is shown to a person."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import fields

from storage_engine.cli.output import NAME_WIDTH, console, print_table, say
from storage_engine.cli.plan_output import print_disks
from storage_engine.retention.quarantine.look import QuarantineLook
from storage_engine.rocketmq.inspect import SegmentInspection, StoreInspection
from storage_engine.wording import bytes_text, shortened, time_text


def print_inspection(found: StoreInspection, *, messages: bool) -> None:
    """:param messages: every frame was read, so its counts are known."""
    _print_state(found)
    _print_segments(found.segments, messages=messages)
    if found.queues:
        print_table(
            "Consume queues",
            ("topic~", "queue#", "files#", "min#", "max#", "kind"),
            (
                (q.topic, q.queue_id, q.files, q.min_offset, q.max_offset, "batch" if q.batch else "")
                for q in found.queues
            ),
        )
    say()
    if found.index_files:
        first, last = found.index_files[0], found.index_files[-1]
        say(
            f"Index: {len(found.index_files)} files, offsets {first.begin_phy_offset} to "
            f"{last.end_phy_offset},\n       stored {time_text(first.begin_timestamp_ms)} to "
            f"{time_text(last.end_timestamp_ms)}"
        )
    _print_names("Topics", [topic.topic for topic in found.topics])
    _print_names("Groups", found.groups)
    settings = ((field.name, getattr(found.config, field.name)) for field in fields(found.config))
    print_table(
        "Settings in effect",
        ("setting", "value"),
        ((name, _setting_text(value)) for name, value in settings if name not in ("raw", "source")),
    )


def print_quarantines(found: Sequence[QuarantineLook]) -> None:
    """What runs have set aside; nothing is shown where nothing is."""
    if not found:
        return
    print_table(
        "Quarantine: used space until it is emptied; storage-engine undo RUN brings a run's files back",
        ("run", "files#", "size#", "until", "in"),
        (
            (
                one.run_key or "unknown",
                one.files,
                bytes_text(one.size_bytes),
                time_text(one.until_ms),
                one.directory,
            )
            for one in found
        ),
    )
    for one in found:
        if one.error:
            say(f"{one.directory}: {one.error}")


def _print_segments(rows: Sequence[SegmentInspection], *, messages: bool) -> None:
    if messages:
        print_table(
            "Commitlog",
            ("segment", "state", "messages#", "first stored", "last stored", "damaged#"),
            (
                (
                    row.segment.name,
                    row.segment.state.value,
                    row.messages,
                    time_text(row.first_store_timestamp_ms),
                    time_text(row.last_store_timestamp_ms),
                    bytes_text(row.damaged_bytes) if row.damaged_bytes else "none",
                )
                for row in rows
            ),
        )
    else:
        print_table(
            "Commitlog",
            ("segment", "size#", "state", "last written", "first stored"),
            (
                (
                    row.segment.name,
                    bytes_text(row.segment.facts.size_bytes),
                    row.segment.state.value,
                    time_text(row.segment.mtime_ns // 1_000_000),
                    time_text(row.first_store_timestamp_ms),
                )
                for row in rows
            ),
        )


def _print_state(found: StoreInspection) -> None:
    say(f"Store {found.root}")
    if found.holder is not None:
        say(f"Held by {found.holder.name} (process {found.holder.pid})")
    elif found.crashed:
        say("Not stopped cleanly: abort exists. It can be archived, but not cleaned until recovered.")
    least = "" if found.dispatched_offset >= found.max_offset else "at least "
    say(
        f"Offsets {found.min_offset} to {found.max_offset}; {found.queue_count} consume queues, "
        f"complete {least}up to {found.dispatched_offset}"
    )
    print_disks((*found.log_disks, found.dependents_disk))
    if found.checkpoint is None:
        say("Checkpoint: none")
    else:
        say(
            f"Checkpoint: commitlog {time_text(found.checkpoint.physic_msg_timestamp_ms)}, consume queues "
            f"{time_text(found.checkpoint.logics_msg_timestamp_ms)},\n            index "
            f"{time_text(found.checkpoint.index_msg_timestamp_ms)}"
        )


def _print_names(title: str, names: Iterable[str]) -> None:
    """A list of names, wrapped in a terminal and on one line elsewhere."""
    screen = console()
    shown = [shortened(name, NAME_WIDTH) if screen.is_terminal else name for name in names]
    text = f"{title} ({len(shown)}): {', '.join(shown) or 'none'}"
    if screen.is_terminal:
        text = textwrap.fill(text, screen.width, subsequent_indent="  ", break_on_hyphens=False)
    say(text)


def _setting_text(value: object) -> str:
    if value is None:
        return "not set: as the files are"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
