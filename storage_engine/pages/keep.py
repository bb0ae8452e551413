"""The page of what a store's lakes keep, and what goes on which day: no script, nothing from a network."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

from jinja2 import Environment

from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.forecast import KeepForecast, month_cost
from storage_engine.pages.environment import environment

MOST_DAYS = 100
"""Shown one by one."""


class LakeForecast(NamedTuple):
    """:param at_ms: when the forecast was made."""

    at_ms: int
    forecast: KeepForecast


def keep_page(store: str, lakes: tuple[LakeForecast, ...], price: float | None = None) -> str:
    """Return the page as text.

    :param store: what people call it.
    :param price: of 10⁹ bytes for a month.
    """
    template = _environment().get_template("keep.html.j2")
    return template.render(store=store, lakes=lakes, price=price, days=_days, most_days=MOST_DAYS)


def _days(forecast: KeepForecast) -> list[tuple[int, int, int]]:
    """Return by day how many bytes go on it, as the broker and as the lake has them."""
    sizes, in_lake = Counter[int](), Counter[int]()
    for going in (going for topic in forecast.topics if not topic.held_by for going in topic.goes):
        sizes[going.day] += going.size_bytes
        in_lake[going.day] += going.lake_bytes
    return [(day, size_bytes, in_lake[day]) for day, size_bytes in sorted(sizes.items())]


@cache
def _environment() -> Environment:
    return environment(
        {
            "size": bytes_text,
            "time": time_text,
            "day": lambda day: time_text(day * DAY_MS)[:10],
            "count": count_text,
            "short": lambda text: text[:SHOWN_CHARACTERS],
            "cost": lambda lake_bytes, price: f"{month_cost(lake_bytes, price):.4g}",
        }
    )
