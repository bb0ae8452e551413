"""Looking out for a cleanup's cause, without touching store, journal or lake."""

from __future__ import annotations

from storage_engine.model.watch import Watch
from storage_engine.retention.brokers import open_store
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.managed_store import ManagedStore


def watch(store: ManagedStore, now_ms: int | None = None) -> Watch:
    """The causes that hold by clock and disks alone; settings are read anew at each call.

    :param now_ms: the moment to look for; None: this machine's clock.
    :raises BadInputError: settings that can't be used, or no such store.
    """
    return open_store(store).watch(clock_ms() if now_ms is None else now_ms)
