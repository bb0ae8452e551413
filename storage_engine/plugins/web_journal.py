"""A journal as a web server asks it: one that doesn't answer holds up few of its threads, and not for long.

All of Airflow's pages and the tasks' heartbeats share these threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from storage_engine.exceptions import JournalUnavailableError
from storage_engine.journal.reading.queries import JournalReader

T = TypeVar("T")

ANSWER_SECONDS = 5
"""So long a server may take to take a connection, and then for one question."""
_SLOW_SECONDS = 1.0
"""An error that takes longer may come again: it isn't waited for once more."""
_PAUSE_SECONDS = 30.0
_AT_ONCE = 4
"""Questions to one journal at once: each holds a thread, and other journals are asked, too."""


class WebJournal(JournalReader):
    """:param url: SQLAlchemy URL of a journal.

    :param answer_seconds: how long its server may take.
    :raises BadInputError: not a URL.
    """

    def __init__(self, url: str, answer_seconds: int = ANSWER_SECONDS) -> None:
        super().__init__(url, answer_seconds=answer_seconds)
        self._answer_seconds = answer_seconds
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._why: JournalUnavailableError | None = None
        self._until = 0.0

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which only asks.

        :raises JournalUnavailableError: as for any journal; also where it did not answer a moment ago, or
            others wait for it.
        :raises BadInputError: it is of another version.
        """
        self._refuse_silent()
        if not self._places.acquire(timeout=_SLOW_SECONDS):
            raise JournalUnavailableError(
                f"{self.name}: expected an answer, found that {_AT_ONCE} questions wait for one. Nothing "
                "was changed. Ask again in a moment."
            )
        began = time.monotonic()
        try:
            found = super().read(work)
        except JournalUnavailableError as error:
            took_seconds = time.monotonic() - began
            said = self._silent() if self._file is None and took_seconds >= self._answer_seconds else error
            if took_seconds > _SLOW_SECONDS:
                self._why, self._until = said, time.monotonic() + _PAUSE_SECONDS
            raise said from error
        finally:
            self._places.release()
        self._why = None
        return found

    def _silent(self) -> JournalUnavailableError:
        # The driver says that the server closed the connection, which it did not.
        return JournalUnavailableError(
            f"{self.name}: expected an answer within {self._answer_seconds} seconds, found none. Nothing was "
            f"changed. It is asked again in {_PAUSE_SECONDS:.0f} seconds."
        )

    def _refuse_silent(self) -> None:
        """Raise what a journal said that did not answer a moment ago; after a pause one question is asked."""
        with self._lock:
            if self._why is None:
                return
            if time.monotonic() < self._until:
                raise JournalUnavailableError(str(self._why))
            self._until = time.monotonic() + _PAUSE_SECONDS
