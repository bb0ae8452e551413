"""What runs deleted of a store, by the events of their releases, and what was found to have gone in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select

from storage_engine.core.clock import HOUR_MS
from storage_engine.journal.records import Event, Phase, Step
from storage_engine.journal.tables.rows import to_event
from storage_engine.journal.tables.schema import events, runs
from storage_engine.model.hold import DriftKind

GONE = frozenset({DriftKind.SEGMENT_GONE, DriftKind.GIVEN_UP})
"""What is about a range of the log that is gone."""

_MOST_RUNS = 500
"""In one query; databases take a bounded number of parameters."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A segment that a run deleted.

    :param excuse: why it needed no receipt; "" where it had one.
    :param lineage: of its log then; 0: an older version recorded none.
    :param log_id: which log it was of; "": it isn't known.
    """

    log: str
    start_offset: int
    end_offset: int
    excuse: str
    lineage: int
    log_id: str = ""


@dataclass(frozen=True, slots=True)
class DeletingRun:
    """A run that deleted something, or in which something was found to have gone.

    :param request: as the journal has it.
    :param last_id: number of the last event that says so.
    """

    run_id: int
    run_key: str
    begun_at_ms: int
    request: Mapping[str, Any]
    plan_digest: str | None
    last_id: int


@dataclass(frozen=True, slots=True)
class JournalEnds:
    """
    :param known_id: the newest event of any store that is an hour old: transactions whose events have lower
        numbers have come to their ends. 0: there is none.
    :param last_undo: the newest event by which a run of this store brought back what it had deleted; 0: none.
    """

    known_id: int
    last_undo: int


@dataclass(frozen=True, slots=True)
class EventsAround:
    """When the events on both sides of a number were recorded, of any store, in milliseconds since the epoch.

    :param before_ms: of the last one up to this number; None: there is none.
    :param after_ms: of the first one behind it; None: there is none.
    """

    before_ms: int | None
    after_ms: int | None


def events_around(connection: Connection, event_id: int) -> EventsAround:
    """Return when the events on both sides of a number were recorded."""
    at_ms = select(events.c.at_ms).limit(1)
    before = at_ms.where(events.c.id <= event_id).order_by(events.c.id.desc())
    after = at_ms.where(events.c.id > event_id).order_by(events.c.id)
    return EventsAround(connection.execute(before).scalar(), connection.execute(after).scalar())


def journal_ends(connection: Connection, store_id: str, now_ms: int) -> JournalEnds:
    """Return what a later look goes on from."""
    undo = (
        select(func.max(events.c.id))
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id)
        .where(events.c.step == Step.UNDO.value, events.c.phase == Phase.RESULT.value)
    )
    old = select(events.c.id).where(events.c.at_ms <= now_ms - HOUR_MS).order_by(events.c.id.desc()).limit(1)
    return JournalEnds(connection.execute(old).scalar() or 0, connection.execute(undo).scalar() or 0)


def deleting_runs(connection: Connection, store_id: str) -> tuple[DeletingRun, ...]:
    """Return a store's runs that deleted something or lost it, in the order of their last such event."""
    kind = events.c.payload[("disturbance", "kind")].as_string()
    says_so = and_(
        events.c.phase == Phase.RESULT.value,
        or_(
            and_(events.c.step == Step.RELEASE.value, events.c.subject != ""),
            and_(events.c.step == Step.DRIFT.value, kind.in_([one.value for one in GONE])),
            events.c.step == Step.ACCEPT_LOSS.value,
        ),
    )
    last = (
        select(events.c.run_id, func.max(events.c.id).label("last_id"))
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, says_so)
        .group_by(events.c.run_id)
        .subquery()
    )
    query = (
        select(
            runs.c.id,
            runs.c.run_key,
            runs.c.created_at_ms,
            runs.c.request,
            runs.c.plan_digest,
            last.c.last_id,
        )
        .join(last, last.c.run_id == runs.c.id)
        .order_by(last.c.last_id)
    )
    return tuple(DeletingRun(*row) for row in connection.execute(query))


def events_of_deletion(connection: Connection, run_id: int) -> tuple[Event, ...]:
    """Return a run's intents and results of deletions and what was found to have gone, oldest first: of its
    events those that never expire."""
    mine = or_(
        and_(events.c.step == Step.RELEASE.value, events.c.subject != ""),
        events.c.step.in_([Step.DRIFT.value, Step.ACCEPT_LOSS.value]),
    )
    query = (
        select(runs.c.run_key, events)
        .join(events, events.c.run_id == runs.c.id)
        .where(runs.c.id == run_id, mine)
        .order_by(events.c.id)
    )
    return tuple(map(to_event, connection.execute(query)))


def deletions_after(connection: Connection, store_id: str, event_id: int) -> tuple[Deletion, ...]:
    """Return what runs of a store deleted, by events after this one; what was undone since is back."""
    payload = events.c.payload
    # As text: PostgreSQL's integers are too short for offsets.
    query = (
        select(
            events.c.run_id,
            events.c.subject,
            payload["end"].as_string().label("end_offset"),
            payload[("facts", "size_bytes")].as_string().label("size_bytes"),
            payload["lineage"].as_string().label("lineage"),
            payload["log_id"].as_string().label("log_id"),
            payload["receipt_hash"].as_string().label("receipt_hash"),
            payload["passage_detail"].as_string().label("passage_detail"),
        )
        .where(events.c.id > event_id, events.c.subject != "")
        .where(events.c.step == Step.RELEASE.value, events.c.phase == Phase.RESULT.value)
        .order_by(events.c.id)
    )
    rows = connection.execute(query).all()
    mine = set(_standing(connection, store_id, sorted({row.run_id for row in rows})))
    found = []
    for row in rows:
        if row.run_id not in mine:
            continue
        log, _, base = row.subject.rpartition("/")
        end = int(base) + int(row.size_bytes) if row.end_offset is None else int(row.end_offset)
        excuse = "" if row.receipt_hash else row.passage_detail
        found.append(Deletion(log, int(base), end, excuse, int(row.lineage or 0), row.log_id or ""))
    return tuple(found)


def _standing(connection: Connection, store_id: str, run_ids: Sequence[int]) -> Iterator[int]:
    """Yield those of some runs that are of a store and were not undone."""
    for start in range(0, len(run_ids), _MOST_RUNS):
        some = run_ids[start : start + _MOST_RUNS]
        undone = select(events.c.run_id).where(
            events.c.run_id.in_(some), events.c.step == Step.UNDO.value, events.c.phase == Phase.RESULT.value
        )
        mine = select(runs.c.id).where(runs.c.id.in_(some), runs.c.store_id == store_id)
        yield from connection.execute(mine.where(runs.c.id.not_in(undone))).scalars()
