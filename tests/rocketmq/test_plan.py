from __future__ import annotations

from dataclasses import replace

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.model.plan import Plan, Reason
from storage_engine.model.store import SegmentState
from tests.rocketmq.plans import SIZE, config, decide, store


def reasons(decided: Plan) -> list[str]:
    return [decision.reason.value for decision in decided.decisions]


def details(decided: Plan) -> list[str]:
    return [decision.detail for decision in decided.decisions]


OLD, NEW = 100, 1


def test_expired_prefix_goes_and_the_active_segment_stays() -> None:
    decided = decide(store([OLD, OLD, NEW, NEW]))
    assert reasons(decided) == ["expired", "expired", "not-expired", "active"]
    assert decided.logs[0].new_min_offset == 2 * SIZE


def test_what_another_master_may_cut_off_stays() -> None:
    decided = decide(store([OLD, OLD, OLD, OLD, NEW], confirmed_offset=2 * SIZE + 1))
    assert reasons(decided) == ["expired", "expired", "not-replicated", "not-replicated", "active"]
    assert f"all replicas in sync have the log up to {2 * SIZE + 1}" in details(decided)[2]


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
