"""The watch over what a hold on a running broker's store rests on, as a broker offers it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from storage_engine.model.hold import Drift


class FenceWatch(Protocol):
    """Looks at what the hold on a store rests on, and mends it; asks neither broker nor journal."""

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return where files lie whose change is a reason to look at once, as of the last look."""
        ...

    def watching(self) -> AbstractContextManager[Beating | None]:
        """Be the store's only watch until the block ends; None: another process is.

        :raises OSError: the store can't be written.
        """
        ...

    def silent(self) -> str:
        """Return which process watched the store last and doesn't show that it is alive; empty: none is."""
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
    """What tells others that a watch is alive."""

    def beat(self, *, tends_shield: bool) -> None:
        """To be called at each look.

        :param tends_shield: the watch acts on what is deleted, so that nobody else has to.
        :raises OSError: the store can't be written.
        """
        ...
