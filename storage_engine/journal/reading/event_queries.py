"""Incidents, and what became of segments, out of the events: by their indexes, not by a scan.

A store's events are those of its runs, of which the journal keeps thousands where it keeps a million events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from storage_engine.journal.reading.answers import DriftRow, Incident, SegmentRow
from storage_engine.journal.records import Phase, Step
from storage_engine.journal.tables.schema import (
    BECAME_OF_SEGMENT,
    IS_INCIDENT,
    events,
    runs,
)

_STATES = {Step.ARCHIVE.value: "archived", Step.SEALED.value: "archived", Step.RELEASE.value: "deleted"}
"""What the result of a step makes of a segment."""

_PARTS = 60
"""Of a span; many drifts within one are told as one."""
_MOST_RUNS = 500
"""In one query; databases take a bounded number of parameters."""


def incidents(
    connection: Connection, store_id: str, since_ms: int, until_ms: int | None, limit: int
) -> tuple[Incident, ...]:
    """Return what others did, losses that were accepted, and steps that failed, the newest first."""
    newest = (
        select(events.c.id)
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, events.c.at_ms >= since_ms, IS_INCIDENT)
        .order_by(events.c.id.desc())
        .limit(limit)
    )
    if until_ms is not None:
        newest = newest.where(events.c.at_ms < until_ms)
    # Payloads are read of these alone.
    query = (
        select(runs.c.run_key, events)
        .join(events, events.c.run_id == runs.c.id)
        .where(events.c.id.in_(newest))
        .order_by(events.c.id.desc())
    )
    return tuple(
        Incident(row.run_key, row.step, row.subject, row.at_ms, row.payload)
        for row in connection.execute(query)
    )


def drifts(
    connection: Connection, store_id: str, start_ms: int, end_ms: int, most: int
) -> tuple[DriftRow, ...]:
    """Return what others did from a moment to another, which is not included, by time.

    :param most: more are told together, so that each is part of what is told.
    """
    at_ms = events.c.at_ms
    where = (
        runs.c.store_id == store_id,
        at_ms >= start_ms,
        at_ms < end_ms,
        IS_INCIDENT,
        events.c.step == Step.DRIFT.value,
        events.c.phase == Phase.RESULT.value,
    )
    of_runs = events.join(runs, events.c.run_id == runs.c.id)
    some = connection.execute(select(events.c.id).select_from(of_runs).where(*where).limit(most + 1)).all()
    if not some:
        return ()
    width_ms = max(1, -(-(end_ms - start_ms) // _PARTS))
    part = events.c.id if len(some) <= most else (at_ms - start_ms) // width_ms
    together = (
        select(
            func.min(at_ms).label("first_ms"),
            func.max(at_ms).label("until_ms"),
            func.count().label("times"),
            func.max(events.c.id).label("last_id"),
        )
        .select_from(of_runs)
        .where(*where)
        .group_by(part)
    )
    rows = connection.execute(together).all()
    # Payloads are read of the last ones alone.
    last = select(events.c.id, events.c.payload).where(events.c.id.in_([row.last_id for row in rows]))
    payloads = {row.id: row.payload for row in connection.execute(last)}
    found = [DriftRow(row.first_ms, payloads[row.last_id], row.times, row.until_ms) for row in rows]
    return tuple(sorted(found, key=lambda one: one.at_ms))


def segments(connection: Connection, store_id: str, limit: int) -> tuple[SegmentRow, ...]:
    """Return the segments that runs archived or deleted last, the newest first; each once.

    What an undone run deleted is back: it is as it was before.
    """
    # As many rows as it takes: a journal may have a million.
    streamed = connection.execution_options(stream_results=True)
    found: dict[str, Row[Any]] = {}
    # One run may have all that is asked for, or a thousand a segment each.
    count = 1
    with streamed.execute(_last_of_runs(store_id)) as last_of_runs:
        while some := [*islice(last_of_runs, count)]:
            after = min((row.id for row in found.values()), default=0) if len(found) == limit else 0
            # A run whose last event is older than all that was found can't add to it, nor can those behind.
            if (some[0].last_id or 0) <= after:
                break
            newer = _became(streamed, [row.id for row in some], after, limit)
            found = _newest(found, newer, limit)
            count = min(2 * count, _MOST_RUNS)
    return tuple(_segment(row) for row in found.values())


def _last_of_runs(store_id: str) -> Select[Any]:
    """The store's runs, each with its last event that says what became of a segment, the newest first."""
    last = (
        select(events.c.id)
        .where(events.c.run_id == runs.c.id, BECAME_OF_SEGMENT)
        .order_by(events.c.id.desc())
        .limit(1)
        .scalar_subquery()
        .label("last_id")
    )
    return select(runs.c.id, last).where(runs.c.store_id == store_id).order_by(last.desc().nulls_last())


def _became(connection: Connection, run_ids: Sequence[int], after: int, limit: int) -> dict[str, Row[Any]]:
    """Return the last event of each segment in some runs, the newest first.

    :param after: only by events after this one.
    :param limit: at most so many segments.
    """
    undo = select(events.c.run_id).where(
        events.c.run_id.in_(run_ids),
        events.c.step == Step.UNDO.value,
        events.c.phase == Phase.RESULT.value,
    )
    undone = {*connection.execute(undo).scalars()}
    query: Select[Any] = (
        select(events.c.id, events.c.run_id, runs.c.run_key, events.c.subject, events.c.step, events.c.at_ms)
        .join(runs, events.c.run_id == runs.c.id)
        .where(events.c.run_id.in_(run_ids), events.c.id > after, BECAME_OF_SEGMENT)
        .order_by(events.c.id.desc())
    )
    found: dict[str, Row[Any]] = {}
    with connection.execute(query) as became:
        for row in became:
            if row.step != Step.RELEASE.value or row.run_id not in undone:
                found.setdefault(row.subject, row)
            if len(found) == limit:
                break
    return found


def _newest(one: Mapping[str, Row[Any]], other: Mapping[str, Row[Any]], limit: int) -> dict[str, Row[Any]]:
    """Return the last event of each segment by both, the newest first, at most so many."""
    rows = sorted([*one.values(), *other.values()], key=lambda row: -row.id)
    found: dict[str, Row[Any]] = {}
    for row in rows:
        found.setdefault(row.subject, row)
    return dict(list(found.items())[:limit])


def _segment(row: Row[Any]) -> SegmentRow:
    log, _, base_offset = row.subject.rpartition("/")
    return SegmentRow(log, int(base_offset), _STATES[row.step], row.run_key, row.at_ms)
