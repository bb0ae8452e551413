"""What a store is called in every output."""

from __future__ import annotations

from contextlib import suppress

from storage_engine.exceptions import StorageEngineError
from storage_engine.retention.store.managed_store import ManagedStore


def store_name(store: ManagedStore) -> str:
    """Return the name of a store: as it was stated, or its journal has it; else by its place."""
    if store.journal_url and not store.named:
        from storage_engine.journal.journal import Journal

        with suppress(StorageEngineError):
            known = Journal(store.journal_url, read_only=True).find_store(store.real_root, store.host)
            if known is not None and known.name:
                return known.name
    return store.name
