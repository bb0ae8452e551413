"""What was written too recently stays, whoever asks for its deletion and however full a disk is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.clock import JUMP_MS, clock_ms, read_clock
from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Journal
from storage_engine.model.plan import Cause, Decision, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention import steps
from storage_engine.retention.plan.deciding import apply_minimum_retention
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.release import judging
from storage_engine.retention.report.report import build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.codec.commitlog import read_store_timestamp

HOUR_NS = 3_600_000_000_000
NOW_MS = 1_795_000_000_000
MIB = 1 << 20
SIZE = 100

Stores = Callable[..., ManagedStore]


def make_plan(ages_hours: Sequence[float], *, original_ages_hours: Sequence[float] | None = None) -> Plan:
    """A plan that lets every segment go; of these ages by their files, or by what a hold remembers."""
    decisions = []
    for number, age in enumerate(ages_hours):
        mtime_ns = NOW_MS * 10**6 - round(age * HOUR_NS)
        facts = FileFacts(f"/store/commitlog/{number * SIZE:020d}", 1, number, SIZE, mtime_ns, 0)
        segment = Segment("commitlog", number * SIZE, facts, SegmentState.SEALED)
        if original_ages_hours is not None:
            original_ns = NOW_MS * 10**6 - round(original_ages_hours[number] * HOUR_NS)
            segment = replace(segment, original_mtime_ns=original_ns)
        decisions.append(Decision(segment, Reason.FORCED, "age is ignored in a forced pass"))
    return Plan("/store", NOW_MS, (), (LogPlan("commitlog", tuple(decisions)),))


def reasons(plan: Plan) -> list[str]:
    return [decision.reason.value for decision in plan.decisions]


def test_without_a_minimum_a_plan_stays_as_it_is() -> None:
    plan = make_plan([0, 0])
    assert apply_minimum_retention(plan, None, NOW_MS) is plan


@pytest.mark.parametrize(("age", "goes"), [(47.999, False), (48, True), (49, True), (-1, False)])
def test_a_segment_goes_once_its_last_write_is_long_enough_ago(age: float, goes: bool) -> None:
    assert bool(apply_minimum_retention(make_plan([age]), 48, NOW_MS).to_delete) is goes


def test_the_log_is_cut_before_the_first_segment_that_is_too_young() -> None:
    plan = apply_minimum_retention(make_plan([90, 10, 90, 5]), 48, NOW_MS)
    assert reasons(plan) == ["forced", "minimum-retention", "behind-kept", "minimum-retention"]
    assert [segment.base_offset for segment in plan.to_delete] == [0]
    assert "minimum_retention_hours 48: nothing deletes it before" in plan.decisions[1].detail
    assert f"{SIZE:020d} before it stays" in plan.decisions[2].detail


def test_the_last_write_is_what_it_was_before_a_hold_set_another_time() -> None:
    held = make_plan([-24], original_ages_hours=[90])
    assert apply_minimum_retention(held, 48, NOW_MS).to_delete
    made_old = make_plan([90], original_ages_hours=[1])
    assert not apply_minimum_retention(made_old, 48, NOW_MS).to_delete


@pytest.mark.parametrize(("hours_ago", "goes"), [(1, False), (90, True)])
def test_a_file_that_was_made_old_is_no_older_than_its_messages(hours_ago: int, goes: bool) -> None:
    plan = make_plan([10_000])
    sealed_ms = {plan.decisions[0].segment.id: NOW_MS - hours_ago * 3_600_000}
    plan = apply_minimum_retention(plan, 48, NOW_MS, sealed_ms)
    assert bool(plan.to_delete) is goes
    assert ("by its messages" in plan.decisions[0].detail) is not goes


@pytest.mark.slow
def test_no_touch_makes_segments_old_enough_for_any_run(managed: Stores) -> None:
    store = managed(policy=Policy(ArchiveMode.OFF), overrides={"fileReservedTime": "1"})
    log = Path(store.root) / "commitlog"
    for path in log.iterdir():
        os.utime(path, ns=(0, 0))
    third = log / f"{2 * MIB:020d}"
    sealed_ms = read_store_timestamp(third, 0, 2 * MIB)  # the second one was full then
    forced = PlanRequest(manual=True, forced=True)
    hours = (clock_ms() - sealed_ms) // 3_600_000
    kept = replace(store, policy=Policy(ArchiveMode.OFF, minimum_retention_hours=hours + 24))
    assert preview(kept, forced).plan.to_delete == ()
    assert steps.make_plan(store, "r", forced).deletes == 7
    assert steps.release(kept, "r").deleted == ()
    old_enough = replace(store, policy=Policy(ArchiveMode.OFF, minimum_retention_hours=hours - 24))
    assert len(preview(old_enough, forced).plan.to_delete) == 7


def let_be_written(store: ManagedStore, number: int, hours_ago: float) -> None:
    path = Path(store.root) / "commitlog" / f"{number * MIB:020d}"
    at_ns = clock_ms() * 10**6 - round(hours_ago * HOUR_NS)
    os.utime(path, ns=(at_ns, at_ns))


@pytest.fixture
def young_third(managed: Stores) -> Callable[..., ManagedStore]:
    """A store that keeps 48 hours, whose third segment was written 10 hours ago."""

    def make(**settings: object) -> ManagedStore:
        policy = Policy(ArchiveMode.OFF, minimum_retention_hours=48)
        store = managed(policy=policy, overrides={"fileReservedTime": "1"}, **settings)
        let_be_written(store, 2, 10)
        return store

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_",
    [PlanRequest(manual=True), PlanRequest(manual=True, forced=True), PlanRequest(forced=True)],
    ids=["manual", "forced by hand", "forced"],
)
def test_every_run_of_a_person_respects_the_minimum(young_third: Stores, request_: PlanRequest) -> None:
    store = young_third()
    assert steps.make_plan(store, "r", request_).delete_offsets == (0, MIB)
    steps.release(store, "r")
    assert min(int(path.name) for path in (Path(store.root) / "commitlog").iterdir()) == 2 * MIB
    assert "minimum-retention: last written" in report_text(build_report(store, "r"))


def test_a_full_disk_respects_the_minimum(young_third: Stores) -> None:
    store = young_third()
    levels = {str(Path(store.root) / name): 99 for name in ("commitlog", "consumequeue")}
    plan = preview(store, PlanRequest(), used_percents=levels).plan
    assert any(trigger.cause is Cause.SPACE_FULL for trigger in plan.triggers)
    assert [segment.base_offset for segment in plan.to_delete] == [0, MIB]
    assert plan.decisions[2].reason is Reason.MINIMUM_RETENTION


@pytest.mark.slow
def test_what_was_written_since_the_plan_stays(young_third: Stores) -> None:
    store = young_third()
    steps.make_plan(store, "r", PlanRequest(manual=True, forced=True))
    let_be_written(store, 1, 1)
    result = steps.release(store, "r")
    assert [release.base_offset for release in result.deleted] == [0]
    assert [(kept.base_offset, kept.reason) for kept in result.kept] == [(MIB, Reason.MINIMUM_RETENTION)]


@pytest.mark.slow
def test_a_minimum_that_was_set_since_the_plan_counts(managed: Stores) -> None:
    store = managed(policy=Policy(ArchiveMode.OFF))
    let_be_written(store, 1, 1)
    assert len(steps.make_plan(store, "r", PlanRequest(manual=True, forced=True)).delete_offsets) == 7
    kept = replace(store, policy=Policy(ArchiveMode.OFF, minimum_retention_hours=2))
    assert [release.base_offset for release in steps.release(kept, "r").deleted] == [0]


@pytest.mark.slow
def test_a_clock_set_forward_makes_nothing_old_enough_for_a_forced_run(
    young_third: Stores, journal_of: Callable[[ManagedStore], Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = young_third()
    forced = PlanRequest(manual=True, forced=True)
    steps.make_plan(store, "r", forced)
    now = read_clock()
    assert now is not None
    later = replace(now, started_at_ms=now.started_at_ms + 80 * JUMP_MS)
    monkeypatch.setattr(judging, "read_clock", lambda: later)
    with pytest.raises(GateRefusedError, match="set forward by"):
        steps.release(store, "r")
    without = replace(store, policy=Policy(ArchiveMode.OFF))
    assert steps.release(without, "r").deleted
