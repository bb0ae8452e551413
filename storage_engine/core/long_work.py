"""Reports of long work's progress to a listener. Pauses of the garbage collector."""

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
    :param unit: unit of ``total``: the counted things, in the plural; "" for bytes.
    """

    what: str
    total: int
    unit: str = ""


Listener = Callable[[LongWork], AbstractContextManager[Advance]]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report this thread's long work to a listener, until the block ends."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def report_work(what: str, total: int, unit: str = "") -> Iterator[Advance]:
    """Report work to the listener during the block. The block passes each finished amount to the yielded
    function.

    Parameters are as for :class:`LongWork`.
    """
    listener = _listener.get()
    if listener is None or not total:
        yield lambda _: None
        return
    with listener(LongWork(what, total, unit)) as advance:
        yield advance


def report_each(items: Sequence[Item], what: str, unit: str) -> Iterator[Item]:
    """Yield items, and report each one as done afterwards. Parameters are as for :class:`LongWork`."""
    with report_work(what, len(items), unit) as advance:
        for item in items:
            yield item
            advance(1)


MANY_OBJECTS = 100_000
"""Number of objects that the collector examines in a few milliseconds."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the garbage collector while a block makes many objects that remain in use.

    Otherwise the collector would examine all objects each time their number grows by a quarter. For the
    decisions on 10,000 logs this would take as long as making the decisions.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        count = gc.get_count()[0]
        # Objects that were frozen before must stay frozen. Counting them takes time.
        if count > MANY_OBJECTS and gc.get_freeze_count() == 0:
            # Makes all objects old. Otherwise the next new object would make the collector examine them all.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
