"""A plan of several logs, cut to what a person asks for: a prefix of each, of all together the oldest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Decision, LogPlan, PlanRequest, Reason, limit_plans
from storage_engine.model.store import FileFacts, Segment, SegmentState

GIB = 1 << 30


def segment(log: str, base_offset: int, mtime_ns: int, device: int = 1) -> Segment:
    facts = FileFacts(f"/{log}/{base_offset}", device, base_offset, GIB, mtime_ns, mtime_ns)
    return Segment(log, base_offset, facts, SegmentState.SEALED, end=base_offset + 1)


def plan_of(log: str, *mtimes_ns: int, device: int = 1) -> LogPlan:
    going = [
        Decision(segment(log, place, at_ns, device), Reason.EXPIRED, "old")
        for place, at_ns in enumerate(mtimes_ns)
    ]
    kept = Decision(segment(log, len(going), 99), Reason.ACTIVE, "written to")
    return LogPlan(log, (*going, kept))


def going(plans: tuple[LogPlan, ...]) -> dict[str, int]:
    return {one.log: len(one.to_delete) for one in plans}


def test_of_all_logs_together_the_oldest_go_and_of_each_a_prefix() -> None:
    plans = (plan_of("a", 5, 6, 7), plan_of("b", 1, 8), plan_of("c"))
    found = limit_plans(plans, PlanRequest(max_segments=3), (), "disk")
    assert going(found) == {"a": 2, "b": 1, "c": 0}
    (kept,) = [one for one in found[1].decisions if one.reason is Reason.BATCH_FULL]
    assert kept.detail == "by request, at most 3 segments are deleted in one pass"
    assert found[2] == plans[2]
    assert limit_plans(plans, PlanRequest(manual=True), (), "disk") == plans
    assert going(limit_plans(plans, PlanRequest(max_segments=0), (), "disk")) == {"a": 0, "b": 0, "c": 0}


@given(
    logs=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=4),
    most=st.integers(0, 20),
)
def test_never_more_than_asked_and_never_a_hole(logs: list[list[int]], most: int) -> None:
    plans = tuple(plan_of(str(number), *mtimes) for number, mtimes in enumerate(logs))
    found = limit_plans(plans, PlanRequest(max_segments=most), (), "disk")
    assert sum(going(found).values()) == min(most, sum(map(len, logs)))
    for of in found:
        deletes = [one.deletes for one in of.decisions]
        assert deletes == sorted(deletes, reverse=True)


def test_the_target_holds_for_the_fullest_disk() -> None:
    disks = (
        DiskUsage("/one", 62, 100 * GIB, 38 * GIB, device=1),
        DiskUsage("/two", 50, 100 * GIB, 50 * GIB, device=2),
    )
    plans = (plan_of("a", 1, 2, 3, 4), plan_of("b", 9, device=2))
    found = limit_plans(plans, PlanRequest(target_used_percent=60), disks, "disk")
    assert going(found) == {"a": 2, "b": 0}
    (why,) = {one.detail for of in found for one in of.decisions if one.reason is Reason.TARGET_REACHED}
    assert "/one, the fullest disk, is at about 60 % with 2 segments gone" in why
    # Where no level is known, nobody can say that it isn't reached.
    unknown = limit_plans(plans, PlanRequest(target_used_percent=60), (), "disk")
    assert going(unknown) == {"a": 0, "b": 0}


@pytest.mark.parametrize("request_", [PlanRequest(max_segments=-1), PlanRequest(target_used_percent=101)])
def test_what_nobody_can_ask_for_is_refused(request_: PlanRequest) -> None:
    with pytest.raises(BadInputError):
        limit_plans((), request_, (), "disk")
