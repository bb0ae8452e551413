"""The causes of a cleanup by clock and disks alone, for who waits for one. Reads no file of the store."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import StoreSnapshot
from storage_engine.model.watch import Watch
from storage_engine.rocketmq.broker_config import BrokerConfig
from storage_engine.rocketmq.disk import disk_usage
from storage_engine.rocketmq.layout import StoreLayout
from storage_engine.rocketmq.rules import delete_hours, least_used, triggers
from storage_engine.rocketmq.store import BROKER
from storage_engine.rocketmq.window import next_window_ms


def watch(layout: StoreLayout, config: BrokerConfig, now_ms: int, zone: ZoneInfo) -> Watch:
    """Apply the rules to the disks and the clock.

    With replicasPerDiskPartition > 1 the store's own size counts too, which takes a full snapshot to
    know; here it is unknown and so no cause.

    :param zone: in which deleteWhen is meant.
    """
    snapshot = StoreSnapshot(
        broker=BROKER,
        root=str(layout.root),
        taken_at_ms=now_ms,
        logs=(),
        log_disks=tuple(disk_usage(path) for path in layout.commitlog_paths),
        dependents_disk=disk_usage(layout.consumequeue),
        crashed=False,
    )
    causes, notices = triggers(snapshot, config, now_ms, zone, PlanRequest())
    log_disk = least_used(snapshot.log_disks)
    deciding = [
        disk.used_percent
        for disk in (log_disk, snapshot.dependents_disk)
        if disk is not None and disk.used_percent is not None
    ]
    return Watch(
        watched_at_ms=now_ms,
        triggers=causes,
        notices=notices,
        levels=(*snapshot.log_disks, snapshot.dependents_disk),
        deciding_percent=max(deciding, default=None),
        ordinary_percent=config.disk_max_used_space_ratio_percent,
        next_window_ms=next_window_ms(now_ms, delete_hours(config), zone),
    )
