"""What is still pending keeps its segments, or goes and is said, as the store's policy has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.model.broker.broker_store import Pending, PendingKind
from storage_engine.model.plan import Decision, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.settings.policy import PendingPolicy, Policy
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention import steps
from storage_engine.retention.plan.deciding import apply_pending_policy, pending_notices
from storage_engine.retention.report.report import Outcome, build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.managed_store import ManagedStore

SIZE = 100
GOING, SEGMENTS = 4, 6
BLOCK, WARN, IGNORE = PendingPolicy.BLOCK, PendingPolicy.WARN, PendingPolicy.IGNORE
UNREADABLE = Pending(PendingKind.TIMER, None, error="/store/config/timercheck: torn")

MIB = 1 << 20
TIMER_SEGMENT = 5 * MIB
"""Of clean-stop: holds its only waiting timer. Seven of its segments are sealed."""

Stores = Callable[..., ManagedStore]


def make_plan() -> Plan:
    decisions = []
    for number in range(SEGMENTS):
        facts = FileFacts(f"/store/commitlog/{number * SIZE:020d}", 1, number, SIZE, 0, 0)
        segment = Segment("commitlog", number * SIZE, facts, SegmentState.SEALED)
        reason = Reason.EXPIRED if number < GOING else Reason.NOT_EXPIRED
        decisions.append(Decision(segment, reason, reason.value))
    return Plan("/store", 0, (), (LogPlan("commitlog", tuple(decisions)),))


def timers(first_offset: int | None, count: int = 3) -> Pending:
    return Pending(PendingKind.TIMER, count, first_offset, 1_795_184_100_000, 1_795_184_100_000)


@pytest.mark.parametrize("policy", [WARN, IGNORE])
def test_only_block_changes_a_plan(policy: PendingPolicy) -> None:
    plan = make_plan()
    assert apply_pending_policy(plan, [timers(0), UNREADABLE], policy) is plan


@pytest.mark.parametrize(
    ("first_offset", "going"), [(0, 0), (99, 0), (100, 1), (250, 2), (399, 3), (400, 4), (None, 4)]
)
def test_block_keeps_the_segment_of_the_first_owed_message_and_all_behind_it(
    first_offset: int | None, going: int
) -> None:
    plan = apply_pending_policy(make_plan(), [Pending(PendingKind.HALF, 1, 420), timers(first_offset)], BLOCK)
    assert len(plan.to_delete) == going
    for decision in plan.decisions[len(plan.to_delete) : GOING]:
        assert decision.reason is Reason.PENDING_BLOCKED
        assert "pending" in decision.detail


def test_why_a_segment_stays_names_how_many_where_and_until_when() -> None:
    plan = apply_pending_policy(make_plan(), [timers(250), Pending(PendingKind.HALF, 1, 270)], BLOCK)
    assert plan.decisions[2].detail == (
        "3 timer messages pending, the first at offset 250, due until 2026-11-20 14:15:00Z; "
        "1 undecided half message pending, the first at offset 270"
    )


def test_unknown_keeps_everything() -> None:
    plan = apply_pending_policy(make_plan(), [timers(250), UNREADABLE], BLOCK)
    assert plan.to_delete == ()
    assert UNREADABLE.error in plan.decisions[0].detail


def test_warn_says_what_goes_what_is_unknown_and_what_is_lost() -> None:
    lost = Pending(PendingKind.DELAYED, 0, lost=2)
    goes, unknown, gone = pending_notices(make_plan(), [timers(250), UNREADABLE, lost], WARN)
    assert goes.startswith("3 timer messages pending")
    assert f"from {200:020d} on" in goes
    assert "unknown" in unknown
    assert gone.startswith("2 delayed messages")
    assert pending_notices(make_plan(), [timers(400)], WARN) == ()
    assert pending_notices(make_plan(), [timers(250), UNREADABLE, lost], IGNORE) == ()


@pytest.mark.slow
def test_blocked_run_deletes_what_lies_before_and_reports_what_is_owed(archived: Stores) -> None:
    store = archived(policy=Policy(pending_policy=BLOCK))
    assert steps.release(store, "r").new_min_offset == TIMER_SEGMENT
    report = build_report(store, "r")
    stays = [row for row in report.segments if row.reason is Reason.PENDING_BLOCKED]
    assert [row.base_offset for row in stays] == [TIMER_SEGMENT, TIMER_SEGMENT + MIB]
    assert next(item for item in report.owed if item.kind is PendingKind.TIMER).count == 1
    text = report_text(report)
    assert "Messages still pending\n  1 timer message pending" in text
    assert "policy: block" in text


@pytest.mark.slow
def test_warned_run_plans_it_all_and_says_so(planned: Stores) -> None:
    store = planned()
    assert steps.recorded_plan(store, "r").logs[0].new_min_offset == 7 * MIB
    (notice,) = (text for text in build_report(store, "r").notices if "pending" in text)
    assert notice.startswith("1 timer message pending")


@pytest.mark.slow
def test_ignoring_run_says_nothing(planned: Stores) -> None:
    store = planned(policy=Policy(pending_policy=IGNORE))
    assert steps.recorded_plan(store, "r").logs[0].new_min_offset == 7 * MIB
    report = build_report(store, "r")
    assert report.owed == ()
    assert not [text for text in report.notices if "pending" in text]


@pytest.mark.slow
def test_what_became_unreadable_since_the_plan_keeps_everything(archived: Stores) -> None:
    store = archived(policy=Policy(pending_policy=BLOCK))
    (Path(store.root) / "config" / "timercheck").unlink()
    released = steps.release(store, "r")
    assert released.deleted == ()
    assert len(released.kept) == TIMER_SEGMENT // MIB
    assert {kept.reason for kept in released.kept} <= {Reason.PENDING_BLOCKED, Reason.BEHIND_KEPT}
    assert "timercheck" in released.kept[0].detail


@pytest.mark.slow
def test_run_whose_every_segment_is_kept_for_what_is_owed_is_blocked(managed: Stores) -> None:
    store = managed(policy=Policy(pending_policy=BLOCK))
    (Path(store.root) / "config" / "timercheck").unlink()
    assert steps.make_plan(store, "r", PlanRequest(manual=True)).delete_offsets == ()
    report = build_report(store, "r")
    assert report.outcome is Outcome.BLOCKED
    assert not report.ok
