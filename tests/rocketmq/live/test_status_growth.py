from __future__ import annotations

import pytest

from storage_engine.core.clock import HOUR_MS
from storage_engine.model.disk import DiskUsage
from storage_engine.rocketmq.hold.hold_state import HoldState, Observed, SeenFile, Touched
from storage_engine.rocketmq.live.status import fills_before

NOW_MS = 1_790_000_000_000
GIB = 1 << 30
MS_NS = 1_000_000


def found(*hours_ago: float, max_offset: int | None = None) -> Observed:
    """A log of segments of 1 GiB that were last written so long ago, behind which half a one is active."""
    files = tuple(
        SeenFile(n * GIB, f"/{n}", n, GIB, NOW_MS * MS_NS - round(hours * HOUR_MS) * MS_NS, 1)
        for n, hours in enumerate(hours_ago)
    )
    end = len(files) * GIB + GIB // 2 if max_offset is None else max_offset
    return Observed(NOW_MS, "a", 1, 0, end, {}, "ASYNC_MASTER", files)


def disk(free_gib: int, device: int = 1) -> DiskUsage:
    """A disk of 100 GiB."""
    return DiskUsage("/", 100 - free_gib, 100 * GIB, free_gib * GIB, device=device)


def held(hours: int, *touched: Touched) -> HoldState:
    return HoldState("me", 1, deletes_from_ms=NOW_MS + hours * HOUR_MS, touched=touched)


@pytest.mark.parametrize(
    ("free_gib", "hours", "fills"),
    # 2.5 GiB in 24 hours, and 10 GiB that are kept free.
    [(50, 96, False), (21, 96, False), (19, 96, True), (19, 48, False), (10, 1, True), (5, 1, True)],
)
def test_a_disk_fills_if_the_log_grows_as_it_did_in_a_day(free_gib: int, hours: int, fills: bool) -> None:
    assert fills_before(found(60, 24, 12, 1), held(hours), [disk(free_gib)], 90) is fills


def test_a_young_log_is_measured_from_its_first_segment() -> None:
    assert fills_before(found(2, 1), held(24), [disk(27)], 90)  # 1.5 GiB in 2 hours
    assert not fills_before(found(2, 1), held(24), [disk(29)], 90)


def test_a_fence_is_as_old_as_it_was_without_the_hold() -> None:
    log = found(-24, -24)
    touched = [Touched(n * GIB, f"/{n}", n, (NOW_MS - (24 - n) * HOUR_MS) * MS_NS, 0) for n in (0, 1)]
    assert not fills_before(log, held(24), [disk(11)], 90)
    assert fills_before(log, held(24, *touched), [disk(11)], 90)


def test_disks_count_once_and_what_is_unknown_raises_no_alarm() -> None:
    log = found(24, 12, 1)
    assert fills_before(log, held(96), [disk(19), disk(19)], 90)
    assert not fills_before(log, held(96), [disk(19), disk(19, device=2)], 90)
    assert not fills_before(log, held(96), [DiskUsage("/", None)], 90)
    assert not fills_before(found(), held(96), [disk(10)], 90)
