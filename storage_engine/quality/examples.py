"""A row that breaks a rule, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_NOTHING = {"found_bytes": "none (no such file)", "found_sha256": "none (not read)"}
"""By column, what it means that a fact table has nothing to say; see :mod:`storage_engine.quality.rules`."""


def example_text(subject: object, values: Iterable[tuple[str, object]]) -> str:
    """Return what a row is about, and what was found there.

    :param values: the columns that the rule looks at, each with its value; -1, "", None and what is no number
        say nothing.
    """
    said = ", ".join(f"{name.replace('_', ' ')} {_said(name, value)}" for name, value in values)
    return f"{subject}: {said}"


def _said(name: str, value: object) -> object:
    # A table of numbers has NaN where another one has None: it alone isn't equal to itself.
    is_nothing = value is None or value != value or value in (-1, "")
    return _NOTHING.get(name, "none") if is_nothing else value
