"""The last receipts that runs have seen in each lake: a projection of what they recorded as archived.

A row whose lake has a later receipt by a later event goes. So a few rows answer what thousands of events
would, and each is written in the transaction of its events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select

from storage_engine.journal.records import Phase, Step
from storage_engine.journal.tables.schema import events, heads, runs
from storage_engine.model.proof.heads import LakeHead

ARCHIVING = frozenset({Step.ARCHIVE, Step.SEALED})
"""Steps whose results name the receipts of segments."""
SEQUENCE = "receipt_sequence"
"""Field of a result; without it an older release recorded it, which kept no sequence."""


def project(connection: Connection, run_id: int, payloads: Iterable[Mapping[str, Any]]) -> None:
    """Remember the receipts that a run's newest events name.

    :param payloads: of results of ``ARCHIVING`` steps.
    """
    found = [_head(payload) for payload in payloads if SEQUENCE in payload]
    if not found:
        return
    store_id = connection.execute(select(runs.c.store_id).where(runs.c.id == run_id)).scalar_one()
    event_id = connection.execute(select(func.max(events.c.id)).where(events.c.run_id == run_id)).scalar_one()
    for _, head in _last((event_id, head) for head in found):
        _put(connection, store_id, event_id, head)


def _put(connection: Connection, store_id: str, event_id: int, head: LakeHead) -> None:
    """Remember a receipt, and forget those of its lake that came before it."""
    same_lake = and_(
        heads.c.store_id == store_id, heads.c.lake_id == head.lake_id, heads.c.location == head.location
    )
    same = and_(
        heads.c.sequence == head.sequence, heads.c.row_hash == head.row_hash, heads.c.place == head.place
    )
    before = heads.c.event_id <= event_id, or_(heads.c.sequence < head.sequence, same)
    connection.execute(delete(heads).where(same_lake, *before))
    connection.execute(
        insert(heads).values(
            store_id=store_id,
            lake_id=head.lake_id,
            location=head.location,
            sequence=head.sequence,
            row_hash=head.row_hash,
            place=head.place,
            event_id=event_id,
        )
    )


def heads_since(connection: Connection, store_id: str, event_id: int) -> tuple[LakeHead, ...]:
    """Return what events after this one have seen, the oldest first.

    A release that keeps no heads may have been at work while the journal was brought up to date. What it has
    recorded since is read from its events.
    """
    query = select(heads).where(heads.c.store_id == store_id).order_by(heads.c.event_id, heads.c.id)
    known = [
        (row.event_id, LakeHead(row.lake_id, row.location, row.sequence, row.row_hash, row.place))
        for row in connection.execute(query)
    ]
    last_id = known[-1][0] if known else 0
    later = _recorded(connection, runs.c.store_id == store_id, events.c.id > last_id)
    found = (*known, *((number, head) for _, number, head in later))
    return tuple(head for number, head in found if number > event_id)


def project_all(connection: Connection) -> None:
    """Remember what all events of an older journal name."""
    by_store: dict[str, list[tuple[int, LakeHead]]] = {}
    for store_id, event_id, head in _recorded(connection):
        by_store.setdefault(store_id, []).append((event_id, head))
    for store_id, found in by_store.items():
        for event_id, head in _last(found):
            _put(connection, store_id, event_id, head)


def _recorded(connection: Connection, *where: ColumnElement[bool]) -> Iterator[tuple[str, int, LakeHead]]:
    """Yield the receipts that events name: the store's id, the event's, and the head; the oldest first."""
    query = (
        select(runs.c.store_id, events.c.id, events.c.payload)
        .join(events, events.c.run_id == runs.c.id)
        .where(events.c.step.in_([step.value for step in ARCHIVING]), events.c.phase == Phase.RESULT.value)
        .where(*where)
        .order_by(events.c.id)
    )
    for row in connection.execute(query):
        if SEQUENCE in row.payload:
            yield row.store_id, row.id, _head(row.payload)


def _last(found: Iterable[tuple[int, LakeHead]]) -> list[tuple[int, LakeHead]]:
    """Return the heads, each with its event, whose lake has no later receipt by a later event.

    :param found: in the order of their events.
    """
    last: dict[tuple[str, str], list[tuple[int, LakeHead]]] = {}
    for event_id, head in found:
        known = last.setdefault((head.lake_id, head.location), [])
        known[:] = [one for one in known if one[1].sequence >= head.sequence and one[1] != head]
        known.append((event_id, head))
    return [one for known in last.values() for one in known]


def _head(said: Mapping[str, Any]) -> LakeHead:
    return LakeHead(
        said.get("lake_id", ""), said["lake"], said[SEQUENCE], said["receipt_hash"], said.get("place", "")
    )
