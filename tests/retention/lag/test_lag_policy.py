from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.lag import Lag, LagSummary, QueueLag
from storage_engine.model.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.settings.policy import LagPolicy
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.lag.lag_policy import apply_lag_policy

SIZE = 100
GOING, SEGMENTS = 4, 6


def make_plan() -> Plan:
    decisions = []
    for number in range(SEGMENTS):
        facts = FileFacts(f"/store/commitlog/{number * SIZE:020d}", 1, number, SIZE, 0, 0)
        segment = Segment("commitlog", number * SIZE, facts, SegmentState.SEALED)
        reason = Reason.EXPIRED if number < GOING else Reason.NOT_EXPIRED
        decisions.append(Decision(segment, reason, reason.value))
    return Plan("/store", 0, (), (LogPlan("commitlog", tuple(decisions)),))


def lag(next_segment: int | None, *, committed: int | None = 5, at_risk: bool | None = None) -> QueueLag:
    return QueueLag(
        group="readers",
        topic="orders",
        queue_id=3,
        committed_offset=committed,
        min_offset=0,
        max_offset=50,
        lag_messages=None if committed is None else 50 - committed,
        lag_ms=None,
        next_physical_offset=None if next_segment is None else next_segment * SIZE + 7,
        next_segment_base_offset=None if next_segment is None else next_segment * SIZE,
        at_risk=(next_segment is not None and next_segment < GOING) if at_risk is None else at_risk,
        lost_messages=0,
        time_to_loss_ms=None,
    )


def going(plan: Plan) -> int:
    return len(plan.to_delete)


@pytest.mark.parametrize("policy", [LagPolicy.WARN, LagPolicy.IGNORE])
def test_only_block_changes_a_plan(policy: LagPolicy) -> None:
    plan = make_plan()
    assert apply_lag_policy(plan, [lag(0)], policy) is plan


def test_block_keeps_everything_from_the_first_segment_that_is_still_read() -> None:
    plan = apply_lag_policy(make_plan(), [lag(3), lag(2), lag(5)], LagPolicy.BLOCK)
    assert [decision.reason.value for decision in plan.decisions] == [
        "expired",
        "expired",
        "lag-blocked",
        "lag-blocked",
        "not-expired",
        "not-expired",
    ]
    assert "group readers has read queue 3 of topic orders up to 5 of 50" in plan.decisions[2].detail


def test_group_without_a_known_position_keeps_everything() -> None:
    plan = apply_lag_policy(make_plan(), [lag(3), lag(None, committed=None, at_risk=True)], LagPolicy.BLOCK)
    assert going(plan) == 0
    assert "no known position" in plan.decisions[0].detail


def test_unknown_position_in_a_queue_that_has_nothing_in_the_plan_keeps_nothing() -> None:
    plan = make_plan()
    assert apply_lag_policy(plan, [lag(None, committed=None, at_risk=False)], LagPolicy.BLOCK) is plan


def test_groups_that_are_past_the_plan_keep_nothing() -> None:
    plan = make_plan()
    assert apply_lag_policy(plan, [lag(4), lag(None)], LagPolicy.BLOCK) is plan


@given(segments=st.lists(st.none() | st.integers(0, SEGMENTS - 1)))
def test_block_never_lets_go_what_somebody_reads_and_only_ever_shortens_the_prefix(
    segments: list[int | None],
) -> None:
    before = make_plan()
    after = apply_lag_policy(before, [lag(number) for number in segments], LagPolicy.BLOCK)
    assert after.to_delete == before.to_delete[: going(after)]
    assert going(after) == min([GOING, *(number for number in segments if number is not None)])
    if after is not before:
        assert after.digest != before.digest


def two_logs() -> Plan:
    (log,) = make_plan().logs
    other = [replace(one, segment=replace(one.segment, log="other")) for one in log.decisions]
    return replace(make_plan(), logs=(log, LogPlan("other", tuple(other))))


def test_a_log_that_was_not_measured_keeps_all_of_itself_and_nothing_else() -> None:
    plan = apply_lag_policy(two_logs(), [], LagPolicy.BLOCK, {"commitlog"})
    assert [segment.id for segment in plan.to_delete] == [segment.id for segment in make_plan().to_delete]
    kept = [decision for decision in plan.logs[1].decisions if decision.reason is Reason.LAG_BLOCKED]
    assert len(kept) == GOING
    assert all("its lag is unknown" in decision.detail for decision in kept)
    assert apply_lag_policy(two_logs(), [], LagPolicy.BLOCK, frozenset()).to_delete == ()
    assert apply_lag_policy(two_logs(), [], LagPolicy.BLOCK) == two_logs()
    assert apply_lag_policy(two_logs(), [], LagPolicy.WARN, frozenset()) == two_logs()


def test_what_is_at_risk_in_a_measured_log_is_kept_beside_one_that_was_not_measured() -> None:
    plan = apply_lag_policy(two_logs(), [replace(lag(2), log="other")], LagPolicy.BLOCK, {"other"})
    assert [segment.id for segment in plan.to_delete] == [("other", 0), ("other", SIZE)]


SUMMARY = LagSummary(1, 1, 1, 1, 0, (), 0, logs=2)


def test_names_that_do_not_fit_the_summary_measure_nothing() -> None:
    assert Lag(replace(SUMMARY, logs=None), ()).measured is None
    assert Lag(SUMMARY, (), ("a", "b")).measured == {"a", "b"}
    for names in (None, (), ("a",), ("a", "a")):
        assert Lag(SUMMARY, (), names).measured == frozenset()
    assert Lag(replace(SUMMARY, logs=None), (), ("a",)).measured == frozenset()
