"""Decisions as columns of JSON, compressed: those of 10,000 logs are written and read in less than a second.

Names repeat, so each distinct reason, sentence and directory is there once, and a row has its number. Lists
of decisions from before this form are read as well.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from storage_engine.collector import no_collection
from storage_engine.model.jsonable import from_jsonable
from storage_engine.model.plan import Decision, Reason
from storage_engine.model.store import FileFacts, Segment, SegmentState

_BASE_OFFSET = "\0"
"""Stands in a path for the segment's base offset of 20 digits. No path can have it."""
_FASTEST = 1


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

    columns: dict[str, Sequence[Any]] = {
        "log": numbers(segment.log for segment in segments),
        "base_offset": [segment.base_offset for segment in segments],
        "state": numbers(segment.state for segment in segments),
        "original_mtime_ns": [segment.original_mtime_ns for segment in segments],
        "reason": numbers(decision.reason for decision in decisions),
        "detail": numbers(decision.detail for decision in decisions),
        "path": numbers(_template(segment, segment.facts) for segment in segments),
        "device": [one.device for one in facts],
        "inode": [one.inode for one in facts],
        "size_bytes": [one.size_bytes for one in facts],
        "mtime_ns": [one.mtime_ns for one in facts],
        "ctime_ns": [one.ctime_ns for one in facts],
    }
    if any(segment.end is not None for segment in segments):
        columns["end"] = [segment.end for segment in segments]
    if any(segment.companions for segment in segments):
        columns["companions"] = [
            [(*numbers([_template(segment, one)]), *astuple(one)[1:]) for one in segment.companions]
            for segment in segments
        ]
    content = {"version": 2, "texts": list(texts), "columns": columns}
    return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), _FASTEST)


def unpack(packed: bytes) -> list[Decision]:
    """Return the decisions that :func:`pack` was given.

    :param packed: of this version, or a compressed JSON list of decisions, as earlier ones wrote.
    """
    with no_collection():
        content: Any = json.loads(zlib.decompress(packed))
        return list(read_decisions(content) if isinstance(content, list) else _rows(content))


def read_decisions(rows: Iterable[Mapping[str, Any]]) -> Iterable[Decision]:
    """Return decisions from what :func:`~storage_engine.model.jsonable.to_jsonable` made of them."""
    return (from_jsonable(Decision, row) for row in rows)


def _template(segment: Segment, facts: FileFacts) -> str:
    return facts.path.replace(f"{segment.base_offset:020d}", _BASE_OFFSET)


def _rows(content: Mapping[str, Any]) -> Iterable[Decision]:
    texts, columns = content["texts"], content["columns"]
    states = {number: SegmentState(texts[number]) for number in set(columns["state"])}
    reasons = {number: Reason(texts[number]) for number in set(columns["reason"])}

    def path(number: int, base_offset: int) -> str:
        return str(texts[number].replace(_BASE_OFFSET, f"{base_offset:020d}"))

    def companions(base_offset: int, files: Iterable[Sequence[int]]) -> tuple[FileFacts, ...]:
        return tuple(FileFacts(path(number, base_offset), *facts) for number, *facts in files)

    nothing = [None] * len(columns["log"])
    facts = map(
        FileFacts,
        map(path, columns["path"], columns["base_offset"]),
        *(columns[name] for name in ("device", "inode", "size_bytes")),
        columns["mtime_ns"],
        columns["ctime_ns"],
    )
    segments = map(
        Segment,
        (texts[number] for number in columns["log"]),
        columns["base_offset"],
        facts,
        (states[number] for number in columns["state"]),
        columns["original_mtime_ns"],
        columns.get("end", nothing),
        map(companions, columns["base_offset"], columns.get("companions", [()] * len(nothing))),
    )
    return map(
        Decision,
        segments,
        (reasons[number] for number in columns["reason"]),
        (texts[number] for number in columns["detail"]),
    )
