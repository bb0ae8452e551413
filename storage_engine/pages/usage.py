"""The page of a retention report: no script, no other file, nothing from a network."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment

from storage_engine.core.wording import bytes_text, time_text
from storage_engine.model.report.usage import HOUR_S, RetentionReport
from storage_engine.pages.environment import environment


def usage_page(store: str, report: RetentionReport) -> str:
    """Return the page as text.

    :param store: what people call it.
    """
    return _environment().get_template("usage.html.j2").render(store=store, report=report)


@cache
def _environment() -> Environment:
    return environment(
        {
            "size": bytes_text,
            "number": lambda value: f"{value:,}",
            "hour": lambda hour: time_text(hour * HOUR_S * 1000),
            "percent": lambda share: f"{100 * share:.1f} %",
        }
    )
