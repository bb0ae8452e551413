"""Input for several tasks that measure the consumer lag of one RocketMQ store; see ``model.broker.kind``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from storage_engine.exceptions import BrokerError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.kind import LagRequest, Place
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.lag import LagSource, Unread
from storage_engine.model.store import FileFacts, Segment, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import time_zone
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.stored_files import ATTEMPTS, reread
from storage_engine.rocketmq.lag.consumer_offsets import Consumers, consumers_in_files, group_positions
from storage_engine.rocketmq.lag.lag import LagContext, lag_context, place_positions, unread_messages
from storage_engine.rocketmq.live.connect import local_settings, reach
from storage_engine.rocketmq.live.live_store import consumers_written_down, live_consumers
from storage_engine.rocketmq.store.store import RocketMQStore


@dataclass(frozen=True, slots=True)
class RocketMQLagJob:
    """Data from which tasks measure lag.

    :param unknown: errors of unreadable files, whose consumers are unknown.
    """

    context: LagContext
    positions: pa.Table
    snapshot: StoreSnapshot
    unknown: tuple[str, ...] = ()

    @property
    def source(self) -> LagSource:
        source = self.context.source
        return replace(source, notices=(*self.unknown, *source.notices, *self.context.unreadable))

    @property
    def logs(self) -> tuple[str, ...] | None:
        """Return the logs whose lag is measured: None for all, () for none because consumers are unknown."""
        return () if self.unknown else None

    @property
    def newest(self) -> FileFacts:
        return FileFacts.of(self.context.segments[-1].path)

    @property
    def segments(self) -> pa.Table:
        return self.context.segments_table

    @property
    def place(self) -> Place:
        return partial(place_positions, self.context)

    def unread(self, run: Sequence[Segment]) -> Unread:
        layout, attempts = self.context.layout, self.context.attempts
        result = unread_messages(
            layout, tuple(run), self.positions, run[-1].end_offset, attempts, deleted=True
        )
        return result.with_errors(self.unknown)


def lag_job(request: LagRequest) -> RocketMQLagJob:
    """Read the groups' positions, and the data from which their lag is measured.

    Beside a running broker, the groups' positions are read before its queues. So messages that arrive during
    the read make lag larger, never smaller.

    :raises BadInputError: the store or its settings can't be read, or the plan is for another store.
    :raises BrokerError: a running broker doesn't answer, and its files don't have the positions either.
    """
    settings, now_ms = request.settings, request.now_ms
    if settings.live is None:
        store = RocketMQStore.open(_config(settings, settings.broker_conf, settings.overrides))
        consumers, source, attempts = consumers_in_files(store.layout), LagSource(), 1
    else:
        store, consumers, source = _open_live(settings, settings.live)
        attempts = ATTEMPTS

    def look() -> tuple[StoreSnapshot, LagContext]:
        snapshot, segments = store.snapshot(now_ms), request.plan_segments
        zone = time_zone(settings.time_zone)
        return snapshot, lag_context(store.layout, snapshot, store.config, segments, now_ms, zone)

    snapshot, context = reread(look, attempts)
    positions = group_positions(store.layout, consumers)
    context = replace(context, source=source, attempts=attempts)
    return RocketMQLagJob(context, positions, snapshot, consumers.unknown)


def _open_live(settings: StoreSettings, live: LiveBroker) -> tuple[RocketMQStore, Consumers, LagSource]:
    """Return a running broker's store, its consumers, and the source of their positions."""
    try:
        with reach(live) as admin:
            config = admin.config()
            overrides = local_settings(config, settings.root, settings.overrides)
            store = RocketMQStore.open(_config(settings, None, overrides))
            return store, *live_consumers(admin, config, live, store.layout)
    except BrokerError as error:
        store = RocketMQStore.open(_config(settings, settings.broker_conf, settings.overrides))
        return store, *consumers_written_down(store.layout, error)


def _config(settings: StoreSettings, broker_conf: str | None, overrides: Mapping[str, str]) -> BrokerConfig:
    return load_broker_config(broker_conf, overrides, root=settings.root)
