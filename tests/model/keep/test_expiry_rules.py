"""Which segments leave a lake now, and why each other one stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS
from storage_engine.exceptions import BadInputError
from storage_engine.model.keep.acts import (
    ActKind,
    KeepDecision,
    Thinning,
    decode_act,
    expired_files,
    expiries_of,
    policies_of,
    policy_of,
)
from storage_engine.model.keep.expiry_rules import (
    REWRITE_RULE,
    ExpiryReason,
    ExpirySegment,
    RewriteRule,
    SegmentStream,
    StoreContent,
    judge_segments,
)
from storage_engine.model.keep.keep_rules import Hold, KeepPolicy, KeepRule, Scope, Stream
from storage_engine.model.proof.receipt import SegmentIdentity, StoredFile
from tests.model.keep.test_acts import HOLD, KEEP, chain

NOW_MS = 20_000 * DAY_MS
GONE = {"8c1d": StoreContent(planned_at_ms=NOW_MS, logs={"commitlog": [(5000, 6000)]})}
POLICY = KeepPolicy("v", NOW_MS - 90 * DAY_MS, (KeepRule(Scope(), "30 days"),))
FILE = StoredFile("data/store_id=8c1d/a.parquet", 10, "f")


def stream(topic: str, age_days: float | None, size_bytes: int = 0) -> SegmentStream:
    newest_ms = None if age_days is None else NOW_MS - round(age_days * DAY_MS)
    return SegmentStream(Stream("8c1d", ("main",), "commitlog", topic, False), newest_ms, size_bytes)


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
        segment(
            stream("orders", 40),
            base=base * 10,
            lineage=lineage,
            end_offset=(base + length) * 10,
            file=replace(FILE, location=f"data/{number}"),
        )
        for number, (base, length, lineage) in enumerate(spans)
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


def test_segments_of_one_data_file_leave_together_or_not_at_all() -> None:
    past, later = segment(stream("orders", 40)), segment(stream("orders", 40), base=2000)
    young = segment(stream("orders", 3), base=3000)
    half = segment(stream("orders", 40, 500), stream("prices", 3, 500), base=4000)
    assert reasons(past, later) == [ExpiryReason.PAST] * 2
    assert reasons(past, later, young) == [ExpiryReason.SHARED, ExpiryReason.SHARED, ExpiryReason.NOT_PAST]
    assert reasons(past, replace(later, is_alone=False)) == [ExpiryReason.SHARED, ExpiryReason.MOVED]
    # Nor is one of them thinned.
    assert reasons(past, half) == [ExpiryReason.SHARED] * 2
    elsewhere = replace(FILE, location="data/another")
    assert reasons(past, replace(young, file=elsewhere)) == [ExpiryReason.PAST, ExpiryReason.NOT_PAST]


def thinned(
    *streams: SegmentStream, rewrite: RewriteRule = REWRITE_RULE, **facts: Any
) -> tuple[ExpiryReason, tuple[str, ...], int]:
    policy = replace(POLICY, since_ms=NOW_MS - 300 * DAY_MS)
    given = {"stores": GONE, "policies": (policy,), "now_ms": NOW_MS} | facts
    (verdict,) = judge_segments([segment(*streams)], **given, rewrite=rewrite)
    assert (verdict.is_thinned, verdict.leaves) == (
        verdict.reason is ExpiryReason.THINNED,
        verdict.reason is ExpiryReason.PAST,
    )
    return verdict.reason, verdict.gone, verdict.gone_bytes


STAYS = (ExpiryReason.NOT_PAST, (), 0)


def test_a_segment_is_thinned_once_enough_of_its_bytes_go_or_a_topic_has_waited_for_long() -> None:
    young, blank = stream("prices", 3, 60), stream("", None, 10)
    assert thinned(stream("orders", 31, 30), young, blank) == (ExpiryReason.THINNED, ("orders",), 30)
    assert thinned(stream("orders", 31, 29), young, blank) == STAYS
    assert thinned(stream("orders", 119, 1), young, blank) == STAYS
    assert thinned(stream("orders", 120, 1), young, blank) == (ExpiryReason.THINNED, ("orders",), 1)
    both = stream("b", 31, 15), stream("a", 32, 15)
    assert thinned(*both, young, blank) == (ExpiryReason.THINNED, ("a", "b"), 30)
    assert thinned(*both) == (ExpiryReason.PAST, (), 0)
    one_in_ten = RewriteRule(10, 1)
    assert thinned(stream("orders", 30, 10), young, blank, rewrite=one_in_ten)[1] == ("orders",)
    assert thinned(stream("orders", 30, 1), young, blank, rewrite=one_in_ten) == STAYS
    assert thinned(stream("orders", 31, 1), young, blank, rewrite=one_in_ten)[1] == ("orders",)
    assert thinned(young, blank, rewrite=RewriteRule(0, 0)) == STAYS
    assert thinned(stream("", 400, 90), stream("prices", 3, 10)) == STAYS, "no topic goes with the last"
    # A rule of yesterday writes no file again that the one before it kept.
    since = (KeepPolicy("w", NOW_MS - 2 * DAY_MS, POLICY.rules),)
    assert thinned(stream("orders", 400, 1), young, blank, policies=since) == STAYS


@pytest.mark.parametrize(("reason", "changes", "facts"), UNKNOWN)
def test_what_keeps_a_whole_segment_keeps_each_topic_of_it(
    reason: ExpiryReason, changes: dict[str, Any], facts: dict[str, Any]
) -> None:
    streams = (*(changes.get("streams", (stream("orders", 40, 90),)) or ()), stream("prices", 3, 10))
    made = segment(*streams, **{name: it for name, it in changes.items() if name != "streams"})
    found = reasons(made, **facts)
    assert found != [ExpiryReason.THINNED]
    # What has no topic goes with the last of the others, so that its age isn't asked for beside them.
    if changes.get("streams", True) and changes.get("streams") != (stream("", None),):
        assert found == [reason]


@given(
    st.lists(st.tuples(st.floats(0, 60), st.integers(0, 100)), min_size=1, max_size=5),
    st.floats(0, 100),
    st.floats(0, 60),
)
def test_only_past_topics_go_and_never_all_of_them(
    streams: list[tuple[float, int]], at_percent: float, within_days: float
) -> None:
    made = [stream(f"t{number}", age, size) for number, (age, size) in enumerate(streams)]
    reason, gone, gone_bytes = thinned(*made, rewrite=RewriteRule(at_percent, within_days))
    past = {
        it.stream.topic for it in made if it.newest_ms is not None and it.newest_ms <= NOW_MS - 30 * DAY_MS
    }
    if reason is ExpiryReason.THINNED:
        assert set(gone) == past
        assert 0 < len(past) < len(made)
        assert gone_bytes == sum(it.size_bytes for it in made if it.stream.topic in past)
    else:
        assert (gone, gone_bytes) == ((), 0)
        assert (reason is ExpiryReason.PAST) == (len(past) == len(made))


def test_what_a_hold_kept_beside_its_topic_waits_a_day_once_it_is_lifted() -> None:
    hold = Hold("h", Scope(topic="orders"), "case 7", "ann", 0)
    policies = (replace(POLICY, holds=(hold,)), replace(POLICY, since_ms=NOW_MS - DAY_MS // 2))
    streams = stream("orders", 40, 20), stream("prices", 40, 60), stream("news", 3, 20)
    assert thinned(*streams, policies=policies[:1]) == (ExpiryReason.HELD, (), 0)
    assert thinned(*streams, policies=policies) == STAYS
    later = {"now_ms": NOW_MS + DAY_MS, "stores": {"8c1d": StoreContent(is_gone=True)}}
    assert thinned(*streams, policies=policies, **later)[1] == ("orders", "prices")


THINNING = Thinning(PAST.identity, ("orders",), FILE, StoredFile("data/b.parquet", 5, "b"), 3, 2)
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


def test_an_act_names_what_leaves_in_part_and_only_then() -> None:
    decision = KeepDecision(ActKind.EXPIRE, policy="p", files=(FILE,), thinned=(THINNING,))
    act = chain(KEEP, HOLD, decision)[-1].act
    assert decode_act(act.encode(), "here") == act
    assert decision.taken == (PAST.identity,)
    assert expired_files(chain(KEEP, decision)) == {FILE.location}, "the file that stays is the table's"
    assert b"thinned" not in chain(KEEP, EXPIRE)[-1].act.encode()
    with pytest.raises(BadInputError, match="expected the fields of a expire"):
        KeepDecision(ActKind.EXPIRE, policy="p", files=(FILE,))
