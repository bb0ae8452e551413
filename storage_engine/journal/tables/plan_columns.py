"""Decisions as columns, compressed: those of 10,000 logs are written and read in a second.

Names repeat, so each distinct reason, sentence and directory is there once, and a row has its number. The
form: the length of a header (8 bytes, big-endian), the header as JSON, then each column as 64-bit integers,
little-endian; a column with larger numbers is in the header. Earlier lists of decisions, which were JSON
throughout, are read as well.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

from storage_engine.core.collector import no_collection
from storage_engine.core.jsonable import from_jsonable
from storage_engine.model.plan.plan import Decision, Reason
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
    said = json.dumps({**header, "texts": list(texts)}, separators=(",", ":")).encode()
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
        return list(_rows(header["texts"], columns, header.get("companions")))


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
