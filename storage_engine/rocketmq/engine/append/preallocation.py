"""Making the next file of a queue while the one before it is written (AllocateMappedFileService)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from storage_engine.core.clock import clock_ms
from storage_engine.rocketmq.engine.append.mapped_file import WritableFile

_FORCED_AFTER_MS = 1000
Make = Callable[[int], WritableFile]
"""Makes the file that begins at an offset."""


class Preallocation:
    """The one file that is made, or being made, before it is needed."""

    def __init__(self, make: Make, size_bytes: int) -> None:
        self._make, self._size_bytes = make, size_bytes
        self._worker = ThreadPoolExecutor(1, "preallocation")
        self._next: tuple[int, Future[WritableFile]] | None = None

    def take(self, base_offset: int) -> WritableFile:
        """Return the file that begins at an offset, and begin to make the one behind it.

        :raises OSError: it can't be made.
        """
        prepared, self._next = self._next, None
        if prepared is not None and prepared[0] == base_offset:
            file = prepared[1].result()
        else:
            _drop(prepared)
            file = self._make(base_offset)
        behind = base_offset + self._size_bytes
        self._next = (behind, self._worker.submit(self._make, behind))
        return file

    def close(self) -> None:
        """Delete the file that nobody needed."""
        _drop(self._next)
        self._next = None
        self._worker.shutdown()


def _drop(prepared: tuple[int, Future[WritableFile]] | None) -> None:
    if prepared is not None:
        with suppress(OSError):
            prepared[1].result().destroy(_FORCED_AFTER_MS, clock_ms())
