"""The causes of a cleanup as a running broker's own figures have them: no path of ours is looked at."""

from __future__ import annotations

import math
from zoneinfo import ZoneInfo

from storage_engine.model.store import DiskUsage
from storage_engine.model.watch import Watch
from storage_engine.rocketmq.broker_config import BrokerConfig
from storage_engine.rocketmq.remoting.answers import RuntimeInfo
from storage_engine.rocketmq.watch import watch_levels


def watch(info: RuntimeInfo, config: BrokerConfig, now_ms: int, zone: ZoneInfo) -> Watch:
    """Apply the rules to the levels that the broker says it sees, and the clock.

    :param config: the broker's settings as they are in effect.
    :param zone: in which deleteWhen is meant.
    """
    return watch_levels(*disks(info, config), config, now_ms, zone)


def disks(info: RuntimeInfo, config: BrokerConfig) -> tuple[tuple[DiskUsage, ...], DiskUsage]:
    """The log's disks and the consume queue's, by the broker's own names and figures.

    A level that the broker gives as -1 is one that it can't measure: unknown.
    """
    log_disks = tuple(
        _disk(path, percent) for path, percent in sorted(info.commitlog_used_percent.items())
    ) or (_disk("the commitlog", None),)
    # StorePathConfigHelper#getStorePathConsumeQueue
    queues = f"{config.store_path_root_dir}/consumequeue"
    return log_disks, _disk(queues, info.consume_queue_used_percent)


def _disk(path: str, percent: float | None) -> DiskUsage:
    if percent is None:
        return DiskUsage(path=path, used_percent=None, error=f"{path}: the broker can't measure its disk")
    # It is a whole percent already (UtilAll#getDiskPartitionSpaceUsedPercent), which a double as 0.57 blurs.
    return DiskUsage(path=path, used_percent=math.ceil(round(percent, 6)))
