"""How templates become pages: what comes from a store or a lake is escaped, and nothing missing is blank."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment(filters: Mapping[str, Callable[..., str]]) -> Environment:
    """Return the environment of this package's templates.

    :param filters: what templates may call, beside Jinja's own.
    """
    made = Environment(
        loader=PackageLoader("storage_engine.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= filters
    return made
