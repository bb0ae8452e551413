"""A row that breaks a rule, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_NOTHING = {"found_bytes": "none (no such file)", "found_sha256": "none (not read)"}
"""By column, what it means that a fact table has nothing to say; see :mod:`storage_engine.quality.rules`."""


def example_text(subject: object, values: Iterable[tuple[str, object]]) -> str:
    """Return what a row is about, and what was found there.

    :param values: the columns that the rule looks at, each with its value; -1 and "" say nothing.
    """
    said = ", ".join(f"{name.replace('_', ' ')} {_said(name, value)}" for name, value in values)
    return f"{subject}: {said}"


def _said(name: str, value: object) -> object:
    return _NOTHING.get(name, "none") if value in (-1, "") else value
