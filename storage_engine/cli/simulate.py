"""simulate: what would become of a store by other settings, on another disk, with more to come."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from storage_engine.cli.options.options import json_option
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.output.simulate_output import changes_text, print_simulation
from storage_engine.cli.output.store_head import store_head, store_name
from storage_engine.cli.shell.command import command
from storage_engine.cli.shell.values import TargetPath, key_value_pairs, size_bytes
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import new_file
from storage_engine.core.extras import CHARTS
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.pages.raster import png_of

if TYPE_CHECKING:
    from storage_engine.pages.course_chart import ChartCourse
    from storage_engine.retention.plan.simulation import Simulated, Simulation
    from storage_engine.retention.store.managed_store import ManagedStore

_LONGEST_DAYS = 366


def _factor(context: click.Context, parameter: click.Parameter, factor: float | None) -> float | None:
    if factor is not None and not (math.isfinite(factor) and 0 <= factor <= 1_000_000):
        raise click.BadParameter(f"expected 0 to 1,000,000, found {factor:g}", context, parameter)
    return factor


@command()
@takes_store(lake=None, connection=True, settings=False)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    callback=key_value_pairs,
    help="A setting of the broker to try, such as fileReservedTime=48; repeatable.",
)
@click.option("--disk-bytes", metavar="SIZE", callback=size_bytes, help="A disk of this size, such as 3TB.")
@click.option(
    "--ingest-factor", metavar="FACTOR", type=float, callback=_factor, help="So many times as much comes."
)
@click.option("--ingest-per-day", metavar="SIZE", callback=size_bytes, help="So much comes a day, as 500GB.")
@click.option(
    "--days", type=click.IntRange(1, _LONGEST_DAYS), default=14, show_default=True, help="How far to look."
)
@click.option(
    "--svg", "svg_file", metavar="FILE", type=TargetPath(), help="Draw both courses into this new file."
)
@click.option(
    "--png", "png_file", metavar="FILE", type=TargetPath(), help="The same as pixels; needs the extra charts."
)
@json_option
def simulate(
    managed: ManagedStore,
    settings: Mapping[str, str],
    disk_bytes: int | None,
    ingest_factor: float | None,
    ingest_per_day: int | None,
    days: int,
    svg_file: Path | None,
    png_file: Path | None,
    as_json: bool,
) -> int:
    """Show how STORE's disk fills by its settings, beside what other settings would make of it.

    Changes nothing. The next days are computed by the rules of the real cleanup, from the store's files and,
    with --lake or --conn-id, the samples in its journal. Holds, the gate and the archive count for nothing:
    it is what the broker does by itself.
    """
    from storage_engine.retention.plan.simulation import Change
    from storage_engine.retention.plan.simulation import simulate as simulated

    if png_file is not None:
        CHARTS.require("simulate --png")
    for path in (svg_file, png_file):
        if path is not None:
            _check_target(path)
    change = Change(settings, disk_bytes, ingest_factor, ingest_per_day)
    with waiting("Simulating"):
        found = simulated(managed, change, days, clock_ms())
    pictures = []
    if svg_file is not None or png_file is not None:
        svg = _svg(found, days)
        pictures = [] if svg_file is None else [(svg_file, svg.encode())]
        pictures += [] if png_file is None else [(png_file, png_of(svg))]
    for path, data in pictures:
        _write_new(path, data)
    if as_json:
        print_json("simulate", {"name": store_name(managed), **to_jsonable(found)})
        return 0
    say(store_head(managed))
    print_simulation(found, days)
    if pictures:
        say(f"\nDrawn: {', '.join(str(path) for path, _ in pictures)}")
    return 0


def _svg(found: Simulation, days: int) -> str:
    from storage_engine.pages.course_chart import course_svg

    title = f"{days} days of {Path(found.store).name}"
    if found.changed is not None:
        title += f": {changes_text(found.today, found.changed)}"
    changed = None if found.changed is None else _chart_course("changed", found.changed)
    return course_svg(title, _chart_course("today", found.today), changed, ZoneInfo(found.time_zone))


def _chart_course(label: str, one: Simulated) -> ChartCourse:
    from storage_engine.pages.course_chart import ChartCourse

    return ChartCourse(label, one.course, one.levels, one.windows)


def _check_target(path: Path) -> None:
    """Refuse a place where no file may be written, before anything is computed.

    :raises BadInputError: it is a store's, or something is there.
    """
    from storage_engine.lake.catalog.nesting import refuse_target_inside_store

    refuse_target_inside_store(path)
    if path.is_symlink() or path.exists():
        raise _exists(path)


def _exists(path: Path) -> BadInputError:
    return BadInputError(f"{path}: expected no file yet, found one. Nothing was changed. Name another.")


def _write_new(path: Path, data: bytes) -> None:
    """Write a new file; nothing is ever overwritten.

    :raises BadInputError: something has its name by now.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with new_file(path.name, ".tmp", dir_fd=directory) as new:
            new.file.write(data)
            os.fsync(new.file.fileno())
            new.publish()
    except FileExistsError:
        raise _exists(path) from None
    finally:
        os.close(directory)
