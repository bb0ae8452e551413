"""What of a stopped node may go to make room in it, and why the rest stays.

By the rules of retention, or because a person asks for it; then only what is certain, may be archived, has a
way by its cluster's word, and is needed for the space that is asked for.

Of what may go, that goes which the free space needs that a person asks for. Disk by disk: what is deleted
for the cluster already goes first, then what has expired, then what goes sooner as a person asks; of each the
oldest first. The others stay.

On what ground a stopped node's log may lose its first segments, by its cluster's own word. Pure. There are
three. No other node has a replica. No broker runs that has one: the cluster says so now, or, where none is
asked, a person does. Or another node leads the log. Below that leader's start the records are deleted
already, and every replica drops them when it follows. Above it the leader is told to begin further on, before
anything goes here. What isn't known is none.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from storage_engine.core.wording import bytes_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format import checkpoints
from storage_engine.kafka.format.layout import LivePartition, LogDirectory, Node, PartitionLog
from storage_engine.kafka.live.cut_faults import (
    Prefix,
    above_limit,
    beginning_fault,
    files_fault,
    limit_of,
    log_fault,
)
from storage_engine.kafka.live.observe import LeadersWord
from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata, nodes_text, replica_fault
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.kafka.stopped.stopped_plan import StoppedNode, kept, topic_or_fault
from storage_engine.kafka.store.plan import cut_to_archivable
from storage_engine.model.plan.plan import Decision, LogPlan, PlanRequest, Reason, wanted_bytes
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store.store import Archivable, DiskUsage, Segment, SegmentId

Fault = tuple[Reason, str]


@dataclass(frozen=True, slots=True)
class Shortage:
    """Free space that a disk lacks.

    :param wanted_bytes: bytes that are to be free on it; None: its size isn't known.
    :param lacking_bytes: how many of these aren't free; None: the disk's level isn't known.
    """

    wanted_bytes: int | None
    lacking_bytes: int | None


def shortage_of(disk: DiskUsage, request: PlanRequest) -> Shortage:
    """Return what a disk lacks of the free space that is asked for."""
    wanted = wanted_bytes(disk, request)
    if wanted is None or disk.usable_bytes is None:
        return Shortage(None, None)
    return Shortage(wanted, max(wanted - disk.usable_bytes, 0))


def is_bounded(request: PlanRequest) -> bool:
    """Return whether a request says how much space is to be free."""
    return request.free_bytes is not None or request.target_used_percent is not None


def only_needed(
    plans: Sequence[LogPlan], shortages: Mapping[int, Shortage], deleted: Set[SegmentId]
) -> tuple[LogPlan, ...]:
    """Keep the segments that the wanted space doesn't need.

    :param plans: of all that may go.
    :param shortages: by the disk's device.
    :param deleted: segments whose records are deleted for the cluster already.
    """
    needed = set(_needed(plans, shortages, deleted))

    def decided(one: Decision) -> Decision:
        if not one.deletes or one.segment.id in needed:
            return one
        shortage = shortages.get(one.segment.facts.device, Shortage(None, None))
        if shortage.wanted_bytes is None:
            return replace(one, reason=Reason.UNKNOWN, detail="how full its disk is isn't known")
        why = f"its disk has {bytes_text(shortage.wanted_bytes)} free without it; otherwise: {one.detail}"
        return replace(one, reason=Reason.TARGET_REACHED, detail=why)

    return tuple(LogPlan(plan.log, tuple(map(decided, plan.decisions))) for plan in plans)


def _needed(
    plans: Sequence[LogPlan], shortages: Mapping[int, Shortage], deleted: Set[SegmentId]
) -> list[SegmentId]:
    lacking = {device: one.lacking_bytes or 0 for device, one in shortages.items()}
    queues = [[one for one in plan.decisions if one.deletes] for plan in plans]
    heads = [(*_order(queue[0], deleted), number, 0) for number, queue in enumerate(queues) if queue]
    heapq.heapify(heads)
    found = []
    while heads:
        *_, number, place = heapq.heappop(heads)
        segment: Segment = queues[number][place].segment
        if lacking.get(segment.facts.device, 0) <= 0:
            continue
        lacking[segment.facts.device] -= segment.disk_bytes
        found.append(segment.id)
        if place + 1 < len(queues[number]):
            heapq.heappush(heads, (*_order(queues[number][place + 1], deleted), number, place + 1))
    return found


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
"""Why segments stay that a person may have deleted sooner."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What decides beside the rules of retention.

    :param stopped: the node by its own files, or what keeps all of its logs.
    :param word: of its cluster; None: none is asked.
    """

    node: Node
    stopped: StoppedNode | Fault
    word: LeadersWord | None
    archivable: Archivable
    request: PlanRequest
    topics: TopicSettings


def room_plans(plans: Sequence[LogPlan], by: Asked) -> tuple[LogPlan, ...]:
    """Return what goes of each log to make room.

    :param plans: by the rules of retention.
    :raises OSError: a file can't be read.
    """
    logs = {log.name.log: (directory, log) for directory, log in by.node.logs}
    certain = cache(_recovery_points)
    found, deleted = [], set[SegmentId]()
    may = {segment.id for segment in by.archivable.segments}
    for plan in plans:
        directory, log = logs[plan.log]
        if by.request.forced:
            plan = _forced(plan, by.request.reason)
        if by.node.left_uncleanly and not directory.fault:
            plan = _certain(plan, certain(directory.path).get(plan.log, 0))
        plan = cut_to_archivable(plan, by.archivable, may, has_remote=by.topics.has_remote(plan.log))
        if plan.to_delete:
            way = way_of_log(log, by.stopped, by.word, by.request.replicas_stopped)
            if not isinstance(way, Way):
                plan = kept(plan, way)
            else:
                plan = _by_way(plan, way, directory, log, by.word)
                deleted |= {one.id for one in plan.to_delete if one.end_offset <= way.led_from}
        found.append(plan)
    if not is_bounded(by.request):
        return tuple(found)
    disks = (DiskUsage.of(directory.path) for directory in by.node.directories)
    shortages = {disk.device: shortage_of(disk, by.request) for disk in disks if disk.device is not None}
    return only_needed(found, shortages, deleted)


def way_of_log(
    log: PartitionLog, stopped: StoppedNode | Fault, word: LeadersWord | None, replicas_stopped: str
) -> Way | Fault:
    """Return on what ground a log may lose its first segments, or why there is none. Reads small files."""
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
    newest = max((one.epoch for one in epochs), default=-1)
    own = OwnLog(log.name.log, topic_id, log.name.partition, stopped.node_id, newest)
    return way_of(own, stopped.metadata, word, replicas_stopped)


def _recovery_points(directory: Path) -> Mapping[str, int]:
    path = directory / checkpoints.RECOVERY_POINT
    return checkpoints.read_offsets(path) if path.exists() else {}


def _cut_from(plan: LogPlan, fault_of: Callable[[Decision], Fault | None]) -> LogPlan:
    """Return a log's plan in which nothing goes from the first segment on that something speaks against."""

    def decided() -> Iterator[Decision]:
        stops = False
        for one in plan.decisions:
            if not one.deletes:
                yield one
            elif stops:
                yield Decision(one.segment, Reason.BEHIND_KEPT, "an older segment of its log stays")
            elif (fault := fault_of(one)) is not None:
                stops = True
                yield Decision(one.segment, *fault)
            else:
                yield one

    return LogPlan(plan.log, tuple(decided()))


def _forced(plan: LogPlan, reason: str) -> LogPlan:
    """Delete what only its age or size keeps, as a person asks."""

    def decided() -> Iterator[Decision]:
        stops = False
        for one in plan.decisions:
            stops = stops or not (one.deletes or one.reason in _ONLY_AGE)
            if stops or one.deletes:
                yield one
            else:
                yield Decision(one.segment, Reason.FORCED, f"a person asks for room: {reason}")

    return LogPlan(plan.log, tuple(decided()))


def _certain(plan: LogPlan, recovery_point: int) -> LogPlan:
    """Keep what a broker that did not stop cleanly checks again, and may cut (LogLoader#recoverLog)."""
    why = (
        f"its broker did not stop cleanly, and flushed this log up to offset {recovery_point}: what lies "
        "above is certain once it has started"
    )
    return _cut_from(
        plan, lambda one: (Reason.STORE_CRASHED, why) if one.segment.end_offset > recovery_point else None
    )


def _by_way(
    plan: LogPlan, way: Way, directory: LogDirectory, log: PartitionLog, word: LeadersWord | None
) -> LogPlan:
    """Keep what a leader on another node has, and can't be told to delete."""
    live = None if word is None else word.of(plan.log)
    if way.leader is None or live is None or word is None:
        ground = f"; {way.said}" if way.said else ""
        return _told(plan, lambda _: ground)
    prefix = Prefix(log.name, directory, log, plan.to_delete)
    fault = (
        log_fault(prefix, live, word.facts.cluster_id) or beginning_fault(prefix, live) or files_fault(prefix)
    )

    def fault_of(one: Decision) -> Fault | None:
        end = one.segment.end_offset
        if end <= way.led_from:
            return None
        if fault:
            reason, why = Reason.REPLICAS_ELSEWHERE, fault
        elif end > limit_of(live):
            reason, why = Reason.NOT_REPLICATED, above_limit(end, live)
        else:
            return None
        return reason, f"{way.said}, and can't be told to begin behind it: {why} (otherwise: {one.detail})"

    def said(one: Decision) -> str:
        if one.segment.end_offset <= way.led_from:
            return f"; {way.said}, so it is deleted for the cluster"
        return f"; {way.said}, and is told to begin behind it first"

    return _told(_cut_from(plan, fault_of), said)


def _told(plan: LogPlan, said: Callable[[Decision], str]) -> LogPlan:
    """Add to why each segment goes on what ground it may."""
    return LogPlan(
        plan.log,
        tuple(
            replace(one, detail=f"{one.detail}{said(one)}") if one.deletes else one for one in plan.decisions
        ),
    )


@dataclass(frozen=True, slots=True)
class Way:
    """The ground on which a log may lose its first segments now.

    :param said: the ground, as a clause.
    :param leader: node that leads the log; None: none does.
    :param leader_epoch: how often the log has changed its leader.
    :param led_from: where that leader's log begins.
    """

    said: str
    leader: int | None = None
    leader_epoch: int = -1
    led_from: int = -1


@dataclass(frozen=True, slots=True)
class OwnLog:
    """A stopped node's log by its own files.

    :param name: ``<topic>-<partition>``.
    :param newest_epoch: of the leaders that it has followed or been; -1: none is known.
    """

    name: str
    topic_id: uuid.UUID
    partition: int
    node_id: int
    newest_epoch: int


def way_of(
    log: OwnLog, metadata: ClusterMetadata, word: LeadersWord | None, replicas_stopped: str
) -> Way | Fault:
    """Return on what ground a log may lose its first segments, or why there is none.

    :param metadata: the node's own copy of the cluster's.
    :param word: of the running cluster; None: none is asked.
    :param replicas_stopped: where no cluster is asked, a person says that all other nodes with a replica are
        stopped; "": nobody does.
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
        return _unled(log, live, word, fault)
    return _led(log, metadata, live)


def _unled(log: OwnLog, live: LivePartition, word: LeadersWord, fault: Fault | None) -> Way | Fault:
    if fault is not None and fault[0] is not Reason.REPLICAS_ELSEWHERE:
        return fault
    others = tuple(one for one in live.replicas if one != log.node_id)
    if running := tuple(one for one in others if one in word.running):
        runs = "run" if len(running) > 1 else "runs"
        return Reason.UNKNOWN, (
            f"no replica leads it, though {nodes_text(running)} {runs}: look for what keeps it from leading"
        )
    if not others:
        return Way("no other node has a replica")
    runs = "don't run" if len(others) > 1 else "doesn't run"
    return Way(f"the cluster says that none leads it, and that {nodes_text(others)}, with a replica, {runs}")


def _led(log: OwnLog, metadata: ClusterMetadata, live: LivePartition) -> Way | Fault:
    if live.leader is None or live.leader == log.node_id:
        return Reason.UNKNOWN, (
            f"the cluster still takes node {log.node_id} for its leader: ask again when it has noticed that "
            "this node is stopped"
        )
    if live.log_start is None or live.leader_epoch is None:
        why = f": {live.refused[0]}" if live.refused else ""
        return Reason.UNKNOWN, f"its leader, node {live.leader}, doesn't say where it begins{why}"
    state = metadata.partition_states.get((log.topic_id, log.partition))
    known = max(log.newest_epoch, -1 if state is None else state.leader_epoch)
    if live.leader_epoch < known:
        return Reason.UNKNOWN, (
            f"its leader, node {live.leader}, is of epoch {live.leader_epoch}, and this node has seen epoch "
            f"{known}: the cluster may be an older state of itself"
        )
    return Way(
        f"node {live.leader} leads it from offset {live.log_start} on",
        live.leader,
        live.leader_epoch,
        live.log_start,
    )
