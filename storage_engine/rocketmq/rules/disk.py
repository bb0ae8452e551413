"""How full a disk is, measured and rounded as the broker does it. Reads only the file system's counters."""

from __future__ import annotations

import os

from storage_engine.model.store.store import DiskUsage, smallest_and_fullest
from storage_engine.rocketmq.format.layout import StoreLayout


def disk_usage(path: str | os.PathLike[str]) -> DiskUsage:
    """Measure the disk under ``path``.

    The level is used * 100 / (used + usable), rounded up to a whole percent, where usable leaves out
    what the file system keeps for root (UtilAll#getDiskPartitionSpaceUsedPercent). Where the broker
    answers -1 and later takes that for a level (missing path, failed call, a disk without size), this
    answers None with the error: unknown is neither full nor empty.

    :param path: a directory on the disk; must exist itself, a parent on another disk is no substitute.
    :return: never raises; see ``used_percent`` and ``error``.
    """
    return DiskUsage.of(path)


def log_disks(layout: StoreLayout) -> tuple[int | None, int | None]:
    """Return the bytes of the smallest disk of a store's log, and the level in percent of the fullest.

    :return: None for what can't be measured.
    """
    return smallest_and_fullest(map(disk_usage, layout.commitlog_paths))
