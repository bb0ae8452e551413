"""Finding a broker's store by the broker's name."""

from __future__ import annotations

import importlib

from storage_engine.exceptions import BadInputError
from storage_engine.model.broker import BrokerStore, OpenStore
from storage_engine.retention.managed_store import ManagedStore


def open_store(store: ManagedStore) -> BrokerStore:
    """Open ``store`` through ``storage_engine.<broker>.broker``.

    :raises BadInputError: no such broker, or settings that its broker would not work with.
    """
    module = f"storage_engine.{store.broker}.broker"
    try:
        opener: OpenStore = importlib.import_module(module).open_store
    except ModuleNotFoundError as error:
        if error.name not in (module, f"storage_engine.{store.broker}"):
            raise
        raise BadInputError(
            f"store {store.name}: expected a broker that has a {module} module, found {store.broker!r}"
        ) from None
    return opener(store.root, store.broker_conf, store.overrides, store.time_zone)
