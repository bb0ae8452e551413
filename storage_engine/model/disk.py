"""Levels of disks, the free bytes below a level, and the time until a disk is full. Standard library only. An
unknown level is neither full nor empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import reason_text


def percent_rounded_up(part: int, whole: int) -> int:
    """Return ``part`` as a percentage of ``whole``, rounded up. A float may round down, so integers are used.

    :param whole: > 0, same unit as ``part``.
    """
    return -(-part * 100 // whole)


def room_below(percent: int, total_bytes: int, usable_bytes: int) -> int:
    """Return the number of bytes that can be written before a disk is above a level."""
    return max(0, usable_bytes - total_bytes * (100 - percent) // 100)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The level of the disk under ``path``.

    ``used_percent`` is a whole percentage, rounded up as the broker does. It is None if unknown, which is
    neither full nor empty. Then ``error`` says whether the path is missing or the call failed.
    ``total_bytes`` is 100 %: used and usable bytes, without the file system's reserve for root. Paths with
    the same ``device`` are on one disk.
    """

    path: str
    used_percent: int | None
    total_bytes: int | None = None
    usable_bytes: int | None = None
    error: str = ""
    device: int | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> DiskUsage:
        """Measure the disk under ``path``. ``path`` itself must exist: its parent may be on another disk.

        The level is the share of used bytes in used and usable bytes. Never raises an error: see ``error``.
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
    """Return the smallest disk's size in bytes and the fullest disk's level in percent; None if unknown."""
    all_disks = tuple(disks)
    sizes = [disk.total_bytes for disk in all_disks if disk.total_bytes is not None]
    levels = [disk.used_percent for disk in all_disks if disk.used_percent is not None]
    return min(sizes, default=None), max(levels, default=None)


def room_of_disks(disks: Sequence[DiskUsage], percent: int) -> int | None:
    """Return the number of bytes that can be written before all disks are above a level. None if unknown.

    :param disks: paths on one device count as one disk.
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
    """Return the time in ms until the free bytes are used up at the recent rate, or None if never.

    :param grown_bytes: bytes written within ``within_ms``. Bytes deleted in that time are subtracted, unless
        ``leaving`` has such deletions.
    :param leaving: known future deletions, by time: pairs of the ms until then and the bytes.
    :param goes_after_ms: new bytes are deleted this long after they were written. If the free bytes last
        until then, they last for ever. None if new bytes are kept.
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
