"""What belongs to logs, log by log: segments, spans of offsets, receipts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class OfLog(Protocol):
    """Belongs to a log of a store."""

    @property
    def log(self) -> str:
        """Return the log's name."""
        ...


One = TypeVar("One", bound=OfLog)


def by_log(items: Iterable[One]) -> dict[str, list[One]]:
    """Return what belongs to each log, in the order in which it came."""
    found: dict[str, list[One]] = {}
    for item in items:
        found.setdefault(item.log, []).append(item)
    return found
