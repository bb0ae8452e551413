"""A store's identity: its UUID and lineage, from its stamp, the journal, or the lakes' receipts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.brokers import store_text
from storage_engine.commands import Command
from storage_engine.core.host import ANY_HOST, check_host, may_have_come, this_host
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError, StoreIdentityError, StoreNotFoundError
from storage_engine.journal.journal import Journal, Phase, Step, StoreRecord
from storage_engine.journal.stores import (
    moved_error,
    name_taken,
    name_taken_in_lake,
    named_anew,
    renamed_error,
)
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import StoreSummary, list_stores
from storage_engine.model.store import Lineages
from storage_engine.retention.store.known_heads import journalled_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import (
    Stamp,
    is_original,
    read_stamp,
    rewrite_place,
    share_directories,
    stamp_path,
)

MOVE_RUN = "move"
"""Key of the run under which a store's moves are recorded."""


@dataclass(frozen=True, slots=True)
class Move:
    """A store's old and new names and places.

    :param person: the person who decided the move, or "" if the stamp proves it and nobody had to decide.
    """

    from_name: str | None
    from_host: str | None
    from_path: str
    to_name: str | None
    to_host: str
    to_path: str
    person: str = ""
    reason: str = ""


def carry_out(
    store: ManagedStore,
    journal: Journal,
    record: StoreRecord,
    name: str | None,
    person: str = "",
    reason: str = "",
) -> StoreRecord:
    """Record a move durably: the store is now at the place of ``store``, on this machine, with this name.

    :param record: the store's record in the journal. The caller has proven that the store is here.
    :param name: the new name, or None to keep the present one.
    :raises StoreIdentityError: according to the journal, another store is here, or has the name.
    :raises OSError: the stamp can't be written. The journal's record of the place is unchanged.
    """
    move = Move(
        record.name, record.host, record.real_path, name, this_host(), store.real_root, person, reason
    )
    run = journal.run_without_plan(record.store_id, MOVE_RUN)
    journal.record(run, Step.MOVE, Phase.INTENT, [("", to_jsonable(move))])
    if read_stamp(store.real_root) is not None:
        rewrite_place(store.real_root)
    return journal.end_move(run, store.real_root, name, to_jsonable(move))


def is_there(store: ManagedStore, journal: Journal, record: StoreRecord, name: str) -> bool:
    """Return whether a store already has this name and place, and no move is unfinished."""
    stamp = read_stamp(store.real_root)
    here = (store.real_root, this_host())
    return (
        (record.name, record.real_path, record.host) == (name, *here)
        and (stamp is None or (stamp.root, stamp.machine) == here)
        and not _is_under_way(journal, record)
    )


def has_come(store: ManagedStore, journal: Journal, record: StoreRecord) -> bool:
    """Return whether a disk with another machine's store is now on this machine, at the same path.

    The store has to have the name that the journal knows. If the journal knows no name, the settings have to
    say which host has the store. The stamp has to be from the other machine, and name the last receipts that
    the journal recorded. A copy with an older stamp doesn't count: a person has to move it.
    """
    if record.real_path != store.real_root or not may_have_come(store.host, record.host):
        return False
    same_name = store.named and store.name == record.name
    stamp = None
    with suppress(StoreIdentityError, OSError):
        if same_name or (record.name is None and store.host is not None):
            stamp = read_stamp(store.real_root)
    if stamp is None or (stamp.store_id, stamp.root) != (record.store_id, record.real_path):
        return False
    stamped = {head.lake_id or head.location: head.sequence for head in stamp.lakes}
    recorded = journalled_heads(journal, record.store_id)
    if any(head.sequence > stamped.get(head.lake_id or head.location, -1) for head in recorded):
        return False
    return stamp.machine == record.host or (stamp.machine == this_host() and _is_under_way(journal, record))


def move_notice(journal: Journal, record: StoreRecord) -> tuple[str, ...]:
    """Return a notice of the last move, if the stamp proved it and no plan followed; otherwise empty."""
    moved = journal.last_result(record.store_id, Step.MOVE)
    planned = journal.last_result(record.store_id, Step.PLAN)
    if moved is None or (planned is not None and planned.event_id > moved.event_id):
        return ()
    move = from_jsonable(Move, moved.payload)
    if move.person:
        return ()
    called = store_text(record.name, record.broker, record.real_path)
    return (
        f"store {called} is now on host {move.to_host}, no longer on host {move.from_host}. Its stamp "
        "proves that, and the journal has recorded it",
    )


def _is_under_way(journal: Journal, record: StoreRecord) -> bool:
    """Return whether a move to this place and machine was begun and not ended."""
    moves = [e for e in journal.store_events(record.store_id, Step.MOVE) if e.phase is not Phase.ERROR]
    if not moves or moves[-1].phase is not Phase.INTENT:
        return False
    move = from_jsonable(Move, moves[-1].payload)
    return (move.to_host, move.to_path) == (this_host(), record.real_path)


def identify(store: ManagedStore, journal: Journal) -> StoreRecord:
    """Return the store's identity. An unknown store gets a new one.

    :raises BadInputError: the store is among files that only its kind of broker may use.
    :raises WrongHostError: its disk is on another machine.
    :raises StoreNotFoundError: there is no such directory.
    :raises StoreIdentityError: the directory is a copy of a store, was moved, or has another store than the
        journal knows there; or the store's name differs from the recorded one, or is another store's name.
    :raises LakeUnavailableError: only the lake knows the identity, and it can't be asked. A guess could
        archive the same segments under a second identity.
    """
    record = journal.find_store(store.real_root, store.host)
    if not (record and has_come(store, journal, record)):
        check_host(store.root, store.host, record.host if record else None)
    if not Path(store.real_root).exists():
        raise StoreNotFoundError(
            f"{store.real_root}: expected the root of store {store.name!r}, found nothing there. "
            "Check the path, and that its disk is mounted."
        )
    stamp = read_stamp(store.real_root)
    if stamp is not None:
        _check_place(store, journal, stamp)
        record = record or _find_stamped(store, journal, stamp)
    if record is not None:
        check_broker(store, record)
        check_same(store, journal, record, stamp)
        return _follow(store, journal, record, stamp)
    remembered = [row for lake in store.archive_lakes for row in list_stores(open_lake(lake))]
    store_id = stamp.store_id if stamp is not None else _find_by_place(store, remembered)
    try:
        _check_name(store, journal, store_id, remembered)
    except StoreIdentityError:
        if journal.find_store(store.real_root, store.host) is None:
            raise
        # Another process has added the store to the journal in the meantime.
        return identify(store, journal)
    lineages = archived_lineages(remembered, store_id, stamp.lineages if stamp else None)
    return add_to_journal(store, journal, store_id, lineages)


def is_known(store: ManagedStore, journal: Journal) -> bool:
    """Return whether a journal knows the store in this directory, by the store's place or its stamp.

    :raises StoreIdentityError: several machines have a store at this place, or the stamp can't be read.
    """
    if journal.find_store(store.real_root, store.host) is not None:
        return True
    stamp = read_stamp(store.real_root)
    return stamp is not None and journal.store_with_id(stamp.store_id) is not None


def add_to_journal(
    store: ManagedStore, journal: Journal, store_id: str | None, lineages: Lineages, name: str | None = None
) -> StoreRecord:
    """Add a store in this directory to a journal.

    :param store_id: id of the store, or None for a new identity.
    :param name: name of the store, or None for the stated one, if there is one.
    :raises StoreIdentityError: the store with this id is at another place, or another store has the name.
    """
    return journal.add_store(
        store.real_root,
        store.broker,
        store_id=store_id,
        lineage=lineages.whole,
        host=store.host,
        name=name or (store.name if store.named else None),
        log_lineages=lineages.of_logs,
    )


def archived_lineages(
    remembered: Iterable[StoreSummary], store_id: str | None, stamped: Lineages | None
) -> Lineages:
    """Return the lineages of a store, from all its lakes together and from its stamp if it has one."""
    newest: dict[str, int] = {}
    for row in (row for row in remembered if row.store_id == store_id):
        newest |= {log: max(lineage, newest.get(log, 1)) for log, lineage in row.log_lineages.items()}
    return Lineages.archived(newest, stamped)


def _check_place(store: ManagedStore, journal: Journal, stamp: Stamp) -> None:
    """:raises StoreIdentityError: the stamp was written in another directory."""
    root = store.real_root
    if stamp.root == root:
        return
    check_no_original(root, stamp.root, stamp.store_id)
    record = journal.store_with_id(stamp.store_id)
    known_at = f"it was stamped, at {stamp.root} on machine {stamp.machine}"
    error = named_anew if is_original(stamp, root) else moved_error
    raise error(root, stamp.store_id, known_at, _name_here(store, record))


def _find_stamped(store: ManagedStore, journal: Journal, stamp: Stamp) -> StoreRecord | None:
    """Return the journal's record of a stamped store that came from another machine, or None if unknown.

    :raises StoreIdentityError: the journal knows the store at another place, and nothing proves that it left.
    """
    record = journal.store_with_id(stamp.store_id)
    if record is None or has_come(store, journal, record):
        return record
    known_at = f"the journal knows it, at {record.real_path} on machine {record.host}"
    error = named_anew if share_directories(store.real_root, record.real_path) else moved_error
    raise error(store.real_root, stamp.store_id, known_at, _name_here(store, record))


def _name_here(store: ManagedStore, record: StoreRecord | None) -> str:
    return record.name if record and record.name and not store.named else store.name


def _follow(store: ManagedStore, journal: Journal, record: StoreRecord, stamp: Stamp | None) -> StoreRecord:
    """Update the record of a known store to its present place, name and lineages, and return the record."""
    if has_come(store, journal, record):
        record = carry_out(store, journal, record, store.name if store.named else None)
    if store.named and record.name is None and journal.store_named(store.name) is None:
        record = journal.name_store(record.store_id, store.name)
    if store.named and record.name not in (None, store.name):
        raise renamed_error(store.real_root, record.name, store.name)
    if record.host is None and store.host not in (None, ANY_HOST):
        # An older journal has no host. From now on another machine's store at this path is another store.
        record = journal.move_store(record.store_id, record.real_path)
    if stamp is not None and record.lineages.merged(stamp.lineages) != record.lineages:
        # The journal was put back from a copy that is older than the stamp's lineage.
        record = journal.follow_lineages(record.store_id, stamp.lineages)
    return record


def _check_name(
    store: ManagedStore, journal: Journal, store_id: str | None, remembered: Sequence[StoreSummary]
) -> None:
    """Make sure that an unknown store doesn't take another store's name.

    :raises StoreIdentityError: according to the journal or a lake, another store has the name.
    """
    named = journal.store_named(store.name)
    if named is not None and named.store_id != store_id:
        raise name_taken(store.real_root, store.name, named)
    if store_id not in {row.store_id for row in remembered}:
        check_free(store, remembered)


def check_free(store: ManagedStore, remembered: Iterable[StoreSummary]) -> None:
    """Make sure that no store in the lakes has an unknown store's name, stated or from its directory.

    :raises StoreIdentityError: a lake has a store with this name.
    """
    for row in remembered:
        if row.store_name == store.name:
            raise name_taken_in_lake(store.real_root, store.name, row.store_id, row.store_root)


def check_no_original(root: str, place: str, store_id: str, *, stamped_there: bool = False) -> None:
    """Make sure that a store isn't still at another place.

    :param root: real path of the store's root.
    :param place: path at which the store was stamped or recorded.
    :param stamped_there: count only a stamp that was written at that place, not one that was copied there.
    :raises StoreIdentityError: the store is still there, so the root has a copy.
    """
    original = None
    with suppress(StoreIdentityError, OSError):
        if not share_directories(root, place):
            original = read_stamp(place)
    if stamped_there and original is not None and original.root != place:
        return
    if original is not None and original.store_id == store_id:
        raise StoreIdentityError(
            f"{root}: expected a store of its own, found a copy of store {store_id}, whose original is at "
            f"{place}. Nothing was changed. To manage the copy as a store of its own, run ",
            Command("stamp --new"),
            " on it, with --conn-id if it is a store of Airflow.",
        )


def check_broker(store: ManagedStore, record: StoreRecord) -> None:
    """Make sure that a store's settings name the kind of broker that the journal recorded for the store.

    :raises StoreIdentityError: the journal recorded another kind.
    """
    if record.broker != store.broker:
        raise StoreIdentityError(
            f"{store.real_root}: expected the kind of broker {record.broker}, which the journal has for this "
            f"store, found {store.broker} in the settings. Nothing was changed. Name its broker (broker_type "
            "in a connection, --broker-type at the shell), or manage another store with a journal of its own."
        )


def check_same(store: ManagedStore, journal: Journal, record: StoreRecord, stamp: Stamp | None) -> None:
    """Make sure that the store at this place is still the store that the journal knows there.

    :raises StoreIdentityError: the journal knows another store at this place.
    """
    if stamp is not None and stamp.store_id == record.store_id:
        return
    if stamp is None and journal.last_result(record.store_id, Step.STAMP) is None:
        return
    stamp_text = "no stamp" if stamp is None else f"that of store {stamp.store_id}"
    raise StoreIdentityError(
        f"{stamp_path(store.real_root)}: expected the stamp of store {record.store_id}, which the journal "
        f"knows at this place, found {stamp_text}: another store is here, perhaps another machine's, or the "
        "stamp was removed. Nothing was changed. If it is the same store, run ",
        Command("stamp"),
        " on it, with --conn-id if it is a store of Airflow; otherwise manage it with a lake and "
        "journal of its own.",
    )


def _find_by_place(store: ManagedStore, remembered: list[StoreSummary]) -> str | None:
    """Return the id of the store at this path from the lakes' receipts; None if no receipt names the path.

    :raises BadInputError: receipts of several stores name the path, and nothing shows which store it is.
    """
    hosts = (None, this_host())
    ids = {
        row.store_id
        for row in remembered
        if (row.store_root, row.broker) == (store.real_root, store.broker) and row.store_host in hosts
    }
    if len(ids) > 1:
        raise BadInputError(
            f"{store.real_root}: expected one store with this path in the lake, found {len(ids)}: "
            f"{', '.join(sorted(ids))}. Nothing was changed. Choose the one that is in this directory: ",
            Command("stamp", "--store-id ID"),
            ", with --conn-id if it is a store of Airflow.",
        )
    return next(iter(ids), None)
