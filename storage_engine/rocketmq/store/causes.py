"""The causes of a cleanup by clock and disks alone, for who waits for one. Reads no file of the store."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from storage_engine.model.broker.broker_store import Watch
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import DiskUsage, StoreSnapshot
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.rules.rules import delete_hours, least_used, triggers
from storage_engine.rocketmq.rules.window import next_window_ms
from storage_engine.rocketmq.store.store import BROKER


def watch(layout: StoreLayout, config: BrokerConfig, now_ms: int, zone: ZoneInfo) -> Watch:
    """Apply the rules to this machine's disks and the clock.

    :param zone: in which deleteWhen is meant.
    """
    log_disks = [DiskUsage.of(path) for path in layout.commitlog_paths]
    return watch_levels(log_disks, DiskUsage.of(layout.consumequeue), config, now_ms, zone)


def watch_levels(
    log_disks: Sequence[DiskUsage],
    dependents_disk: DiskUsage,
    config: BrokerConfig,
    now_ms: int,
    zone: ZoneInfo,
) -> Watch:
    """Apply the rules to disks, wherever they were measured, and the clock.

    With replicasPerDiskPartition > 1 the store's own size counts too, which takes a full snapshot to
    know; here it is unknown and so no cause.

    :param zone: in which deleteWhen is meant.
    """
    snapshot = StoreSnapshot(
        broker=BROKER,
        root=config.store_path_root_dir,
        taken_at_ms=now_ms,
        logs=(),
        log_disks=tuple(log_disks),
        dependents_disk=dependents_disk,
        crashed=False,
    )
    causes, notices = triggers(snapshot, config, now_ms, zone, PlanRequest())
    deciding = [
        disk.used_percent
        for disk in (least_used(snapshot.log_disks), dependents_disk)
        if disk is not None and disk.used_percent is not None
    ]
    return Watch(
        watched_at_ms=now_ms,
        triggers=causes,
        notices=notices,
        levels=(*snapshot.log_disks, dependents_disk),
        deciding_percent=max(deciding, default=None),
        ordinary_percent=config.disk_max_used_space_ratio_percent,
        next_window_ms=next_window_ms(now_ms, delete_hours(config), zone),
    )
