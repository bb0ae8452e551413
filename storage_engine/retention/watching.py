"""Looking out for a cleanup's cause, without changing store, journal or lake."""

from __future__ import annotations

from storage_engine.model.watch import Watch
from storage_engine.retention.brokers import open_store
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.host import check_host
from storage_engine.retention.journal import Journal
from storage_engine.retention.journal_database import missing_sqlite_file
from storage_engine.retention.managed_store import ManagedStore


def check_watcher(store: ManagedStore) -> None:
    """Make sure that the store's disks are this machine's, before any is looked at.

    :raises WrongHostError: they are another one's.
    """
    known = None
    if not missing_sqlite_file(store.journal_url):
        known = Journal(store.journal_url).find_store(store.real_root)
    check_host(store.root, store.host, known.host if known else None)


def watch(store: ManagedStore, now_ms: int | None = None) -> Watch:
    """The causes that hold by clock and disks alone; settings are read anew at each call.

    :param now_ms: the moment to look for; None: this machine's clock.
    :raises BadInputError: settings that can't be used, or no such store.
    """
    return open_store(store).watch(clock_ms() if now_ms is None else now_ms)
