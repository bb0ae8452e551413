"""The causes of a cleanup as a running broker's own figures have them: none of our paths is looked at."""

from __future__ import annotations

import math
from zoneinfo import ZoneInfo

from storage_engine.exceptions import BrokerError, NotOnBrokerError
from storage_engine.model.broker.broker_store import StoreSettings, Watch
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.store import DiskUsage
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.live.connect import local_settings, reach, refuse_slave
from storage_engine.rocketmq.remoting.answers import RuntimeInfo
from storage_engine.rocketmq.rules.window import time_zone
from storage_engine.rocketmq.store.causes import watch_levels


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


def watch_store(settings: StoreSettings, live: LiveBroker, now_ms: int) -> Watch:
    """Ask the broker, wherever this runs; takes no longer than its connection's timeouts.

    :return: a look that isn't ``known`` where it can't be asked, or answers nothing that can be used.
    :raises BadInputError: settings that can't be worked with, or a slave.
    """
    try:
        with reach(live) as admin:
            found, info, address = admin.config(), admin.runtime_info(), admin.address
    except (BrokerError, NotOnBrokerError) as error:
        return unknown(now_ms, f"the broker can't be asked, so nothing triggers: {error}")
    refuse_slave(found, address)
    here = local_settings(found, settings.root, settings.overrides)
    config = load_broker_config(None, here, root=settings.root)
    return watch(info, config, now_ms, time_zone(settings.time_zone))


def unknown(now_ms: int, notice: str) -> Watch:
    """A look that saw nothing: neither a cause, nor that one has ended."""
    return Watch(
        watched_at_ms=now_ms,
        triggers=(),
        notices=(notice,),
        levels=(),
        deciding_percent=None,
        ordinary_percent=None,
        next_window_ms=None,
        known=False,
    )
