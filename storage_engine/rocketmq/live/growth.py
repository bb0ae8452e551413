"""Whether a log that grows as it lately did fills its disk before its broker deletes again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storage_engine.model.store import DiskUsage
from storage_engine.rocketmq.live.fence import HOUR_MS, original_mtime_ns
from storage_engine.rocketmq.live.state import Found, HoldState

LATELY_HOURS: Final = 24


def fills_before(found: Found, state: HoldState, disks: Sequence[DiskUsage], limit_percent: int) -> bool:
    """Return whether the disks are fuller than ``limit_percent`` when the broker may delete again.

    :param state: says when that is, and how old segments are without the hold.
    :param disks: of the log; one whose size is unknown raises no alarm.
    """
    room_bytes = 0
    for disk in {disk.device: disk for disk in disks}.values():
        if disk.total_bytes is None or disk.usable_bytes is None:
            return False
        room_bytes += disk.usable_bytes - disk.total_bytes * (100 - limit_percent) // 100
    ahead_ms = state.deletes_from_ms - found.at_ms
    grown = _growth(found, state)
    if grown is None or ahead_ms <= 0:
        return False
    grown_bytes, in_ms = grown
    return grown_bytes * ahead_ms > max(room_bytes, 0) * in_ms


def _growth(found: Found, state: HoldState) -> tuple[int, int] | None:
    """Return how many bytes came in how many milliseconds; None: no segment tells."""
    since_ms = found.at_ms - LATELY_HOURS * HOUR_MS
    sealed = [
        (original_mtime_ns(state, file) // 1_000_000, file.end_offset)
        for file in found.files
        if file.end_offset <= found.max_offset
    ]
    known = [one for one in sealed if one[0] < found.at_ms]
    before = [one for one in known if one[0] <= since_ms]
    if not known:
        return None
    at_ms, end_offset = max(before) if before else min(known)
    return found.max_offset - end_offset, found.at_ms - at_ms
