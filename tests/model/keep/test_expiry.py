"""Which segments leave a lake now, and why each other one stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.keep.acts import (
    ActKind,
    KeepDecision,
    decode_act,
    expired_files,
    expiries_of,
    policies_of,
    policy_of,
)
from storage_engine.model.keep.expiry import (
    ExpiryReason,
    ExpirySegment,
    SegmentStream,
    StoreContent,
    judge_segments,
)
from storage_engine.model.keep.keep_policy import DAY_MS, KeepPolicy
from storage_engine.model.keep.rules import Hold, KeepRule, Scope, Stream
from storage_engine.model.proof.receipt import SegmentIdentity, StoredFile
from tests.model.keep.test_acts import HOLD, KEEP, chain

NOW_MS = 20_000 * DAY_MS
GONE = {"8c1d": StoreContent(planned_at_ms=NOW_MS, logs={"commitlog": [(5000, 6000)]})}
POLICY = KeepPolicy("v", NOW_MS - 90 * DAY_MS, (KeepRule(Scope(), "30 days"),))
FILE = StoredFile("data/store_id=8c1d/a.parquet", 10, "f")


def stream(topic: str, age_days: float | None) -> SegmentStream:
    newest_ms = None if age_days is None else NOW_MS - round(age_days * DAY_MS)
    return SegmentStream(Stream("8c1d", ("main",), "commitlog", topic, False), newest_ms)


def segment(*streams: SegmentStream, base: int = 1000, lineage: int = 1, **changes: Any) -> ExpirySegment:
    identity = SegmentIdentity("8c1d", lineage, "commitlog", base, f"{base:064x}")
    made = ExpirySegment(identity, base + 1000, 1000, NOW_MS - 50 * DAY_MS, FILE, streams)
    return replace(made, **changes)


PAST = segment(stream("orders", 40), stream("", None))


def reasons(*segments: ExpirySegment, **changes: Any) -> list[ExpiryReason]:
    facts = {"stores": GONE, "policies": (POLICY,), "now_ms": NOW_MS} | changes
    return [verdict.reason for verdict in judge_segments(segments, **facts)]


def test_a_segment_leaves_once_all_its_streams_are_past_and_its_store_has_it_no_longer() -> None:
    assert reasons(PAST) == [ExpiryReason.PAST]
    assert reasons(PAST, stores={"8c1d": StoreContent(is_gone=True)}) == [ExpiryReason.PAST]
    young = segment(stream("orders", 40), stream("prices", 29))
    assert reasons(young) == [ExpiryReason.NOT_PAST]
    assert reasons(young, now_ms=NOW_MS + 2 * DAY_MS) == [ExpiryReason.PAST]
    assert reasons(PAST, policies=(KeepPolicy("v", 0),)) == [ExpiryReason.NO_RULE]
    assert reasons(PAST, policies=()) == [ExpiryReason.NO_RULE]


def test_what_has_no_topic_leaves_alone_by_rules_for_every_topic() -> None:
    alone = segment(stream("", 40))
    assert reasons(alone) == [ExpiryReason.PAST]
    assert reasons(segment(stream("", 29))) == [ExpiryReason.NOT_PAST]
    of_topic = KeepPolicy("v", 0, (KeepRule(Scope(topic="orders*"), "30 days"),))
    assert reasons(alone, policies=(of_topic,)) == [ExpiryReason.NO_RULE]
    mixed = segment(stream("orders", 40), stream("", 1))
    assert reasons(mixed) == [ExpiryReason.PAST], "it goes with the last of the others"


def test_a_log_that_the_journal_forgot_is_gone() -> None:
    forgotten = {"8c1d": StoreContent(planned_at_ms=NOW_MS, logs={}, remembered={"other"})}
    assert reasons(PAST, stores=forgotten) == [ExpiryReason.PAST]


UNKNOWN: list[tuple[ExpiryReason, dict[str, Any], dict[str, Any]]] = [
    (ExpiryReason.STREAMS_UNKNOWN, {"streams": None}, {}),
    (ExpiryReason.STREAMS_UNKNOWN, {"streams": (stream("orders", None),)}, {}),
    (ExpiryReason.STREAMS_UNKNOWN, {"streams": (stream("", None),)}, {}),
    (ExpiryReason.MOVED, {"is_alone": False}, {}),
    (ExpiryReason.STORE_UNKNOWN, {}, {"stores": {}}),
    (ExpiryReason.STORE_UNKNOWN, {}, {"stores": {"8c1d": StoreContent("no plan")}}),
    (ExpiryReason.STORE_UNKNOWN, {}, {"stores": {"8c1d": StoreContent("no lake", is_gone=True)}}),
    (ExpiryReason.STORE_UNKNOWN, {}, {"stores": {"8c1d": StoreContent(planned_at_ms=NOW_MS)}}),
    (
        ExpiryReason.STORE_UNKNOWN,
        {},
        {"stores": {"8c1d": StoreContent(planned_at_ms=NOW_MS, remembered={"commitlog", "other"})}},
    ),
    (ExpiryReason.STORE_UNKNOWN, {"proven_at_ms": NOW_MS}, {}),
    (
        ExpiryReason.IN_STORE,
        {},
        {"stores": {"8c1d": StoreContent(planned_at_ms=NOW_MS, logs={"commitlog": [(0, 1001)]})}},
    ),
    (ExpiryReason.CLOCK, {}, {"fault": (ExpiryReason.CLOCK, "it jumped")}),
]


@pytest.mark.parametrize(("reason", "changes", "facts"), UNKNOWN)
def test_what_is_not_known_keeps(
    reason: ExpiryReason, changes: dict[str, Any], facts: dict[str, Any]
) -> None:
    assert reasons(replace(PAST, **changes), **facts) == [reason]


@given(st.sampled_from(UNKNOWN), st.lists(st.sampled_from(UNKNOWN), max_size=3))
def test_no_two_unknown_things_make_a_known_one(first: Any, others: list[Any]) -> None:
    changes: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for _, more, of_facts in (*others, first):
        changes |= more
        facts |= of_facts
    assert reasons(replace(PAST, **changes), **facts) != [ExpiryReason.PAST]


@given(
    st.sampled_from(["*", "orders", "o*", "none"]), st.sampled_from(["*", "commitlog", "x"]), st.booleans()
)
def test_a_hold_of_any_of_its_streams_keeps_a_segment(topic: str, log: str, has_blank: bool) -> None:
    hold = Hold("h", Scope(topic=topic, log=log), "case 7", "ann", 0)
    held = segment(stream("orders", 40), *((stream("", None),) if has_blank else ()))
    is_covered = log != "x" and (topic != "none" or has_blank)
    expected = ExpiryReason.HELD if is_covered else ExpiryReason.PAST
    policies = (POLICY, replace(POLICY, holds=(hold,)))
    assert reasons(held, policies=policies) == [expected]


@given(
    st.lists(st.floats(0, 60), min_size=1, max_size=4),
    st.integers(0, 90 * DAY_MS),
    st.integers(0, 90 * DAY_MS),
)
def test_what_leaves_leaves_later_too(ages: list[float], first_ms: int, later_ms: int) -> None:
    made = segment(*(stream(f"t{number}", age) for number, age in enumerate(ages)))
    at = [reasons(made, now_ms=NOW_MS + it) == [ExpiryReason.PAST] for it in sorted((first_ms, later_ms))]
    assert at != [True, False]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5), st.integers(1, 2)), max_size=8, unique=True))
def test_receipts_that_share_an_offset_keep_each_other(spans: list[tuple[int, int, int]]) -> None:
    made = [
        segment(stream("orders", 40), base=base * 10, lineage=lineage, end_offset=(base + length) * 10)
        for base, length, lineage in spans
    ]
    expected = [
        ExpiryReason.OVERLAPS
        if any(
            one is not it and line == lineage and base < start + size and start < base + length
            for it, (start, size, line) in zip(spans, spans, strict=True)
        )
        else ExpiryReason.PAST
        for one, (base, length, lineage) in zip(spans, spans, strict=True)
    ]
    assert reasons(*made) == expected


EXPIRE = KeepDecision(ActKind.EXPIRE, policy="p", segments=(PAST.identity,), files=(FILE,))


def test_acts_of_an_expiry_come_back_from_their_bytes_and_begin_no_policy() -> None:
    expire = chain(KEEP, HOLD, EXPIRE)[-1]
    undo = KeepDecision(ActKind.UNDO, expiry=expire.sha256)
    removed = KeepDecision(ActKind.REMOVED, files=(FILE,), expiry=expire.sha256)
    for last in (undo, removed):
        acts = chain(KEEP, HOLD, EXPIRE, last)
        assert [decode_act(it.act.encode(), "here") for it in acts] == [it.act for it in acts]
        assert policies_of(acts) == policies_of(acts[:2])
        assert policy_of(acts).holds
    assert expired_files(chain(KEEP, HOLD, EXPIRE)) == {FILE.location}
    assert expired_files(chain(KEEP, HOLD, EXPIRE, undo)) == frozenset()
    (gone,) = expiries_of(chain(KEEP, HOLD, EXPIRE, removed))
    assert (gone.files, gone.is_undone) == ((), False)
