"""How full a disk is, measured and rounded as the broker does it. Reads only the file system's counters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from storage_engine.exceptions import BadInputError
from storage_engine.model.store import DiskUsage, StoreSnapshot


def disk_usage(path: str | os.PathLike[str]) -> DiskUsage:
    """Measure the disk under ``path``.

    The level is used * 100 / (used + usable), rounded up to a whole percent, where usable leaves out
    what the file system keeps for root (UtilAll#getDiskPartitionSpaceUsedPercent). Where the broker
    answers -1 and later takes that for a level (missing path, failed call, a disk without size), this
    answers None with the error: unknown is neither full nor empty.

    :param path: a directory on the disk; must exist itself, a parent on another disk is no substitute.
    :return: never raises; see ``used_percent`` and ``error``.
    """
    name = os.fspath(path)
    try:
        device = Path(name).stat().st_dev
        counters = os.statvfs(name)
    except (OSError, ValueError) as error:
        return DiskUsage(path=name, used_percent=None, error=f"{name}: can't be measured: {error}")
    used = (counters.f_blocks - counters.f_bfree) * counters.f_frsize
    usable = counters.f_bavail * counters.f_frsize
    if used + usable <= 0:
        return DiskUsage(
            path=name, used_percent=None, error=f"{name}: the file system reports a size of 0 bytes"
        )
    return DiskUsage(
        path=name,
        used_percent=percent_rounded_up(used, used + usable),
        total_bytes=used + usable,
        usable_bytes=usable,
        device=device,
    )


def with_disk_levels(snapshot: StoreSnapshot, used_percents: Mapping[str, int]) -> StoreSnapshot:
    """The snapshot as it would be with other disk levels, for what-if questions. Pure.

    :param used_percents: whole percent by path; each one of the store's commitlog paths or its consume
        queue's. Other paths on the same disk keep the level they have.
    :raises BadInputError: a path that isn't one of the store's, or a level outside 0 to 100.
    """
    levels = {os.path.normpath(path): percent for path, percent in used_percents.items()}
    disks = (*snapshot.log_disks, snapshot.dependents_disk)
    known = dict.fromkeys(os.path.normpath(disk.path) for disk in disks)
    for path, percent in levels.items():
        if path not in known:
            raise BadInputError(
                f"disk level of {path}: expected one of the store's paths {', '.join(known)}, found another."
            )
        if not 0 <= percent <= 100:
            raise BadInputError(f"disk level of {path}: expected 0 to 100 percent, found {percent}.")

    def at_level(disk: DiskUsage) -> DiskUsage:
        percent = levels.get(os.path.normpath(disk.path))
        if percent is None:
            return disk
        usable = None if disk.total_bytes is None else disk.total_bytes * (100 - percent) // 100
        return replace(disk, used_percent=percent, usable_bytes=usable, error="")

    return replace(
        snapshot,
        log_disks=tuple(at_level(disk) for disk in snapshot.log_disks),
        dependents_disk=at_level(snapshot.dependents_disk),
    )


def percent_rounded_up(part: int, whole: int) -> int:
    """Whole percent that ``part`` is of ``whole``, rounded up, in integers so that no float rounds it down.

    :param whole: > 0, same unit as ``part``.
    """
    return -(-part * 100 // whole)
