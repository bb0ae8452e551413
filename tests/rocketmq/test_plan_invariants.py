"""What holds of every plan, whatever the store, its settings and the request are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import HOUR_MS
from storage_engine.model.plan import DELETING, Plan, PlanRequest, Reason
from storage_engine.model.store import SegmentState, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import archivable, plan
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from tests.rocketmq.plans import NOON, SIZE, UTC, config, disk, store

levels = st.none() | st.integers(0, 100)
stores = st.builds(
    lambda ages, disks, queue, end, behind, crashed, confirmed: store(
        ages,
        disks=disks,
        queue_disk=queue,
        max_offset=round(end * SIZE * len(ages)),
        dispatched_offset=round(end * SIZE * len(ages)) - behind,
        crashed=crashed,
        confirmed_offset=confirmed,
    ),
    ages=st.lists(st.integers(-5, 200), min_size=1, max_size=14),
    disks=st.lists(levels, min_size=1, max_size=2),
    queue=levels,
    end=st.floats(0, 1),
    behind=st.sampled_from([0, 0, 0, 1, 150]),
    crashed=st.sampled_from([False, False, False, True]),
    confirmed=st.none() | st.integers(0, 15 * SIZE),
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
    assert set(going) <= set(archivable(state).segments), "nothing that may be cut off and written again"
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


@given(state=stores)
def test_what_may_be_archived_is_sealed_and_confirmed(state: StoreSnapshot) -> None:
    (log,) = state.logs
    found, confirmed = archivable(state), log.confirmed_offset
    assert found.segments == tuple(
        segment for segment in log.sealed if confirmed is None or segment.end_offset <= confirmed
    )
    assert bool(found.kept_out) == (len(found.segments) < len(log.sealed))


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
