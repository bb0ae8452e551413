"""Lay a store on disk over what the lake and the journal know of it."""

from __future__ import annotations

from collections.abc import Callable

from storage_engine.lake.catalog import open_lake
from storage_engine.lake.receipts import receipts
from storage_engine.lake.verify import StoreVerification, VerifyLevel, local_spans, verify
from storage_engine.retention.brokers import open_store
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.history import released_spans
from storage_engine.retention.identity import identify
from storage_engine.retention.journal import Journal
from storage_engine.retention.managed_store import ManagedStore


def verify_store(
    store: ManagedStore, level: VerifyLevel, progress: Callable[[int], None] | None = None
) -> StoreVerification:
    """Check the lake's part of ``store``, and that store and lake together still have every byte.

    :param progress: called after each archived segment with its size in bytes.
    :raises StoreNotFoundError: there is no such store.
    :raises LakeUnavailableError: the lake is missing or can't be read.
    """
    lake = open_lake(store.lake, create=False)
    snapshot = open_store(store).snapshot(clock_ms())
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    return verify(
        lake,
        record.store_id,
        level=level,
        local=local_spans(snapshot, receipts(lake, record.store_id)),
        released=released_spans(journal, record.store_id),
        progress=progress,
    )
