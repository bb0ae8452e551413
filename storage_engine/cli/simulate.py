"""simulate: a forecast of a store's disk with other settings, another disk, or more data."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.output import print_json, print_lines, print_table, say, store_head, store_name
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.cli.shell.values import TargetPath, key_value_pairs, size_bytes
from storage_engine.core.clock import HOUR_MS, clock_ms
from storage_engine.core.durable import new_file
from storage_engine.core.extras import CHARTS
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.exceptions import BadInputError
from storage_engine.model.simulation import LONGEST_HORIZON_MS, Advice, Course

if TYPE_CHECKING:
    from storage_engine.pages.course_chart import ChartCourse
    from storage_engine.retention.plan.simulation import Simulated, Simulation
    from storage_engine.retention.store.managed_store import ManagedStore


_LONGEST_DAYS = 366
# The keys are values of ``IngestFrom``. Its module imports brokers' packages, which --help must not wait for.
_TOLD_BY = {
    "samples": "by the journal's samples",
    "segments": "by the times of its segments",
    "person": "as asked",
}


def _check_factor(context: click.Context, parameter: click.Parameter, factor: float | None) -> float | None:
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
    "--ingest-factor",
    metavar="FACTOR",
    type=float,
    callback=_check_factor,
    help="This many times the present ingest.",
)
@click.option("--ingest-per-day", metavar="SIZE", callback=size_bytes, help="Ingest a day, such as 500GB.")
@click.option(
    "--days",
    type=click.IntRange(1, _LONGEST_DAYS),
    default=14,
    show_default=True,
    help="Number of days to simulate.",
)
@click.option(
    "--svg", "svg_file", metavar="FILE", type=TargetPath(), help="Draw both courses into this new file."
)
@click.option(
    "--png",
    "png_file",
    metavar="FILE",
    type=TargetPath(),
    help="The same picture as PNG; needs the extra charts.",
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
) -> int:
    """Show how STORE's disk fills with its settings, compared with other settings.

    Changes nothing. The next days are computed by the rules of the real cleanup, from the store's files and,
    with --lake or --conn-id, from the samples in its journal. Holds, the gate and the archive are ignored:
    the broker deletes by itself.
    """
    from storage_engine.retention.plan.simulation import Change
    from storage_engine.retention.plan.simulation import simulate as simulated

    if png_file is not None:
        CHARTS.require("simulate --png")
    for path in (svg_file, png_file):
        if path is not None:
            from storage_engine.lake.catalog.nesting import refuse_target_inside_store

            refuse_target_inside_store(path)
            if path.is_symlink() or path.exists():
                raise _exists_error(path)
    change = Change(settings, disk_bytes, ingest_factor, ingest_per_day)
    with waiting("Simulating"):
        simulation = simulated(managed, change, days, clock_ms())
    pictures = []
    if svg_file is not None or png_file is not None:
        svg = _svg(simulation, days)
        pictures = [] if svg_file is None else [(svg_file, svg.encode())]
        if png_file is not None:
            from storage_engine.pages.course_chart import png_of

            pictures.append((png_file, png_of(svg)))
    for path, data in pictures:
        _write_new(path, data)
    if wants_json():
        print_json("simulate", {"name": store_name(managed), **to_jsonable(simulation)})
        return 0
    say(store_head(managed))
    print_simulation(simulation, days)
    if pictures:
        say(f"\nDrawn: {', '.join(str(path) for path, _ in pictures)}")
    return 0


def _svg(simulation: Simulation, days: int) -> str:
    from storage_engine.pages.course_chart import course_svg

    title = f"{days} days of {Path(simulation.store).name}"
    if simulation.changed is not None:
        title += f": {changes_text(simulation.today, simulation.changed)}"
    changed = None if simulation.changed is None else _chart_course("changed", simulation.changed)
    return course_svg(
        title, _chart_course("today", simulation.today), changed, ZoneInfo(simulation.time_zone)
    )


def _chart_course(label: str, forecast: Simulated) -> ChartCourse:
    from storage_engine.pages.course_chart import ChartCourse

    return ChartCourse(label, forecast.course, forecast.levels, forecast.windows)


def _exists_error(path: Path) -> BadInputError:
    return BadInputError(f"{path}: expected no file yet, found one. Nothing was changed. Name another.")


def _write_new(path: Path, data: bytes) -> None:
    """Write a new file. An existing file is never overwritten.

    :raises BadInputError: the file exists by now.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with new_file(path.name, ".tmp", dir_fd=directory) as new:
            new.file.write(data)
            os.fsync(new.file.fileno())
            new.publish()
    except FileExistsError:
        raise _exists_error(path) from None
    finally:
        os.close(directory)


def print_simulation(simulation: Simulation, days: int) -> None:
    """Print both forecasts: their results, each day, and the advice."""
    today, changed = simulation.today, simulation.changed
    say(
        f"{bytes_text(simulation.log_bytes)} of log on a disk of "
        f"{bytes_text(today.disk_bytes)}, {today.course.used_percent[0]:g} % used"
    )
    say(f"Ingest: {bytes_text(today.ingest.day_bytes)} a day, {_TOLD_BY[simulation.ingest_from]}")
    if changed is not None:
        say(f"Changed: {changes_text(today, changed) or 'no setting in effect'}")
    courses = [today] if changed is None else [today, changed]
    names = ["today"] if changed is None else ["today", "changed"]
    print_table(
        f"Result of {count_text(days, 'day')}",
        ("", *names),
        ((words, *(tell(forecast.course) for forecast in courses)) for words, tell in _FIGURES),
    )
    headings = ["day"]
    for name in names:
        headings += [f"{name}: level", "messages stay", "deleted"]
    zone = ZoneInfo(simulation.time_zone)
    print_table(f"Day by day, in {simulation.time_zone}", headings, _days(simulation, courses, zone))
    for name, forecast in zip(names, courses, strict=True):
        for advice in forecast.advice:
            print_lines(f"{name.capitalize()}: ", advice_text(advice))


def changes_text(today: Simulated, changed: Simulated) -> str:
    changes = [
        f"{name} {value}" for name, value in changed.settings.items() if today.settings.get(name) != value
    ]
    if changed.disk_bytes != today.disk_bytes:
        changes.append(f"disk {bytes_text(changed.disk_bytes)}")
    if changed.ingest.day_bytes != today.ingest.day_bytes:
        changes.append(f"ingest {bytes_text(changed.ingest.day_bytes)} a day")
    return ", ".join(changes)


def _refusal_text(course: Course) -> str:
    if not course.refused:
        return "never"
    times = count_text(len(course.refused), "time")
    summary = course.summary
    return f"{times}, {duration_text(summary.refused_ms)} ({bytes_text(summary.refused_bytes)} refused)"


def _deletion_text(course: Course) -> str:
    summary = course.summary
    return f"{count_text(summary.deleted_segments, 'segment')}, {bytes_text(summary.deleted_bytes)}"


_FIGURES: tuple[tuple[str, Callable[[Course], str]], ...] = (
    ("highest level", lambda course: f"{course.summary.highest_percent} %"),
    ("level at the end", lambda course: f"{course.summary.end_percent} %"),
    ("messages stay at least", lambda course: duration_text(course.summary.shortest_retention_ms)),
    ("at the end", lambda course: duration_text(course.summary.end_retention_ms)),
    ("writes refused", _refusal_text),
    ("deleted", _deletion_text),
    ("of these before their time", lambda course: count_text(course.summary.unexpired_segments, "segment")),
)


def _days(simulation: Simulation, courses: Sequence[Simulated], zone: ZoneInfo) -> Iterator[tuple[str, ...]]:
    start = datetime.fromtimestamp(simulation.now_ms / 1000, UTC).astimezone(zone)
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    since_ms = simulation.now_ms
    while since_ms < simulation.end_ms:
        day, midnight = midnight, midnight + timedelta(days=1)
        until_ms = min(round(midnight.timestamp() * 1000), simulation.end_ms)
        cells = (cell for forecast in courses for cell in _day(forecast.course, since_ms, until_ms))
        yield (f"{day:%Y-%m-%d}", *cells)
        since_ms = until_ms


def _day(course: Course, since_ms: int, until_ms: int) -> tuple[str, str, str]:
    first, last = bisect_left(course.times_ms, since_ms), bisect_left(course.times_ms, until_ms)
    levels = course.used_percent[first:last] or course.used_percent[first - 1 : first + 1]
    ages = course.retention_ms[first:last] or course.retention_ms[first - 1 : first + 1]
    runs = [run for run in course.deletions if since_ms <= run.at_ms < until_ms]
    causes = dict.fromkeys(
        f"{cause} by force" if run.forced and cause == "space-full" else cause
        for run in runs
        for cause in run.causes
    )
    size = bytes_text(sum(run.size_bytes for run in runs))
    deleted = f"{size} ({', '.join(causes)})" if runs else ""
    if any(since < until_ms and until > since_ms for since, until in course.refused):
        deleted = f"{deleted}; writes refused".removeprefix("; ")
    return (
        f"{_span(*(f'{level:.0f}' for level in (min(levels), max(levels))))} %",
        _span(duration_text(min(ages)), duration_text(max(ages))),
        deleted,
    )


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def advice_text(advice: Advice) -> str:
    """Return the advice as a sentence. Of a kind that only another broker's package knows, return figures."""
    tell = _ADVICE.get(advice.kind)
    if tell is None:
        return f"{advice.kind}: " + ", ".join(f"{name} {value}" for name, value in advice.numbers.items())
    return tell(advice.numbers)


def _up_to(numbers: Mapping[str, float | int | str]) -> str:
    hours = int(numbers["longest_hours"])
    return "More than a year" if hours * HOUR_MS >= LONGEST_HORIZON_MS else f"Up to {hours} h"


def _bytes(numbers: Mapping[str, float | int | str], name: str) -> str:
    return bytes_text(int(numbers[name]))


_ADVICE: Mapping[str, Callable[[Mapping[str, float | int | str]], str]] = {
    "fits": lambda n: (
        f"{n['hours']} h fit this disk at this ingest: they take up to about {n['level_percent']} %, and "
        f"{n['cleans_percent']} % with expired data that waits for deleteWhen. {_up_to(n)} would fit. The "
        f"smallest disk for {n['hours']} h has {_bytes(n, 'disk_bytes')}."
    ),
    "does-not-fit": lambda n: (
        f"{n['hours']} h don't fit this disk at this ingest: they need {_bytes(n, 'disk_bytes')} to stay at "
        f"{n['limit_percent']} % or below. Take such a disk, or at most {n['longest_hours']} h."
    ),
    "force-is-off": lambda n: (
        "nothing is deleted before its time, so the broker will refuse writes above "
        f"{n['refuses_percent']} %."
    ),
    "ratio-too-high": lambda n: (
        f"expired segments are deleted for space only above {n['ratio_percent']} %, but "
        f"{n['limit_percent']} % is passed before that. Set diskMaxUsedSpaceRatio below "
        f"{n['limit_percent']}."
    ),
    "window-too-short": lambda n: (
        f"passes can delete {_bytes(n, 'window_bytes')} in the hours of deleteWhen, and "
        f"{_bytes(n, 'day_bytes')} come a day. Add hours, or raise deleteFileBatchMax."
    ),
    "quiet-disk": lambda n: (
        f"on a disk of {_bytes(n, 'disk_bytes')} or more, the hours of deleteWhen are enough, and the "
        f"level stays at {n['level_percent']} % or below."
    ),
    "trace-topic": lambda n: (
        f"{n['topic']} takes {n['share_percent']} % of what was archived lately. Without it, "
        f"{n['longest_hours']} h would fit."
    ),
    "disk-for-wish": lambda n: f"{n['hours']} h take a disk of {_bytes(n, 'disk_bytes')}.",
}
