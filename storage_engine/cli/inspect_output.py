"""How an inspected store is shown to a person."""

from __future__ import annotations

from dataclasses import fields

import click

from storage_engine.cli.output import bytes_text, print_table, time_text
from storage_engine.rocketmq.inspect import StoreInspection


def print_inspection(found: StoreInspection) -> None:
    _print_state(found)
    print_table(
        "Commitlog",
        ("segment", "size#", "state", "last written", "messages#", "first stored", "last stored", "damaged#"),
        (
            (
                row.segment.name,
                bytes_text(row.segment.facts.size_bytes),
                row.segment.state.value,
                time_text(row.segment.facts.mtime_ns // 1_000_000),
                row.messages,
                time_text(row.first_store_timestamp_ms),
                time_text(row.last_store_timestamp_ms),
                bytes_text(row.damaged_bytes),
            )
            for row in found.segments
        ),
    )
    if found.queues:
        print_table(
            "Consume queues",
            ("topic", "queue#", "files#", "min#", "max#", ""),
            (
                (q.topic, q.queue_id, q.files, q.min_offset, q.max_offset, "batch" if q.batch else "")
                for q in found.queues
            ),
        )
    if found.index_files:
        first, last = found.index_files[0], found.index_files[-1]
        stored = f"{time_text(first.begin_timestamp_ms)} to {time_text(last.end_timestamp_ms)}"
        click.echo(
            f"Index: {len(found.index_files)} files, offsets {first.begin_phy_offset} to "
            f"{last.end_phy_offset}, stored {stored}"
        )
    click.echo(f"Topics: {', '.join(topic.topic for topic in found.topics) or 'none'}")
    click.echo(f"Groups: {', '.join(found.groups) or 'none'}")
    settings = ((field.name, getattr(found.config, field.name)) for field in fields(found.config))
    print_table(
        "Settings in effect",
        ("setting", "value"),
        (row for row in settings if row[0] not in ("raw", "source")),
    )


def _print_state(found: StoreInspection) -> None:
    click.echo(f"Store {found.root}")
    if found.holder is not None:
        click.echo(f"Held by {found.holder.name} (process {found.holder.pid})")
    elif found.crashed:
        click.echo("Not stopped cleanly: abort exists. It can be archived, but not cleaned until recovered.")
    click.echo(
        f"Offsets {found.min_offset} to {found.max_offset}, consume queues complete up to "
        f"{found.dispatched_offset}; {found.queue_count} queues"
    )
    for disk in (*found.log_disks, found.dependents_disk):
        level = f"unknown ({disk.error})" if disk.used_percent is None else f"{disk.used_percent} % used"
        click.echo(f"Disk {disk.path}: {level}")
    if found.checkpoint is None:
        click.echo("Checkpoint: none")
    else:
        click.echo(
            f"Checkpoint: commitlog {time_text(found.checkpoint.physic_msg_timestamp_ms)}, consume queues "
            f"{time_text(found.checkpoint.logics_msg_timestamp_ms)}, index "
            f"{time_text(found.checkpoint.index_msg_timestamp_ms)}"
        )
