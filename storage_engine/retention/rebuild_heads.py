"""Which receipts a rebuilt lake has to have, by the journal in its directory and the stores' stamps."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url

from storage_engine.lake.chain import ChainHead
from storage_engine.retention.journal import Journal
from storage_engine.retention.known_heads import known_heads


def rebuild_heads(journal_url: str, lake_location: str) -> dict[str, ChainHead]:
    """Return by store the last receipt that is known of it. Makes no journal where there is none.

    :param lake_location: of the lake. Where a store's receipts are known of one lake only, at another place,
        the lake was there before.
    :raises JournalUnavailableError: the journal can't be read.
    :raises StoreIdentityError: a stamp can't be read.
    """
    file = make_url(journal_url).database
    if file is None or not Path(file).exists():
        return {}
    journal = Journal(journal_url)
    found = {}
    for record in journal.all_stores():
        heads = known_heads(journal, record).heads
        here = [head for head in heads if head.location == lake_location]
        if not here and len({head.lake_id for head in heads}) == 1:
            here = list(heads)
        if here:
            found[record.store_id] = max(here, key=lambda head: head.sequence).chain_head
    return found
