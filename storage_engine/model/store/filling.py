"""When a disk is above a level: one rule for the list, a store's page, doctor and holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.core.clock import DAY_MS
from storage_engine.model.store.store import DiskUsage, room_below


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
    """Return in how long a room has no byte left, as fast as bytes came lately; None: never.

    :param grown_bytes: that came within ``within_ms``, less what went meanwhile and isn't in ``leaving``.
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
