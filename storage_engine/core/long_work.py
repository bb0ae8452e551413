"""Progress of long work, for a listener; pauses of the garbage collector while many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

Advance = Callable[[int], None]
"""Called from any thread with the amount of work since the last call."""


@dataclass(frozen=True, slots=True)
class LongWork:
    """A part of a command's work that may take seconds.

    :param what: the work's name, such as ``Reading segments``.
    :param total: the whole amount of work, in ``unit``.
    :param unit: the counted things, in the plural; "": bytes.
    """

    what: str
    total: int
    unit: str = ""


Listener = Callable[[LongWork], AbstractContextManager[Advance]]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report the work that this thread begins to a listener, until the block ends."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def told(what: str, total: int, unit: str = "") -> Iterator[Advance]:
    """Report work to the listener during the block. Yields the function to call with each finished amount.

    :param what: see :class:`LongWork`; so are ``total`` and ``unit``.
    """
    listener = _listener.get()
    if listener is None or not total:
        yield _unheard
        return
    with listener(LongWork(what, total, unit)) as advance:
        yield advance


def told_each(items: Sequence[Item], what: str, unit: str) -> Iterator[Item]:
    """Yield items, and report each one as done afterwards.

    :param what: see :class:`LongWork`; so is ``unit``.
    """
    with told(what, len(items), unit) as advance:
        for item in items:
            yield item
            advance(1)


def _unheard(_done: int) -> None:
    pass


MANY_OBJECTS = 100_000
"""The collector examines fewer objects than this in a few milliseconds."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the garbage collector while a block makes many objects that remain in use.

    Otherwise the collector would examine all of them each time their number grows by a quarter. For the
    decisions on 10,000 logs that takes as long as making them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        count = gc.get_count()[0]
        # What a process has frozen is counted one by one, and isn't to be unfrozen here.
        if count > MANY_OBJECTS and gc.get_freeze_count() == 0:
            # Counts them as old, or the next object that is made would have all of them looked at.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
