from __future__ import annotations

import pytest

from storage_engine.exceptions import GateRefusedError
from storage_engine.model.disk import DiskUsage
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.hold.fence import check_force_is_far, deletes_by_force, reserved_hours
from storage_engine.rocketmq.hold.hold_state import Observed

ROOT = "/store"


def found(**settings: str) -> Observed:
    return Observed(0, "broker:10911", 1, 0, 0, settings, "ASYNC_MASTER", ())


def disk(percent: int | None) -> DiskUsage:
    return DiskUsage(ROOT, percent, error="" if percent is not None else "no such directory")


def check(*levels: int | None, **settings: str) -> str:
    config = load_broker_config(None, settings, root=ROOT)
    return check_force_is_far(found(cleanFileForciblyEnable="true"), config, [disk(p) for p in levels], ROOT)


@pytest.mark.parametrize("value", ["-8761", "-2147483648", "", "two days", None])
def test_a_broker_for_which_no_file_is_young_enough_can_not_be_held(value: str | None) -> None:
    settings = {} if value is None else {"fileReservedTime": value}
    with pytest.raises(GateRefusedError, match=r"0 hours or more.*Set fileReservedTime to 48"):
        reserved_hours(found(**settings), ROOT)


@pytest.mark.parametrize("hours", [72, 0, -1])
def test_reserved_hours_are_those_that_work_now(hours: int) -> None:
    assert reserved_hours(found(fileReservedTime=str(hours)), ROOT) == hours


@pytest.mark.parametrize(("value", "forced"), [("false", False), ("true", True), ("", True), ("FALSE", True)])
def test_what_is_not_known_to_be_off_deletes_by_force(value: str, forced: bool) -> None:
    assert deletes_by_force(found(cleanFileForciblyEnable=value)) is forced
    assert deletes_by_force(found())


def test_a_disk_far_from_the_force_level_may_be_held_with_a_notice() -> None:
    notice = check(79, 40)
    assert "above 85 % it deletes whatever is held (the fullest disk is at 79 %)" in notice


@pytest.mark.parametrize("levels", [(80, 40), (40, 80), (85, 85), (100, 1), (40, None)])
def test_near_the_force_level_a_hold_is_refused_with_the_remedy(levels: tuple[int | None, ...]) -> None:
    with pytest.raises(GateRefusedError, match="-k cleanFileForciblyEnable -v false"):
        check(*levels)


def test_force_level_is_the_brokers_own() -> None:
    with pytest.raises(GateRefusedError):
        check(45, diskSpaceCleanForciblyRatio="50")
    assert check(44, diskSpaceCleanForciblyRatio="50")


def test_a_shared_disk_is_refused() -> None:
    with pytest.raises(GateRefusedError, match="replicasPerDiskPartition=2"):
        check(10, replicasPerDiskPartition="2")
