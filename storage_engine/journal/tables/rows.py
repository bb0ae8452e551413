"""Conversion between the journal's rows and objects. Each function runs in the caller's transaction.

Heads are the last receipts in the events of archived segments. A head is deleted once a later event names a
later receipt of the same lake. So a few rows replace a search in thousands of events.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from storage_engine.commands import Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import filled, from_jsonable, to_jsonable, to_recorded
from storage_engine.core.long_work import no_collection
from storage_engine.journal.records import Event, Phase, Run, RunState, Step, StoreRecord, Waiver
from storage_engine.journal.tables.schema import (
    events,
    heads,
    log_lineages,
    plans,
    rules,
    runs,
    samples,
    stores,
    topic_days,
    waivers,
)
from storage_engine.model.lag import ArchiveLag
from storage_engine.model.plan import Decision, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.model.store import FileFacts, Segment, SegmentState, TopicDay

_BASE_OFFSET = "\0"
"""Placeholder in a path for the segment's base offset of 20 digits. No path can contain it."""
_FASTEST = 1
_NONE = -(1 << 63)
"""Number that stands for None, in the columns ``original_mtime_ns`` and ``end``."""
_LENGTH_BYTES = 8
_FACTS = ("device", "inode", "size_bytes", "mtime_ns", "ctime_ns")
_facts_of = attrgetter(*_FACTS)
_UNSIGNED = frozenset({"device", "inode", "size_bytes"})


@no_collection()
def pack(decisions: Sequence[Decision]) -> bytes:
    """Return decisions as bytes. Equal decisions give equal bytes."""
    segments = [decision.segment for decision in decisions]
    facts = [segment.facts for segment in segments]
    texts: dict[str, int] = {}

    def numbers(values: Iterable[str]) -> list[int]:
        return [texts.setdefault(text, len(texts)) for text in values]

    columns: dict[str, list[int]] = {
        "log": numbers(segment.log for segment in segments),
        "base_offset": [segment.base_offset for segment in segments],
        "state": numbers(segment.state for segment in segments),
        "original_mtime_ns": [
            _NONE if segment.original_mtime_ns is None else segment.original_mtime_ns for segment in segments
        ],
        "reason": numbers(decision.reason for decision in decisions),
        "detail": numbers(decision.detail for decision in decisions),
        "path": numbers(_template(segment, segment.facts) for segment in segments),
        **{name: list(map(attrgetter(name), facts)) for name in _FACTS},
    }
    if any(segment.end is not None for segment in segments):
        columns["end"] = [_NONE if segment.end is None else segment.end for segment in segments]
    wide = {name: column for name, column in columns.items() if not _fits(name, column)}
    narrow = {name: column for name, column in columns.items() if name not in wide}
    header: dict[str, Any] = {"version": 3, "rows": len(decisions), "columns": list(narrow)}
    if wide:
        header["wide"] = wide
    if any(segment.companions for segment in segments):
        header["companions"] = [
            [(*numbers([_template(segment, file)]), *_facts_of(file)) for file in segment.companions]
            for segment in segments
        ]
    head = json.dumps({**header, "texts": to_recorded(list(texts))}, separators=(",", ":")).encode()
    values = b"".join(_integers(name, column) for name, column in narrow.items())
    return zlib.compress(len(head).to_bytes(_LENGTH_BYTES, "big") + head + values, _FASTEST)


def _fits(name: str, values: Sequence[int]) -> bool:
    """Return whether the values fit into 64 bits. A wrong clock may give times after the year 2262."""
    lowest, highest = (0, 1 << 64) if name in _UNSIGNED else (_NONE, 1 << 63)
    return not values or (lowest <= min(values) and max(values) < highest)


def _integers(name: str, values: Sequence[int]) -> bytes:
    column = array("Q" if name in _UNSIGNED else "q", values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


@no_collection()
def unpack(packed: bytes) -> list[Decision]:
    """Return the decisions from the result of :func:`pack`.

    :param packed: bytes of this version, or compressed JSON of an earlier version (columns or decisions).
    """
    content = zlib.decompress(packed)
    if content[:1] == b"[":
        return list(read_decisions(json.loads(content)))
    if content[:1] == b"{":
        earlier = json.loads(content)
        return list(_rows(earlier["texts"], earlier["columns"]))
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
    header = json.loads(content[_LENGTH_BYTES:start])
    columns = _columns(header, memoryview(content)[start:])
    texts = [Text.from_json(text) if isinstance(text, list) else text for text in header["texts"]]
    return list(_rows(texts, columns, header.get("companions")))


def _columns(header: Mapping[str, Any], values: memoryview) -> Mapping[str, Sequence[int | None]]:
    width = 8 * header["rows"]
    columns: dict[str, Sequence[int | None]] = {}
    for number, name in enumerate(header["columns"]):
        column = array("Q" if name in _UNSIGNED else "q")
        column.frombytes(values[number * width : (number + 1) * width])
        if sys.byteorder == "big":
            column.byteswap()
        columns[name] = column.tolist()
    columns |= header.get("wide", {})
    for name in ("original_mtime_ns", "end"):
        if name in columns:
            columns[name] = [None if value == _NONE else value for value in columns[name]]
    return columns


def read_decisions(rows: Iterable[Mapping[str, Any]]) -> Iterable[Decision]:
    """Return decisions from the result of :func:`~storage_engine.core.jsonable.to_jsonable`."""
    return (from_jsonable(Decision, row) for row in rows)


def _template(segment: Segment, facts: FileFacts) -> str:
    return facts.path.replace(f"{segment.base_offset:020d}", _BASE_OFFSET)


def _rows(
    texts: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    beside: Sequence[Iterable[Sequence[int]]] | None = None,
) -> Iterable[Decision]:
    """:param beside: each segment's companions; None if no segment has companions."""
    states = {number: SegmentState(texts[number]) for number in set(columns["state"])}
    reasons = {number: Reason(texts[number]) for number in set(columns["reason"])}
    text = texts.__getitem__

    def path(number: int, base_offset: int) -> str:
        return texts[number].replace(_BASE_OFFSET, f"{base_offset:020d}")

    def companions(base_offset: int, files: Iterable[Sequence[int]]) -> tuple[FileFacts, ...]:
        return tuple(FileFacts(path(number, base_offset), *facts) for number, *facts in files)

    rows = len(columns["log"])
    facts = map(
        FileFacts, map(path, columns["path"], columns["base_offset"]), *(columns[name] for name in _FACTS)
    )
    segments = map(
        Segment,
        map(text, columns["log"]),
        columns["base_offset"],
        facts,
        map(states.__getitem__, columns["state"]),
        columns["original_mtime_ns"],
        columns.get("end", repeat(None, rows)),
        repeat((), rows) if beside is None else map(companions, columns["base_offset"], beside),
    )
    return map(Decision, segments, map(reasons.__getitem__, columns["reason"]), map(text, columns["detail"]))


CHANGES_AT_MOST = 8
"""If more decisions than this differ from the last stored list, a new list is stored."""


def store_plan(connection: Connection, run: Run, plan: Plan) -> dict[str, Any]:
    """Store a plan's decisions, as differences from the store's last list if these are few.

    :return: the JSON object to store in the run's row. :func:`read_plan` makes the plan from this object.
    """
    head = to_recorded(replace(plan, logs=()))
    head["logs"] = [[log.log, len(log.decisions)] for log in plan.logs]
    decisions = plan.decisions
    packed = pack(decisions)
    whole = {"skip": 0, "count": len(decisions), "changes": []}
    last = connection.execute(
        select(plans).where(plans.c.store_id == run.store_id).order_by(plans.c.id.desc()).limit(1)
    ).first()
    if last is not None:
        is_same = bytes(last.decisions) == packed
        changes = whole if is_same else difference(unpack(last.decisions), decisions)
        if changes is not None:
            return {**head, "decisions_in": last.id, **changes}
    row = {"store_id": run.store_id, "run_key": run.run_key, "decisions": packed, "at_ms": clock_ms()}
    added = connection.execute(insert(plans).values(**row)).inserted_primary_key
    assert added is not None
    return {**head, "decisions_in": added[0], **whole}


def read_plan(connection: Connection, stored: Mapping[str, Any]) -> Plan:
    """Return the plan of a run's row. The row has the whole plan or the result of :func:`store_plan`."""
    head = dict(stored)
    if "decisions" in head:
        decisions = list(read_decisions(head.pop("decisions")))
    else:
        number, skip, count = head.pop("decisions_in"), head.pop("skip"), head.pop("count")
        changes = [(index, from_jsonable(Decision, row)) for index, row in head.pop("changes")]
        packed = connection.execute(select(plans.c.decisions).where(plans.c.id == number)).scalar_one()
        decisions = unpack(packed)[skip : skip + count]
        for index, decision in changes:
            decisions[index : index + 1] = [decision]
    # A plan of an older journal has one log, and names it.
    logs = head.pop("logs") if "logs" in head else [(head.pop("log"), len(decisions))]
    return replace(from_jsonable(Plan, {**head, "logs": []}), logs=_group_plans(logs, decisions))


def _group_plans(logs: Sequence[tuple[str, int]], decisions: Sequence[Decision]) -> tuple[LogPlan, ...]:
    """:raises ValueError: the counts don't sum up, or a decision is on another log's segment."""
    if sum(count for _, count in logs) != len(decisions):
        raise ValueError(f"expected the decisions of {logs}, found {len(decisions)}")
    plans_of_logs = []
    start = 0
    for name, count in logs:
        plans_of_logs.append(LogPlan(name, tuple(decisions[start : start + count])))
        start += count
    return tuple(plans_of_logs)


def difference(before: Sequence[Decision], now: Sequence[Decision]) -> dict[str, Any] | None:
    """Return the change from ``before`` to ``now``; None if more than :data:`CHANGES_AT_MOST` items differ.

    :return: the number of first items of ``before`` to skip, the number of items now, and items that differ.
    """
    skip = next((i for i, item in enumerate(before) if now and item.segment.id == now[0].segment.id), 0)
    old = before[skip : skip + len(now)]
    changes: list[list[Any]] = []
    for i, decision in enumerate(now):
        if i >= len(old) or old[i] != decision:
            changes.append([i, to_recorded(decision)])
            if len(changes) > CHANGES_AT_MOST:
                return None
    return {"skip": skip, "count": len(now), "changes": changes}


ARCHIVING = frozenset({Step.ARCHIVE, Step.SEALED})
"""Steps whose results name the receipts of segments."""
SEQUENCE = "receipt_sequence"
"""Field of a result: the receipt's sequence number in its lake. Results of older releases lack this field."""


def project(connection: Connection, run_id: int, payloads: Iterable[Mapping[str, Any]]) -> None:
    """Record the receipts that a run's newest events name.

    :param payloads: payloads of results of ``ARCHIVING`` steps.
    """
    new_heads = [_head(payload) for payload in payloads if SEQUENCE in payload]
    if not new_heads:
        return
    store_id = connection.execute(select(runs.c.store_id).where(runs.c.id == run_id)).scalar_one()
    event_id = connection.execute(select(func.max(events.c.id)).where(events.c.run_id == run_id)).scalar_one()
    for _, head in _last((event_id, head) for head in new_heads):
        _put(connection, store_id, event_id, head)


def _put(connection: Connection, store_id: str, event_id: int, head: LakeHead) -> None:
    """Record a receipt, and delete earlier receipts of its lake."""
    same_lake = and_(
        heads.c.store_id == store_id, heads.c.lake_id == head.lake_id, heads.c.location == head.location
    )
    same = and_(
        heads.c.sequence == head.sequence, heads.c.row_hash == head.row_hash, heads.c.place == head.place
    )
    before = heads.c.event_id <= event_id, or_(heads.c.sequence < head.sequence, same)
    connection.execute(delete(heads).where(same_lake, *before))
    connection.execute(insert(heads).values(store_id=store_id, event_id=event_id, **asdict(head)))


def heads_since(connection: Connection, store_id: str, event_id: int) -> tuple[LakeHead, ...]:
    """Return the last receipts in each lake, as far as a store's events after ``event_id`` name them.

    The receipt of the oldest event comes first. A lake has several last receipts if an earlier event names a
    later receipt. A release that doesn't store heads may have recorded events during the upgrade of the
    journal. The receipts of these events are read from the events themselves.
    """
    query = select(heads).where(heads.c.store_id == store_id).order_by(heads.c.event_id, heads.c.id)
    projected = [
        (row.event_id, LakeHead(row.lake_id, row.location, row.sequence, row.row_hash, row.place))
        for row in connection.execute(query)
    ]
    last_id = projected[-1][0] if projected else 0
    later = _read_heads(connection, runs.c.store_id == store_id, events.c.id > last_id)
    all_heads = (*projected, *((number, head) for _, number, head in later))
    return tuple(head for number, head in all_heads if number > event_id)


def project_all(connection: Connection) -> None:
    """Fill the table of last receipts from all events of an older journal."""
    by_store: dict[str, list[tuple[int, LakeHead]]] = {}
    for store_id, event_id, head in _read_heads(connection):
        by_store.setdefault(store_id, []).append((event_id, head))
    for store_id, entries in by_store.items():
        for event_id, head in _last(entries):
            _put(connection, store_id, event_id, head)


def _read_heads(connection: Connection, *where: ColumnElement[bool]) -> Iterator[tuple[str, int, LakeHead]]:
    """Yield the receipts that events name, the oldest first: store id, event number and head."""
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


def _last(entries: Iterable[tuple[int, LakeHead]]) -> list[tuple[int, LakeHead]]:
    """Return the heads that no later event replaces, each with its event.

    A later event replaces a head if it names the same or a later receipt of the same lake.

    :param entries: heads in the order of their events.
    """
    last: dict[tuple[str, str], list[tuple[int, LakeHead]]] = {}
    for event_id, head in entries:
        of_lake = last.setdefault((head.lake_id, head.location), [])
        of_lake[:] = [entry for entry in of_lake if entry[1].sequence >= head.sequence and entry[1] != head]
        of_lake.append((event_id, head))
    return [entry for of_lake in last.values() for entry in of_lake]


def _head(data: Mapping[str, Any]) -> LakeHead:
    return LakeHead(
        data.get("lake_id", ""), data["lake"], data[SEQUENCE], data["receipt_hash"], data.get("place", "")
    )


Value = TypeVar("Value")
MOST_VALUES = 500
"""Maximum of values in one query, because databases limit the number of parameters."""


def in_parts(values: Iterable[Value]) -> Iterator[list[Value]]:
    """Yield values in their order, in parts that are small enough for one query."""
    items = [*values]
    return (items[start : start + MOST_VALUES] for start in range(0, len(items), MOST_VALUES))


Slot = tuple[str, int]
"""A segment's log and base offset."""


class SlotTopic(NamedTuple):
    """Bytes of one topic in a segment. Topic "" is the sum of all topics without their own row.

    :param newest_day: UTC day of its newest message, counted from 1970-01-01.
    """

    topic: str
    newest_day: int
    size_bytes: int


def put_topic_days(connection: Connection, store_id: str, slots: Mapping[Slot, Sequence[TopicDay]]) -> None:
    """Record the bytes of segments by topic and day. Earlier records of these segments are deleted."""
    rows: list[dict[str, Any]] = []
    for (log, base_offset), days in slots.items():
        key = {"store_id": store_id, "log": log, "base_offset": base_offset}
        connection.execute(delete(topic_days).filter_by(**key))
        rows += [
            {**key, "topic": row.topic, "day": row.day, "bytes": row.size_bytes, "messages": row.messages}
            for row in days
        ]
    if rows:
        connection.execute(insert(topic_days), rows)


def read_topic_days(
    connection: Connection, store_id: str, start_day: int, end_day: int, *, limit: int = 1_000
) -> tuple[TopicDay, ...]:
    """Return the bytes of a store's archived segments by topic and UTC day, the largest first.

    :param start_day: first day, counted from 1970-01-01. ``end_day`` is the day after the last day.
    """
    size_bytes = func.sum(topic_days.c.bytes)
    query = (
        select(
            topic_days.c.topic,
            topic_days.c.day,
            # PostgreSQL sums whole numbers to decimals.
            cast(size_bytes, BigInteger).label("size_bytes"),
            cast(func.sum(topic_days.c.messages), BigInteger).label("messages"),
        )
        .where(topic_days.c.store_id == store_id)
        .where(topic_days.c.day >= start_day, topic_days.c.day < end_day)
        .group_by(topic_days.c.day, topic_days.c.topic)
        .order_by(size_bytes.desc(), topic_days.c.day, topic_days.c.topic)
        .limit(limit)
    )
    return tuple(TopicDay(**row._mapping) for row in connection.execute(query))


def read_archived_topics(connection: Connection, store_id: str) -> dict[Slot, list[SlotTopic]]:
    """Return the recorded topics of a store's archived segments, by segment."""
    columns = (topic_days.c.log, topic_days.c.base_offset, topic_days.c.topic)
    query = (
        select(
            *columns,
            func.max(topic_days.c.day).label("day"),
            cast(func.sum(topic_days.c.bytes), BigInteger).label("bytes"),
        )
        .where(topic_days.c.store_id == store_id)
        .group_by(*columns)
    )
    topics: dict[Slot, list[SlotTopic]] = {}
    for row in connection.execute(query):
        topics.setdefault((row.log, row.base_offset), []).append(SlotTopic(row.topic, row.day, row.bytes))
    return topics


@dataclass(frozen=True, slots=True)
class RulesRow:
    """The rules that were in force from a moment on, as JSON."""

    at_ms: int
    rules: Mapping[str, Any]


def put_rules(connection: Connection, store_id: str, broker_rules: Mapping[str, Any]) -> None:
    """Record the rules by which a store's broker deletes, if they differ from the last recorded ones."""
    query = select(rules).where(rules.c.store_id == store_id).order_by(rules.c.at_ms.desc()).limit(1)
    last, now = connection.execute(query).first(), to_jsonable(broker_rules)
    if last is not None and last.rules == now:
        return
    # A clock that was set back must not put new rules before old ones.
    from_ms = clock_ms() if last is None else max(clock_ms(), last.at_ms + 1)
    connection.execute(insert(rules).values(store_id=store_id, at_ms=from_ms, rules=now))


def read_rules(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> tuple[RulesRow, ...]:
    """Return the rules in force between two moments, by time. The first rules may have begun earlier."""
    where = rules.c.store_id == store_id
    first = select(func.max(rules.c.at_ms)).where(where, rules.c.at_ms <= start_ms).scalar_subquery()
    query = (
        select(rules.c.at_ms, rules.c.rules)
        .where(where, rules.c.at_ms >= func.coalesce(first, start_ms), rules.c.at_ms < end_ms)
        .order_by(rules.c.at_ms)
    )
    return tuple(RulesRow(row.at_ms, row.rules) for row in connection.execute(query))


Subjects = Sequence[tuple[str, Mapping[str, Any]]]


def read_stores(connection: Connection, *where: ColumnElement[bool]) -> tuple[StoreRecord, ...]:
    """Return all stores, or the stores that meet a condition, the oldest first."""
    rows = connection.execute(select(stores).where(*where).order_by(stores.c.created_at_ms)).all()
    query = select(log_lineages).where(log_lineages.c.store_id.in_([row.store_id for row in rows]))
    of_logs: dict[str, dict[str, int]] = {}
    for entry in connection.execute(query.order_by(log_lineages.c.log)):
        of_logs.setdefault(entry.store_id, {})[entry.log] = entry.lineage
    return tuple(StoreRecord(**row._mapping, log_lineages=of_logs.get(row.store_id, {})) for row in rows)


def find_run_row(connection: Connection, store_id: str, run_key: str) -> Run | None:
    row = connection.execute(
        select(runs).where(runs.c.store_id == store_id, runs.c.run_key == run_key)
    ).first()
    if row is None:
        return None
    return filled(
        Run,
        row,
        run_id=row.id,
        state=RunState(row.state),
        request=from_jsonable(PlanRequest, row.request),
        plan=None if row.plan is None else read_plan(connection, row.plan),
    )


EVENTS: Final = select(runs.c.run_key, events).join(events, events.c.run_id == runs.c.id)
"""Query for rows that :func:`to_event` reads."""


def last_result(store_id: str, step: Step, *where: ColumnElement[bool]) -> Select[Any]:
    """Return the newest result of a step in all runs of a store, as a row for :func:`to_event`."""
    results = EVENTS.where(events.c.step == step.value, events.c.phase == Phase.RESULT.value)
    return results.where(runs.c.store_id == store_id, *where).order_by(events.c.id.desc()).limit(1)


def to_event(row: Row[Any]) -> Event:
    return Event(row.run_key, row.step, Phase(row.phase), row.subject, row.payload, row.at_ms, row.id)


def find_waiver_row(connection: Connection, plan_digest: str) -> Waiver | None:
    row = connection.execute(select(waivers).where(waivers.c.plan_digest == plan_digest)).first()
    return None if row is None else Waiver(**row._mapping)


def put_archive_lag(connection: Connection, store_id: str, at_ms: int, lag: ArchiveLag) -> None:
    """Add the archive lag to an existing sample. Other values stay, and no new sample is made."""
    connection.execute(
        update(samples)
        .where(samples.c.store_id == store_id, samples.c.at_ms == at_ms)
        .values(archive_lag=to_jsonable(lag), archive_lag_bytes=lag.size_bytes)
    )


def insert_events(connection: Connection, run_id: int, step: Step, phase: Phase, subjects: Subjects) -> None:
    at_ms = clock_ms()
    rows = [
        {
            "run_id": run_id,
            "step": step.value,
            "phase": phase.value,
            "subject": subject,
            "payload": to_jsonable(payload),
            "at_ms": at_ms,
        }
        for subject, payload in subjects
    ]
    if rows:
        connection.execute(insert(events), rows)
        if step in ARCHIVING and phase is Phase.RESULT:
            project(connection, run_id, [row["payload"] for row in rows])
