"""Makes room on the disk of a stopped node by deleting its oldest segments, with its cluster's consent.

The locks of its broker are taken, as for any stopped node. High watermarks and ends of logs come from the
node's files: later records of a leader say nothing about the records here. Right before each deletion, the
cluster is asked again whether the ground for it still holds.

If another node leads a log, a record must show that the leader has the same records. Then the leader deletes
them, and only after that the file is deleted here. After a kill in between, the log's start is higher on
all other nodes than here. That is harmless: this node would delete the same segments as soon as it follows.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import bytes_text
from storage_engine.exceptions import StorageEngineError, StoreBusyError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format import checkpoints
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import LivePartition, LogDirectory, Node, PartitionLog, read_node
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.hold.hold_state import check_cluster, with_first_settings
from storage_engine.kafka.hold.needed_retention import all_states
from storage_engine.kafka.live.cut_faults import (
    Prefix,
    above_limit,
    beginning_fault,
    boundary_fault,
    files_fault,
    limit_of,
    log_fault,
)
from storage_engine.kafka.live.observe import LeadersWord, ask_leaders
from storage_engine.kafka.live.release import (
    Cut,
    Witness,
    cut_error,
    cut_logs,
    find_differences,
    prefixes_of,
    witness_of,
)
from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata, nodes_text, replica_fault
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.stopped.stopped_release import (
    StoppedNode,
    delete_oldest,
    keep_all,
    read_stopped,
    topic_or_fault,
)
from storage_engine.kafka.store.plan import SeenNode, cut_from, cut_to_archivable, logs_of, plan_notices
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
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import HoldMemory
from storage_engine.model.plan import (
    Cause,
    Decision,
    LogPlan,
    Plan,
    PlanRequest,
    Reason,
    Trigger,
    Urgency,
    wanted_bytes,
)
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import Archivable, Segment, SegmentId, StoreSnapshot

Fault = tuple[Reason, str]


@dataclass(frozen=True, slots=True)
class Shortage:
    """The free space that a disk lacks.

    :param wanted_bytes: bytes that should be free; None if the disk's size isn't known.
    :param lacking_bytes: how many of these bytes aren't free; None if the disk's free space isn't known.
    """

    wanted_bytes: int | None
    lacking_bytes: int | None


def shortage_of(disk: DiskUsage, request: PlanRequest) -> Shortage:
    target = wanted_bytes(disk, request)
    if target is None or disk.usable_bytes is None:
        return Shortage(None, None)
    return Shortage(target, max(target - disk.usable_bytes, 0))


def is_bounded(request: PlanRequest) -> bool:
    """Return whether a request names how much space should be free."""
    return request.free_bytes is not None or request.target_used_percent is not None


def only_needed(
    plans: Sequence[LogPlan], shortages: Mapping[int, Shortage], deleted: Set[SegmentId]
) -> tuple[LogPlan, ...]:
    """Keep the segments whose deletion isn't needed to reach the wanted free space.

    :param plans: plans with all segments that may be deleted.
    :param shortages: the space that each disk lacks, by its device.
    :param deleted: segments whose records are already deleted in the cluster.
    """
    needed = set(_needed_ids(plans, shortages, deleted))

    def decide(decision: Decision) -> Decision:
        if decision.segment.id in needed:
            return decision
        shortage = shortages.get(decision.segment.facts.device, Shortage(None, None))
        if shortage.wanted_bytes is None:
            return replace(decision, reason=Reason.UNKNOWN, detail="how full its disk is isn't known")
        text = (
            f"its disk has {bytes_text(shortage.wanted_bytes)} free without this deletion; otherwise: "
            f"{decision.detail}"
        )
        return replace(decision, reason=Reason.TARGET_REACHED, detail=text)

    return tuple(plan.with_going(decide) for plan in plans)


def _needed_ids(
    plans: Sequence[LogPlan], shortages: Mapping[int, Shortage], deleted: Set[SegmentId]
) -> list[SegmentId]:
    lacking = {device: shortage.lacking_bytes or 0 for device, shortage in shortages.items()}
    queues = [[decision for decision in plan.decisions if decision.deletes] for plan in plans]
    heads = [(*_order(queue[0], deleted), number, 0) for number, queue in enumerate(queues) if queue]
    heapq.heapify(heads)
    ids = []
    while heads:
        *_, number, place = heapq.heappop(heads)
        segment: Segment = queues[number][place].segment
        if lacking.get(segment.facts.device, 0) <= 0:
            continue
        lacking[segment.facts.device] -= segment.disk_bytes
        ids.append(segment.id)
        if place + 1 < len(queues[number]):
            heapq.heappush(heads, (*_order(queues[number][place + 1], deleted), number, place + 1))
    return ids


def _order(decision: Decision, deleted: Set[SegmentId]) -> tuple[int, int]:
    segment = decision.segment
    if segment.id in deleted:
        return 0, segment.facts.mtime_ns
    return 2 if decision.reason is Reason.FORCED else 1, segment.facts.mtime_ns


_ONLY_AGE = frozenset(
    {
        Reason.NOT_EXPIRED,
        Reason.SIZE_NOT_REACHED,
        Reason.UNLIMITED,
        Reason.FUTURE_TIMESTAMP,
        Reason.BEHIND_KEPT,
    }
)
"""Reasons to keep a segment that a person may override."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The facts besides the rules of retention that decide about deletions.

    :param stopped: the state of the stopped node as its own files show it, or the reason to keep all of its
        logs.
    :param word: its cluster's answers; None if no cluster is asked.
    """

    node: Node
    stopped: StoppedNode | Fault
    word: LeadersWord | None
    archivable: Archivable
    request: PlanRequest
    topics: TopicSettings


def room_plans(plans: Sequence[LogPlan], by: Asked) -> tuple[LogPlan, ...]:
    """Return the plans of all logs, with the segments to delete to make room.

    :param plans: plans by the rules of retention.
    :raises OSError: a file can't be read.
    """
    logs = {log.name.log: (directory, log) for directory, log in by.node.logs}
    certain = cache(_recovery_points)
    results, deleted = [], set[SegmentId]()
    may = {segment.id for segment in by.archivable.segments}
    for plan in plans:
        directory, log = logs[plan.log]
        if by.request.forced:
            plan = _force(plan, by.request.reason)
        if by.node.left_uncleanly and not directory.fault:
            plan = _keep_uncertain(plan, certain(directory.path).get(plan.log, 0))
        plan = cut_to_archivable(plan, by.archivable, may, has_remote=by.topics.has_remote(plan.log))
        if plan.to_delete:
            way = way_of_log(log, by.stopped, by.word, by.request.replicas_stopped)
            if not isinstance(way, Way):
                plan = keep_all(plan, way)
            else:
                plan = _cut_by_way(plan, way, directory, log, by.word)
                deleted |= {segment.id for segment in plan.to_delete if segment.end_offset <= way.led_from}
        results.append(plan)
    if not is_bounded(by.request):
        return tuple(results)
    disks = (DiskUsage.of(directory.path) for directory in by.node.directories)
    shortages = {disk.device: shortage_of(disk, by.request) for disk in disks if disk.device is not None}
    return only_needed(results, shortages, deleted)


def way_of_log(
    log: PartitionLog, stopped: StoppedNode | Fault, word: LeadersWord | None, replicas_stopped: str
) -> Way | Fault:
    """Return the ground to delete a log's first segments, or why there is none. Only small files are read."""
    if not isinstance(stopped, StoppedNode):
        return stopped
    topic_id = topic_or_fault(log, stopped)
    if isinstance(topic_id, tuple):
        return topic_id
    try:
        path = log.path / checkpoints.LEADER_EPOCHS
        epochs = checkpoints.read_leader_epochs(path) if path.exists() else ()
    except (StorageEngineError, OSError) as error:
        return Reason.UNKNOWN, f"the epochs of its leaders aren't known: {reason_of(error)}"
    newest = max((epoch.epoch for epoch in epochs), default=-1)
    own_log = OwnLog(log.name.log, topic_id, log.name.partition, stopped.node_id, newest)
    return way_of(own_log, stopped.metadata, word, replicas_stopped)


def _recovery_points(directory: Path) -> Mapping[str, int]:
    path = directory / checkpoints.RECOVERY_POINT
    return checkpoints.read_offsets(path) if path.exists() else {}


def _force(plan: LogPlan, reason: str) -> LogPlan:
    """Also delete segments that stay only for their age or the log's size: a person asks for room."""

    def decide_all() -> Iterator[Decision]:
        stops = False
        for decision in plan.decisions:
            stops = stops or not (decision.deletes or decision.reason in _ONLY_AGE)
            if stops or decision.deletes:
                yield decision
            else:
                yield Decision(decision.segment, Reason.FORCED, f"a person asks for room: {reason}")

    return LogPlan(plan.log, tuple(decide_all()))


def _keep_uncertain(plan: LogPlan, recovery_point: int) -> LogPlan:
    """Keep segments above the recovery point: a broker may cut off records there (LogLoader#recoverLog)."""
    detail = (
        f"its broker did not stop cleanly, and flushed this log up to offset {recovery_point}: whether later "
        "records stay is known only after the broker's next start"
    )
    return cut_from(
        plan,
        lambda decision: (
            (Reason.STORE_CRASHED, detail) if decision.segment.end_offset > recovery_point else None
        ),
    )


def _cut_by_way(
    plan: LogPlan, way: Way, directory: LogDirectory, log: PartitionLog, word: LeadersWord | None
) -> LogPlan:
    """Keep segments that a leader on another node still has, and that we may not tell it to delete."""
    live = None if word is None else word.of(plan.log)
    if way.leader is None or live is None or word is None:
        ground = f"; {way.said}" if way.said else ""
        return _add_ground(plan, lambda _: ground)
    prefix = Prefix(log.name, directory, log, plan.to_delete)
    fault = (
        log_fault(prefix, live, word.facts.cluster_id) or beginning_fault(prefix, live) or files_fault(prefix)
    )

    def fault_of(decision: Decision) -> Fault | None:
        end = decision.segment.end_offset
        if end <= way.led_from:
            return None
        if fault:
            reason, detail = Reason.REPLICAS_ELSEWHERE, fault
        elif end > limit_of(live):
            reason, detail = Reason.NOT_REPLICATED, above_limit(end, live)
        else:
            return None
        return reason, f"{way.said}, and can't be told to delete it: {detail} (otherwise: {decision.detail})"

    def ground_of(decision: Decision) -> str:
        if decision.segment.end_offset <= way.led_from:
            return f"; {way.said}, so it is deleted for the cluster"
        return f"; {way.said}, and is told to delete it first"

    return _add_ground(cut_from(plan, fault_of), ground_of)


def _add_ground(plan: LogPlan, ground_of: Callable[[Decision], str]) -> LogPlan:
    """Append to each deletion's detail the ground that allows this deletion."""
    return plan.with_going(lambda going: replace(going, detail=f"{going.detail}{ground_of(going)}"))


@dataclass(frozen=True, slots=True)
class Way:
    """The ground on which a log's first segments may be deleted now.

    :param said: the ground, as a clause; "" if it needs no words.
    :param leader: node that leads the log; None if no node leads it, or no cluster is asked.
    :param led_from: start of that leader's log.
    """

    said: str
    leader: int | None = None
    leader_epoch: int = -1
    led_from: int = -1


@dataclass(frozen=True, slots=True)
class OwnLog:
    """A stopped node's log, as the node's own files show it. ``newest_epoch`` is -1 if they contain no leader
    epoch.
    """

    name: str
    topic_id: uuid.UUID
    partition: int
    node_id: int
    newest_epoch: int


def way_of(
    log: OwnLog, metadata: ClusterMetadata, word: LeadersWord | None, replicas_stopped: str
) -> Way | Fault:
    """Return the ground on which a log's first segments may be deleted, or the reason why there is none.

    :param replicas_stopped: a person's statement that all other nodes with a replica are stopped; "" without
        a statement. It counts only if no cluster is asked.
    """
    fault = replica_fault(metadata, log.topic_id, log.partition, log.node_id, replicas_stopped)
    if word is None:
        return fault or Way(f"other nodes are stopped: {replicas_stopped}" if replicas_stopped else "")
    live = word.of(log.name)
    if live is None or not live.replicas:
        return Reason.UNKNOWN, "the cluster doesn't say which nodes have its replicas" + (
            f": {live.refused[0]}" if live is not None and live.refused else ""
        )
    if live.topic_id != log.topic_id:
        return Reason.UNKNOWN, f"its files are of topic {log.topic_id}, and the cluster's is {live.topic_id}"
    if log.node_id not in live.replicas:
        return Reason.UNKNOWN, (
            f"the cluster has its replicas on {nodes_text(live.replicas)}, not on node {log.node_id}: its "
            "broker deletes the directory when it starts"
        )
    if live.leader is None:
        return _unled_way(log, live, word, fault)
    return _led_way(log, metadata, live)


def _unled_way(log: OwnLog, live: LivePartition, word: LeadersWord, fault: Fault | None) -> Way | Fault:
    if fault is not None and fault[0] is not Reason.REPLICAS_ELSEWHERE:
        return fault
    others = tuple(node_id for node_id in live.replicas if node_id != log.node_id)
    if running := tuple(node_id for node_id in others if node_id in word.running):
        runs = "run" if len(running) > 1 else "runs"
        return Reason.UNKNOWN, (
            f"no replica leads it, though {nodes_text(running)} {runs}: find out why no leader is elected"
        )
    if not others:
        return Way("no other node has a replica")
    runs = "don't run" if len(others) > 1 else "doesn't run"
    return Way(
        f"the cluster says that no replica leads it, and that {nodes_text(others)}, with a replica, {runs}"
    )


def _led_way(log: OwnLog, metadata: ClusterMetadata, live: LivePartition) -> Way | Fault:
    if live.leader is None or live.leader == log.node_id:
        return Reason.UNKNOWN, (
            f"the cluster still names node {log.node_id} as its leader: ask again when it has noticed that "
            "this node is stopped"
        )
    if live.log_start is None or live.leader_epoch is None:
        reason = f": {live.refused[0]}" if live.refused else ""
        return Reason.UNKNOWN, f"its leader, node {live.leader}, doesn't tell its log start{reason}"
    state = metadata.partition_states.get((log.topic_id, log.partition))
    newest = max(log.newest_epoch, -1 if state is None else state.leader_epoch)
    if live.leader_epoch < newest:
        return Reason.UNKNOWN, (
            f"its leader, node {live.leader}, is of epoch {live.leader_epoch}, and this node has seen "
            f"epoch {newest}: the cluster may have been set back to an older state"
        )
    return Way(
        f"node {live.leader} leads it from offset {live.log_start} on",
        live.leader,
        live.leader_epoch,
        live.log_start,
    )


AT_ONCE = 100
"""Number of segments that leaders are asked to delete at a time."""


def delete_segments(
    room: RoomNode, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove
) -> None:
    """See :meth:`storage_engine.model.broker.broker_store.BrokerStore.delete_segments`.

    :raises ChangedUnderUsError: the ground for a deletion no longer holds, or files of a log changed. The
        error names a segment that was not deleted.
    :raises BrokerError: the cluster doesn't answer, or it is unknown what it deleted. A second run continues.
    """
    held, cluster = room.locked, room.asked
    seen_node = room.seen or room.see(clock_ms())
    assert cluster is not None
    stopped = read_stopped(seen_node.node)
    prefixes = list(_prefixes(seen_node, segments))
    word = ask_leaders(cluster, [prefix.name for prefix in prefixes], clock_ms())
    going = [(prefix, _way(prefix, stopped, word)) for prefix in prefixes]
    _move_starts(room, cluster, going, word, meanwhile)
    for prefix, way in going:
        for segment in prefix.segments:
            meanwhile()
            alone = replace(prefix, segments=(segment,))
            again = ask_leaders(cluster, [alone.name], clock_ms())
            _check_again(alone, way, _way(alone, stopped, again))
            delete_oldest(held, room.root, (segment,), meanwhile, remove)


def _prefixes(seen_node: SeenNode, segments: Sequence[Segment]) -> Iterator[Prefix]:
    for prefix in prefixes_of(seen_node, segments):
        # Older segments that this run has deleted are still listed in the log.
        first = prefix.segments[0].base_offset
        remaining = tuple(files for files in prefix.log.segments if files.base_offset >= first)
        yield replace(prefix, log=replace(prefix.log, segments=remaining))


def _way(prefix: Prefix, stopped: StoppedNode | Fault, word: LeadersWord) -> Way:
    way = way_of_log(prefix.log, stopped, word, "")
    if isinstance(way, Way):
        return way
    raise cut_error(prefix, way[1])


def _move_starts(
    room: RoomNode,
    cluster: Cluster,
    going: Sequence[tuple[Prefix, Way]],
    word: LeadersWord,
    meanwhile: Callable[[], object],
) -> None:
    """Make sure that leaders have the same records. Then move their log starts behind these segments."""
    cuts: list[Cut] = []
    witnesses: dict[tuple[str, int], Witness] = {}
    for prefix, way in going:
        if way.leader is None:
            continue
        live = word.of(prefix.name.log)
        assert live is not None
        is_cut = prefix.boundary > way.led_from
        if is_cut:
            if fault := log_fault(prefix, live, word.facts.cluster_id) or boundary_fault(prefix, live):
                raise cut_error(prefix, fault)
            cuts.append(Cut(prefix, live))
        # A log that ends below its leader's start has no record to compare: its broker will delete all of it.
        if is_cut or end_offset(prefix.log) > way.led_from:
            at = max(prefix.boundary, way.led_from + 1)
            witnesses[prefix.key] = witness_of(prefix, at, live.high_watermark or 0)
    differences = find_differences(cluster, witnesses, meanwhile)
    for prefix, _ in going:
        if prefix.key in differences:
            raise cut_error(prefix, differences[prefix.key])
    if cuts:
        cut_logs(cluster, room.root, room.memory, cuts, meanwhile, is_held=False)


def _check_again(prefix: Prefix, before: Way, way: Way) -> None:
    """Make sure, right before a segment is deleted, that the ground for it still holds.

    :raises ChangedUnderUsError: the ground no longer holds.
    """
    state = "This segment was not deleted; older segments of the plan may have been."
    if before.leader is not None:
        state = (
            "This segment was not deleted here; older segments of the plan may have been. Its leader was "
            "told to delete the planned segments, and other nodes may have deleted records that the lake "
            "has."
        )
    if (way.leader, way.leader_epoch) != (before.leader, before.leader_epoch):
        raise cut_error(
            prefix, f"its leader has changed meanwhile. Before: {before.said}; now: {way.said}", state
        )
    if way.leader is not None and way.led_from < prefix.boundary:
        raise cut_error(prefix, f"{way.said}, so it still has records of the segment", state)


@dataclass(slots=True)
class RoomNode(OpenNode):
    """A stopped node, and its cluster.

    :param live: how to reach its cluster; None if no running cluster can be asked.
    """

    live: LiveBroker | None = None
    word: LeadersWord | None = None

    @property
    def asked(self) -> Cluster | None:
        if self.cluster is None and self.live is not None:
            self.cluster = Cluster(self.live)
        return self.cluster

    def read(self, now_ms: int) -> Node:
        """Read the node's files, and ask its cluster.

        :raises BrokerError: the cluster doesn't answer.
        :raises NotOnBrokerError: the directories belong to another cluster.
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
    """A stopped node in which room is made."""

    node: RoomNode

    def renewed(self, memory: HoldMemory) -> BrokerStore:
        return RoomStore(RoomNode(self.node.root, live=self.node.live, memory=memory))

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Return the snapshot with ``crashed`` false: after a crash, the plan keeps uncertain segments."""
        return replace(KafkaStore.snapshot(self, now_ms), crashed=False)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        seen_node = self.node.seen_of(snapshot, now_ms)
        topics = read_topic_settings(seen_node.node)
        plans = [
            plan_of_log(log, topics, settings, now_ms)
            for log, settings in logs_of(seen_node, snapshot, topics)
        ]
        stopped = read_stopped(seen_node.node, topics)
        by = Asked(seen_node.node, stopped, self.node.word, self.archivable(snapshot), request, topics)
        notices = plan_notices(seen_node.node, topics)
        if request.replicas_stopped:
            notices = (
                *notices,
                f"a person says that all other nodes are stopped: {request.replicas_stopped}",
            )
        text = f"a person asks for room, whatever the age: {request.reason}"
        cause = Trigger(Cause.MANUAL, Urgency.FORCED, text) if request.forced else ALWAYS
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
    """Return a node with its topics' settings and its logs' starts from its cluster's answers.

    :param node: read from its files.
    :raises NotOnBrokerError: the directories belong to another cluster.
    """
    check_cluster(node, word.facts.cluster_id, address)
    directories = tuple(_with_leaders_starts(directory, word) for directory in node.directories)
    return replace(node, live=word.facts, directories=directories)


def _with_leaders_starts(directory: LogDirectory, word: LeadersWord) -> LogDirectory:
    """Return a directory whose log starts are raised to the leaders', but not above the active segments.

    So the rules delete all segments below a leader's log start, whatever their age.
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

    :raises BadInputError: there is no node, or the client's settings can't be used.
    :raises MissingExtraError: the client isn't installed.
    :raises StoreBusyError: the node's own broker runs.
    """
    store = RoomStore(RoomNode(open_store(settings).node.root, live=settings.live, memory=memory))
    if store.limit is None and is_used_by_others(store):
        raise StoreBusyError(
            f"{store.node.root}: expected a node that is stopped, found that a process uses its log "
            "directories. Nothing was changed. Stop its broker, or clean the running node with --broker and "
            "--deletes-us."
        )
    return store
