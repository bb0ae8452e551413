"""What belongs to logs, log by log: segments, spans of offsets, receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Protocol, TypeVar


class OfLog(Protocol):
    """Belongs to a log of a store."""

    @property
    def log(self) -> str:
        """Return the log's name."""
        ...


One = TypeVar("One", bound=OfLog)


def by_log(items: Iterable[One], name_of: Callable[[One], str] = attrgetter("log")) -> dict[str, list[One]]:
    """Return what belongs to each log, in the order in which it came.

    :param name_of: returns what the log of an item is called.
    """
    found: dict[str, list[One]] = {}
    for item in items:
        found.setdefault(name_of(item), []).append(item)
    return found
