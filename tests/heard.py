"""Who listens to long work in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage_engine.core.long_work import Advance, LongWork


class Heard:
    """Keeps what was told: each piece of work, and how much of it was done at its end."""

    def __init__(self, meanwhile: Callable[[int], object] = lambda _done: None) -> None:
        """
        :param meanwhile: called with each part that is done.
        """
        self.works: list[tuple[LongWork, int]] = []
        self._meanwhile = meanwhile

    @contextmanager
    def __call__(self, work: LongWork) -> Iterator[Advance]:
        parts: list[int] = []

        def advance(done: int) -> None:
            parts.append(done)
            self._meanwhile(done)

        yield advance
        self.works.append((work, sum(parts)))

    @property
    def unfinished(self) -> list[tuple[LongWork, int]]:
        return [(work, done) for work, done in self.works if work.total != done]
