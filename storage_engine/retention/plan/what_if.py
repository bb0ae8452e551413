"""A store as it would be: snapshots for questions that begin with "what if". Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from storage_engine.exceptions import BadInputError
from storage_engine.model.store.store import DiskUsage, StoreSnapshot


def with_disk_levels(snapshot: StoreSnapshot, used_percents: Mapping[str, int]) -> StoreSnapshot:
    """The snapshot with other disk levels.

    :param used_percents: whole percent by path; each one of the paths of the store's logs, or of their
        dependents. Other paths on the same disk keep the level they have.
    :raises BadInputError: a path that isn't one of the store's, or a level outside 0 to 100.
    """
    levels = {os.path.normpath(path): percent for path, percent in used_percents.items()}
    disks = snapshot.disks
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
