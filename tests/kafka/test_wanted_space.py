"""Only what the free space takes that a person asks for: disk by disk, what is deleted already first."""

from __future__ import annotations

from storage_engine.kafka.reclaim import Shortage, is_bounded, only_needed, shortage_of
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Decision, LogPlan, PlanRequest, Reason
from storage_engine.model.store import FileFacts, Segment, SegmentId, SegmentState

DISK, OTHER = 1, 2


def plan(
    log: str, *ages: int, device: int = DISK, reason: Reason = Reason.EXPIRED, size: int = 10
) -> LogPlan:
    """Return a log whose segments were last written to at these moments; the active one follows."""

    def segment(base: int, at: int, state: SegmentState) -> Segment:
        facts = FileFacts(f"/{log}/{base}", device, base, size, at, at)
        return Segment(log, base, facts, state, end=base + 1)

    going = [Decision(segment(base, at, SegmentState.SEALED), reason, "why") for base, at in enumerate(ages)]
    last = segment(len(ages), 99, SegmentState.ACTIVE)
    return LogPlan(log, (*going, Decision(last, Reason.ACTIVE, "")))


def going(plans: tuple[LogPlan, ...]) -> list[str]:
    return [f"{one.log}/{segment.base_offset}" for one in plans for segment in one.to_delete]


def short(lacking: int, device: int = DISK) -> dict[int, Shortage]:
    return {device: Shortage(1000, lacking)}


def test_the_oldest_of_all_logs_go_until_it_is_enough() -> None:
    plans = [plan("a", 5, 7), plan("b", 1, 6)]
    assert going(only_needed(plans, short(30), set())) == ["a/0", "b/0", "b/1"]
    assert going(only_needed(plans, short(21), set())) == ["a/0", "b/0", "b/1"]
    assert going(only_needed(plans, short(0), set())) == []
    assert len(going(only_needed(plans, short(1000), set()))) == 4
    kept = only_needed(plans, short(10), set())[0].decisions[0]
    assert kept.reason is Reason.TARGET_REACHED
    assert kept.detail == "its disk has 1000 bytes free without this deletion; otherwise: why"


def test_what_is_deleted_for_the_cluster_goes_first_and_what_is_young_last() -> None:
    plans = [plan("a", 1, reason=Reason.FORCED), plan("b", 2), plan("c", 3)]
    deleted = {SegmentId("c", 0)}
    assert going(only_needed(plans, short(10), deleted)) == ["c/0"]
    assert going(only_needed(plans, short(20), deleted)) == ["b/0", "c/0"]
    assert going(only_needed(plans, short(30), deleted)) == ["a/0", "b/0", "c/0"]


def test_a_disk_with_room_loses_nothing_for_another_one() -> None:
    plans = [plan("a", 1, 2), plan("b", 3, 4, device=OTHER)]
    shortages = {**short(0), **short(15, OTHER)}
    assert going(only_needed(plans, shortages, set())) == ["b/0", "b/1"]


def test_a_disk_whose_level_is_unknown_loses_nothing() -> None:
    kept = only_needed([plan("a", 1)], {DISK: Shortage(None, None)}, set())
    assert kept[0].decisions[0].reason is Reason.UNKNOWN
    assert going(only_needed([plan("a", 1)], {}, set())) == []


def test_what_a_disk_lacks() -> None:
    disk = DiskUsage("/d", 90, total_bytes=1000, usable_bytes=100)
    assert shortage_of(disk, PlanRequest(free_bytes=250)) == Shortage(250, 150)
    assert shortage_of(disk, PlanRequest(free_bytes=50)) == Shortage(50, 0)
    assert shortage_of(disk, PlanRequest(target_used_percent=70)) == Shortage(300, 200)
    assert shortage_of(disk, PlanRequest(target_used_percent=70, free_bytes=400)) == Shortage(400, 300)
    assert shortage_of(DiskUsage("/d", None), PlanRequest(free_bytes=1)) == Shortage(None, None)
    assert not is_bounded(PlanRequest())
    assert is_bounded(PlanRequest(free_bytes=1))
