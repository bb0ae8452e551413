"""What isn't as it was left is told, once, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_engine.model.hold import Drift, DriftKind
from storage_engine.rocketmq.hold.hold_state import (
    ChangedSetting,
    HoldState,
    Observed,
    SavedSettings,
    SeenFile,
    Touched,
)
from storage_engine.rocketmq.live.drift import ENDS_TRUST, name_of, new_drift

SIZE = 1000
NOW_MS = 1_800_000_000_000
FENCE_NS = 1_900_000_000 * 10**9
ORIGINAL_NS = 1_700_000_000 * 10**9
SETTINGS = {"cleanFileForciblyEnable": "false", "fileReservedTime": "48"}


def seen(number: int, mtime_ns: int = ORIGINAL_NS, inode: int | None = None) -> SeenFile:
    base = number * SIZE
    return SeenFile(base, f"/log/{base:020d}", inode or number + 1, SIZE, mtime_ns, 0)


STATE = HoldState(
    manager="m",
    boot_timestamp_ms=7,
    fence_offset=0,
    ends_at_ms=NOW_MS + 1,
    touched=(Touched(0, "/log/0", 1, ORIGINAL_NS, FENCE_NS, 5),),
    changed_settings=(ChangedSetting("cleanFileForciblyEnable", "true", "false"),),
    expected_settings=SETTINGS,
    segments=tuple((n * SIZE, n + 1) for n in range(6)),
    end_offset=6 * SIZE,
    max_offset=4 * SIZE + 10,
    address="broker:1",
    frame_offset=3 * SIZE,
    frame_sha256="abc",
)
"""Segments 0 to 3 are sealed, 4 is active, 5 is preallocated."""

FOUND = Observed(
    at_ms=NOW_MS,
    address="broker:1",
    boot_timestamp_ms=7,
    min_offset=0,
    max_offset=4 * SIZE + 20,
    settings=SETTINGS | {"other": "x"},
    role="ASYNC_MASTER",
    files=(seen(0, FENCE_NS), *(seen(n) for n in range(1, 6))),
    saved=SavedSettings("/broker.conf", dict(SETTINGS)),
    frame_sha256="abc",
)


def without(*numbers: int) -> Observed:
    gone = {n * SIZE for n in numbers}
    return replace(FOUND, files=tuple(file for file in FOUND.files if file.base_offset not in gone))


def with_file(file: SeenFile) -> Observed:
    others = (other for other in FOUND.files if other.base_offset != file.base_offset)
    return replace(FOUND, files=tuple(sorted((file, *others), key=lambda f: f.base_offset)))


def kinds(state: HoldState, found: Observed) -> list[DriftKind]:
    return [one.kind for one in new_drift(state, found)]


def only(state: HoldState, found: Observed) -> Drift:
    (one,) = new_drift(state, found)
    return one


def test_a_store_as_it_was_left_is_undisturbed() -> None:
    assert new_drift(STATE, FOUND) == ()


def test_new_segments_and_messages_disturb_nothing() -> None:
    grown = replace(FOUND, files=(*FOUND.files, seen(6), seen(7)), max_offset=7 * SIZE)
    assert new_drift(STATE, grown) == ()


def test_a_touched_fence_is_told_with_what_it_should_have() -> None:
    one = only(STATE, with_file(seen(0, FENCE_NS + 10**9)))
    assert one.kind is DriftKind.MTIME_CHANGED
    assert "2030-03-17 17:46:40" in one.detail


def test_another_file_under_the_fences_name_is_told() -> None:
    assert "another file has its name" in only(STATE, with_file(seen(0, FENCE_NS, inode=99))).detail


@pytest.mark.parametrize(
    ("other_inode", "told"),
    [(0, "found 2030-03-17 17:46:41Z: another program touched them"), (9, "another file has each name")],
)
def test_what_was_done_to_a_whole_fence_is_told_once(other_inode: int, told: str) -> None:
    touched = tuple(Touched(n * SIZE, f"/log/{n}", n + 1, ORIGINAL_NS, FENCE_NS, 1) for n in range(4))
    files = tuple(seen(n, FENCE_NS + 10**9, other_inode) for n in range(4))
    one = only(replace(STATE, touched=touched), replace(FOUND, files=(*files, *FOUND.files[4:])))
    assert one.detail.startswith(f"/log/{0:020d} and 3 more, the last {3 * SIZE:020d}: ")
    assert told in one.detail


@pytest.mark.parametrize("mtime_ns", [ORIGINAL_NS, FENCE_NS])
def test_an_mtime_that_was_about_to_be_set_may_have_been_or_not(mtime_ns: int) -> None:
    meant = replace(
        STATE, touched=(Touched(0, "/log/0", 1, ORIGINAL_NS, FENCE_NS, before_mtime_ns=ORIGINAL_NS),)
    )
    assert new_drift(meant, with_file(seen(0, mtime_ns))) == ()


def test_neighbours_that_went_are_one_range_and_others_another() -> None:
    found = [(one.start_offset, one.end_offset) for one in new_drift(STATE, without(0, 1, 3))]
    assert found == [(0, 2 * SIZE), (3 * SIZE, 4 * SIZE)]


def test_what_went_of_the_active_segment_ends_where_its_messages_end() -> None:
    one = only(STATE, without(4))
    assert (one.start_offset, one.end_offset) == (4 * SIZE, 4 * SIZE + 10)


def test_a_preallocated_file_that_went_is_no_loss() -> None:
    assert new_drift(STATE, without(5)) == ()


def test_what_is_let_go_right_now_did_not_go_without_us() -> None:
    assert new_drift(replace(STATE, releasing=(0, SIZE)), without(0, 1)) == ()


@pytest.mark.parametrize(("key", "value"), [("cleanFileForciblyEnable", "true"), ("fileReservedTime", "24")])
def test_a_changed_setting_is_told(key: str, value: str) -> None:
    found = replace(
        FOUND,
        settings=FOUND.settings | {key: value},
        saved=SavedSettings("/broker.conf", SETTINGS | {key: value}),
    )
    one = only(STATE, found)
    assert one.kind is DriftKind.SETTING_CHANGED
    assert f"{key}={SETTINGS[key]}" in one.detail
    assert value in one.detail


def test_a_setting_that_a_restart_would_undo_is_told() -> None:
    saved = SavedSettings("/broker.conf", SETTINGS | {"cleanFileForciblyEnable": "true"})
    one = only(STATE, replace(FOUND, saved=saved))
    assert one.kind is DriftKind.SETTING_NOT_SAVED
    assert "/broker.conf" in one.detail


def test_a_setting_that_broker_conf_does_not_have_has_the_brokers_default() -> None:
    saved = SavedSettings("/broker.conf", {"fileReservedTime": "48"})
    assert "cleanFileForciblyEnable=true (the default)" in only(STATE, replace(FOUND, saved=saved)).detail


def test_a_broker_conf_that_nobody_can_read_says_nothing() -> None:
    assert new_drift(STATE, replace(FOUND, saved=SavedSettings("/x", None, "denied"))) == ()


def test_what_lasts_and_was_told_is_not_told_again() -> None:
    saved = SavedSettings("/broker.conf", SETTINGS | {"fileReservedTime": "72"})
    found = replace(FOUND, saved=saved)
    told = replace(STATE, reported=tuple(map(name_of, new_drift(STATE, found))))
    assert new_drift(told, found) == ()


def test_a_range_is_the_same_whatever_is_known_of_it() -> None:
    one = only(STATE, without(0))
    assert name_of(one) == name_of(replace(one, detail="more", topics=("t",)))


def test_a_hold_that_nobody_renewed_has_lapsed() -> None:
    assert kinds(STATE, replace(FOUND, at_ms=NOW_MS + 2)) == [DriftKind.HOLD_LAPSED]
    assert kinds(replace(STATE, ends_at_ms=0), FOUND) == []


def test_a_restart_is_told_with_what_the_crash_lost() -> None:
    found = replace(FOUND, boot_timestamp_ms=8, max_offset=4 * SIZE)
    one = only(STATE, found)
    assert one.kind is DriftKind.BROKER_RESTARTED
    assert "10 bytes before" in one.detail


def test_a_log_that_ends_where_sealed_segments_were_is_another_store() -> None:
    found = replace(FOUND, boot_timestamp_ms=8, max_offset=4 * SIZE - 1, files=(seen(0), seen(1)))
    one = only(STATE, found)
    assert one.kind is DriftKind.BROKER_REPLACED
    assert "adopt" in one.detail


@pytest.mark.parametrize("digest", ["other", ""])
def test_other_bytes_where_a_known_message_was_are_another_store(digest: str) -> None:
    assert kinds(STATE, replace(FOUND, frame_sha256=digest)) == [DriftKind.BROKER_REPLACED]


def test_a_known_message_that_was_let_go_or_not_asked_for_tells_nothing() -> None:
    assert kinds(STATE, replace(FOUND, frame_sha256=None)) == []
    assert kinds(STATE, replace(FOUND, frame_sha256="", min_offset=4 * SIZE)) == []


def test_another_process_elsewhere_is_a_promoted_slave() -> None:
    found = replace(FOUND, address="broker:2", boot_timestamp_ms=8)
    assert kinds(STATE, found) == [DriftKind.ROLE_CHANGED]


def test_another_name_for_the_same_process_is_none() -> None:
    assert kinds(STATE, replace(FOUND, address="broker.example:1")) == []


def test_a_slave_and_another_store_end_all_trust() -> None:
    assert kinds(STATE, replace(FOUND, role="SLAVE")) == [DriftKind.ROLE_CHANGED]
    assert {DriftKind.ROLE_CHANGED, DriftKind.BROKER_REPLACED} == ENDS_TRUST
