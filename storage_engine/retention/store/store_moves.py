"""A store gets another name or place: the intent in the journal, then its stamp, then the result.

Killed between two of them, a move is done by the same once more.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from storage_engine.brokers import store_called
from storage_engine.core.host import may_have_come, this_host
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import StoreIdentityError
from storage_engine.journal.journal import Journal, Phase, Step, StoreRecord
from storage_engine.model.plan.plan import PlanRequest
from storage_engine.retention.store.known_heads import journalled_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import Stamp, read_stamp, rewrite_place

MOVE_RUN = "move"
"""Run of a store under which its moves are recorded."""


@dataclass(frozen=True, slots=True)
class Move:
    """From which name and place to which others.

    :param person: who decided it; "": nobody had to, since the stamp proves it.
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
    """Record durably that a store lies at the place of ``store``, on this machine, and is called so.

    :param record: as the journal knows it; that it lies here is proven.
    :param name: None: the name that it has, if any.
    :raises StoreIdentityError: another store lies here by the journal, or has the name.
    :raises OSError: the stamp can't be written. What the journal knows of the place is as it was.
    """
    move = Move(
        record.name, record.host, record.real_path, name, this_host(), store.real_root, person, reason
    )
    run = journal.find_run(record.store_id, MOVE_RUN) or journal.begin_run(
        record.store_id, MOVE_RUN, PlanRequest()
    )
    journal.record(run, Step.MOVE, Phase.INTENT, [("", to_jsonable(move))])
    if read_stamp(store.real_root) is not None:
        rewrite_place(store.real_root)
    return journal.end_move(run, store.real_root, name, to_jsonable(move))


def is_there(store: ManagedStore, journal: Journal, record: StoreRecord, name: str) -> bool:
    """Return whether a store has a name and the place of ``store`` already, and nothing of a move is left."""
    stamp = read_stamp(store.real_root)
    here = (store.real_root, this_host())
    return (
        (record.name, record.real_path, record.host) == (name, *here)
        and (stamp is None or (stamp.root, stamp.machine) == here)
        and not _is_under_way(journal, record)
    )


def has_come(store: ManagedStore, journal: Journal, known: StoreRecord) -> bool:
    """Return whether the disk of another machine's store is this machine's now, at the same path.

    It has to come under the store's name; where nobody stated one, the settings have to say that the store
    lies here. The stamp has to be the other machine's, and name the last receipts that the journal recorded:
    an older copy's doesn't, and a person has to move that.
    """
    if known.real_path != store.real_root or not may_have_come(store.host, known.host):
        return False
    same_name = store.named and store.name == known.name
    stamp = None
    with suppress(StoreIdentityError, OSError):
        if same_name or (known.name is None and store.host is not None):
            stamp = read_stamp(store.real_root)
    if stamp is None or (stamp.store_id, stamp.root) != (known.store_id, known.real_path):
        return False
    if not _is_newest(stamp, journal, known):
        return False
    return stamp.machine == known.host or (stamp.machine == this_host() and _is_under_way(journal, known))


def _is_newest(stamp: Stamp, journal: Journal, known: StoreRecord) -> bool:
    named = {head.lake_id or head.location: head.sequence for head in stamp.lakes}
    recorded = journalled_heads(journal, known.store_id)
    return all(head.sequence <= named.get(head.lake_id or head.location, -1) for head in recorded)


def move_notice(journal: Journal, record: StoreRecord) -> tuple[str, ...]:
    """Return the sentence on a move that nobody had to decide, until a plan has said it."""
    moved = journal.last_result(record.store_id, Step.MOVE)
    planned = journal.last_result(record.store_id, Step.PLAN)
    if moved is None or (planned is not None and planned.event_id > moved.event_id):
        return ()
    move = from_jsonable(Move, moved.payload)
    if move.person:
        return ()
    called = store_called(record.name, record.broker, record.real_path)
    return (
        f"store {called} lies on host {move.to_host} now, no longer on host "
        f"{move.from_host}: its stamp proves it, and the journal has recorded it",
    )


def _is_under_way(journal: Journal, known: StoreRecord) -> bool:
    """Return whether a move to this place and machine was begun and never ended."""
    moves = [e for e in journal.store_events(known.store_id, Step.MOVE) if e.phase is not Phase.ERROR]
    if not moves or moves[-1].phase is not Phase.INTENT:
        return False
    move = from_jsonable(Move, moves[-1].payload)
    return (move.to_host, move.to_path) == (this_host(), known.real_path)
