"""Record what a watch has mended, whenever the journal can be reached: mending never waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from storage_engine.core.wording import unexpected
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.drift import record_under_watch
from storage_engine.journal.journal import Journal
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.model.hold.hold import Drift
from storage_engine.retention.store.managed_store import ManagedStore

MOST: Final = 1000
"""Kept while the journal can't be reached; of more, the first and the newest are."""
_AGAIN_SECONDS: Final = 10.0


class Recorder(threading.Thread):
    """Writes to the journals of all stores that a process watches.

    :param say: told once when a journal can't be reached.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(name="storage-engine-watch-records", daemon=True)
        self._say = say
        self._said = ""
        self._waiting: deque[tuple[ManagedStore, Drift]] = deque()
        self._changed = threading.Condition()
        self._ends = False

    def add(self, store: ManagedStore, found: Sequence[Drift]) -> None:
        """Have this recorded as soon as can be; never waits."""
        if not found:
            return
        with self._changed:
            self._waiting += ((store, one) for one in found)
            while len(self._waiting) > MOST:
                del self._waiting[MOST // 2]
            self._changed.notify()

    def end(self, seconds: float) -> None:
        """Have it end once all is recorded, or after so long."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self.join(seconds)

    def run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._ends:
                        return
                    self._changed.wait()
                store = self._waiting[0][0]
                found = [one for of, one in self._waiting if of is store]
            try:
                record_mends(store, found)
            except Exception as error:
                # Whatever it is: nobody else would record what the watches mend from now on.
                known = isinstance(error, StorageEngineError | OSError)
                why = str(error) if known else unexpected(error)
                self._say_once(f"{store.root}: what was mended can't be recorded yet: {why}")
                with self._changed:
                    # Another store's journal may be well.
                    self._waiting.rotate(-len(found))
                    if self._ends:
                        return
                    self._changed.wait(_AGAIN_SECONDS)
            else:
                with self._changed:
                    recorded = set(map(id, found))
                    self._waiting = deque(row for row in self._waiting if id(row[1]) not in recorded)

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._say(text)
        self._said = text


def record_mends(store: ManagedStore, found: Sequence[Drift]) -> None:
    """Record what a watch has mended; a store that no journal knows has none to record it in.

    :raises StorageEngineError: the journal can't be reached.
    """
    if not store.journal_url or missing_sqlite_file(store.journal_url):
        return
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root, store.host)
    if record is not None:
        record_under_watch(journal, record, found)
