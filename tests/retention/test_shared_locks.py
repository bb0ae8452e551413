"""Stores share a journal and a lake: none of them waits for another one's disk.

A transaction of a journal in SQLite, or of a lake's catalog, keeps everybody else from writing. So does who
removes files from a lake.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from storage_engine import cycle
from storage_engine.lake.catalog import writing
from storage_engine.retention.housekeeping.maintaining import maintain_lakes, maintain_store
from storage_engine.retention.steps import monitor
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.conftest import MANUAL
from tests.services.watched_paths import looks_told

pytestmark = pytest.mark.usefixtures("plainly")

Managed = Callable[..., ManagedStore]


class Held:
    """What is held now that other stores wait for, and what of a store was looked at meanwhile."""

    def __init__(self, root: str) -> None:
        self.locks: list[str] = []
        self.ever: set[str] = set()
        self.looks: list[str] = []
        self._root = root

    def begin(self, lock: str) -> None:
        self.locks.append(lock)
        self.ever.add(lock)

    def end(self, lock: str) -> None:
        if lock in self.locks:
            self.locks.remove(lock)

    def note(self, look: str) -> None:
        if self.locks and self._root in look:
            self.looks.append(f"{look} under {self.locks}")


@pytest.fixture
def held(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ManagedStore, Held]]:
    """A store, and what is held while something is done with it."""
    store = managed()
    found = Held(store.real_root)
    holding = writing._hold_lock

    @contextmanager
    def told(location: str, operation: int) -> Iterator[None]:
        with holding(location, operation):
            if operation == fcntl.LOCK_EX:
                found.begin("lake")
            yield
            found.end("lake")

    def begun(connection: Any) -> None:
        if not connection.get_execution_options().get("storage_engine_read_only", False):
            found.begin(Path(str(connection.engine.url.database)).name)

    def ended(connection: Any) -> None:
        found.end(Path(str(connection.engine.url.database)).name)

    monkeypatch.setattr(writing, "_hold_lock", told)
    listeners = (("begin", begun), ("commit", ended), ("rollback", ended))
    for name, listener in listeners:
        event.listen(Engine, name, listener)
    with looks_told(found.note, monkeypatch):
        yield store, found
    for name, listener in listeners:
        event.remove(Engine, name, listener)


def test_no_step_holds_what_others_wait_for_while_it_looks_at_the_store(
    held: tuple[ManagedStore, Held],
) -> None:
    store, found = held
    monitor(store, "monitor")
    with opened(store) as once:
        for run in (cycle.Cleanup(once, "ahead"), cycle.Cleanup(once, "r", MANUAL)):
            for step in cycle.AHEAD if run.request is None else cycle.CLEANUP:
                if step is not cycle.validate:
                    step(run)
    maintain_lakes(store)
    maintain_store(store)
    assert found.ever == {"journal.db", "catalog.db", "lake"}
    assert found.looks == []


def test_a_look_under_a_lock_would_be_seen(held: tuple[ManagedStore, Held]) -> None:
    store, found = held
    with writing.nobody_commits_at(str(Path(store.root).parent / "lake")):
        Path(store.root, "checkpoint").read_bytes()
    assert len(found.looks) == 1
    assert found.looks[0].startswith("open (")
