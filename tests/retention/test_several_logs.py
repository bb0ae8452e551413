"""A plan of several logs is as several plans of one log: no log's decisions rest on another log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from storage_engine.model.broker.broker_store import Pending, PendingKind
from storage_engine.model.lag import QueueLag
from storage_engine.model.plan import DELETING, Decision, LogPlan, Plan, Reason, of_only_log
from storage_engine.model.settings.policy import LagPolicy, PendingPolicy, Policy
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.lag.lag_policy import apply_lag_policy
from storage_engine.retention.plan.deciding import cut_by_policy
from storage_engine.retention.proof.gate import Eligible, still_eligible

pytestmark = pytest.mark.slow

SIZE = 100
T = TypeVar("T", Pending, QueueLag)
Known = tuple[Plan, Plan, tuple[Pending, ...], tuple[QueueLag, ...]]
"""What was approved, what is decided now, and what is known of messages and consumers."""
HOUR_NS = 3_600_000_000_000
NOW_MS = 10_000 * 3_600_000
LOGS = ("a", "b", "c")
POLICY = Policy(pending_policy=PendingPolicy.BLOCK, lag_policy=LagPolicy.BLOCK, minimum_retention_hours=10)


def segment(log: str, number: int, age_hours: int) -> Segment:
    written_ns = NOW_MS * 1_000_000 - age_hours * HOUR_NS
    facts = FileFacts(f"/s/{log}/{number * SIZE:020d}", 1, number, SIZE, written_ns, written_ns)
    return Segment(log, number * SIZE, facts, SegmentState.SEALED)


@st.composite
def log_plans(draw: st.DrawFn, log: str) -> LogPlan:
    """A broker's proposal: a prefix to delete, then what stays."""
    ages = draw(st.lists(st.integers(0, 20), max_size=5))
    going = draw(st.integers(0, len(ages)))
    return LogPlan(
        log,
        tuple(
            Decision(
                segment(log, number, age),
                Reason.EXPIRED if number < going else Reason.NOT_EXPIRED,
                f"why {number}",
            )
            for number, age in enumerate(ages)
        ),
    )


@st.composite
def owed_of(draw: st.DrawFn, log: str) -> Pending:
    kind, known = draw(st.sampled_from(PendingKind)), draw(st.booleans())
    if not known:
        return Pending(kind, None, error="unreadable", log=log)
    offset = draw(st.none() | st.integers(0, 5 * SIZE))
    return Pending(kind, 0 if offset is None else 1, offset, log=log)


@st.composite
def lag_of(draw: st.DrawFn, log: str) -> QueueLag:
    number = draw(st.none() | st.integers(0, 4))
    return QueueLag(
        group="g",
        topic="t",
        queue_id=0,
        committed_offset=None if number is None else 1,
        min_offset=0,
        max_offset=9,
        lag_messages=None,
        lag_ms=None,
        next_physical_offset=None,
        next_segment_base_offset=None if number is None else number * SIZE,
        at_risk=draw(st.booleans()),
        lost_messages=0,
        time_to_loss_ms=None,
        log=log,
    )


@st.composite
def stores(draw: st.DrawFn) -> Known:
    """What was approved, what is decided now, and what is known of messages and consumers."""
    names = draw(st.lists(st.sampled_from(LOGS), min_size=1, unique=True))
    approved = tuple(draw(log_plans(name)) for name in names)
    fresh = tuple(draw(st.just(log) | log_plans(log.log)) for log in approved)
    pending = tuple(item for name in names for item in draw(st.lists(owed_of(name), max_size=2)))
    lags = tuple(item for name in names for item in draw(st.lists(lag_of(name), max_size=3)))
    return Plan("/s", 0, (), approved), Plan("/s", 0, (), fresh), pending, lags


def decided(fresh: Plan, pending: Iterable[Pending], lags: Iterable[QueueLag]) -> Plan:
    return apply_lag_policy(cut_by_policy(fresh, pending, POLICY, NOW_MS, {}), lags, POLICY.lag_policy)


def of_log(plan: Plan, items: Iterable[T]) -> list[T]:
    return [item for item in items if item.log == plan.logs[0].log]


def of_each_log(plan: Plan) -> Iterator[Plan]:
    return (replace(plan, logs=(log,)) for log in plan.logs)


@settings(max_examples=100, deadline=None)
@given(stores())
def test_one_plan_of_several_logs_is_several_plans_of_one(
    store: Known,
) -> None:
    approved, fresh, pending, lags = store
    together = still_eligible(approved, decided(fresh, pending, lags))
    alone = [
        still_eligible(one, decided(now, of_log(now, pending), of_log(now, lags)))
        for one, now in zip(of_each_log(approved), of_each_log(fresh), strict=True)
    ]
    assert together == Eligible(
        go=tuple(decision for eligible in alone for decision in eligible.go),
        stay=tuple(decision for eligible in alone for decision in eligible.stay),
    )


@settings(max_examples=60, deadline=None)
@given(stores(), st.sampled_from(LOGS), st.booleans())
def test_what_is_unknown_in_one_log_keeps_that_log_and_frees_no_other(
    store: Known, log: str, by_lag: bool
) -> None:
    approved, fresh, pending, lags = store
    assume(log in fresh.log_names)
    before = still_eligible(approved, decided(fresh, pending, lags))
    if by_lag:
        unknown = QueueLag("g", "t", 0, None, 0, 9, None, None, None, None, True, 0, None, log)
        lags = (*lags, unknown)
    else:
        pending = (*pending, Pending(PendingKind.HALF, None, error="unreadable", log=log))
    after = still_eligible(approved, decided(fresh, pending, lags))
    assert after.go == tuple(decision for decision in before.go if decision.segment.log != log)


@settings(max_examples=60, deadline=None)
@given(stores(), st.sampled_from([None, "A", "a-0"]))
def test_what_is_unknown_of_no_log_of_the_plan_keeps_all_of_them(store: Known, log: str | None) -> None:
    approved, fresh, pending, lags = store
    unknown = QueueLag("g", "t", 0, None, 0, 9, None, None, None, None, True, 0, None, log)
    assert still_eligible(approved, decided(fresh, pending, (*lags, unknown))).go == ()
    anywhere = Pending(PendingKind.HALF, None, error="unreadable", log=log)
    assert still_eligible(approved, decided(fresh, (*pending, anywhere), lags)).go == ()


@settings(max_examples=60, deadline=None)
@given(stores())
def test_only_an_approved_prefix_of_a_log_is_deleted(
    store: Known,
) -> None:
    approved, fresh, pending, lags = store
    now = decided(fresh, pending, lags)
    go = {decision.segment.id for decision in still_eligible(approved, now).go}
    assert go <= {segment.id for segment in approved.to_delete}
    for log in now.logs:
        deleted = [decision.segment.id in go for decision in log.decisions]
        assert deleted == sorted(deleted, reverse=True)
        assert all(one.reason in DELETING for one, goes in zip(log.decisions, deleted, strict=True) if goes)


@given(st.permutations(LOGS))
def test_a_digest_of_several_logs_knows_which_log_a_segment_is_of(names: list[str]) -> None:
    def plan(*going: str) -> Plan:
        logs = [LogPlan(name, (_expired(name, 0), _expired(name, 1))) for name in going]
        return Plan("/s", 0, (), tuple(logs))

    assert plan(*names).digest == plan(*LOGS).digest
    some = (names, names[1:], names[:2], names[:1])
    assert len({plan(*going).digest for going in some}) == len(some)


def test_a_plan_of_one_log_has_the_digest_that_it_always_had() -> None:
    plan = Plan("/s", 7, (), (LogPlan("commitlog", (_expired("commitlog", 0), _expired("commitlog", 1))),))
    assert plan.digest == "843f647b1dc854fa23eeb2f3b888b97579bd53db44143605c1cf4b7ae75937cd"


def _expired(log: str, number: int) -> Decision:
    return Decision(segment(log, number, 20), Reason.EXPIRED, "old")


def test_a_name_that_stands_for_the_only_log() -> None:
    assert of_only_log({"a": 3}) == 3
    assert of_only_log({"a": 3, "b": 3}) is None
    assert of_only_log({}) is None


def test_a_log_that_is_gone_from_the_fresh_plan_stays_with_its_reason() -> None:
    logs = tuple(LogPlan(name, (_expired(name, 0),)) for name in LOGS)
    approved = Plan("/s", 0, (), logs)
    eligible = still_eligible(approved, Plan("/s", 0, (), logs[1:]))
    assert [decision.segment.log for decision in eligible.go] == list(LOGS[1:])
    assert [(one.segment.log, one.deletes) for one in eligible.stay] == [(LOGS[0], False)]


def test_a_plan_of_a_log_has_its_own_segments_alone_and_each_once() -> None:
    with pytest.raises(ValueError, match="another log's"):
        LogPlan("a", (_expired("b", 0),))
    with pytest.raises(ValueError, match="growing base offset"):
        LogPlan("a", (_expired("a", 1), _expired("a", 1)))
    with pytest.raises(ValueError, match="each log once"):
        Plan("/s", 0, (), (LogPlan("a", ()), LogPlan("a", (_expired("a", 0),))))
