"""A report in a few lines, for a mail or a chat: a subject, a plain text, and HTML for mail programs.

The input is the report as JSON, of this release or an older one, and the address of the whole report or "".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from storage_engine.core.wording import printable, shorten, time_text
from storage_engine.model.keep.expiry_rules import KeepForecast
from storage_engine.model.report.usage import RetentionReport
from storage_engine.pages.environment import template
from storage_engine.pages.story import Story, of_any_release, tell

LINES = 15
"""Largest number of lines in the plain text."""
_PROBLEMS = 3
_TEXT_WIDTH = 160
_NAME_WIDTH = 60
_COLOURS = {"ok": "#0f6b3c", "warn": "#855000", "bad": "#b1261b"}
_GREY = "#5a6474"


def summary_subject(report: Mapping[str, Any]) -> str:
    """Return the subject of a mail about a run, on one line."""
    story = tell(of_any_release(report))
    return printable(f"{story.word}: {shorten(str(report['store']), _NAME_WIDTH)}: {story.headline}")


def summary_text(report: Mapping[str, Any], *, link: str = "") -> str:
    """Return the story of a run in at most :data:`LINES` lines of plain text."""
    full = of_any_release(report)
    lines = [line for line in _lines(full, tell(full)) if line]
    end = [f"Report: {link}" if link else f"Run {full['run_key']}, begun {time_text(full['began_at_ms'])}"]
    return "\n".join(map(printable, [*lines[: LINES - len(end)], *end])) + "\n"


def summary_html(report: Mapping[str, Any], *, link: str = "") -> str:
    """Return a run's story as HTML with inline styles and tables. It has no image and needs no network."""
    full = of_any_release(report)
    story = tell(full)
    return template("summary.html.j2").render(
        report=full,
        story=story,
        subject=summary_subject(report),
        problems=story.problems[:_PROBLEMS],
        more=len(story.problems[_PROBLEMS:]),
        colours=_COLOURS,
        grey=_GREY,
        began=time_text(full["began_at_ms"]),
        link=link,
    )


def _lines(report: Mapping[str, Any], story: Story) -> Iterator[str]:
    yield f"{story.word}: {shorten(str(report['store']), _NAME_WIDTH)}"
    yield story.headline
    yield story.loss
    for problem in story.problems[:_PROBLEMS]:
        yield f"! {shorten(problem.title, _TEXT_WIDTH)}"
        yield f"  {shorten(problem.remedy or problem.what, 2 * _TEXT_WIDTH)}"
    if more := len(story.problems[_PROBLEMS:]):
        yield f"! And {more} more problems: see the report."
    for answer in story.answers:
        yield f"{answer.question}: {shorten(answer.short, _TEXT_WIDTH)}"


MOST_DAYS = 100
"""Largest number of days that are listed one by one."""


class LakeForecast(NamedTuple):
    """A forecast of a lake's contents and their expiry.

    :param at_ms: time of the forecast.
    """

    at_ms: int
    forecast: KeepForecast


def keep_page(store: str, lakes: tuple[LakeForecast, ...], price: float | None = None) -> str:
    """Return the page about the contents of lakes and their expiry, as text.

    :param store: the store's name for people.
    :param price: price of 10⁹ bytes for a month.
    """
    return template("keep.html.j2").render(
        store=store, lakes=lakes, price=price, days=_days, most_days=MOST_DAYS
    )


def _days(forecast: KeepForecast) -> list[tuple[int, int, int]]:
    """Return each day on which rows expire, with the size of their messages and their size in the lake."""
    sizes, in_lake = Counter[int](), Counter[int]()
    for expiry in (expiry for topic in forecast.topics if not topic.held_by for expiry in topic.goes):
        sizes[expiry.day] += expiry.size_bytes
        in_lake[expiry.day] += expiry.lake_bytes
    return [(day, size_bytes, in_lake[day]) for day, size_bytes in sorted(sizes.items())]


def usage_page(store: str, report: RetentionReport) -> str:
    """Return the page of a retention report, as text.

    :param store: the store's name for people.
    """
    return template("usage.html.j2").render(store=store, report=report)
