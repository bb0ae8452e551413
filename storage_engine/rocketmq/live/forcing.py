"""Whether a broker that deletes whatever its disk is full of can be held: cleanFileForciblyEnable. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from storage_engine.exceptions import GateRefusedError
from storage_engine.model.store import DiskUsage
from storage_engine.rocketmq.broker_config import BrokerConfig
from storage_engine.rocketmq.live.state import FORCIBLY, RESERVED, ChangedSetting, Found, HoldState

LOWEST_HOURS: Final = 24 * 365
"""A negative fileReservedTime is made up for so far; file systems end somewhere."""

MARGIN_PERCENT: Final = 5
"""So far below the force level a hold is refused, where the broker may delete by force above it."""


def reserved_hours(found: Found, root: str) -> int:
    """Return fileReservedTime as it works now; a broker takes any number, below 0 too.

    :raises GateRefusedError: it isn't known, or so far below 0 that no mtime makes up for it.
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
        "segment can be young enough for it, so nothing can be held. Nothing was changed. Set "
        f"{RESERVED} to 48 or so, by mqadmin updateBrokerConfig or in broker.conf."
    )


def deletes_by_force(found: Found) -> bool:
    """Return whether the broker deletes whatever a segment's mtime above the force level; unknown is yes."""
    return found.settings.get(FORCIBLY) != "false"


def with_force_ended(state: HoldState, found: str) -> HoldState:
    """Return a hold that sets the broker's deletion by force to false, and what it was before the hold back.

    :param found: the setting now; it counts where the hold knows of none before.
    """
    if any(changed.key == FORCIBLY for changed in state.changed_settings):
        return state
    original = state.expected_settings.get(FORCIBLY, found)
    changed = ChangedSetting(FORCIBLY, original, "false")
    return replace(state, changed_settings=(*state.changed_settings, changed))


def check_force_is_far(found: Found, config: BrokerConfig, disks: Sequence[DiskUsage], root: str) -> str:
    """Return whether a store can be held though its broker may delete by force, since its disks are far from
    that.

    Above the force level the broker ignores mtimes (CleanCommitLogService#isSpaceToDelete).

    :param disks: of every commitlog path, then the consume queues'.
    :return: a notice for a person.
    :raises GateRefusedError: a disk is near the force level, or isn't known.
    """
    limit = config.disk_space_clean_forcibly_percent - MARGIN_PERCENT
    remedy = (
        "Nothing was changed. Let us set it (may_change_settings), or set it yourself: mqadmin "
        f"updateBrokerConfig -b {found.address} -k {FORCIBLY} -v false, and the same in broker.conf."
    )
    said = (
        f"{root}: expected {FORCIBLY}=false, found {found.settings.get(FORCIBLY)} at broker {found.address}"
    )
    if config.replicas_per_disk_partition > 1:
        raise GateRefusedError(
            f"{said}, with replicasPerDiskPartition={config.replicas_per_disk_partition}, where force begins "
            f"at a share of the disk. {remedy}"
        )
    for disk in disks:
        if disk.used_percent is None:
            raise GateRefusedError(
                f"{said}, and how full {disk.path} is isn't known ({disk.error}). {remedy}"
            )
        if disk.used_percent >= limit:
            raise GateRefusedError(
                f"{said}: above {config.disk_space_clean_forcibly_percent} % the broker deletes whatever is "
                f"held, and {disk.path} is {disk.used_percent} % full. {remedy}"
            )
    fullest = max((disk.used_percent or 0 for disk in disks), default=0)
    return (
        f"{FORCIBLY} is true at broker {found.address}: above {config.disk_space_clean_forcibly_percent} % "
        f"it deletes whatever is held (the fullest disk is at {fullest} %). Let us set it to false "
        "(may_change_settings)."
    )


def announce_rewrite(found: Found) -> str:
    """Say before a hold sets a setting what that makes the broker do, and how it can be had without."""
    conf = found.saved.path or "its broker.conf"
    return (
        f"a hold sets {FORCIBLY}=false at broker {found.address} by updateBrokerConfig, which makes the "
        f"broker rewrite {conf} with all of its settings, without comments. To keep that file as it is, "
        f"write {FORCIBLY}=false there yourself, restart the broker, and hold without may_change_settings "
        "(--may-change-settings)"
    )
