"""Consumer lag of a RocketMQ store, ready to be computed in shares; see ``model.broker.kind``."""

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
    """Data from which the tasks measure lag, and the groups' positions, queue by queue.

    :param unknown: texts on consumers that are unknown because a file can't be read.
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
        """Return the logs whose lag is measured. None: all, which is the store's one log. (): none, since
        some consumers are unknown.
        """
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
        context, end_offset = self.context, run[-1].end_offset
        result = unread_messages(
            context.layout, tuple(run), self.positions, end_offset, context.attempts, deleted=True
        )
        return result.with_errors(self.unknown)


def lag_job(request: LagRequest) -> RocketMQLagJob:
    """Read the groups' positions, and the data from which their lag is measured.

    Beside a running broker, the groups' positions are read before its queues. So messages that come in
    meanwhile make lag larger, never smaller.

    :raises BadInputError: the store or its settings can't be read, or the plan is for another store.
    :raises BrokerError: a running broker can't be asked, and its files don't have the positions either.
    """
    settings, now_ms = request.settings, request.now_ms
    if settings.live is None:
        store = RocketMQStore.open(_config(settings, settings.broker_conf, settings.overrides))
        consumers, source, attempts = consumers_in_files(store.layout), LagSource(), 1
    else:
        store, consumers, source = _open_live(settings, settings.live)
        attempts = ATTEMPTS

    def look() -> tuple[StoreSnapshot, LagContext]:
        snapshot = store.snapshot(now_ms)
        zone = time_zone(settings.time_zone)
        return snapshot, lag_context(
            store.layout, snapshot, store.config, request.plan_segments, now_ms, zone
        )

    snapshot, measured = reread(look, attempts)
    positions = group_positions(store.layout, consumers)
    context = replace(measured, source=source, attempts=attempts)
    return RocketMQLagJob(context, positions, snapshot, consumers.unknown)


def _open_live(settings: StoreSettings, live: LiveBroker) -> tuple[RocketMQStore, Consumers, LagSource]:
    """Return a running broker's store with effective settings, its consumers, and their positions' source."""
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
