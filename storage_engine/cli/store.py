"""inspect, plan, lag, index-lookup: questions to a store. Nothing here changes anything."""

from __future__ import annotations

from pathlib import Path

import click

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
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.preview import preview


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
