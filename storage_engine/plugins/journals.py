"""Journals of the configured stores, as the API server reaches them: each is opened once, and then kept."""

from __future__ import annotations

import time
from functools import lru_cache

from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.queries import JournalReader

_REMEMBERED_SECONDS = 60.0
"""Looking connections up takes longer than asking their journal, and one page asks again and again."""
_MOST_JOURNALS = 256

_addresses: dict[str, tuple[float, str]] = {}
"""URLs by connection id, and until when each is believed."""


def journal_of(conn_id: str) -> JournalReader:
    """Return the journal that a store's connection names.

    :raises BadInputError: there is no such connection, or it names no journal that could be.
    """
    until, url = _addresses.get(conn_id, (0.0, ""))
    now = time.monotonic()
    if now >= until:
        url = StorageEngineHook(conn_id).journal_url
        _addresses[conn_id] = (now + _REMEMBERED_SECONDS, url)
    return _reader(url)


@lru_cache(maxsize=_MOST_JOURNALS)
def _reader(url: str) -> JournalReader:
    return JournalReader(url)
