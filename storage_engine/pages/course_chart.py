"""A self-contained SVG picture of one or two simulated courses. It needs no script, font or network.

The upper panel shows retention time as a line, the lower one the disk level as an area, over one time axis.
The picture is light or dark like the reader's screen. Without style sheets, as for a PNG, it is light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.extras import CHARTS
from storage_engine.core.wording import bytes_text, duration_text, shorten
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.simulation import Course, RuleLevels
from storage_engine.pages.environment import template

_WIDTH, _HEIGHT = 720, 500
_LEFT, _RIGHT = 46, 628
_RETENTION = (92, 226)
"""Top and bottom of the panel of retention times."""
_LEVEL = (256, 416)
_MARKS_TOP, _MARK_HEIGHT = 424, 8
_MOST_DAY_LABELS = 8
_MOST_TITLE = 72
_HOUR_STEPS = (1, 2, 3, 6, 12, 24, 48, 72, 168, 336, 720, 1_440, 2_160, 4_320, 8_760)
_MOST_TICKS = 5
_LEAST_LABEL_GAP = 11.0
_ZOOM: Final = 2
"""Pixels for each unit of the picture, so that a PNG is sharp on high-resolution screens."""
_LETTER: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    '<text y="15" font-family="{}">{}</text></svg>'
)
_FAMILIES: Final = (
    "DejaVu Sans",
    "Liberation Sans",
    "Noto Sans",
    "Arial",
    "Helvetica",
    "Open Sans",
    "Roboto",
    "Cantarell",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
)
"""Font families, of which nearly every machine with fonts has one. The first that exists is used."""


@dataclass(frozen=True, slots=True)
class ChartCourse:
    """A course and its label."""

    label: str
    course: Course
    levels: RuleLevels
    windows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """A horizontal line. Its label is drawn at ``label_y``, where no other label is."""

    y: float
    label_y: float
    label: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Mark:
    x: float
    width: float
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A course in the picture's own units."""

    label: str
    kind: str
    level: str
    area: str
    retention: str
    marks: tuple[_Mark, ...]
    refused: tuple[_Mark, ...]
    words: str


def course_svg(title: str, today: ChartCourse, changed: ChartCourse | None, zone: tzinfo) -> str:
    """Return a picture of today's course, with the changed course in front of it if there is one.

    :param zone: time zone in which days begin. Its name is printed below the axis.
    """
    new = changed or today
    start_ms, end_ms = today.course.times_ms[0], today.course.times_ms[-1]
    courses = [today] if changed is None else [today, changed]
    top_ms = max(max(line.course.retention_ms) for line in courses) or HOUR_MS

    def x(time_ms: int) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (time_ms - start_ms) / max(end_ms - start_ms, 1), 1)

    most_hours = top_ms // HOUR_MS + 1
    step = next((step for step in _HOUR_STEPS if most_hours <= step * _MOST_TICKS), _HOUR_STEPS[-1])
    hours = [hour * HOUR_MS for hour in range(0, most_hours + step, step)]
    retention_y = _scale(_RETENTION, max(hours[-1], top_ms))
    level_y = _scale(_LEVEL, 100)
    drawn = [_draw(line, "changed" if line is new else "before", x, level_y, retention_y) for line in courses]
    return template("course.svg.j2").render(
        title=shorten(title, _MOST_TITLE),
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        retention_top=_RETENTION[0],
        retention_bottom=_RETENTION[1],
        level_top=_LEVEL[0],
        level_bottom=_LEVEL[1],
        marks_top=_MARKS_TOP,
        mark_height=_MARK_HEIGHT,
        courses=drawn,
        windows=[(x(since), round(max(x(until) - x(since), 1.0), 1)) for since, until in new.windows],
        lines=_level_lines(new.levels, level_y),
        level_ticks=[(round(level_y(percent), 1), f"{percent} %") for percent in (0, 25, 50, 100)],
        retention_ticks=[(round(retention_y(ms), 1), duration_text(ms) if ms else "0") for ms in hours],
        days=list(_days(start_ms, end_ms, zone, x)),
        zone=str(zone),
        description=" ".join(line.words for line in drawn),
    )


def _scale(panel: tuple[int, int], most: float) -> Callable[[float], float]:
    top, bottom = panel
    return lambda value: bottom - (bottom - top) * min(value / most, 1)


def _days(start_ms: int, end_ms: int, zone: tzinfo, x: Callable[[int], float]) -> Iterator[tuple[float, str]]:
    """Yield the beginning of each day, with a label if there is room for it."""
    first = datetime.fromtimestamp(start_ms / 1000, UTC).astimezone(zone)
    every = max(1, -(-(end_ms - start_ms) // (24 * HOUR_MS * _MOST_DAY_LABELS)))
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    for number in range((end_ms - start_ms) // (24 * HOUR_MS) + 2):
        day = midnight + timedelta(days=number)
        at_ms = round(day.timestamp() * 1000)
        if start_ms <= at_ms <= end_ms:
            has_room = x(at_ms) < _RIGHT - 20
            yield x(at_ms), f"{day:%b} {day.day}" if number % every == 0 and has_room else ""


def _level_lines(levels: RuleLevels, y: Callable[[float], float]) -> list[_Line]:
    """Return the levels at which the broker acts, the highest first. Their labels don't overlap."""
    labelled = (
        (levels.refuses_percent, "refuses", "refuses"),
        (levels.forces_percent, "by force", "forces"),
        (levels.cleans_percent, "cleans", "cleans"),
        (levels.notice_percent, "notice", "notice"),
    )
    levels_shown = [(percent, words, kind) for percent, words, kind in labelled if percent is not None]
    lines, last = list[_Line](), _LEVEL[0] - _LEAST_LABEL_GAP
    for percent, words, kind in sorted(levels_shown, key=lambda level: -level[0]):
        at = round(y(percent), 1)
        last = max(at, last + _LEAST_LABEL_GAP)
        lines.append(_Line(at, round(last + 3.5, 1), f"{percent} % {words}", kind))
    return lines


def _draw(
    line: ChartCourse,
    kind: str,
    x: Callable[[int], float],
    level_y: Callable[[float], float],
    retention_y: Callable[[float], float],
) -> _Drawn:
    course = line.course
    xs = [x(time_ms) for time_ms in course.times_ms]
    level = _path(xs, [level_y(percent) for percent in course.used_percent])
    return _Drawn(
        label=line.label,
        kind=kind,
        level=level,
        area=f"{level}L{xs[-1]:g} {_LEVEL[1]}L{xs[0]:g} {_LEVEL[1]}Z",
        retention=_path(xs, [retention_y(ms) for ms in course.retention_ms]),
        marks=tuple(
            _Mark(
                x(run.at_ms),
                round(max(x(run.until_ms) - x(run.at_ms), 1.6), 1),
                "forced" if run.forced else "space" if "space-full" in run.causes else "time",
                f"{run.segments} segments, {bytes_text(run.size_bytes)}: {', '.join(run.causes)}"
                f"{' by force' if run.forced else ''}",
            )
            for run in course.deletions
        ),
        refused=tuple(
            _Mark(x(since), round(max(x(until) - x(since), 1.6), 1), "refused", duration_text(until - since))
            for since, until in course.refused
        ),
        words=_words(line),
    )


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return a line through points, without repeated points and points within a horizontal stretch."""
    points: list[tuple[float, float]] = []
    for point in zip(xs, (round(y, 1) for y in ys), strict=True):
        if points and point == points[-1]:
            continue
        if len(points) > 1 and points[-2][1] == points[-1][1] == point[1]:
            points.pop()
        points.append(point)
    return "M" + "L".join(f"{at_x:g} {at_y:g}" for at_x, at_y in points)


def _words(line: ChartCourse) -> str:
    summary = line.course.summary
    refused = f", writes refused for {duration_text(summary.refused_ms)}" if summary.refused_ms else ""
    return (
        f"{line.label}: the disk level is at most {summary.highest_percent} %, messages stay at least "
        f"{duration_text(summary.shortest_retention_ms)}{refused}."
    )


def png_of(svg: str) -> bytes:
    """Draw a picture with the fonts of this machine.

    :raises MissingExtraError: the extra isn't installed.
    :raises StorageEngineError: this machine has no font, so the picture's words would be missing.
    """
    CHARTS.require("A PNG")
    import resvg_py

    blank = resvg_py.svg_to_bytes(svg_string=_LETTER.format("", ""))
    letters = ((name, resvg_py.svg_to_bytes(svg_string=_LETTER.format(name, "M"))) for name in _FAMILIES)
    family = next((name for name, letter in letters if letter != blank), None)
    if family is None:
        raise StorageEngineError(
            f"PNG: expected one of the fonts {', '.join(_FAMILIES)} on this machine, found none, so the "
            "picture's words would be missing. Nothing was written. Install fonts-dejavu-core, or draw an "
            "SVG."
        )
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=_ZOOM, sans_serif_family=family))
