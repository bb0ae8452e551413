"""What a policy and a waiver let go: without proof, without a lake, or before a group has read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Journal
from storage_engine.model.lag import LagSummary, QueueLag
from storage_engine.model.plan import Reason
from storage_engine.model.settings.policy import ArchiveMode, LagPolicy, Policy
from storage_engine.retention import steps
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.store.managed_store import ManagedStore

Make = Callable[..., ManagedStore]


def plan_digest(store: ManagedStore) -> str:
    return steps.recorded_plan(store, "r").digest


@pytest.mark.slow
def test_policy_archive_off_lets_segments_go_without_a_lake(planned: Make, lake_dir: Path) -> None:
    store = planned(max_segments=2, policy=Policy(archive=ArchiveMode.OFF))
    assert steps.archive_jobs(store, "r") == ()
    result = steps.release(store, "r")
    assert [release.passage for release in result.deleted] == [Passage.ARCHIVE_OFF] * 2
    assert not lake_dir.exists()


@pytest.mark.slow
def test_a_waiver_lets_the_plan_go_and_is_on_record(
    planned: Make, journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = planned(max_segments=1)
    journal_of(store).waive(plan_digest(store), "ann", "lake burnt down")
    (release,) = steps.release(store, "r").deleted
    assert release.passage is Passage.WAIVED
    assert release.passage_detail == "waived by ann: lake burnt down (no receipt in the lake)"


@pytest.mark.slow
def test_a_waiver_of_another_plan_helps_nothing(
    planned: Make, refuses: Callable[..., str], journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = planned(max_segments=1)
    journal_of(store).waive("0" * 64, "ann", "lake burnt down")
    refuses(store, GateRefusedError)


@pytest.mark.slow
def test_a_waived_plan_goes_though_the_lake_is_gone(
    archived: Make, lake_dir: Path, journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = archived(max_segments=1)
    lake_dir.rename(lake_dir.with_name("burnt"))
    journal_of(store).waive(plan_digest(store), "ann", "lake burnt down")
    assert steps.release(store, "r").deleted


BLOCK = Policy(lag_policy=LagPolicy.BLOCK)


def lag(base_offset: int | None, *, at_risk: bool = True) -> QueueLag:
    committed = None if base_offset is None else 5
    return QueueLag(
        "g", "t", 0, committed, 0, 9, 4, 1000, base_offset, base_offset, at_risk, 0, None if at_risk else 1
    )


SUMMARY = LagSummary(1, 1, 4, 1000, 0, ("g",), 1)


@pytest.mark.slow
def test_unknown_lag_blocks_where_lag_blocks(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=2, policy=BLOCK)
    assert "expected a present measurement of consumers' lag" in refuses(store, GateRefusedError)


@pytest.mark.slow
def test_what_a_group_has_to_read_stays_where_lag_blocks(archived: Make) -> None:
    store = archived(max_segments=3, policy=BLOCK)
    steps.record_lag(store, "r", SUMMARY, [lag(5 << 20, at_risk=False), lag(1 << 20)])
    result = steps.release(store, "r")
    assert [release.base_offset for release in result.deleted] == [0]
    assert [(k.base_offset, k.reason) for k in result.kept] == [
        (1 << 20, Reason.LAG_BLOCKED),
        (2 << 20, Reason.LAG_BLOCKED),
    ]


@pytest.mark.slow
def test_what_a_group_has_to_read_goes_where_lag_only_warns(archived: Make) -> None:
    store = archived(max_segments=1)
    steps.record_lag(store, "r", SUMMARY, [lag(0)])
    assert steps.release(store, "r").deleted
