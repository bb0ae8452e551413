"""A look for a cleanup's cause, without changes to store, journal or lake."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import check_host, may_have_come
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.model.broker.broker_store import Watch
from storage_engine.retention.store.broker_answers import ask, take_watch
from storage_engine.retention.store.brokers import fence_watch, open_store, settings_of
from storage_engine.retention.store.managed_store import ManagedStore


def check_watcher(store: ManagedStore) -> None:
    """Make sure that the store's disks are on this machine, before any disk is looked at.

    Any machine may look at a running broker's store, because the broker says how full its disks are.

    :raises WrongHostError: the disks are on another machine.
    """
    if not store.is_live:
        _check_is_here(store)


def is_watched_here(store: ManagedStore) -> bool:
    """Return whether a running broker's store is on this machine, so that its hold can be watched."""
    if not store.is_live or not Path(store.root).is_dir() or fence_watch(store) is None:
        return False
    try:
        _check_is_here(store)
    except StorageEngineError:
        return False
    return True


def _check_is_here(store: ManagedStore) -> None:
    record = None
    if not missing_sqlite_file(store.journal_url):
        journal = Journal(store.journal_url)
        record = journal.find_store(store.real_root, store.host)
        if record is not None and may_have_come(store.host, record.host):
            # Imported here, because a watcher needs the lake's libraries only in this case.
            from storage_engine.retention.store.identity import has_come

            if has_come(store, journal, record):
                return
    check_host(store.root, store.host, record.host if record else None)


def watch(store: ManagedStore, now_ms: int | None = None) -> Watch:
    """Return the causes that hold by clock and disks alone. Settings are read again at each call.

    :param now_ms: the moment to look for; None for this machine's clock.
    :return: the look. Its field ``known`` is false if a running broker can't be asked.
    :raises BadInputError: settings can't be used, or there is no such store.
    """
    running, live = find_broker(store.broker).running, store.live
    at_ms = clock_ms() if now_ms is None else now_ms
    if running is not None and live is not None:
        look = partial(running.watch_store, settings_of(store), live, at_ms)
        if (result := ask(store.broker, "look at clock and disks", look)) is not None:
            return result
    with closing(open_store(store)) as opened:
        return take_watch(opened, at_ms, store.broker)
