"""Rendering of templates. Text from a store or a lake is escaped, and a missing variable is an error."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text, shorten, time_text
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.expiry_rules import month_cost
from storage_engine.model.report.usage import HOUR_S
from storage_engine.pages.advice import reason_words
from storage_engine.pages.figures import took_text

_LONGEST_TEXT = 320
_TONES = {"OK": "ok", "WARNING": "warn", "FAILURE": "bad"}


def _words(name: str) -> str:
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return spaced.replace("-", " ").strip().capitalize()


_FILTERS = {
    "count": count_text,
    "cost": lambda lake_bytes, price: f"{month_cost(lake_bytes, price):.4g}",
    "cut": lambda text: shorten(text, _LONGEST_TEXT),
    "day": lambda day: time_text(day * DAY_MS)[:10],
    "hour": lambda hour: time_text(hour * HOUR_S * 1000),
    "moment": lambda at_ms: time_text(at_ms) or "–",
    "number": lambda value: f"{value:,}",
    "offset": lambda value: f"{value:020d}",
    "percent": lambda share: f"{100 * share:.1f} %",
    "reason": reason_words,
    "short": lambda text: text[:SHOWN_CHARACTERS],
    "size": bytes_text,
    "time": time_text,
    "tone": lambda status: _TONES.get(str(status), "dim"),
    "took": lambda took_ms: took_text(took_ms) or "–",
    "words": _words,
}


def template(name: str) -> Template:
    """Return one of this package's templates."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("storage_engine.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    return environment
