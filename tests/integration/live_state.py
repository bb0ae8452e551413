"""All of a live store that we might change, and what is refused without a change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal, hold_memory
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import hold
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold.hold_state import HoldState, load_state
from tests.integration.live_store import LiveLog

BOUND_SECONDS = 120
HELD_SETTINGS = ("cleanFileForciblyEnable", "fileReservedTime")


@dataclass(frozen=True)
class State:
    """Everything about a store and its broker that we might change."""

    names: tuple[int, ...]
    mtimes: dict[int, int]
    beside: tuple[str, ...]
    settings: dict[str, str]
    min_offset: int

    @classmethod
    def of(cls, log: LiveLog) -> State:
        config = log.broker.client.config()
        return cls(
            tuple(log.names()),
            log.mtimes(),
            tuple(sorted(p.name for p in log.broker.store.iterdir() if p.name != DIRECTORY)),
            {key: config[key] for key in HELD_SETTINGS},
            log.broker.client.runtime_info().commitlog_min_offset,
        )


def remembered(store: ManagedStore) -> HoldState | None:
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    return record and load_state(hold_memory(journal, record.store_id))


@contextmanager
def bounded() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < BOUND_SECONDS


def refused(log: LiveLog, store: ManagedStore, said: str) -> None:
    """Whatever is asked of such a store is answered by what is wrong, and nothing is changed."""
    before = State.of(log)
    for ask in (
        lambda: hold(store),
        lambda: steps.sense(store),
        lambda: steps.make_plan(store, "run", PlanRequest(manual=True)),
    ):
        with bounded(), pytest.raises(StorageEngineError, match=said):
            ask()
    assert State.of(log) == before
    assert remembered(store) is None
