"""Which store this is: UUID and lineage, by its real path in the journal, or by what the lake remembers."""

from __future__ import annotations

from pathlib import Path

from storage_engine.exceptions import BadInputError, StoreNotFoundError
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.receipts import list_stores
from storage_engine.model.policy import ArchiveMode
from storage_engine.retention.host import check_host
from storage_engine.retention.journal import Journal, StoreRecord
from storage_engine.retention.managed_store import ManagedStore


def identify(store: ManagedStore, journal: Journal) -> StoreRecord:
    """The store's identity; a store that nobody knows gets one.

    :raises WrongHostError: its disk is another machine's.
    :raises StoreNotFoundError: there is no such directory.
    :raises LakeUnavailableError: only the lake could tell, and it can't be asked. Guessing would archive the
        same segments under a second identity.
    """
    known = journal.find_store(store.real_root)
    check_host(store.root, store.host, known.host if known else None)
    if known is not None:
        return known
    if not Path(store.real_root).is_dir():
        raise StoreNotFoundError(
            f"{store.real_root}: expected the root directory of store {store.name!r}, found none. "
            "Check the path, and that its disk is mounted."
        )
    if store.policy.archive is ArchiveMode.OFF:
        return journal.add_store(store.real_root, store.broker)
    remembered = [
        row
        for lake in store.lakes
        for row in list_stores(open_lake(lake))
        if (row.store_root, row.broker) == (store.real_root, store.broker)
    ]
    if not remembered:
        return journal.add_store(store.real_root, store.broker)
    store_id = max(remembered, key=lambda row: row.newest_proof_ms).store_id
    lineage = max(row.lineage for row in remembered if row.store_id == store_id)
    return journal.add_store(store.real_root, store.broker, store_id=store_id, lineage=lineage)


def adopt(store: ManagedStore, person: str, reason: str) -> StoreRecord:
    """Open a new lineage: from now on the store's offsets may carry other bytes than the lake has.

    What is archived stays, under the old lineage.

    :raises BadInputError: nobody says why.
    """
    if not (person.strip() and reason.strip()):
        raise BadInputError(
            "adopt: expected a person and a reason, found an empty one. From then on nothing compares the "
            "store with what is archived already, so the journal keeps who decided that, and why."
        )
    journal = Journal(store.journal_url)
    return journal.open_lineage(identify(store, journal).store_id, person, reason)
