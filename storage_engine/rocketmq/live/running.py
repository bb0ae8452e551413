"""What a running broker says of itself, and the settings that work there now."""

from __future__ import annotations

from dataclasses import replace

from storage_engine.model.broker_store import StoreSettings
from storage_engine.model.live import LiveBroker, RunningBroker
from storage_engine.rocketmq.live.connect import reach
from storage_engine.rocketmq.live.live_config import local_settings


def settings_in_effect(settings: StoreSettings, live: LiveBroker) -> StoreSettings:
    """Return settings for what reads the store's files alone: a running broker's instead of broker.conf.

    :raises BrokerError: the broker can't be asked.
    """
    with reach(live) as admin:
        overrides = local_settings(admin.config(), settings.root, settings.overrides)
    return replace(settings, broker_conf=None, overrides=overrides)


def running_broker(live: LiveBroker) -> RunningBroker:
    """Ask a broker what it is.

    :raises BrokerError: it can't be asked.
    """
    with reach(live) as admin:
        settings, info = admin.config(), admin.runtime_info()
    return RunningBroker(
        address=admin.address,
        name=settings.get("brokerName", ""),
        role=settings.get("brokerRole", ""),
        version=info.version,
        boot_timestamp_ms=info.boot_timestamp_ms,
        min_offset=info.commitlog_min_offset,
        max_offset=info.commitlog_max_offset,
        dispatch_behind_bytes=info.dispatch_behind_bytes,
    )
