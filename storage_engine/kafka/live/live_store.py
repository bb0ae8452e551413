"""A node with its running cluster, as a store for retention. Facts that files don't contain come from the
cluster.

If the store's settings say that we delete, we hold the topics and delete segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from storage_engine.commands import join_texts
from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import count_text
from storage_engine.exceptions import GateRefusedError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.hold.hold_state import load_state
from storage_engine.kafka.live import hold, release
from storage_engine.kafka.live.cut_faults import cut_to_held
from storage_engine.kafka.live.observe import LiveNode
from storage_engine.kafka.store.store import DISKS, KafkaStore, open_store
from storage_engine.model.broker.broker_store import (
    LockedStore,
    Remove,
    StoreHold,
    StoreSettings,
    UnheldSegments,
)
from storage_engine.model.broker.live import LiveBroker, RunningBroker
from storage_engine.model.hold import HoldMemory, HoldStatus
from storage_engine.model.plan import Plan, PlanRequest, limit_plans
from storage_engine.model.store import FileFacts, Segment, SegmentId, StoreSnapshot


@dataclass(frozen=True, slots=True)
class TopicsHold(StoreHold):
    """A hold by the topics' settings. All topics are held if we delete; otherwise those with due segments."""

    node: LiveNode

    def renew(self, now_ms: int) -> HoldStatus:
        return hold.renew(self.node, now_ms) if self.node.is_ours else self._describe()

    def hold_due(self, proven: Mapping[SegmentId, FileFacts], margin_ms: int, now_ms: int) -> HoldStatus:
        return hold.hold_due(self.node, proven, margin_ms, now_ms)

    def status(self, now_ms: int) -> HoldStatus:
        return hold.look(self.node, now_ms) if self.node.is_ours else self._describe()

    def _describe(self) -> HoldStatus:
        return hold.described(load_state(self.node.memory))

    def holds(self, log: str) -> bool:
        try:
            state = load_state(self.node.memory)
        except GateRefusedError:
            # Another release's hold may hold any log.
            return True
        return state is not None and state.has_settings(log.rpartition("-")[0])

    def unheld_segments(self, now_ms: int, until_ms: int) -> UnheldSegments:
        return hold.look_for_unheld(self.node, now_ms, until_ms)

    def end(self, now_ms: int) -> HoldStatus:
        return hold.end_hold(self.node, now_ms)


@dataclass(frozen=True, slots=True)
class LockedTopics(LockedStore):
    """A node whose hold is in effect. Segments below their leaders' log starts count as deleted."""

    node: LiveNode = field(kw_only=True)

    def deleted(self, segments: Sequence[Segment]) -> frozenset[SegmentId]:
        return release.find_below_start(self.node, segments)


@dataclass(slots=True)
class LiveKafkaStore(KafkaStore):
    """A node whose broker runs, as a store for retention."""

    node: LiveNode

    @property
    def is_live(self) -> bool:
        return True

    @property
    def hold(self) -> TopicsHold:
        return TopicsHold(self.node)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Return the snapshot. Files tell which segments are sealed; leaders tell their high watermarks.

        :raises BrokerError: the cluster doesn't answer.
        :raises NotOnBrokerError: the directories belong to another cluster.
        """
        # super() fails here: a dataclass with slots replaces the class that super() refers to.
        return replace(KafkaStore.snapshot(self, now_ms), crashed=False)

    @contextmanager
    def lock(self) -> Iterator[LockedTopics]:
        """Renew the hold before any decision. The hold stays after the block.

        A log that isn't held doesn't prevent deletions from other logs.

        :raises GateRefusedError: the store can't be held, or its broker deletes by its own rules.
        """
        if not self.node.is_ours:
            raise GateRefusedError(f"{self.node.root}: {_LEFT_TO_ITS_BROKER}. Nothing was changed.")
        status = self.hold.renew(clock_ms())
        if not status.held:
            raise GateRefusedError(join_texts("; ", (*status.notices, *status.alarms)))
        yield LockedTopics((*status.notices, *status.alarms), node=self.node)

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        if not self.node.is_ours:
            raise GateRefusedError(f"{self.node.root}: {_LEFT_TO_ITS_BROKER}. Nothing was deleted.")
        release.delete_segments(self.node, segments, meanwhile)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        """Decide as the broker would. If we delete, the plan deletes only segments that may be archived."""
        decided = KafkaStore.plan(self, snapshot, now_ms, request)
        if not self.node.is_ours:
            return decided
        logs = self.cut_to_archivable(snapshot, decided.logs)
        live = self.node.node_of(snapshot, now_ms).live
        logs = tuple(cut_to_held(log, self.node.unheld, live) for log in logs)
        return replace(decided, logs=limit_plans(logs, request, snapshot.disks, DISKS))

    @property
    def dependents(self) -> None:
        """Return None: the broker deletes indexes with their segments."""


_LEFT_TO_ITS_BROKER = "its broker deletes by its own rules, so nothing is deleted by us"


def open_live(settings: StoreSettings, live: LiveBroker, memory: HoldMemory | None = None) -> LiveKafkaStore:
    """Open a node with its running cluster.

    The cluster is asked later: bad client settings, or a missing client, are errors only then.

    :raises BadInputError: there is no node.
    """
    return LiveKafkaStore(LiveNode(open_store(settings).node.root, live=live, memory=memory))


def running_cluster(live: LiveBroker) -> RunningBroker:
    """Ask a cluster for its id and brokers.

    :raises BrokerError: the cluster doesn't answer.
    """
    cluster = Cluster(live)
    answer = cluster.described()
    brokers = count_text(len(answer.nodes), "broker")
    return RunningBroker(
        address=cluster.address,
        name=answer.cluster_id or "",
        described=f"Cluster {answer.cluster_id} of {brokers} at {cluster.address}",
    )
