"""How much of a topic was stored on a day."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicDay:
    """Messages of a topic whose store time is within a UTC day.

    :param topic: "": of several, those that have no row of their own.
    :param day: days since 1970-01-01.
    :param size_bytes: as the broker stores them, with all that frames them.
    """

    topic: str
    day: int
    size_bytes: int
    messages: int
