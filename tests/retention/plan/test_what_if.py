from __future__ import annotations

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.store import LogSnapshot, StoreSnapshot
from storage_engine.retention.plan.deciding import with_disk_levels

TOTAL = 1_000_000

SNAPSHOT = StoreSnapshot(
    broker="rocketmq",
    root="/store",
    taken_at_ms=0,
    logs=(LogSnapshot("commitlog", (), 0, 0),),
    log_disks=(
        DiskUsage("/d0/commitlog", None, error="/d0/commitlog: can't be measured: gone"),
        DiskUsage("/d1/commitlog", 20, TOTAL, TOTAL * 80 // 100, device=1),
    ),
    dependents_disk=DiskUsage("/store/consumequeue", 10, TOTAL, TOTAL * 90 // 100, device=1),
    crashed=False,
)


def test_the_level_of_a_path_is_replaced_and_the_others_stay() -> None:
    state = with_disk_levels(SNAPSHOT, {"/d0/commitlog/": 91, "/store/consumequeue": 80})
    assert [each.used_percent for each in (*state.log_disks, state.dependents_disk)] == [91, 20, 80]
    assert state.dependents_disk.usable_bytes == TOTAL * 20 // 100
    assert state.log_disks[0].error == ""


@pytest.mark.parametrize(("path", "percent"), [("/d9", 50), ("/d0", 50), ("/d0/commitlog", 101), ("/", -1)])
def test_another_path_or_level_is_an_error(path: str, percent: int) -> None:
    with pytest.raises(BadInputError, match=f"disk level of {path}"):
        with_disk_levels(SNAPSHOT, {path: percent})
