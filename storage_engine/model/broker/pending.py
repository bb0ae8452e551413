"""What a broker has taken and still has to deliver or to decide, and where in the log it lies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PendingKind(StrEnum):
    DELAYED = "delayed"
    """Waits in the queue of a delay level."""
    TIMER = "timer"
    """Waits in the timer wheel, or to get into it; what cancels another timer is one as well."""
    HALF = "half"
    """Of a transaction that is neither committed nor rolled back."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What is pending of one kind. Too many where the broker's files are behind it, never too few.

    :param count: messages that are still there; None: unknown, and then any segment may hold some.
    :param first_offset: the smallest physical offset among them; None: there is none, or unknown.
    :param first_due_ms: when the first one is due; None: unknown, or nothing says when.
    :param last_due_ms: when the last one is due; None likewise.
    :param lost: messages that the broker waits for, and whose segments are gone already.
    :param consequence: what more than the messages is lost with their segments; "" for nothing.
    :param error: why it is unknown; "" when it is known.
    :param log: in which it lies; None: it may lie in any log of the store.
    """

    kind: PendingKind
    count: int | None
    first_offset: int | None = None
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    lost: int = 0
    consequence: str = ""
    error: str = ""
    log: str | None = None
