"""Rows of what a run deleted, made in as many turns as it took, and the SHA-256 over its events."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.run_rows import DeletingRun
from storage_engine.journal.records import Event, Phase, Step
from storage_engine.model.plan import Reason
from storage_engine.model.proof.deleted_range import DeletedRange
from storage_engine.model.store import FileFacts
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.proof.history import SegmentRelease, releases
from storage_engine.retention.ranges.deleted_ranges import (
    RunHistory,
    digests_of,
    missing_ranges,
    with_store_times,
)

REASONS = (Reason.EXPIRED, Reason.FORCED)


def release(log: str, base_offset: int, reason: Reason) -> dict[str, Any]:
    facts = FileFacts(f"/store/{log}/{base_offset}", 1, 2, 10, 3, 4)
    said = SegmentRelease(log, base_offset, facts, reason, "old", Passage.PROVEN, "", "s", "f", "r")
    return dict(to_jsonable(said))


def event(number: int, log: str, slot: int, reason: Reason, phase: Phase = Phase.RESULT) -> Event:
    subject = f"{log}/{10 * slot:020d}"
    payload = release(log, 10 * slot, reason)
    return Event("r", Step.RELEASE.value, phase, subject, payload, 1000 + number, number)


def history(events: list[Event]) -> RunHistory:
    return RunHistory("store", DeletingRun(1, "r", 5, {"manual": True}, "d", events[-1].event_id), events)


slots = st.lists(
    st.tuples(st.sampled_from(["a-0", "b-0"]), st.integers(0, 12), st.sampled_from(REASONS)),
    min_size=1,
    max_size=20,
    unique_by=lambda it: it[:2],
)


@given(slots, st.sets(st.integers(0, 19)))
def test_in_however_many_turns_each_offset_is_in_one_row(
    went: list[tuple[str, int, Reason]], turns: set[int]
) -> None:
    events = [event(number, *one) for number, one in enumerate(went, start=1)]
    rows: list[DeletedRange] = []
    for last in sorted({turn + 1 for turn in turns if turn < len(events)} | {len(events)}):
        rows += missing_ranges(history(events[:last]), rows, None)
        assert missing_ranges(history(events[:last]), rows, None) == ()
    covered = [
        (row.log, offset, row.cause) for row in rows for offset in range(row.start_offset, row.end_offset, 10)
    ]
    assert sorted(covered) == sorted((log, 10 * slot, reason.value) for log, slot, reason in went)
    digests = digests_of(history(events), {row.event_id for row in rows})
    assert {row.event_id: row.events_sha256 for row in rows} == digests


def test_ranges_that_follow_each_other_for_one_cause_are_one_row() -> None:
    cause, other = REASONS
    said = [("a-0", 0, cause), ("a-0", 1, cause), ("a-0", 2, other), ("a-0", 4, other), ("b-0", 5, cause)]
    events = [event(number, *one) for number, one in enumerate(said, start=1)]
    rows = missing_ranges(history(events), (), None)
    assert [(row.log, row.start_offset, row.end_offset, row.at_ms) for row in rows] == [
        ("a-0", 0, 20, 1002),
        ("a-0", 20, 30, 1003),
        ("a-0", 40, 50, 1004),
        ("b-0", 50, 60, 1005),
    ]
    receipts: Any = [
        SimpleNamespace(
            log="a-0",
            lineage=0,
            base_offset=10 * slot,
            end=10 * slot + 10,
            first_store_timestamp_ms=first,
            last_store_timestamp_ms=last,
        )
        for slot, first, last in ((0, 7, 8), (1, 8, 9), (2, 9, 9), (4, None, None))
    ]
    timed = with_store_times(rows, receipts)
    assert [(row.first_store_timestamp_ms, row.last_store_timestamp_ms) for row in timed] == [
        (7, 9),
        (9, 9),
        (None, None),
        (None, None),
    ]


def test_the_digest_is_that_of_lines_of_canonical_json() -> None:
    intent, result = event(3, "a-0", 0, REASONS[0], Phase.INTENT), event(4, "a-0", 0, REASONS[0])
    lines = [
        ["store", "r", 5, {"manual": True}, "d"],
        *([it.step, it.phase.value, it.subject, it.payload, it.at_ms] for it in (intent, result)),
    ]
    text = "".join(json.dumps(it, sort_keys=True, separators=(",", ":")) + "\n" for it in lines)
    assert history([intent, result]).digest.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_an_event_that_is_no_release_is_named_by_its_run_and_segment() -> None:
    payload = {**release("a-0", 0, Reason.EXPIRED), "took_ms": 1}
    strange = Event("r-1", Step.RELEASE.value, Phase.RESULT, f"a-0/{0:020d}", payload, 1, 1)
    with pytest.raises(
        BadInputError, match=rf"^the journal, run r-1, release of a-0/{0:020d}: .*found 'took_ms'"
    ):
        releases([strange])
