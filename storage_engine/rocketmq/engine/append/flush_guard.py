"""Letting one thread flush at a time, and none once the disk has refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class FlushGuard:
    """Stands before the flushes of some files.

    What was to be written by a refused flush is unknown, and the system says so once: a later flush that
    succeeds has not written it.
    """

    def __init__(self, on_failure: Callable[[OSError], object] = lambda error: None) -> None:
        """:param on_failure: is told of the first refusal, by the thread that meets it."""
        self._turn = threading.Lock()
        self._refused: OSError | None = None
        self._on_failure = on_failure

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Flush while the block runs.

        :raises OSError: the disk has refused before.
        """
        with self._turn:
            if self._refused is not None:
                raise self._refused
            try:
                yield
            except OSError as error:
                self._refused = error
                self._on_failure(error)
                raise
