"""The picture of a simulation: complete in itself, well-formed, and true to the course."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import pytest

from storage_engine.core.extras import CHARTS
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.simulation import Course, CourseDeletion, CourseSummary, RuleLevels
from storage_engine.pages.course_chart import ChartCourse, course_svg, png_of

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
START = 1_774_540_800_000
"""Midnight in Shanghai."""
LEVELS = RuleLevels(70, 75, 85, 90, 85)
SVG = "{http://www.w3.org/2000/svg}"
ZONE = ZoneInfo("Asia/Shanghai")


def chart(label: str, *, days: int = 4, percent: float = 60.0, levels: RuleLevels = LEVELS) -> ChartCourse:
    """A level that drops by half each day at four, of which one drop is by force, and one refusal."""
    times, used, ages, deletions = [], [], [], []
    for day in range(days):
        at = START + day * DAY_MS + 4 * HOUR_MS
        times += [START + day * DAY_MS, at, at]
        used += [percent / 2, percent, percent / 2]
        ages += [DAY_MS * 3, DAY_MS * 4, DAY_MS * 3]
        deletions.append(CourseDeletion(at, at + HOUR_MS, 9, 90, 90 << 30, ("time-up",), day == 1, 5))
    times, used, ages = [*times, START + days * DAY_MS], [*used, percent], [*ages, DAY_MS]
    summary = CourseSummary(int(percent), int(percent), DAY_MS, DAY_MS, HOUR_MS, 5, 6, 7, 8)
    refused = ((START + DAY_MS, START + DAY_MS + HOUR_MS),)
    course = Course(tuple(times), tuple(used), tuple(ages), tuple(deletions), refused, summary)
    windows = tuple((START + d * DAY_MS + 4 * HOUR_MS, START + d * DAY_MS + 5 * HOUR_MS) for d in range(days))
    return ChartCourse(label, course, levels, windows)


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def of_class(root: ElementTree.Element, tag: str, name: str) -> list[ElementTree.Element]:
    return [one for one in root.iter(SVG + tag) if name in one.get("class", "").split()]


def test_a_picture_is_complete_in_itself_and_says_in_words_what_it_shows() -> None:
    svg = course_svg("48 h", chart("today"), chart("changed", percent=40), ZONE)
    root = parsed(svg)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|url\(|@import|href", svg)
    words = "".join(root.itertext())
    assert (
        "today: the disk level is at most 60 %, messages stay at least 1 d, writes refused for 1 h." in words
    )
    assert "changed: the disk level is at most 40 %" in words
    assert root.get("role") == "img"
    assert {"title", "about"} == set(root.get("aria-labelledby", "").split())


def test_what_a_person_called_things_is_shown_and_never_becomes_markup() -> None:
    svg = course_svg("<script>&\"'" + "x" * 300, chart("a<b"), None, ZONE)
    root = parsed(svg)
    assert "a<b" in "".join(root.itertext())
    assert not list(root.iter("script")) + list(root.iter(SVG + "script"))


def test_levels_stand_at_their_height_with_labels_that_do_not_overlap() -> None:
    root = parsed(course_svg("t", chart("today", levels=RuleLevels(84, 85, 86, 87, 86)), None, ZONE))
    lines = [
        one for kind in ("refuses", "forces", "cleans", "notice") for one in of_class(root, "path", kind)
    ]
    heights = [float(str(one.get("d")).split()[1].partition("H")[0]) for one in lines]
    assert heights == sorted(heights)
    labels = [
        one for kind in ("refuses", "forces", "cleans", "notice") for one in of_class(root, "text", kind)
    ]
    assert [label.text for label in labels] == ["87 % refuses", "86 % by force", "85 % cleans", "84 % notice"]
    at = [float(str(label.get("y"))) for label in labels]
    assert all(later - before >= 11 for before, later in pairwise(at))


def test_without_force_no_line_says_that_there_is_one() -> None:
    root = parsed(course_svg("t", chart("today", levels=RuleLevels(70, 75, None, 90, 85)), None, ZONE))
    assert of_class(root, "path", "forces") == []


def test_windows_deletions_and_refusals_are_marked_at_their_time_for_each_course() -> None:
    root = parsed(course_svg("t", chart("today"), chart("changed"), ZONE))
    assert len(of_class(root, "rect", "window")) == 2 * 4 + 1
    times, forced = of_class(root, "rect", "time"), of_class(root, "rect", "forced")
    assert (len(times), len(forced)) == (2 * 3 + 1, 2 * 1 + 1)
    assert len(of_class(root, "rect", "refusal")) == 1
    (first, *_), (window, *_) = times, of_class(root, "rect", "window")
    assert first.get("x") == window.get("x")
    assert "90 segments, 90.0 GiB: time-up" in "".join(first.itertext())


def test_a_line_goes_through_the_courses_peaks_and_drops() -> None:
    root = parsed(course_svg("t", chart("today", percent=100), None, ZONE))
    (line,) = of_class(root, "path", "level")[1:]
    points = [tuple(map(float, p.split())) for p in str(line.get("d"))[1:].split("L")]
    peaks = [(x, y) for (x, y), (next_x, next_y) in pairwise(points) if x == next_x and y < next_y]
    assert len(peaks) == 4
    assert {y for _, y in peaks} == {256.0}


def test_days_begin_at_midnight_in_the_stores_zone() -> None:
    words = "".join(parsed(course_svg("t", chart("today"), None, ZONE)).itertext())
    assert "Mar 27" in words
    assert "Mar 26" not in words
    assert "Asia/Shanghai" in words
    assert "Mar 26" not in "".join(parsed(course_svg("t", chart("today", days=40), None, ZONE)).itertext())


needs_charts = pytest.mark.skipif(not CHARTS.is_installed, reason="needs the extra charts")


@needs_charts
def test_a_png_is_the_picture_with_its_words_on_light_ground() -> None:
    svg = course_svg("title", chart("today"), None, ZONE)
    with_words, without = png_of(svg), png_of(re.sub(r"<text[^>]*>[^<]*</text>", "", svg))
    assert with_words.startswith(b"\x89PNG")
    assert len(with_words) > len(without) * 1.2
    width, height = (int.from_bytes(with_words[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1440, 1000)


@needs_charts
def test_a_machine_without_a_font_is_told_so_instead_of_a_picture_without_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import resvg_py

    # A machine that has fonts shows an unknown family in another one.
    without_fonts = partial(resvg_py.svg_to_bytes, skip_system_fonts=True)
    monkeypatch.setattr(resvg_py, "svg_to_bytes", without_fonts)
    with pytest.raises(StorageEngineError, match="expected one of the fonts DejaVu Sans"):
        png_of(course_svg("title", chart("today"), None, ZONE))
