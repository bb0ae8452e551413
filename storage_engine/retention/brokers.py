"""Finding a broker's store by the broker's name."""

from __future__ import annotations

from storage_engine.model.broker import BrokerStore, OpenStore, broker_module
from storage_engine.retention.managed_store import ManagedStore


def open_store(store: ManagedStore) -> BrokerStore:
    """Open ``store`` through ``storage_engine.<broker>.broker``.

    :raises BadInputError: no such broker, or settings that its broker would not work with.
    """
    opener: OpenStore = broker_module(store.broker, "broker").open_store
    return opener(store.root, store.broker_conf, store.overrides, store.time_zone)
