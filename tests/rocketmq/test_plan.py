from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError
from storage_engine.model.plan import DELETING, Plan, PlanRequest, Reason
from storage_engine.model.store import (
    DiskUsage,
    FileFacts,
    LogSnapshot,
    Segment,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.rocketmq.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.plan import plan
from storage_engine.rocketmq.window import HOUR_MS

UTC = ZoneInfo("UTC")
NOON = 1_750_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS + 12 * HOUR_MS
SIZE = 100
DISK_BYTES = 10_000
LOG_DIRECTORIES = ("/d0/commitlog", "/d1/commitlog")


def config(**overrides: str) -> BrokerConfig:
    return load_broker_config(None, {"deleteWhen": "12", **overrides}, root="/store")


def disk(path: str, percent: int | None, device: int) -> DiskUsage:
    if percent is None:
        return DiskUsage(path, None, error=f"{path}: gone")
    return DiskUsage(path, percent, DISK_BYTES, DISK_BYTES * (100 - percent) // 100, device=device)


def store(
    ages_hours: Sequence[float],
    *,
    disks: Sequence[int | None] = (50,),
    queue_disk: int | None = 50,
    max_offset: int | None = None,
    dispatched_offset: int | None = None,
    crashed: bool = False,
) -> StoreSnapshot:
    """A store whose segments were last written so many hours ago; the log ends inside the last one."""
    end = SIZE * (len(ages_hours) - 1) + SIZE // 2 if max_offset is None else max_offset
    segments = []
    for number, hours in enumerate(ages_hours):
        base = number * SIZE
        where = number % len(disks)
        facts = FileFacts(
            path=f"{LOG_DIRECTORIES[where]}/{base:020d}",
            device=where,
            inode=number,
            size_bytes=SIZE,
            mtime_ns=int(NOON - hours * HOUR_MS) * 1_000_000,
            ctime_ns=0,
        )
        state = SegmentState.SEALED if base + SIZE <= end else SegmentState.ACTIVE
        segments.append(Segment("commitlog", base, facts, state))
    dispatched = end if dispatched_offset is None else dispatched_offset
    return StoreSnapshot(
        broker="rocketmq",
        root="/store",
        taken_at_ms=NOON,
        logs=(LogSnapshot("commitlog", tuple(segments), end, dispatched),),
        log_disks=tuple(
            disk(LOG_DIRECTORIES[index], percent, device=index) for index, percent in enumerate(disks)
        ),
        dependents_disk=disk("/store/consumequeue", queue_disk, device=9),
        crashed=crashed,
    )


def decide(state: StoreSnapshot, settings: BrokerConfig | None = None, **request: int | bool | str) -> Plan:
    return plan(state, settings or config(), NOON, UTC, PlanRequest(**request))  # type: ignore[arg-type]


def reasons(decided: Plan) -> list[str]:
    return [decision.reason.value for decision in decided.decisions]


def details(decided: Plan) -> list[str]:
    return [decision.detail for decision in decided.decisions]


OLD, NEW = 100, 1


def test_expired_prefix_goes_and_the_active_segment_stays() -> None:
    decided = decide(store([OLD, OLD, NEW, NEW]))
    assert reasons(decided) == ["expired", "expired", "not-expired", "active"]
    assert decided.logs[0].new_min_offset == 2 * SIZE


def test_it_stops_at_the_first_segment_that_has_not_expired() -> None:
    decided = decide(store([OLD, NEW, OLD, NEW, OLD, NEW]))
    assert reasons(decided) == [
        "expired",
        "not-expired",
        "behind-kept",
        "not-expired",
        "behind-kept",
        "active",
    ]
    assert f"{SIZE:020d} before it stays (not-expired)" in details(decided)[4]


@pytest.mark.parametrize(
    ("hours", "expected"), [(71.999, "not-expired"), (72, "expired"), (72.001, "expired")]
)
def test_a_segment_expires_to_the_millisecond(hours: float, expected: str) -> None:
    assert reasons(decide(store([hours, NEW])))[0] == expected


def test_reserved_time_is_in_hours() -> None:
    assert reasons(decide(store([5, NEW]), config(fileReservedTime="5")))[0] == "expired"
    assert reasons(decide(store([5, NEW]), config(fileReservedTime="6")))[0] == "not-expired"


def test_details_give_the_figures() -> None:
    expired, kept, _ = details(decide(store([100, 70, NEW])))
    assert "fileReservedTime 72 h: expired 2025-" in expired
    assert "fileReservedTime 72 h: expires 2025-06-15 14:00:00Z" in kept


def test_without_a_cause_nothing_goes_and_the_next_window_is_named() -> None:
    decided = decide(store([OLD, NEW]), config(deleteWhen="04"))
    assert reasons(decided) == ["no-cause", "active"]
    assert "deleteWhen 04 comes at 2025-06-16 04:00:00Z" in details(decided)[0]
    assert "expired 2025-" in details(decided)[0]


def test_a_window_that_never_comes_is_said_to() -> None:
    assert "deleteWhen 99 never comes" in details(decide(store([OLD, NEW]), config(deleteWhen="99")))[0]


@pytest.mark.parametrize(
    ("settings", "request_", "going"),
    [
        ({}, {}, 10),
        ({"deleteFileBatchMax": "3"}, {}, 3),
        ({"deleteFileBatchMax": "0"}, {}, 1),
        ({}, {"max_segments": 2}, 2),
        ({}, {"max_segments": 0}, 0),
        ({}, {"max_segments": 100}, 15),
    ],
)
def test_one_pass_deletes_at_most_a_batch(
    settings: dict[str, str], request_: dict[str, int], going: int
) -> None:
    decided = decide(store([OLD] * 15 + [NEW]), config(**settings), **request_)
    assert reasons(decided) == ["expired"] * going + ["batch-full"] * (15 - going) + ["active"]


def test_behind_a_full_batch_each_segment_still_has_its_own_reason() -> None:
    decided = decide(store([OLD, OLD, OLD, NEW, OLD, NEW]), max_segments=1)
    assert reasons(decided) == [
        "expired",
        "batch-full",
        "batch-full",
        "not-expired",
        "behind-kept",
        "active",
    ]


def test_forced_pass_ignores_age() -> None:
    decided = decide(store([OLD, NEW, OLD, NEW], disks=(86,)))
    assert reasons(decided) == ["expired", "forced", "expired", "active"]


def test_forced_request_ignores_age_only_if_the_broker_may() -> None:
    state = store([NEW, NEW])
    assert reasons(decide(state, forced=True)) == ["forced", "active"]
    refused = decide(state, config(cleanFileForciblyEnable="false"), forced=True)
    assert reasons(refused) == ["not-expired", "active"]
    assert "refused" in refused.notices[0]


@pytest.mark.parametrize("request_", [{}, {"manual": True}, {"forced": True}])
def test_crashed_store_loses_nothing(request_: dict[str, bool]) -> None:
    decided = decide(store([OLD, OLD, NEW], disks=(99,), crashed=True), **request_)
    assert reasons(decided) == ["store-crashed", "store-crashed", "active"]


@pytest.mark.parametrize(
    ("dispatched", "expected"),
    [(0, "not-dispatched"), (99, "not-dispatched"), (100, "expired"), (250, "expired")],
)
def test_a_segment_that_dispatch_has_not_passed_stays(dispatched: int, expected: str) -> None:
    decided = decide(store([OLD, OLD, NEW], dispatched_offset=dispatched), forced=True)
    assert reasons(decided)[0] == expected


def test_preallocated_files_behind_the_end_stay() -> None:
    decided = decide(store([OLD, OLD, OLD, OLD], max_offset=150), forced=True)
    assert reasons(decided) == ["expired", "active", "active", "active"]
    assert "the log ends at 150, in this file" in details(decided)[1]
    assert "preallocated behind the log's end" in details(decided)[3]


@pytest.mark.parametrize("max_offset", [200, 300])
def test_the_last_file_with_content_stays_even_if_it_is_full(max_offset: int) -> None:
    decided = decide(store([OLD, OLD, OLD], max_offset=max_offset), forced=True)
    kept = max_offset // SIZE - 1
    assert decided.decisions[kept].reason is Reason.ACTIVE
    assert "last file with content" in details(decided)[kept]
    assert len(decided.to_delete) == kept


def test_store_with_only_preallocated_files_loses_nothing() -> None:
    assert decide(store([OLD, OLD], max_offset=0), forced=True).to_delete == ()


def test_a_file_that_ends_behind_the_log_is_active_whatever_its_state_says() -> None:
    state = store([OLD, OLD, OLD], max_offset=150)
    log = state.logs[0]
    wrong = replace(log, segments=tuple(replace(each, state=SegmentState.SEALED) for each in log.segments))
    decided = decide(replace(state, logs=(wrong,)), forced=True)
    assert reasons(decided) == ["expired", "active", "active"]


def test_a_clock_that_jumped_back_expires_nothing_and_is_noticed() -> None:
    decided = decide(store([-1, OLD, NEW]), config(fileReservedTime="0"))
    assert reasons(decided) == ["not-expired", "behind-kept", "active"]
    assert "in the future" in details(decided)[0]
    assert any(f"1 sealed segment(s) were last written in the future, the first is {0:020d}" in text
               for text in decided.notices)  # fmt: skip


def test_an_active_segment_written_a_moment_ago_is_no_notice() -> None:
    assert decide(store([OLD, -0.001])).notices == ()


@pytest.mark.parametrize(("target", "going"), [(59, 3), (60, 2), (61, 1), (62, 0), (0, 10), (100, 0)])
def test_it_stops_when_the_estimated_level_is_at_the_target(target: int, going: int) -> None:
    decided = decide(store([OLD] * 20 + [NEW], disks=(62,)), target_used_percent=target)
    assert len(decided.to_delete) == going
    if going < 10:
        assert reasons(decided)[going:-1] == ["target-reached"] * (20 - going)
        assert f"target {target} % is reached" in details(decided)[going]


def test_target_holds_for_the_fullest_commitlog_disk() -> None:
    decided = decide(store([OLD] * 9 + [NEW], disks=(62, 30)), target_used_percent=60)
    assert len(decided.to_delete) == 3  # the second one lies on the other disk and frees nothing there


def test_target_ignores_an_unknown_disk_beside_a_known_one() -> None:
    decided = decide(store([OLD] * 9 + [NEW], disks=(62, None)), target_used_percent=60)
    assert len(decided.to_delete) == 3


def test_target_with_no_known_disk_deletes_nothing() -> None:
    decided = decide(store([OLD, NEW], disks=(None,)), manual=True, target_used_percent=60)
    assert reasons(decided) == ["target-reached", "active"]
    assert "no commitlog disk's level is known" in details(decided)[0]


@pytest.mark.parametrize(
    "request_", [{"max_segments": -1}, {"target_used_percent": -1}, {"target_used_percent": 101}]
)
def test_request_that_makes_no_sense_is_an_error(request_: dict[str, int]) -> None:
    with pytest.raises(BadInputError, match=next(iter(request_))):
        decide(store([OLD, NEW]), **request_)


levels = st.none() | st.integers(0, 100)
stores = st.builds(
    lambda ages, disks, queue, end, behind, crashed: store(
        ages,
        disks=disks,
        queue_disk=queue,
        max_offset=round(end * SIZE * len(ages)),
        dispatched_offset=round(end * SIZE * len(ages)) - behind,
        crashed=crashed,
    ),
    ages=st.lists(st.integers(-5, 200), min_size=1, max_size=14),
    disks=st.lists(levels, min_size=1, max_size=2),
    queue=levels,
    end=st.floats(0, 1),
    behind=st.sampled_from([0, 0, 0, 1, 150]),
    crashed=st.sampled_from([False, False, False, True]),
)
configs = st.builds(
    lambda hour, reserved, batch, forcibly, ratio: config(
        deleteWhen=hour,
        fileReservedTime=str(reserved),
        deleteFileBatchMax=str(batch),
        cleanFileForciblyEnable=forcibly,
        diskMaxUsedSpaceRatio=str(ratio),
    ),
    hour=st.sampled_from(["12", "04", "99"]),
    reserved=st.integers(0, 100),
    batch=st.integers(-1, 12),
    forcibly=st.sampled_from(["true", "false"]),
    ratio=st.integers(0, 100),
)
requests = st.builds(
    PlanRequest,
    manual=st.booleans(),
    forced=st.booleans(),
    max_segments=st.none() | st.integers(0, 14),
    target_used_percent=st.none() | st.integers(0, 100),
)


@given(state=stores, settings=configs, request_=requests)
def test_invariants_of_every_plan(
    state: StoreSnapshot, settings: BrokerConfig, request_: PlanRequest
) -> None:
    decided = plan(state, settings, NOON, UTC, request_)
    log = state.logs[0]
    assert tuple(decision.segment for decision in decided.decisions) == log.segments
    assert all(decision.detail for decision in decided.decisions)
    going = decided.to_delete
    assert going == log.segments[: len(going)], "only a contiguous prefix goes"
    assert all(segment.end_offset <= log.max_offset for segment in going), "never the active segment"
    assert all(segment.state is SegmentState.SEALED for segment in going)
    kept = log.segments[len(going) :]
    assert kept, "something always stays"
    assert log.max_offset == 0 or any(segment.base_offset < log.max_offset for segment in kept), (
        "the broker finds the end of its log"
    )
    assert all(segment.end_offset <= log.dispatched_offset for segment in going), "consume queues know of it"
    limit = settings.delete_file_batch_max if request_.max_segments is None else request_.max_segments
    assert len(going) <= limit
    if going:
        assert decided.triggers
        assert not state.crashed
    for decision in decided.decisions:
        age_ms = NOON - decision.segment.facts.mtime_ns // 1_000_000
        expired = age_ms >= settings.file_reserved_time_hours * HOUR_MS and age_ms >= 0
        if decision.reason is Reason.EXPIRED:
            assert expired
        if decision.reason is Reason.FORCED:
            assert settings.clean_file_forcibly_enable
            assert not expired


@given(state=stores, settings=configs, request_=requests)
def test_a_plan_depends_on_nothing_else(
    state: StoreSnapshot, settings: BrokerConfig, request_: PlanRequest
) -> None:
    assert plan(state, settings, NOON, UTC, request_) == plan(state, settings, NOON, UTC, request_)


@given(
    state=stores,
    settings=configs,
    request_=requests,
    older_hours=st.lists(st.integers(0, 100), min_size=14, max_size=14),
)
def test_older_segments_never_mean_that_less_goes(
    state: StoreSnapshot, settings: BrokerConfig, request_: PlanRequest, older_hours: list[int]
) -> None:
    log = state.logs[0]
    aged = tuple(
        replace(each, facts=replace(each.facts, mtime_ns=each.facts.mtime_ns - hours * HOUR_MS * 1_000_000))
        for each, hours in zip(log.segments, older_hours, strict=False)
    )
    before = plan(state, settings, NOON, UTC, request_)
    after = plan(replace(state, logs=(replace(log, segments=aged),)), settings, NOON, UTC, request_)
    assert len(after.to_delete) >= len(before.to_delete)


@given(state=stores, settings=configs, which=st.integers(0, 2))
def test_a_level_that_becomes_unknown_never_lets_more_go(
    state: StoreSnapshot, settings: BrokerConfig, which: int
) -> None:
    disks = [*state.log_disks, state.dependents_disk]
    index = which % len(disks)
    disks[index] = disk(disks[index].path, None, device=0)
    unknown = replace(state, log_disks=tuple(disks[:-1]), dependents_disk=disks[-1])
    before = plan(state, settings, NOON, UTC, PlanRequest())
    after = plan(unknown, settings, NOON, UTC, PlanRequest())
    assert len(after.to_delete) <= len(before.to_delete)
    assert any("unknown" in notice for notice in after.notices)


@given(state=stores, settings=configs, request_=requests)
def test_all_levels_unknown_leaves_only_the_clock_and_a_person_as_causes(
    state: StoreSnapshot, settings: BrokerConfig, request_: PlanRequest
) -> None:
    unknown = replace(
        state,
        log_disks=tuple(disk(each.path, None, 0) for each in state.log_disks),
        dependents_disk=disk("/store/consumequeue", None, 9),
    )
    decided = plan(unknown, settings, NOON, UTC, request_)
    assert not {cause.cause.value for cause in decided.triggers} - {"time-up", "manual"}
    if request_.target_used_percent is not None:
        assert decided.to_delete == ()


@given(state=stores, settings=configs, request_=requests)
def test_a_kept_segment_never_has_a_deleting_reason(
    state: StoreSnapshot, settings: BrokerConfig, request_: PlanRequest
) -> None:
    decided = plan(state, settings, NOON, UTC, request_)
    reached_end = False
    for decision in decided.decisions:
        reached_end = reached_end or not decision.deletes
        assert (decision.reason in DELETING) is not reached_end


@given(
    state=stores,
    request_=requests,
    limits=st.tuples(st.integers(0, 14), st.integers(0, 14)).map(sorted),
)
def test_a_larger_limit_only_prolongs_the_prefix(
    state: StoreSnapshot, request_: PlanRequest, limits: list[int]
) -> None:
    fewer, more = (decide_with(state, replace(request_, max_segments=limit)).to_delete for limit in limits)
    assert more[: len(fewer)] == fewer


def decide_with(state: StoreSnapshot, request_: PlanRequest) -> Plan:
    return plan(state, config(), NOON, UTC, request_)
