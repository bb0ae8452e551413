"""Snapshots and figures of stores that there need not be, for judging them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from storage_engine.core.clock import DAY_MS
from storage_engine.model.disk import DiskUsage
from storage_engine.model.lag import Unread
from storage_engine.model.store import (
    Archivable,
    FileFacts,
    LogSnapshot,
    Segment,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.retention.doctor.space_and_time import Figures, Levels

NOW_MS = 1_800_000_000_000
GIB = 1 << 30
HOUR_MS = 3_600_000
SEGMENT_BYTES = GIB


def segment(number: int, written_ms: int, *, active: bool = False, log: str = "log") -> Segment:
    """A segment of one GiB."""
    facts = FileFacts(
        f"/s/{log}/{number * SEGMENT_BYTES:020d}", 1, number, SEGMENT_BYTES, written_ms * 10**6, 1
    )
    state = SegmentState.ACTIVE if active else SegmentState.SEALED
    return Segment(log, number * SEGMENT_BYTES, facts, state)


def log_of(ages_hours: list[float], *, active_bytes: int = 0, name: str = "log") -> LogSnapshot:
    """A log of sealed segments, written to so long ago, and an active one."""
    sealed = [segment(n, NOW_MS - round(age * HOUR_MS), log=name) for n, age in enumerate(ages_hours)]
    last = segment(len(sealed), NOW_MS, active=True, log=name)
    end = last.base_offset + active_bytes
    return LogSnapshot(name, (*sealed, last), end, end)


def disk(
    used_percent: int | None, *, total_gib: int = 100, device: int = 1, path: str = "/s/log"
) -> DiskUsage:
    if used_percent is None:
        return DiskUsage(path, None, error=f"{path}: gone")
    total = total_gib * GIB
    return DiskUsage(path, used_percent, total, total * (100 - used_percent) // 100, device=device)


def snapshot(log: LogSnapshot, *disks: DiskUsage) -> StoreSnapshot:
    found = disks or (disk(50),)
    return StoreSnapshot("toy", "/s", NOW_MS, (log,), found, found[0], crashed=False)


def figures(log: LogSnapshot, *disks: DiskUsage, **more: Any) -> Figures:
    """Figures of a store that keeps segments for 72 hours, forces at 86 and refuses above 90 percent."""
    deletes = {one.id: max(NOW_MS, one.mtime_ns // 10**6 + 72 * HOUR_MS) for one in log.sealed}
    found = Figures(
        archivable=Archivable(log.sealed),
        now_ms=NOW_MS,
        snapshot=snapshot(log, *disks),
        full_percent=90,
        oldest_message_ms=None,
        growth=None,
        levels=Levels(76, 86, 86),
        deletes_at_ms=deletes,
        going=(),
        leaving=(),
        leaves_in_ms=DAY_MS,
        pending=(),
        unread=Unread(),
    )
    return replace(found, **more)
