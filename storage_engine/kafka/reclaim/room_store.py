"""A stopped node whose cluster is asked beside its files, so that room can be made in it.

Its own broker's locks are taken, as for any stopped node. High watermarks and ends of logs are those of its
files: what a leader has taken since is no word on what lies here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from storage_engine.core import durable
from storage_engine.exceptions import NotOnBrokerError, StoreBusyError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import LogDirectory, Node
from storage_engine.kafka.hold.overlay import with_first_settings
from storage_engine.kafka.hold.shared_holds import all_states
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.reclaim import room_release
from storage_engine.kafka.reclaim.leaders_word import LeadersWord, ask_leaders
from storage_engine.kafka.reclaim.room_plan import Asked, room_plans
from storage_engine.kafka.reclaim.room_release import HeldNode
from storage_engine.kafka.stopped.stopped_plan import read_stopped
from storage_engine.kafka.store.plan import plan_notices
from storage_engine.kafka.store.seen_node import SeenNode, logs_of
from storage_engine.kafka.store.store import KafkaStore, open_store, plan_of_log
from storage_engine.model.broker.broker_store import BrokerStore, Remove, StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold.hold import HoldMemory
from storage_engine.model.plan.plan import Cause, Plan, PlanRequest, Trigger, Urgency
from storage_engine.model.store.store import Segment, StoreSnapshot


@dataclass(slots=True)
class RoomStore(KafkaStore):
    """A stopped node to make room in.

    :param live: how its cluster is reached; None: none runs that could be asked.
    :param memory: of the node's hold; None: nothing is remembered.
    :param word: what the cluster said at the last look.
    """

    live: LiveBroker | None = None
    memory: HoldMemory | None = None
    word: LeadersWord | None = None
    _cluster: Cluster | None = None

    @property
    def asked(self) -> Cluster | None:
        if self._cluster is None and self.live is not None:
            self._cluster = Cluster(self.live)
        return self._cluster

    def close(self) -> None:
        self._cluster = None

    def renewed(self, memory: HoldMemory) -> BrokerStore:
        return RoomStore(self.root, live=self.live, memory=memory)

    def check_manageable(self) -> None:
        """
        :raises StoreBusyError: the node's own broker runs.
        """
        # Not by super(): a dataclass with slots is another class than the one that it knows.
        KafkaStore.check_manageable(self)
        if self.used_by and not self.is_used_by_us:
            raise StoreBusyError(
                f"{self.root}: expected a node that is stopped, found that a process has its log "
                "directories. Nothing was changed. Stop its broker; or let it run, and clean with --broker "
                "and --deletes-us."
            )

    def read_node(self, now_ms: int) -> Node:
        """Look at the node, and ask its cluster.

        :raises BrokerError: the cluster can't be asked.
        :raises NotOnBrokerError: it is another cluster than the directories'.
        """
        node = KafkaStore.read_node(self, now_ms)
        cluster = self.asked
        if cluster is None:
            return node
        names = [log.name for _, log in node.logs if log.name.topic != METADATA_TOPIC]
        self.word = ask_leaders(cluster, names, now_ms)
        return with_first_settings(with_word(node, self.word, cluster.address), all_states(self.memory))

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """A last stop that wasn't clean keeps only what isn't certain, which the plan says."""
        return replace(KafkaStore.snapshot(self, now_ms), crashed=False)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        seen = self._seen_of(snapshot, now_ms)
        topics = read_topic_settings(seen.node)
        plans = [
            plan_of_log(log, topics, settings, now_ms) for log, settings in logs_of(seen, snapshot, topics)
        ]
        stopped = read_stopped(seen.node, topics)
        by = Asked(seen.node, stopped, self.word, self.archivable(snapshot), request, topics)
        notices = plan_notices(seen.node, topics)
        if request.replicas_stopped:
            notices = (
                *notices,
                f"a person says that all other nodes are stopped: {request.replicas_stopped}",
            )
        triggers, _ = self.triggers(snapshot, now_ms, request)
        return Plan(snapshot.root, now_ms, triggers, room_plans(plans, by), notices)

    def triggers(
        self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
    ) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
        if request.forced:
            said = f"a person asks for room, whatever the age: {request.reason}"
            return (Trigger(Cause.MANUAL, Urgency.FORCED, said),), ()
        return KafkaStore.triggers(self, snapshot, now_ms, request)

    @property
    def max_delete_batch(self) -> int | None:
        return 1 if self.live is None else room_release.AT_ONCE

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        if not segments:
            return
        if self.live is None:
            KafkaStore.delete_segments(self, segments, meanwhile, remove)
        else:
            assert self.asked is not None
            room = HeldNode(self.root, self.locked, self.asked, self.looked, self.memory)
            room_release.delete_segments(room, segments, meanwhile, remove)

    @property
    def looked(self) -> SeenNode:
        """Return what the last snapshot was made of."""
        if self.seen is None:
            self.seen = self._look(time.time_ns() // 1_000_000)
        return self.seen


def with_word(node: Node, word: LeadersWord, address: str) -> Node:
    """Return a node with its topics' settings, and where its logs begin, by its cluster's word.

    :param node: by its files.
    :param address: of the cluster, for a message.
    :raises NotOnBrokerError: the directories are of another cluster.
    """
    if other := node.cluster_ids - {word.facts.cluster_id}:
        raise NotOnBrokerError(
            f"{node.root}: expected log directories of the cluster at {address}, {word.facts.cluster_id}, "
            f"found those of {', '.join(sorted(other))}. Nothing was changed. Name a broker of their own "
            "cluster."
        )
    directories = tuple(_from_leaders(directory, word) for directory in node.directories)
    return replace(node, live=word.facts, directories=directories)


def _from_leaders(directory: LogDirectory, word: LeadersWord) -> LogDirectory:
    """Return a directory whose logs begin where their leaders do, as far as closed segments reach: what lies
    below is deleted, whatever its age.
    """
    starts = dict(directory.log_starts)
    for log in directory.logs:
        live = word.of(log.name.log)
        if live is not None and live.log_start is not None and log.segments:
            reached = min(live.log_start, log.segments[-1].base_offset)
            starts[log.name.log] = max(starts.get(log.name.log, 0), reached)
    return replace(directory, log_starts=starts)


def open_room(settings: StoreSettings, memory: HoldMemory | None) -> RoomStore:
    """Open a stopped node to make room in it.

    :raises BadInputError: there is none, or the client's settings can't be used.
    :raises MissingExtraError: the client isn't installed.
    """
    return RoomStore(open_store(settings).root, live=settings.live, memory=memory)
