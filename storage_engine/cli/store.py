"""inspect, plan, lag, index-lookup: questions to a store. Nothing here changes anything."""

from __future__ import annotations

from pathlib import Path

import click

from storage_engine.cli.inspect_output import print_inspection
from storage_engine.cli.options import (
    disk_percents,
    json_option,
    key_value_pairs,
    managed_store,
    moment_ms,
    store_options,
)
from storage_engine.cli.output import print_json
from storage_engine.cli.plan_output import plan_json, print_plan
from storage_engine.exceptions import BadInputError
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.preview import preview
from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.index_file import lookup
from storage_engine.rocketmq.inspect import inspect as inspect_store
from storage_engine.rocketmq.store import RocketMQStore


@click.command()
@store_options()
@click.option("--messages", is_flag=True, help="Read every segment: messages, last timestamps, damage.")
@click.option("--queues", is_flag=True, help="List every consume queue with its bounds.")
@json_option
def inspect(
    store: Path,
    broker_conf: Path | None,
    overrides: dict[str, str],
    time_zone: str | None,
    messages: bool,
    queues: bool,
    as_json: bool,
) -> int:
    """Show what STORE is and holds: segments, queues, index, checkpoint, topics, settings in effect."""
    opened = _open(managed_store(store, None, broker_conf, overrides, time_zone))
    found = inspect_store(opened, clock_ms(), messages=messages, queues=queues)
    if as_json:
        print_json(found)
    else:
        print_inspection(found, messages=messages)
    return 0


@click.command()
@store_options()
@click.option("--at", metavar="TIME", help="Decide for this moment, such as 2026-11-21T04:10.")
@click.option(
    "--disk",
    "disks",
    metavar="PATH=RATIO",
    multiple=True,
    callback=key_value_pairs,
    help="Assume this level of a disk, such as /data/commitlog=0.86; repeatable.",
)
@click.option("--manual", is_flag=True, help="As if a person asked: expired segments go at any hour.")
@json_option
def plan(
    store: Path,
    broker_conf: Path | None,
    overrides: dict[str, str],
    time_zone: str | None,
    at: str | None,
    disks: dict[str, str],
    manual: bool,
    as_json: bool,
) -> int:
    """Show what a cleanup of STORE would delete, with a reason for every segment, and what goes with it."""
    seen = preview(
        managed_store(store, None, broker_conf, overrides, time_zone),
        PlanRequest(manual=manual),
        now_ms=None if at is None else moment_ms(at, time_zone, option="--at"),
        used_percents=disk_percents(disks),
    )
    if as_json:
        print_json(plan_json(seen))
    else:
        print_plan(seen)
    return 0


@click.command()
@store_options()
@click.option("--group", help="Only this consumer group.")
@json_option
def lag(
    store: Path,
    broker_conf: Path | None,
    overrides: dict[str, str],
    time_zone: str | None,
    group: str | None,
    as_json: bool,
) -> int:
    """Show how far each consumer group of STORE is behind, and what a cleanup now would take from it.

    Positions are those that the broker last wrote to its config directory. A group that never committed
    one is unknown, not at zero.
    """
    # Arrow's compute functions, which no other command here needs.
    from storage_engine.cli.lag import in_process_lag, print_lag

    managed = managed_store(store, None, broker_conf, overrides, time_zone)
    going = preview(managed, PlanRequest(manual=True)).plan.to_delete
    table = in_process_lag(managed, tuple(segment.base_offset for segment in going))
    rows = table.to_pylist()
    if group is not None:
        groups = sorted({row["group"] for row in rows})
        if group not in groups:
            raise BadInputError(
                f"{managed.root}: expected a consumer group of this store ({', '.join(groups) or 'none'}), "
                f"found {group!r}."
            )
        rows = [row for row in rows if row["group"] == group]
    if as_json:
        print_json(rows)
    else:
        print_lag(rows)
    return 0


@click.command("index-lookup")
@store_options()
@click.argument("topic")
@click.argument("key")
@click.option(
    "--max",
    "max_count",
    type=click.IntRange(min=1),
    help="At most so many of the newest; default: maxMsgsNumBatch.",
)
@json_option
def index_lookup(
    store: Path,
    broker_conf: Path | None,
    overrides: dict[str, str],
    time_zone: str | None,
    topic: str,
    key: str,
    max_count: int | None,
    as_json: bool,
) -> int:
    """List the physical offsets of TOPIC's messages that have KEY, as the broker's index finds them.

    KEY is one of a message's keys or its unique key. Exit code 1 when there is none.
    """
    opened = _open(managed_store(store, None, broker_conf, overrides, time_zone))
    offsets = lookup(opened.layout, topic, key, max_count, config=opened.config)
    if as_json:
        print_json({"topic": topic, "key": key, "physical_offsets": offsets})
    else:
        for offset in offsets:
            click.echo(offset)
        if not offsets:
            click.echo(f"{store}: the index has no message of topic {topic!r} with key {key!r}.", err=True)
    return 0 if offsets else 1


def _open(managed: ManagedStore) -> RocketMQStore:
    return RocketMQStore.open(load_broker_config(managed.broker_conf, managed.overrides, root=managed.root))
