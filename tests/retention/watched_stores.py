"""Held stores, a host's watch over them, and what it mends, says and records."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention.monitor.store_watch import HostWatch
from storage_engine.retention.store.managed_store import ManagedStore
from tests.rocketmq.live.held_files import LEASE_NS, held_store, mtimes_ns, path_of

SECONDS = 120


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Said(list[str]):
    def has(self, text: str) -> bool:
        return any(text in line for line in self)


@contextmanager
def host_watch(said: Said) -> Iterator[HostWatch]:
    """A host's watch, of which no thread is left at the end."""
    before = threading.enumerate()  # a worker's earlier tests of triggers leave their host's watch
    host = HostWatch(said.append)
    yield host
    host.end(SECONDS)
    started = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread.name for thread in started if "storage-engine" in thread.name]


def held(tmp_path: Path, name: str) -> ManagedStore:
    held_store(tmp_path / name)
    policy = Policy(archive=ArchiveMode.OFF)
    return ManagedStore.local(name, str(tmp_path / name), tmp_path / f"{name}-lake", policy=policy)


def root_of(store: ManagedStore) -> Path:
    return Path(store.root)


def touch(store: ManagedStore, number: int = 0) -> None:
    os.utime(path_of(root_of(store), number), ns=(0, 0))


def is_mended(store: ManagedStore, number: int = 0) -> bool:
    return mtimes_ns(root_of(store))[number] == LEASE_NS


def recorded(store: ManagedStore) -> list[str]:
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    events = journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT)
    return [event.payload["disturbance"]["detail"] for event in events]
