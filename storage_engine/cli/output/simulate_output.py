"""How a simulation is shown: today's course beside the changed one, day by day, and what follows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from storage_engine.cli.output.output import print_lines, print_table, say
from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.model.course.course import LONGEST_HORIZON_MS, Advice, Course

if TYPE_CHECKING:
    from storage_engine.retention.plan.simulation import Simulated, Simulation

# By the words of ``IngestFrom``, whose module needs brokers and their packages, as no help does.
_TOLD_BY = {
    "samples": "by the journal's samples",
    "segments": "by the times of its segments",
    "person": "as asked",
}


def print_simulation(found: Simulation, days: int) -> None:
    """Print both courses: what they come to, each day, and what follows from the figures."""
    today, changed = found.today, found.changed
    say(
        f"{bytes_text(found.log_bytes)} of log on a disk of "
        f"{bytes_text(today.disk_bytes)}, {today.course.used_percent[0]:g} % used"
    )
    say(f"Ingest: {bytes_text(today.ingest.day_bytes)} a day, {_TOLD_BY[found.ingest_from]}")
    if changed is not None:
        say(f"Changed: {changes_text(today, changed) or 'nothing that is in effect'}")
    courses = [today] if changed is None else [today, changed]
    names = ["today"] if changed is None else ["today", "changed"]
    print_table(
        f"What {count_text(days, 'day')} come to",
        ("", *names),
        ((words, *(tell(one.course) for one in courses)) for words, tell in _FIGURES),
    )
    headings = ["day"]
    for name in names:
        headings += [f"{name}: level", "messages stay", "deleted"]
    zone = ZoneInfo(found.time_zone)
    print_table(f"Day by day, in {found.time_zone}", headings, _days(found, courses, zone))
    for name, one in zip(names, courses, strict=True):
        for advice in one.advice:
            print_lines(f"{name.capitalize()}: ", advice_text(advice))


def changes_text(today: Simulated, changed: Simulated) -> str:
    """Return what differs, in few words."""
    found = [
        f"{name} {value}" for name, value in changed.settings.items() if today.settings.get(name) != value
    ]
    if changed.disk_bytes != today.disk_bytes:
        found.append(f"disk {bytes_text(changed.disk_bytes)}")
    if changed.ingest.day_bytes != today.ingest.day_bytes:
        found.append(f"ingest {bytes_text(changed.ingest.day_bytes)} a day")
    return ", ".join(found)


def _refused(course: Course) -> str:
    if not course.refused:
        return "never"
    times = count_text(len(course.refused), "time")
    summary = course.summary
    return f"{times}, {duration_text(summary.refused_ms)} ({bytes_text(summary.refused_bytes)} not taken)"


def _deleted(course: Course) -> str:
    summary = course.summary
    return f"{count_text(summary.deleted_segments, 'segment')}, {bytes_text(summary.deleted_bytes)}"


_FIGURES: tuple[tuple[str, Callable[[Course], str]], ...] = (
    ("highest level", lambda course: f"{course.summary.highest_percent} %"),
    ("level at the end", lambda course: f"{course.summary.end_percent} %"),
    ("messages stay at least", lambda course: duration_text(course.summary.shortest_retention_ms)),
    ("at the end", lambda course: duration_text(course.summary.end_retention_ms)),
    ("writes refused", _refused),
    ("deleted", _deleted),
    ("of these before their time", lambda course: count_text(course.summary.unexpired_segments, "segment")),
)


def _days(found: Simulation, courses: Sequence[Simulated], zone: ZoneInfo) -> Iterator[tuple[str, ...]]:
    start = datetime.fromtimestamp(found.now_ms / 1000, UTC).astimezone(zone)
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    since_ms = found.now_ms
    while since_ms < found.end_ms:
        day, midnight = midnight, midnight + timedelta(days=1)
        until_ms = min(round(midnight.timestamp() * 1000), found.end_ms)
        cells = (cell for one in courses for cell in _day(one.course, since_ms, until_ms))
        yield (f"{day:%Y-%m-%d}", *cells)
        since_ms = until_ms


def _day(course: Course, since_ms: int, until_ms: int) -> tuple[str, str, str]:
    """Return a day's span of levels and of retention times, and what was deleted for which causes."""
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
    """Return what follows, as a sentence; of a kind that another broker has, its figures."""
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
        f"{n['cleans_percent']} % with what has expired and waits for deleteWhen. "
        f"{_up_to(n)} would. The smallest disk for {n['hours']} h has "
        f"{_bytes(n, 'disk_bytes')}."
    ),
    "does-not-fit": lambda n: (
        f"{n['hours']} h don't fit this disk at this ingest: they need {_bytes(n, 'disk_bytes')} to stay at "
        f"{n['limit_percent']} % or below. Take such a disk, or at most {n['longest_hours']} h."
    ),
    "force-is-off": lambda n: (
        f"nothing goes before its time, so the broker will refuse writes above {n['refuses_percent']} %."
    ),
    "ratio-too-high": lambda n: (
        f"what has expired goes for space only above {n['ratio_percent']} %, when {n['limit_percent']} % is "
        f"passed already. Set diskMaxUsedSpaceRatio below {n['limit_percent']}."
    ),
    "window-too-short": lambda n: (
        f"passes can delete {_bytes(n, 'window_bytes')} in the hours of deleteWhen, and "
        f"{_bytes(n, 'day_bytes')} come a day. Add hours, or raise deleteFileBatchMax."
    ),
    "quiet-disk": lambda n: (
        f"on a disk of {_bytes(n, 'disk_bytes')} or more the hours of deleteWhen are enough, and the level "
        f"stays at {n['level_percent']} % or below."
    ),
    "trace-topic": lambda n: (
        f"{n['topic']} takes {n['share_percent']} % of what was archived lately. Without it, "
        f"{n['longest_hours']} h would fit."
    ),
    "disk-for-wish": lambda n: f"{n['hours']} h take a disk of {_bytes(n, 'disk_bytes')}.",
}
