"""The store that an output is about: its head in text, its name in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.core.wording import store_text

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


def store_head(managed: ManagedStore) -> str:
    """Return the line that an output about a store begins with."""
    return store_text(store_name(managed), managed.broker, managed.root)


def store_name(managed: ManagedStore) -> str:
    """Return what the store is called."""
    from storage_engine.retention.store.managed_store import store_name

    return store_name(managed)
