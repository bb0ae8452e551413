"""Pages of what a store's lakes keep and have, and what goes on which day: no script, no network."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from storage_engine.model.keep.forecast import KeepForecast
from storage_engine.model.report.usage import RetentionReport
from storage_engine.pages.environment import template

MOST_DAYS = 100
"""Shown one by one."""


class LakeForecast(NamedTuple):
    """:param at_ms: when the forecast was made."""

    at_ms: int
    forecast: KeepForecast


def keep_page(store: str, lakes: tuple[LakeForecast, ...], price: float | None = None) -> str:
    """Return the page of what lakes keep as text.

    :param store: what people call it.
    :param price: of 10⁹ bytes for a month.
    """
    page = template("keep.html.j2")
    return page.render(store=store, lakes=lakes, price=price, days=_days, most_days=MOST_DAYS)


def _days(forecast: KeepForecast) -> list[tuple[int, int, int]]:
    sizes, in_lake = Counter[int](), Counter[int]()
    for going in (going for topic in forecast.topics if not topic.held_by for going in topic.goes):
        sizes[going.day] += going.size_bytes
        in_lake[going.day] += going.lake_bytes
    return [(day, size_bytes, in_lake[day]) for day, size_bytes in sorted(sizes.items())]


def usage_page(store: str, report: RetentionReport) -> str:
    """Return the page of a retention report as text.

    :param store: what people call it.
    """
    return template("usage.html.j2").render(store=store, report=report)
