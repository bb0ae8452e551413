"""Long work tells how far it is, and whoever listens shows it. Nobody listens in a task of Airflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

Advance = Callable[[int], None]
"""Called, from any thread, with how much was done since the last call."""


@dataclass(frozen=True, slots=True)
class LongWork:
    """A part of a command's work that may take seconds.

    :param what: such as ``Reading segments``.
    :param total: how much there is, in bytes where there is no unit.
    :param unit: what is counted, in the plural; "": bytes.
    """

    what: str
    total: int
    unit: str = ""


Listener = Callable[[LongWork], AbstractContextManager[Advance]]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener hear of the work that this thread begins."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def told(what: str, total: int, unit: str = "") -> Iterator[Advance]:
    """Tell of work while it goes on; it yields what takes how much is done.

    :param what: see :class:`LongWork`, as ``total`` and ``unit``.
    """
    listener = _listener.get()
    if listener is None or not total:
        yield _unheard
        return
    with listener(LongWork(what, total, unit)) as advance:
        yield advance


def told_each(items: Sequence[Item], what: str, unit: str) -> Iterator[Item]:
    """Yield items, and tell after each one that it is done.

    :param what: see :class:`LongWork`, as ``unit``.
    """
    with told(what, len(items), unit) as advance:
        for item in items:
            yield item
            advance(1)


def _unheard(_done: int) -> None:
    pass
