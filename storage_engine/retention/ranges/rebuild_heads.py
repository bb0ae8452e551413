"""Which receipts a rebuilt lake has to have, by a journal and the stores' stamps."""

from __future__ import annotations

from storage_engine.journal.journal import Journal
from storage_engine.model.proof.heads import ChainHead
from storage_engine.retention.store.known_heads import known_heads


def rebuild_heads(journal_url: str | None, lake_location: str) -> dict[str, ChainHead]:
    """Return by store the last receipt that is known of it.

    :param journal_url: None: there is no journal.
    :param lake_location: of the lake. Where a store's receipts are known of one lake only, at another place,
        the lake was there before.
    :raises JournalUnavailableError: the journal can't be read.
    :raises StoreIdentityError: a stamp can't be read.
    """
    if journal_url is None:
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
