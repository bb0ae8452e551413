"""A node's consumer lag, prepared so that several hosts can compute parts of it (``kind.LagJob``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from storage_engine.kafka.lag import Consumers, LagContext, consumers_of, place_positions
from storage_engine.kafka.store.lag_context import lag_context
from storage_engine.kafka.store.store import open_store
from storage_engine.model.broker.kind import LagRequest, Place, check_plan
from storage_engine.model.lag import LagSource, Unread
from storage_engine.model.store import FileFacts, Segment, StoreSnapshot


@dataclass(frozen=True, slots=True)
class KafkaLagJob:
    """The logs that lag is measured in, and the groups' positions in each partition."""

    context: LagContext
    consumers: Consumers
    snapshot: StoreSnapshot
    newest: FileFacts | None

    @property
    def source(self) -> LagSource:
        return self.consumers.source

    @property
    def logs(self) -> tuple[str, ...] | None:
        return self.consumers.logs

    @property
    def positions(self) -> pa.Table:
        return self.consumers.table

    @property
    def segments(self) -> pa.Table:
        return self.context.segments_table

    @property
    def place(self) -> Place:
        return partial(place_positions, self.context)

    def unread(self, run: Sequence[Segment]) -> Unread:
        return Unread(error="a node of Kafka has no shield")


def lag_job(request: LagRequest) -> KafkaLagJob:
    """Read the groups' positions first, then the logs that lag is measured in.

    So records that arrive in between make lag larger, not smaller.

    :raises BadInputError: the store or its settings can't be read, or the plan is for another store.
    :raises BrokerError: the running cluster doesn't answer.
    """
    settings = request.settings
    if settings.live is None:
        store = open_store(settings)
    else:
        from storage_engine.kafka.live.live_store import open_live

        store = open_live(settings, settings.live)
    try:
        consumers = consumers_of(store.node.read(request.now_ms), store.node.asked)
        snapshot = store.snapshot(request.now_ms)
    finally:
        store.close()
    assert store.node.seen is not None
    check_plan(snapshot, request.plan_segments)
    read = {f"{topic}-{number}" for _, topic, number in consumers.committed}
    going = frozenset(request.plan_segments)
    context = lag_context(store.node.seen, snapshot, read, going, request.now_ms)
    files = (segment.log for _, log in store.node.seen.node.logs for segment in log.segments)
    # Another host that measures lag must see the same file.
    newest = max(files, key=lambda facts: facts.mtime_ns, default=None)
    return KafkaLagJob(context, consumers, snapshot, newest)
