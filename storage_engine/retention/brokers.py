"""Finding a broker's store by the broker's name."""

from __future__ import annotations

from dataclasses import replace

from storage_engine.model.broker import (
    AskBroker,
    BrokerStore,
    LocalSettings,
    OpenStore,
    StoreSettings,
    broker_module,
)
from storage_engine.model.hold import HoldMemory
from storage_engine.model.live import RunningBroker
from storage_engine.retention.managed_store import ManagedStore


def open_store(store: ManagedStore, memory: HoldMemory | None = None) -> BrokerStore:
    """Open ``store`` through ``storage_engine.<broker>.broker``.

    :param memory: what is remembered of a hold beside a running broker; None: nothing, so that it can be
        looked at, and not be held.
    :raises BadInputError: no such broker, or settings that its broker would not work with.
    :raises BrokerError: the store's broker runs by its settings, and can't be asked.
    """
    opener: OpenStore = broker_module(store.broker, "broker").open_store
    return opener(settings_of(store), memory)


def open_to_look(store: ManagedStore) -> BrokerStore:
    """Open ``store`` with what its journal, if there is one, remembers of a hold; no journal is made.

    Without it a held segment's age is that of its file as the hold has set it.

    :raises StorageEngineError: as :func:`open_store` does, or the journal can't be read.
    """
    if store.live is None or not store.journal_url:
        return open_store(store)
    # The database's libraries, which looking at a stopped broker's store needs for nothing.
    from storage_engine.retention.journal import Journal
    from storage_engine.retention.journal_database import missing_sqlite_file

    if missing_sqlite_file(store.journal_url):
        return open_store(store)
    journal = Journal(store.journal_url)
    known = journal.find_store(store.real_root)
    return open_store(store, None if known is None else journal.hold_memory(known.store_id))


def with_local_settings(store: ManagedStore) -> ManagedStore:
    """The store as what reads its files alone may take it: beside a running broker, with the settings that
    work there now in place of broker.conf.

    :raises BrokerError: the broker can't be asked.
    """
    if store.live is None:
        return store
    localise: LocalSettings = broker_module(store.broker, "broker").local_settings
    found = localise(settings_of(store))
    return replace(store, broker_conf=found.broker_conf, overrides=found.overrides)


def running_broker(store: ManagedStore) -> RunningBroker | None:
    """What the broker that runs on the store says of itself; None: the store's broker is stopped.

    :raises BrokerError: the broker can't be asked.
    """
    if store.live is None:
        return None
    ask: AskBroker = broker_module(store.broker, "broker").running_broker
    return ask(store.live)


def settings_of(store: ManagedStore) -> StoreSettings:
    return StoreSettings(store.root, store.broker_conf, store.overrides, store.time_zone, store.live)
