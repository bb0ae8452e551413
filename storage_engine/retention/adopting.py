"""What a person decides about a store's identity: a new lineage for it, or which store a directory is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from storage_engine.exceptions import BadInputError, StoreIdentityError
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.chain import check_links
from storage_engine.lake.receipts import list_stores, receipts
from storage_engine.model.jsonable import to_jsonable
from storage_engine.model.plan import PlanRequest
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.receipt import Receipt
from storage_engine.model.store import Segment
from storage_engine.retention.brokers import open_store
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.gate import proven_facts, same_file
from storage_engine.retention.identity import identify
from storage_engine.retention.journal import Journal, Phase, Step, StoreRecord
from storage_engine.retention.known_heads import RESET, head_of
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.stamp import Stamp, read_stamp, replace_stamp, update_stamp

STAMP_RUN = "stamp"
"""Run of a store under which a person's decisions about its stamp are recorded."""


def adopt(store: ManagedStore, person: str, reason: str, *, force: bool = False) -> StoreRecord:
    """Open a new lineage: from now on the store's offsets may carry other bytes than the lake has.

    What is archived stays, under the old lineage.

    :param force: also where nothing on disk contradicts what is archived: then everything that is still
        there is archived once more, and queries see each of its rows twice.
    :raises BadInputError: nobody says why, or no segment contradicts its receipt.
    """
    _check_decision("adopt", person, reason, "compares the store with what is archived already")
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    if not force and next(_contradictions(store, record), None) is None:
        raise BadInputError(
            f"{store.root}: expected a segment whose bytes are not those that are archived under its offset, "
            "found none, so there is nothing to adopt. Nothing was changed. Under a new lineage everything "
            "would be archived once more, and each row be there twice; --force does it all the same."
        )
    opened = journal.open_lineage(record.store_id, person, reason)
    with suppress(OSError):
        # Where the store can't be stamped, the journal alone has to remember.
        update_stamp(store.real_root, opened.store_id, opened.lineage, ())
    return opened


def stamp(
    store: ManagedStore, person: str, reason: str, *, store_id: str | None = None, new: bool = False
) -> Stamp:
    """Say which store a directory is, and write its stamp again.

    What was known of the store's lakes before is over: their present state counts from now on.

    :param store_id: the store that was moved here, or that the lake knows by several ids; None: the one that
        the stamp, the journal or the lake knows.
    :param new: the directory is a store of its own, with a new identity: it was copied from another.
    :raises BadInputError: nobody says why, or journal and lakes don't know the store.
    :raises StoreIdentityError: the journal has another store at this place.
    """
    _check_decision("stamp", person, reason, "holds the store against what was known of its lakes")
    journal = Journal(store.journal_url)
    record = _record(store, journal, store_id, new)
    heads = []
    for config in store.lakes if store.policy.archive is not ArchiveMode.OFF else ():
        lake = open_lake(config)
        segments = lake.segments()
        last = check_links(segments, record.store_id)
        if last.sequence >= 0:
            heads.append(head_of(lake, segments, last))
    written = Stamp(record.store_id, record.lineage, "", "", tuple(heads))
    run = journal.find_run(record.store_id, STAMP_RUN) or journal.begin_run(
        record.store_id, STAMP_RUN, PlanRequest()
    )
    said = {**to_jsonable(written), "person": person.strip(), "reason": reason.strip(), RESET: True}
    journal.record(run, Step.STAMP, Phase.RESULT, [("", said)])
    replace_stamp(store.real_root, written)
    return written


def _record(store: ManagedStore, journal: Journal, store_id: str | None, new: bool) -> StoreRecord:
    """The journal's record of the store, which is made or moved here where it has to be."""
    root = store.real_root
    here = journal.find_store(root)
    if new:
        if here is not None:
            raise StoreIdentityError(
                f"{root}: expected a place that the journal doesn't know, found store {here.store_id}. "
                "Nothing was changed. Without --new the directory is stamped as that store."
            )
        return journal.add_store(root, store.broker)
    found = read_stamp(root)
    wanted = store_id or (here.store_id if here else None) or (found.store_id if found else None)
    if wanted is None:
        raise BadInputError(
            f"{root}: expected a store that stamp or journal know, found neither. Nothing was changed. Give "
            "--store-id ID, as storage-engine lake info lists them, or --new."
        )
    if here is not None and here.store_id != wanted:
        raise StoreIdentityError(
            f"{root}: expected the journal to have store {wanted} or none at this place, found store "
            f"{here.store_id}. Nothing was changed. Manage this one with a lake and journal of its own."
        )
    if here is not None:
        return here
    if journal.knows_store(wanted):
        return journal.move_store(wanted, root)
    lineages = [
        row.lineage
        for config in store.lakes
        for row in list_stores(open_lake(config))
        if row.store_id == wanted
    ]
    if not lineages and found is None:
        raise BadInputError(
            f"{root}: expected store {wanted} in journal or lake, found it in neither. Nothing was changed."
        )
    lineage = max([*lineages, found.lineage if found else 1])
    return journal.add_store(root, store.broker, store_id=wanted, lineage=lineage)


def _contradictions(store: ManagedStore, record: StoreRecord) -> Iterator[Segment]:
    """Yield segments whose bytes are not those that their receipts prove."""
    snapshot = open_store(store).snapshot(clock_ms())
    segments = {(s.log, s.base_offset): s for log in snapshot.logs for s in log.segments}
    for config in store.lakes if store.policy.archive is not ArchiveMode.OFF else ():
        for row in receipts(open_lake(config), record.store_id, lineage=record.lineage):
            segment = segments.get((row.log, row.base_offset))
            if segment is not None and _contradicts(segment, row):
                yield segment


def _contradicts(segment: Segment, row: Receipt) -> bool:
    if same_file(segment.facts, proven_facts(row)):
        return False
    with Path(segment.facts.path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() != row.sha256


def _check_decision(command: str, person: str, reason: str, what: str) -> None:
    if not (person.strip() and reason.strip()):
        raise BadInputError(
            f"{command}: expected a person and a reason, found an empty one. From then on nothing "
            f"{what}, so the journal keeps who decided that, and why."
        )
