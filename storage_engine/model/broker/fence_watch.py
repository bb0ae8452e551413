"""The watch over what a hold on a running broker's store rests on, as a broker offers it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from storage_engine.model.hold.hold import Drift, WatchLook


class FenceWatch(Protocol):
    """Looks at what the hold on a store rests on, and mends it; asks neither broker nor journal."""

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return where files lie whose change is a reason to look at once, as of the last look."""
        ...

    @property
    def last_look(self) -> WatchLook:
        """Return what the last look came to that saw all that the hold rests on."""
        ...

    def watching(self) -> AbstractContextManager[Beating | None]:
        """Be the store's only watch until the block ends; None: another process is.

        :raises OSError: the store can't be written.
        """
        ...

    def silent(self) -> str:
        """Return which process has the store's watch and doesn't look at it; empty: none has, or it does."""
        ...

    def look(self, now_ms: int) -> tuple[Drift, ...]:
        """Mend what isn't as the hold left it.

        :return: what was found, and what was done.
        :raises StorageEngineError: something can't be mended; says why.
        :raises OSError: the store can't be read or written.
        """
        ...

    def left_over(self) -> tuple[Drift, ...]:
        """Return, once, what a look has found and done before it raised."""
        ...


class Beating(Protocol):
    """What tells others that a watch is alive, and whether it has looked."""

    def beat(self, look: WatchLook, *, tends_shield: bool = False, tended_at_ms: int = 0) -> None:
        """To be called after each look.

        :param look: the last that saw all.
        :param tends_shield: the watch acts on what is deleted, and can, so that nobody else has to.
        :param tended_at_ms: when it last looked at all of the shield; 0: it hasn't yet.
        :raises OSError: the store can't be written.
        """
        ...
