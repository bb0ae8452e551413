"""A stopped node whose cluster is asked beside its files, so that room can be made in it.

Its own broker's locks are taken, as for any stopped node. High watermarks and ends of logs are those of its
files: what a leader has taken since is no word on what lies here. The oldest segments go, each on a ground
that the cluster confirms right before.

What another node leads goes there first: its leader is told to begin behind it, once a record shows that it
has the same ones. Then the file goes here. A kill in between leaves a log that begins later on all other
nodes, as it would anyhow once this one follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import ChangedUnderUsError, NotOnBrokerError, StoreBusyError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import LogDirectory, Node, read_node
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.hold.needed_retention import all_states
from storage_engine.kafka.hold.overlay import with_first_settings
from storage_engine.kafka.live.cut_faults import Prefix, boundary_fault, log_fault
from storage_engine.kafka.live.observe import LeadersWord, ask_leaders
from storage_engine.kafka.live.release import Cut, Witness, cut_remembered, other_than, refused, witness_of
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.reclaim.room_plan import Asked, Fault, Way, room_plans, way_of_log
from storage_engine.kafka.stopped.stopped_plan import StoppedNode, read_stopped
from storage_engine.kafka.stopped.stopped_release import delete_oldest
from storage_engine.kafka.store.plan import SeenNode, logs_of, plan_notices
from storage_engine.kafka.store.store import KafkaStore, OpenNode, open_store, plan_of_log
from storage_engine.model.broker.broker_store import (
    ALWAYS,
    BrokerStore,
    LockedStore,
    Remove,
    StoreSettings,
    is_used_by_others,
)
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import HoldMemory
from storage_engine.model.plan.plan import Cause, Plan, PlanRequest, Trigger, Urgency
from storage_engine.model.store.store import Segment, StoreSnapshot, by_log

AT_ONCE = 100
"""How many segments leaders are told of at once."""


def delete_segments(
    room: RoomNode, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove
) -> None:
    """See :meth:`storage_engine.model.broker.broker_store.BrokerStore.delete_segments`.

    :raises ChangedUnderUsError: a log has no ground any more, or its files changed; names a segment, which
        was not deleted.
    :raises BrokerError: the cluster can't be asked, or it isn't known what it did; run again, it goes on.
    """
    held, cluster = room.locked, room.asked
    seen = room.seen or room.see(clock_ms())
    assert cluster is not None
    stopped = read_stopped(seen.node)
    prefixes = list(_prefixes(seen, segments))
    word = ask_leaders(cluster, [one.name for one in prefixes], clock_ms())
    going = [(prefix, _way(prefix, stopped, word)) for prefix in prefixes]
    _begin_behind(room, cluster, going, word, meanwhile)
    for prefix, way in going:
        for segment in prefix.segments:
            meanwhile()
            alone = replace(prefix, segments=(segment,))
            again = ask_leaders(cluster, [alone.name], clock_ms())
            _check_again(alone, way, _way(alone, stopped, again))
            delete_oldest(held, room.root, (segment,), meanwhile, remove)


def _prefixes(seen: SeenNode, segments: Sequence[Segment]) -> Iterator[Prefix]:
    for name, of_log in by_log(segments).items():
        if (one := seen.known.get(name)) is None:
            raise ChangedUnderUsError(
                f"log {name}: expected it among the node's logs, found none. Nothing of it was deleted. Plan "
                "again.",
                path=of_log[0].facts.path,
            )
        # What went before, in this call's release, is listed there still.
        left = tuple(files for files in one.log.segments if files.base_offset >= of_log[0].base_offset)
        yield Prefix(one.log.name, one.directory, replace(one.log, segments=left), tuple(of_log))


def _way(prefix: Prefix, stopped: StoppedNode | Fault, word: LeadersWord) -> Way:
    found = way_of_log(prefix.log, stopped, word, "")
    if isinstance(found, Way):
        return found
    raise refused(prefix, found[1])


def _begin_behind(
    room: RoomNode,
    cluster: Cluster,
    going: Sequence[tuple[Prefix, Way]],
    word: LeadersWord,
    meanwhile: Callable[[], object],
) -> None:
    """Make sure that leaders have the same records, and have them begin behind what goes."""
    cuts: list[Cut] = []
    witnesses: dict[tuple[str, int], Witness] = {}
    for prefix, way in going:
        if way.leader is None:
            continue
        live = word.of(prefix.name.log)
        assert live is not None
        is_cut = prefix.boundary > way.led_from
        if is_cut:
            if why := log_fault(prefix, live, word.facts.cluster_id) or boundary_fault(prefix, live):
                raise refused(prefix, why)
            cuts.append(Cut(prefix, live))
        # A log that ends below its leader's start has no record to compare: its broker drops all of it.
        if is_cut or end_offset(prefix.log) > way.led_from:
            at = max(prefix.boundary, way.led_from + 1)
            witnesses[prefix.key] = witness_of(prefix, at, live.high_watermark or 0)
    other = other_than(cluster, witnesses, meanwhile)
    for prefix, _ in going:
        if prefix.key in other:
            raise refused(prefix, other[prefix.key])
    if cuts:
        cut_remembered(cluster, room.root, room.memory, cuts, meanwhile, is_held=False)


def _check_again(prefix: Prefix, before: Way, way: Way) -> None:
    """Make sure, right before a segment goes, that the ground that was found holds.

    :param prefix: the segment alone.
    :raises ChangedUnderUsError: it doesn't.
    """
    left = "This segment was not deleted, older ones of the plan may be."
    if before.leader is not None:
        left = (
            "This segment was not deleted here, older ones of the plan may be; its leader was told to begin "
            "behind what goes, and other nodes may have deleted what the lake has of it."
        )
    if (way.leader, way.leader_epoch) != (before.leader, before.leader_epoch):
        raise refused(prefix, f"its leader has changed meanwhile: {before.said}, and by now {way.said}", left)
    if way.leader is not None and way.led_from < prefix.boundary:
        raise refused(prefix, f"{way.said}, which isn't behind it", left)


@dataclass(slots=True)
class RoomNode(OpenNode):
    """A stopped node, and its cluster.

    :param live: how its cluster is reached; None: none runs that could be asked.
    :param word: what the cluster said at the last look.
    """

    live: LiveBroker | None = None
    word: LeadersWord | None = None

    @property
    def asked(self) -> Cluster | None:
        if self.cluster is None and self.live is not None:
            self.cluster = Cluster(self.live)
        return self.cluster

    def read(self, now_ms: int) -> Node:
        """Look at the node, and ask its cluster.

        :raises BrokerError: the cluster can't be asked.
        :raises NotOnBrokerError: it is another cluster than the directories'.
        """
        node = read_node(self.root)
        cluster = self.asked
        if cluster is None:
            return node
        names = [log.name for _, log in node.logs if log.name.topic != METADATA_TOPIC]
        self.word = ask_leaders(cluster, names, now_ms)
        return with_first_settings(with_word(node, self.word, cluster.address), all_states(self.memory))


@dataclass(slots=True)
class RoomStore(KafkaStore):
    """A stopped node to make room in."""

    node: RoomNode

    def renewed(self, memory: HoldMemory) -> BrokerStore:
        return RoomStore(RoomNode(self.node.root, live=self.node.live, memory=memory))

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """A last stop that wasn't clean keeps only what isn't certain, which the plan says."""
        return replace(KafkaStore.snapshot(self, now_ms), crashed=False)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        seen = self.node.seen_of(snapshot, now_ms)
        topics = read_topic_settings(seen.node)
        plans = [
            plan_of_log(log, topics, settings, now_ms) for log, settings in logs_of(seen, snapshot, topics)
        ]
        stopped = read_stopped(seen.node, topics)
        by = Asked(seen.node, stopped, self.node.word, self.archivable(snapshot), request, topics)
        notices = plan_notices(seen.node, topics)
        if request.replicas_stopped:
            notices = (
                *notices,
                f"a person says that all other nodes are stopped: {request.replicas_stopped}",
            )
        said = f"a person asks for room, whatever the age: {request.reason}"
        cause = Trigger(Cause.MANUAL, Urgency.FORCED, said) if request.forced else ALWAYS
        return Plan(snapshot.root, now_ms, (cause,), room_plans(plans, by), notices)

    @contextmanager
    def lock(self) -> Iterator[LockedStore]:
        with KafkaStore.lock(self) as held:
            yield replace(held, max_delete_batch=1 if self.node.live is None else AT_ONCE)

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        if not segments:
            return
        if self.node.live is None:
            KafkaStore.delete_segments(self, segments, meanwhile, remove)
        else:
            delete_segments(self.node, segments, meanwhile, remove)


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
    :raises StoreBusyError: the node's own broker runs.
    """
    store = RoomStore(RoomNode(open_store(settings).node.root, live=settings.live, memory=memory))
    if is_used_by_others(store):
        raise StoreBusyError(
            f"{store.node.root}: expected a node that is stopped, found that a process has its log "
            "directories. Nothing was changed. Stop its broker; or let it run, and clean with --broker and "
            "--deletes-us."
        )
    return store
