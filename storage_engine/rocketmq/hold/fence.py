"""The fence of a hold: mtimes by which a broker keeps its oldest segments, and so all younger ones.

A broker deletes from the oldest segment on, and stops at the first whose mtime + fileReservedTime hasn't
passed (MappedFileQueue#deleteExpiredFileByTime). It reads the mtime in every pass. So the oldest segments
that must stay get an mtime in the future: the hold's end. Until then they don't expire at any
fileReservedTime from 0 on, and no process has to run for that.

One such segment would be enough if no program touched or removed it. A pass deletes at most
deleteFileBatchMax segments. The fence has one segment more, so that a pass that gets past a gap still ends
within the fence.

An mtime doesn't prevent deletion by force (cleanFileForciblyEnable). Plans use the mtimes and settings that
the store would have without the hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import HoldMemory
from storage_engine.model.store import LogSnapshot, Segment
from storage_engine.rocketmq.format.broker_config import DELETE_FILES_BATCH_MAX, BrokerConfig
from storage_engine.rocketmq.hold.hold_state import (
    BATCH_MAX,
    FORCIBLY,
    RESERVED,
    ChangedSetting,
    HoldState,
    Observed,
    SeenFile,
    load_state,
    original_mtime_ns,
    read_local,
    same_ms,
)

_MS_NS = 1_000_000
_SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class Fence:
    """Segments whose mtimes keep a broker from deleting them and all later segments.

    :param mtimes_ns: the fence's segments, oldest first, each with its required mtime. Empty if only the
        active segment is left, which no broker deletes.
    :param ends_at_ms: time up to which no segment of the fence can expire, even if fileReservedTime is
        changed to 0 or more. Without segments it is the same as ``deletes_from_ms``.
    :param deletes_from_ms: time from which the broker's current settings permit to delete the fence.
    """

    mtimes_ns: tuple[tuple[SeenFile, int], ...]
    ends_at_ms: int
    deletes_from_ms: int

    @property
    def offset(self) -> int:
        """Return the base offset of the fence's first segment; -1 if it has no segment."""
        return self.mtimes_ns[0][0].base_offset if self.mtimes_ns else -1


def fence_count(settings: Mapping[str, str]) -> int:
    """Return the number of segments in a fence, one more than this broker deletes in a pass."""
    try:
        batch_max = int(settings.get(BATCH_MAX, DELETE_FILES_BATCH_MAX))
    except ValueError:
        batch_max = DELETE_FILES_BATCH_MAX
    # The broker deletes a segment before it compares the number with the limit.
    return max(batch_max, 1) + 1


def first_that_stay(found: Observed, releasing: Collection[int] = (), count: int = 1) -> tuple[SeenFile, ...]:
    """Return the oldest segments that must stay and that can be part of a fence.

    Segments below the broker's min offset are left out: the broker is already deleting them, whatever their
    mtimes (MappedFileQueue#retryDeleteFirstFile). So is the active segment, since the broker writes to it.

    :param releasing: base offsets of the segments to delete.
    :param count: largest number of segments to return.
    """
    start = max((found.min_offset, *(offset + 1 for offset in releasing)))
    sealed = (f for f in found.files if f.base_offset >= start and f.end_offset <= found.max_offset)
    return tuple(sealed)[:count]


def lease_mtime_ns(now_ms: int, hold_hours: int, reserved_hours: int) -> int:
    """Return the mtime of a segment that the broker must not delete before ``hold_hours`` have passed.

    A broker accepts a negative fileReservedTime, which makes files expire earlier. Then the mtime is later by
    as many hours. Mtimes are rounded up to a second, since some file systems and Java 8 keep only seconds.
    """
    mtime_ms = now_ms + (hold_hours + max(-reserved_hours, 0)) * HOUR_MS
    return -(-mtime_ms // _SECOND_MS) * _SECOND_MS * _MS_NS


def stands_until_ms(mtime_ns: int, reserved_hours: int) -> int:
    """Return the time up to which a file can't expire, even if fileReservedTime is changed to 0 or more."""
    return mtime_ns // _MS_NS + min(reserved_hours, 0) * HOUR_MS


def expires_at_ms(mtime_ns: int, reserved_hours: int) -> int:
    """Return when a file expires for the broker (MappedFileQueue#deleteExpiredFileByTime)."""
    return mtime_ns // _MS_NS + reserved_hours * HOUR_MS


def fence(found: Observed, state: HoldState | None, hold_hours: int, reserved_hours: int) -> Fence:
    """Return the fence that is needed now: its segments, and the mtime that each must have.

    A segment keeps its mtime if at least half of the hold's time is left. Otherwise it gets a later
    one, but never one that is earlier than its original mtime.
    """
    releasing = () if state is None else state.releasing
    files = first_that_stay(found, releasing, fence_count(found.settings))
    mtimes_ns = tuple((file, _mtime_ns(found, state, file, hold_hours, reserved_hours)) for file in files)
    if not mtimes_ns:
        # The active segment was written to just now, so it will expire last.
        expires_ms = found.at_ms + reserved_hours * HOUR_MS
        return Fence((), expires_ms, expires_ms)
    # The earliest mtime counts: a pass that deletes this segment also comes to the next one.
    first_ns = min(mtime_ns for _, mtime_ns in mtimes_ns)
    return Fence(
        mtimes_ns, stands_until_ms(first_ns, reserved_hours), expires_at_ms(first_ns, reserved_hours)
    )


def is_due(left_ms: int, hold_hours: int) -> bool:
    """Return whether a hold must be renewed, since less than half of its time is left."""
    return 2 * left_ms < hold_hours * HOUR_MS


def _mtime_ns(
    observed: Observed, state: HoldState | None, file: SeenFile, hold_hours: int, reserved_hours: int
) -> int:
    if state is not None and _has_lease(state, file):
        left_ms = stands_until_ms(file.mtime_ns, reserved_hours) - observed.at_ms
        if not is_due(left_ms, hold_hours) and left_ms <= hold_hours * HOUR_MS + _SECOND_MS:
            return file.mtime_ns
    lease_ns = lease_mtime_ns(observed.at_ms, hold_hours, reserved_hours)
    return max(original_mtime_ns(state, file), lease_ns)


def _has_lease(state: HoldState, file: SeenFile) -> bool:
    """Return whether a file has the mtime that the hold set."""
    touched = state.touched_at(file.base_offset)
    return touched is not None and touched.inode == file.inode and touched.mtime_ns == file.mtime_ns


LOWEST_HOURS: Final = 24 * 365
"""Lowest fileReservedTime, in hours below 0, for which an mtime compensates. File systems limit mtimes."""

MARGIN_PERCENT: Final = 5
"""If the broker may delete by force, disks must be this many percentage points below the force level."""


def reserved_hours(found: Observed, root: str) -> int:
    """Return the broker's fileReservedTime. A broker accepts any number, also a negative one.

    :raises GateRefusedError: the value is unknown, or so far below 0 that no mtime compensates for it.
    """
    value = found.settings.get(RESERVED, "")
    try:
        hours = int(value)
    except ValueError:
        hours = -LOWEST_HOURS - 1
    if hours >= -LOWEST_HOURS:
        return hours
    raise GateRefusedError(
        f"{root}: expected {RESERVED} of 0 hours or more, found {value!r} at broker {found.address}: no "
        "mtime keeps such a broker from deleting, so no hold is possible. Nothing was changed. Set "
        f"{RESERVED} to 48 or so, by mqadmin updateBrokerConfig or in broker.conf."
    )


def deletes_by_force(found: Observed) -> bool:
    """Return whether the broker ignores mtimes above the force level. An unknown setting counts as yes."""
    return found.settings.get(FORCIBLY) != "false"


def with_force_ended(state: HoldState, found: str) -> HoldState:
    """Return the hold's state with cleanFileForciblyEnable recorded as changed to false.

    When the hold ends, the original value is restored.

    :param found: current value of the setting. It is restored if the hold has recorded no original value.
    """
    if any(changed.key == FORCIBLY for changed in state.changed_settings):
        return state
    original = state.expected_settings.get(FORCIBLY, found)
    changed = ChangedSetting(FORCIBLY, original, "false")
    return replace(state, changed_settings=(*state.changed_settings, changed))


def check_force_is_far(found: Observed, config: BrokerConfig, disks: Sequence[DiskUsage], root: str) -> str:
    """Make sure that all disks of a broker that may delete by force are far below the force level.

    Above the force level the broker ignores mtimes (CleanCommitLogService#isSpaceToDelete).

    :param disks: disks of all commitlog paths, then the consume queues' disk.
    :return: a notice about the deletion by force.
    :raises GateRefusedError: a disk's usage is near the force level, or unknown.
    """
    limit = config.disk_space_clean_forcibly_percent - MARGIN_PERCENT
    remedy = (
        "Nothing was changed. Permit the hold to set it (may_change_settings), or set it yourself: mqadmin "
        f"updateBrokerConfig -b {found.address} -k {FORCIBLY} -v false, and the same in broker.conf."
    )
    text = (
        f"{root}: expected {FORCIBLY}=false, found {found.settings.get(FORCIBLY)} at broker {found.address}"
    )
    if config.replicas_per_disk_partition > 1:
        raise GateRefusedError(
            f"{text}, with replicasPerDiskPartition={config.replicas_per_disk_partition}: the force level is "
            f"a share of the disk, which isn't known here. {remedy}"
        )
    for disk in disks:
        if disk.used_percent is None:
            raise GateRefusedError(
                f"{text}, and the used share of the disk at {disk.path} is unknown ({disk.error}). {remedy}"
            )
        if disk.used_percent >= limit:
            raise GateRefusedError(
                f"{text}: above {config.disk_space_clean_forcibly_percent} % the broker deletes whatever is "
                f"held, and {disk.path} is {disk.used_percent} % full. {remedy}"
            )
    fullest = max((disk.used_percent or 0 for disk in disks), default=0)
    return (
        f"{FORCIBLY} is true at broker {found.address}: above {config.disk_space_clean_forcibly_percent} % "
        f"it deletes whatever is held (the fullest disk is at {fullest} %). Permit the hold to set it to "
        "false (may_change_settings)."
    )


def announce_rewrite(found: Observed) -> str:
    """Return a notice that the broker will rewrite broker.conf for a hold, and how to avoid that."""
    conf = found.saved.path or "its broker.conf"
    return (
        f"a hold sets {FORCIBLY}=false at broker {found.address} by updateBrokerConfig, which makes the "
        f"broker rewrite {conf} with all of its settings, without comments. To keep that file as it is, "
        f"write {FORCIBLY}=false there yourself, restart the broker, and hold without may_change_settings "
        "(--may-change-settings)"
    )


def with_original_times(log: LogSnapshot, memory: HoldMemory | None, root: Path) -> LogSnapshot:
    """Return the log with the mtimes that its segments had before a hold set them.

    An mtime that another program has set since then stays.

    :param memory: the journal's memory of the hold. Without a hold in it, the store's own record counts.
    """
    state = _known_state(memory, root)
    if state is None or not state.touched:
        return log
    return replace(log, segments=tuple(_with_original_time(segment, state) for segment in log.segments))


def _known_state(memory: HoldMemory | None, root: Path) -> HoldState | None:
    state = load_state(memory)
    if state is None:
        # Without the store's own record, its segments only look younger than they are.
        with suppress(GateRefusedError):
            state = read_local(root)
    return state


def with_original_settings(
    settings: Mapping[str, str], memory: HoldMemory | None, root: Path
) -> dict[str, str]:
    """Return a broker's settings as they were before a hold changed them. Plans follow these settings.

    A value that another program has set since then stays.

    :param memory: see :func:`with_original_times`.
    """
    state = _known_state(memory, root)
    changed = () if state is None else state.changed_settings
    return {**settings, **{c.key: c.original for c in changed if settings.get(c.key) == c.ours}}


def _with_original_time(segment: Segment, state: HoldState) -> Segment:
    touched = state.touched_at(segment.base_offset)
    if touched is None or touched.inode != segment.facts.inode:
        return segment
    if not any(same_ms(segment.facts.mtime_ns, mtime_ns) for mtime_ns in touched.possible_mtimes_ns):
        return segment
    return replace(segment, original_mtime_ns=touched.original_mtime_ns)
