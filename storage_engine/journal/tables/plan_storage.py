"""How a run's plan is stored: decisions as compressed columns, and what hardly changes once a store.

What a run has of its own (moment, causes, notices) is in its row, together with the number of a stored list
of decisions and with what differs from it. A plan of 1,000 segments that says what the one before it said
takes a few hundred bytes. Plans of older journals have one log, and the oldest are whole in their run's row.

Decisions are columns: those of 10,000 logs are written and read in a second. Names repeat, so each distinct
reason, sentence and directory is there once, and a row has its number. The form: the length of a header (8
bytes, big-endian), the header as JSON, then each column as 64-bit integers, little-endian; a column with
larger numbers is in the header. Earlier lists of decisions, which were JSON throughout, are read as well.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, insert, select

from storage_engine.commands import Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.collector import no_collection
from storage_engine.core.jsonable import from_jsonable, to_recorded
from storage_engine.journal.records import Run
from storage_engine.journal.tables.schema import plans
from storage_engine.model.plan.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.store.store import FileFacts, Segment, SegmentState

_BASE_OFFSET = "\0"
"""Stands in a path for the segment's base offset of 20 digits. No path can have it."""
_FASTEST = 1
_NONE = -(1 << 63)
"""Stands for an mtime that no hold has set."""
_LENGTH_BYTES = 8
_FACTS = ("device", "inode", "size_bytes", "mtime_ns", "ctime_ns")
_facts_of = attrgetter(*_FACTS)
_UNSIGNED = frozenset({"device", "inode", "size_bytes"})


def pack(decisions: Sequence[Decision]) -> bytes:
    """Return decisions as bytes: the same ones for the same decisions."""
    with no_collection():
        return _pack(decisions)


def _pack(decisions: Sequence[Decision]) -> bytes:
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
            [(*numbers([_template(segment, one)]), *_facts_of(one)) for one in segment.companions]
            for segment in segments
        ]
    said = json.dumps({**header, "texts": to_recorded(list(texts))}, separators=(",", ":")).encode()
    values = b"".join(_integers(name, column) for name, column in narrow.items())
    return zlib.compress(len(said).to_bytes(_LENGTH_BYTES, "big") + said + values, _FASTEST)


def _fits(name: str, values: Sequence[int]) -> bool:
    """Return whether 64 bits hold them: a clock that is wrong gives times behind the year 2262."""
    lowest, highest = (0, 1 << 64) if name in _UNSIGNED else (_NONE, 1 << 63)
    return not values or (lowest <= min(values) and max(values) < highest)


def _integers(name: str, values: Sequence[int]) -> bytes:
    column = array("Q" if name in _UNSIGNED else "q", values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def unpack(packed: bytes) -> list[Decision]:
    """Return the decisions that :func:`pack` was given.

    :param packed: of this version, or compressed JSON of earlier ones: columns, or a list of decisions.
    """
    with no_collection():
        content = zlib.decompress(packed)
        if content[:1] == b"[":
            return list(read_decisions(json.loads(content)))
        if content[:1] == b"{":
            earlier = json.loads(content)
            return list(_rows(earlier["texts"], earlier["columns"]))
        start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
        header = json.loads(content[_LENGTH_BYTES:start])
        columns = _columns(header, memoryview(content)[start:])
        texts = [Text.from_json(one) if isinstance(one, list) else one for one in header["texts"]]
        return list(_rows(texts, columns, header.get("companions")))


def _columns(header: Mapping[str, Any], values: memoryview) -> Mapping[str, Sequence[int | None]]:
    names = header["columns"]
    width = 8 * header["rows"]
    columns: dict[str, Sequence[int | None]] = {}
    for number, name in enumerate(names):
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
    """Return decisions from what :func:`~storage_engine.core.jsonable.to_jsonable` made of them."""
    return (from_jsonable(Decision, row) for row in rows)


def _template(segment: Segment, facts: FileFacts) -> str:
    return facts.path.replace(f"{segment.base_offset:020d}", _BASE_OFFSET)


def _rows(
    texts: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    beside: Sequence[Iterable[Sequence[int]]] | None = None,
) -> Iterable[Decision]:
    """:param beside: each segment's companions; None: none has any."""
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
"""With more decisions that differ from the stored list, a list of its own is stored."""


def store_plan(connection: Connection, run: Run, plan: Plan) -> dict[str, Any]:
    """Store a plan's decisions as far as they differ from the store's last list.

    :return: what the run's row has to keep; :func:`read_plan` makes the plan of it.
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
        same = bytes(last.decisions) == packed
        changes = whole if same else difference(unpack(last.decisions), decisions)
        if changes is not None:
            return {**head, "decisions_in": last.id, **changes}
    row = {"store_id": run.store_id, "run_key": run.run_key, "decisions": packed, "at_ms": clock_ms()}
    added = connection.execute(insert(plans).values(**row)).inserted_primary_key
    assert added is not None
    return {**head, "decisions_in": added[0], **whole}


def read_plan(connection: Connection, stored: Mapping[str, Any]) -> Plan:
    """Return the plan that a run's row keeps, whole or as :func:`store_plan` made it."""
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
    return replace(from_jsonable(Plan, {**head, "logs": []}), logs=_by_log(logs, decisions))


def _by_log(logs: Sequence[tuple[str, int]], decisions: Sequence[Decision]) -> tuple[LogPlan, ...]:
    """
    :raises ValueError: the counts don't sum up, or a decision is on another log's segment.
    """
    if sum(count for _, count in logs) != len(decisions):
        raise ValueError(f"expected the decisions of {logs}, found {len(decisions)}")
    plans_of_logs = []
    start = 0
    for name, count in logs:
        plans_of_logs.append(LogPlan(name, tuple(decisions[start : start + count])))
        start += count
    return tuple(plans_of_logs)


def difference(before: Sequence[Decision], now: Sequence[Decision]) -> dict[str, Any] | None:
    """Return what makes ``now`` of ``before``: the first that is taken, how many, and those that differ.

    :return: None where more than :data:`CHANGES_AT_MOST` differ.
    """
    skip = next((i for i, one in enumerate(before) if now and one.segment.id == now[0].segment.id), 0)
    kept = before[skip : skip + len(now)]
    changes: list[list[Any]] = []
    for i, one in enumerate(now):
        if i >= len(kept) or kept[i] != one:
            changes.append([i, to_recorded(one)])
            if len(changes) > CHANGES_AT_MOST:
                return None
    return {"skip": skip, "count": len(now), "changes": changes}
