"""Levels of disks: how full each is, the room below a level, and the time until a disk is full.

Standard library only. An unknown level is neither full nor empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import reason_text


def percent_rounded_up(part: int, whole: int) -> int:
    """Whole percent that ``part`` is of ``whole``, rounded up, in integers so that no float rounds it down.

    :param whole: > 0, same unit as ``part``.
    """
    return -(-part * 100 // whole)


def room_below(percent: int, total_bytes: int, usable_bytes: int) -> int:
    """Return how many bytes fit on a disk before it is above a level."""
    return max(0, usable_bytes - total_bytes * (100 - percent) // 100)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full the disk under ``path`` is.

    ``used_percent`` is a whole percent rounded up, as the broker computes it; None means unknown
    (missing path, failed call), which is neither full nor empty; ``error`` then says why.
    ``total_bytes`` is what the percentage is a share of: used and usable, without what the file system
    keeps for root. ``device`` tells whether two paths share one disk.
    """

    path: str
    used_percent: int | None
    total_bytes: int | None = None
    usable_bytes: int | None = None
    error: str = ""
    device: int | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> DiskUsage:
        """Measure the disk under ``path``, which must exist itself: a parent may lie on another disk.

        The level is the share of used in used and usable bytes. Never raises; see ``error``.
        """
        name = os.fspath(path)
        try:
            device = Path(name).stat().st_dev
            counters = os.statvfs(name)
        except (OSError, ValueError) as error:
            return cls(path=name, used_percent=None, error=f"{name}: can't be measured: {reason_text(error)}")
        used = (counters.f_blocks - counters.f_bfree) * counters.f_frsize
        usable = counters.f_bavail * counters.f_frsize
        if used + usable <= 0:
            return cls(
                path=name, used_percent=None, error=f"{name}: the file system reports a size of 0 bytes"
            )
        level = percent_rounded_up(used, used + usable)
        return cls(name, level, used + usable, usable, device=device)


def smallest_and_fullest(disks: Iterable[DiskUsage]) -> tuple[int | None, int | None]:
    """Return the bytes of the smallest disk, and the level in percent of the fullest.

    :return: None where nothing can be measured.
    """
    known = tuple(disks)
    sizes = [disk.total_bytes for disk in known if disk.total_bytes is not None]
    levels = [disk.used_percent for disk in known if disk.used_percent is not None]
    return min(sizes, default=None), max(levels, default=None)


def room_of_disks(disks: Sequence[DiskUsage], percent: int) -> int | None:
    """Return how many bytes fit before the disks are all above a level; None: that isn't known.

    :param disks: those that are one device count once.
    """
    room = 0
    for disk in {disk.device: disk for disk in disks}.values():
        if disk.total_bytes is None or disk.usable_bytes is None:
            return None
        room += room_below(percent, disk.total_bytes, disk.usable_bytes)
    return room if disks else None


def fills_in_ms(
    room_bytes: int,
    grown_bytes: float,
    within_ms: int = DAY_MS,
    leaving: Sequence[tuple[int, int]] = (),
    *,
    goes_after_ms: int | None = None,
) -> int | None:
    """Return the time until a room has no byte left, at the recent rate; None: never.

    :param grown_bytes: bytes written within ``within_ms``, less those deleted meanwhile that aren't in
        ``leaving``.
    :param leaving: in how many ms how many bytes are known to go, by time.
    :param goes_after_ms: what comes goes so long after it came: where there is room until then, there always
        is. None: it stays.
    """
    if room_bytes <= 0:
        return 0
    if grown_bytes <= 0:
        return None
    for in_ms, size_bytes in leaving:
        if grown_bytes * in_ms > room_bytes * within_ms:
            break
        room_bytes += size_bytes
    fills_ms = int(room_bytes * within_ms // grown_bytes)
    return None if goes_after_ms is not None and fills_ms >= goes_after_ms else fills_ms
