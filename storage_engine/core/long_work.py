"""Progress of long work for whoever listens, and making many objects without the garbage collector."""

from __future__ import annotations

import gc
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

    :param what: the work's name, such as ``Reading segments``.
    :param total: how much there is, in bytes where there is no unit.
    :param unit: the counted things, in the plural; "": bytes.
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


MANY_OBJECTS = 100_000
"""Fewer than this the collector looks at in a few milliseconds."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the collector from running while a block makes objects that live on, and are no garbage.

    It would look at all of them each time that their number has grown by a quarter: of 10,000 logs' decisions
    that takes as long as making them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        made = gc.get_count()[0]
        # What a process has frozen is counted one by one, and isn't to be unfrozen here.
        if made > MANY_OBJECTS and gc.get_freeze_count() == 0:
            # Counts them as old, or the next object that is made would have all of them looked at.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
