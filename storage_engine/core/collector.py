"""Making many objects at once without the garbage collector looking at them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

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
