"""Consumer lag of a node, ready to be computed in shares; see ``storage_engine.model.broker.lag_job``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from storage_engine.exceptions import BadInputError
from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.lag import Consumers, LagContext, consumers_of, place_positions
from storage_engine.kafka.store.lag_context import lag_context
from storage_engine.kafka.store.store import KafkaStore, open_store
from storage_engine.model.broker.lag_job import LagRequest, Place
from storage_engine.model.lag import LagSource, Unread
from storage_engine.model.store import FileFacts, Segment, SegmentId, StoreSnapshot


@dataclass(frozen=True, slots=True)
class KafkaLagJob:
    """Data that lag is measured against, and the groups' positions, partition by partition."""

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
    """Take the groups' positions, and look at what they are measured against.

    Positions are taken before the logs are looked at: what comes in meanwhile makes lag larger, not smaller.

    :raises BadInputError: a store or settings that can't be read, a plan for another store.
    :raises BrokerError: a running cluster can't be asked.
    """
    store = _opened(request)
    try:
        consumers = consumers_of(store.node.read(request.now_ms), store.node.asked)
        snapshot = store.snapshot(request.now_ms)
    finally:
        store.close()
    assert store.node.seen is not None
    _check_plan(snapshot, request.plan_segments)
    read = {f"{topic}-{number}" for _, topic, number in consumers.committed}
    going = frozenset(request.plan_segments)
    context = lag_context(store.node.seen, snapshot, read, going, request.now_ms)
    return KafkaLagJob(context, consumers, snapshot, _newest(store.node.seen.node))


def _opened(request: LagRequest) -> KafkaStore:
    settings = request.settings
    if settings.live is None:
        return open_store(settings)
    from storage_engine.kafka.live.live_store import open_live

    return open_live(settings, settings.live)


def _check_plan(snapshot: StoreSnapshot, plan_segments: Collection[SegmentId]) -> None:
    """Check that a plan's segments are those of a node, or went from the beginning of their log.

    :raises BadInputError: a segment isn't in the node, and didn't go meanwhile.
    """
    there = {segment.id for log in snapshot.logs for segment in log.segments}
    begins = {log.name: log.min_offset for log in snapshot.logs}
    went = {one for one in plan_segments if one.base_offset < begins.get(one.log, 0)}
    if unknown := set(plan_segments) - went - there:
        name, base_offset = min(unknown)
        raise BadInputError(
            f"{snapshot.root}: no segment of log {name} begins at {base_offset}: expected the segments of a "
            "plan for this store as it is now. Make a new plan."
        )


def _newest(node: Node) -> FileFacts | None:
    """Return a file that whoever measures has to see: the last written of all logs."""
    files = (segment.log for _, log in node.logs for segment in log.segments)
    return max(files, key=lambda facts: facts.mtime_ns, default=None)
