"""Decisions come back as they were packed, and as earlier versions packed them."""

from __future__ import annotations

import json
import zlib

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.tables.rows import pack, unpack
from storage_engine.model.plan import Decision, Reason
from storage_engine.model.store import FileFacts, Segment, SegmentState

unsigned = st.integers(0, 2**64 - 1)
nanoseconds = st.integers(-(2**62), 2**66)
texts = st.text(st.characters(exclude_characters="\0"), max_size=8)
names = st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)


def _facts(directory: str) -> st.SearchStrategy[FileFacts]:
    paths = names.map(lambda name: f"{directory}/{name}")
    return st.builds(FileFacts, paths, unsigned, unsigned, unsigned, nanoseconds, nanoseconds)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    directory = draw(st.sampled_from(["/data/log", "relative", "/\ud800"]))
    files = draw(st.lists(_facts(directory), min_size=1, max_size=3, unique_by=lambda file: file.path))
    base_offset = draw(st.integers(0, 2**62))
    return Segment(
        draw(texts),
        base_offset,
        files[0],
        draw(st.sampled_from(SegmentState)),
        draw(st.none() | nanoseconds),
        draw(st.none() | st.integers(base_offset, 2**63 - 1)),
        tuple(files[1:]),
    )


decisions = st.lists(st.builds(Decision, segments(), st.sampled_from(Reason), texts), max_size=5)


def _segment(number: int, original_mtime_ns: int | None) -> Segment:
    base = number << 30
    known = FileFacts(f"/data/commitlog/{base:020d}", 64769, 12 + number, 1 << 30, 10**18 + 5, 10**18 + 7)
    return Segment("commitlog", base, known, SegmentState.SEALED, original_mtime_ns)


KEPT = [
    Decision(_segment(0, None), Reason.EXPIRED, "72 h old"),
    Decision(_segment(1, 10**18), Reason.NOT_EXPIRED, "2 h old"),
]
VERSION_2 = {
    "version": 2,
    "texts": ["commitlog", "sealed", "expired", "not-expired", "72 h old", "2 h old", "/data/commitlog/\0"],
    "columns": {
        "log": [0, 0],
        "base_offset": [0, 1 << 30],
        "state": [1, 1],
        "original_mtime_ns": [None, 10**18],
        "reason": [2, 3],
        "detail": [4, 5],
        "path": [6, 6],
        "device": [64769, 64769],
        "inode": [12, 13],
        "size_bytes": [1 << 30, 1 << 30],
        "mtime_ns": [10**18 + 5, 10**18 + 5],
        "ctime_ns": [10**18 + 7, 10**18 + 7],
    },
}


@given(decisions)
def test_decisions_come_back_as_they_were_packed(given_decisions: list[Decision]) -> None:
    assert unpack(pack(given_decisions)) == given_decisions
    assert pack(given_decisions) == pack(list(given_decisions))


def test_columns_of_json_are_read() -> None:
    assert unpack(zlib.compress(json.dumps(VERSION_2).encode())) == KEPT


def test_lists_of_decisions_are_read() -> None:
    assert unpack(zlib.compress(json.dumps([to_jsonable(one) for one in KEPT]).encode())) == KEPT
