"""A node as a store for retention. Only a stopped node is changed: its oldest segments are deleted."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.core import durable
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, StoreBusyError
from storage_engine.kafka.format import meta_properties
from storage_engine.kafka.format.batch_headers import sha256_of_range
from storage_engine.kafka.format.layout import (
    LogDirectory,
    Node,
    PartitionLog,
    data_paths,
    read_again,
    read_node,
)
from storage_engine.kafka.format.log_end import LogEnd, first_batch_ms, known_end
from storage_engine.kafka.metadata.log_faults import own_ends
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.retention_rules import RetentionSettings
from storage_engine.kafka.stopped.observed_tasks import ineffective_decisions, tasks_of
from storage_engine.kafka.stopped.observed_tasks import remove as remove_left_over
from storage_engine.kafka.stopped.stopped_release import (
    cut_to_stopped,
    delete_indexes,
    delete_oldest,
    indexes_below,
    signs_of_a_run,
)
from storage_engine.kafka.stopped.store_lock import holder_text, is_locked_by_us, lock_holder, runs
from storage_engine.kafka.store.absent_logs import absences, identities
from storage_engine.kafka.store.archivable import (
    archivable_of_node,
    contexts_of,
    contradiction_of,
    log_id_of,
    went_meanwhile,
)
from storage_engine.kafka.store.plan import (
    SeenLog,
    SeenNode,
    cut_to_archivable,
    deletes_at_ms,
    log_facts,
    logs_of,
    plan_log,
    plan_notices,
    undecided,
)
from storage_engine.model.broker.broker_store import (
    ALWAYS,
    BrokerStore,
    IdentifiedLogs,
    LockedStore,
    Remove,
    StoreConsumers,
    StoreCourse,
    StoreDependents,
    StoreLimit,
    StoreProcess,
    StoreReplicas,
    StoreSettings,
    check_manageable,
)
from storage_engine.model.broker.broker_tasks import BackgroundTasks, BrokerTask, LeftOver, TaskLimits
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import HoldMemory
from storage_engine.model.lag import Unread
from storage_engine.model.plan import DependentFile, LogPlan, Plan, PlanRequest, Reason, limit_plans
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import (
    Absence,
    Archivable,
    LogIdentity,
    LogSnapshot,
    Segment,
    SegmentContext,
    SegmentId,
    SegmentState,
    StoreSnapshot,
    group_by_log,
)

if TYPE_CHECKING:
    from storage_engine.kafka.cluster.client import Cluster
    from storage_engine.kafka.lag import Consumers, LagContext
    from storage_engine.kafka.stopped.store_lock import LockedDirectories


def log_snapshot(directory: LogDirectory, log: PartitionLog, end: LogEnd) -> LogSnapshot:
    """Return a log's snapshot for retention. All segments but the last are sealed.

    Records above the high watermark in the checkpoint count as not yet safe. If the checkpoint has no entry,
    no record counts as safe.
    """
    name = log.name.log
    watermark = min(directory.high_watermarks.get(name, 0), end.offset)
    segments = tuple(
        Segment(
            name,
            files.base_offset,
            files.log,
            SegmentState.ACTIVE if files is log.segments[-1] else SegmentState.SEALED,
            end=segment_end,
            companions=files.companions,
        )
        for files, segment_end in log.with_ends(end.offset)
    )
    return LogSnapshot(name, segments, end.offset, watermark, end.unread)


@dataclass(slots=True)
class OpenNode:
    """A node's log directories, as a process has opened them.

    :param root: its ``server.properties``, or one of its log directories.
    :param seen: the last snapshot's logs, and the facts from which the snapshot was made.
    :param memory: stores the state of the node's hold; None if the state isn't stored.
    """

    root: Path
    seen: SeenNode | None = None
    held: LockedDirectories | None = None
    cluster: Cluster | None = None
    memory: HoldMemory | None = None

    @property
    def asked(self) -> Cluster | None:
        """Return the running cluster that is asked in addition to the files; None if no cluster is asked."""
        return None

    @property
    def locked(self) -> LockedDirectories:
        """Return the node's directories, which this process must have locked.

        :raises StoreBusyError: this process hasn't locked the node.
        """
        if self.held is None:
            raise StoreBusyError(
                f"{self.root}: expected the node's directories to be locked by this process, found that they "
                "are not. Nothing was deleted. Lock them first."
            )
        return self.held

    def read(self, now_ms: int) -> Node:
        return read_node(self.root)

    def see(self, now_ms: int, read: Callable[[int], Node] | None = None) -> SeenNode:
        """Read the node's logs. A log is read again if its broker has deleted one of its files meanwhile."""
        return _see_node((read or self.read)(now_ms))

    def last(self) -> Node:
        """Return the node as it was read for the last snapshot. Without a snapshot, read it now."""
        return self.seen.node if self.seen else self.read(0)

    def seen_of(self, snapshot: StoreSnapshot, now_ms: int) -> SeenNode:
        return self.seen if self.seen and self.seen.logs is snapshot.logs else self.see(now_ms)

    def node_of(self, snapshot: StoreSnapshot, now_ms: int) -> Node:
        return self.seen.node if self.seen and self.seen.logs is snapshot.logs else self.read(now_ms)


@dataclass(frozen=True, slots=True)
class NodeTasks(BackgroundTasks):
    """The background tasks of a node's broker."""

    node: OpenNode

    def look(self, now_ms: int, limits: TaskLimits) -> tuple[BrokerTask, ...]:
        return tasks_of(self.node.read(now_ms), now_ms, limits)

    def check_deleted_topics(self, topics: Collection[str]) -> tuple[str, ...]:
        return tuple(ineffective_decisions(read_node(self.node.root), topics))

    def delete_left_over(self, left: LeftOver, meanwhile: Callable[[], object]) -> None:
        remove_left_over(left, self.node.locked.check, meanwhile)


@dataclass(frozen=True, slots=True)
class NodeLogs(IdentifiedLogs):
    """The identities of a node's logs, from its files and the cluster's metadata."""

    node: OpenNode

    def is_present(self, directory: Path) -> bool:
        return (directory / meta_properties.NAME).is_file()

    def read(self, snapshot: StoreSnapshot) -> Mapping[str, LogIdentity]:
        return identities(self.node.node_of(snapshot, snapshot.taken_at_ms))

    def absences(self, logs: Mapping[str, LogIdentity]) -> Mapping[str, Absence]:
        return absences(self.node.last(), logs)

    def own_ends(self, segments: Sequence[Segment]) -> Mapping[SegmentId, int]:
        node, of_logs = self.node.last(), group_by_log(segments)
        offsets: dict[SegmentId, int] = {}
        for directory, log in node.logs:
            bases = {segment.base_offset for segment in of_logs.get(log.name.log, ())}
            # If its running broker is deleting from a log, the next look finds the log's ends.
            with suppress(OSError):
                ends = own_ends(directory, log, bases)
                offsets |= {SegmentId(log.name.log, base): end for base, end in ends.items()}
        return offsets

    def contradiction(self, log: str, receipts: Sequence[Receipt]) -> str:
        seen_node = self.node.seen or self.node.see(0)
        if (seen_log := seen_node.known.get(log)) is None:
            raise went_meanwhile(f"log {log} of {self.node.root}")
        return contradiction_of(
            seen_log.log, log_id_of(seen_log.directory, seen_log.log), seen_log.end.offset, receipts
        )


@dataclass(frozen=True, slots=True)
class NodeReplicas(StoreReplicas):
    """Facts by which a node's logs are compared with replicas on other nodes."""

    node: OpenNode

    def contexts(self, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
        seen_node = self.node.seen
        node = seen_node.node if seen_node else read_node(self.node.root)
        logs = {log.name.log: (directory, log) for directory, log in node.logs}
        by_id: dict[SegmentId, SegmentContext] = {}
        for name, of_log in group_by_log(sorted(segments, key=attrgetter("log", "base_offset"))).items():
            if name not in logs:
                raise went_meanwhile(of_log[0].facts.path)
            by_id.update(contexts_of(*logs[name], of_log))
        return by_id

    def range_sha256(self, segments: Sequence[Segment], first: int, end: int) -> str | None:
        return sha256_of_range(segments, first, end)


@dataclass(frozen=True, slots=True)
class NodeConsumers(StoreConsumers):
    """The consumers of a node's logs, from its files or, if a cluster is asked, from the cluster."""

    node: OpenNode

    def unread(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], *, deleted: bool = False
    ) -> Unread:
        # Lag needs NumPy and Arrow, which a plan doesn't.
        from storage_engine.kafka.lag import unread_records

        consumers, context = self._consumption(snapshot, new_min_offsets)
        return unread_records(consumers, context, new_min_offsets, deleted=deleted)

    def unread_by_log(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int]
    ) -> Mapping[str, Unread]:
        from storage_engine.kafka.lag import unread_by_log

        consumers, context = self._consumption(snapshot, new_min_offsets)
        return unread_by_log(consumers, context, new_min_offsets)

    def _consumption(self, snapshot: StoreSnapshot, read: Collection[str]) -> tuple[Consumers, LagContext]:
        """Return the consumers, and the logs in which their positions are looked up."""
        from storage_engine.kafka.lag import consumers_of
        from storage_engine.kafka.store.lag_context import reading_context

        seen_node = self.node.seen_of(snapshot, snapshot.taken_at_ms)
        return consumers_of(seen_node.node, self.node.asked), reading_context(seen_node, snapshot, read)


@dataclass(frozen=True, slots=True)
class NodeCourse(StoreCourse):
    """The coming deletions, by the topics' settings."""

    node: OpenNode

    def deletes_at_ms(self, snapshot: StoreSnapshot, now_ms: int) -> Mapping[SegmentId, int | None]:
        seen_node = self.node.seen_of(snapshot, snapshot.taken_at_ms)
        times: dict[SegmentId, int | None] = {}
        for log, settings in logs_of(seen_node, snapshot, read_topic_settings(seen_node.node)):
            # Nobody knows when remote storage has a segment, and so when it is deleted.
            if isinstance(settings, str) or settings.is_copied or not log.seen.sealed:
                continue
            # Nothing is known of a log that can't be read, or from which its running broker is deleting.
            with suppress(OSError):
                facts = log_facts(log, settings, now_ms, until_kept=False)
                moments = deletes_at_ms(facts, settings, now_ms)
                times |= {SegmentId(log.seen.name, offset): at_ms for offset, at_ms in moments.items()}
        return times

    def oldest_message_ms(self, snapshot: StoreSnapshot) -> int | None:
        node = self.node.node_of(snapshot, snapshot.taken_at_ms)
        times = (first_batch_ms(log.segments[0]) for _, log in node.logs if log.segments)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class NodeProcess(StoreProcess):
    """The process that has locked the log directories, and the files that change when a broker runs."""

    data_paths: tuple[Path, ...]

    def user(self) -> str:
        return next(filter(None, map(holder_text, self.data_paths)), "")

    def is_user_ours(self) -> bool:
        locked = [path for path in self.data_paths if lock_holder(path) is not None]
        return bool(locked) and all(map(is_locked_by_us, locked))

    def signs_of_a_run(self, directories: Collection[Path]) -> tuple[Path, ...]:
        return tuple(signs_of_a_run(self.data_paths, directories))


@dataclass(frozen=True, slots=True)
class SegmentIndexes(StoreDependents):
    """The indexes of a stopped node, which its broker can create again."""

    node: OpenNode

    def find(self, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        return tuple(indexes_below(self.node.last(), min_offsets))

    def delete(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        if files:
            delete_indexes(self.node.locked, files, meanwhile, remove)


NAME = "kafka"
DISKS = "log directory's disk"
"""The name of a disk in messages. In a snapshot, the last directory's disk stands for the indexes' disks."""


@dataclass(slots=True)
class KafkaStore(BrokerStore):
    """A node's log directories, named by its ``server.properties`` or by one of these directories."""

    node: OpenNode

    def close(self) -> None:
        self.node.cluster = None

    @property
    def data_paths(self) -> tuple[Path, ...]:
        return data_paths(self.node.root)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        self.node.seen = seen_node = self.node.see(now_ms)
        node = seen_node.node
        *others, last = (DiskUsage.of(directory.path) for directory in node.directories)
        return StoreSnapshot(
            broker=NAME,
            root=str(self.node.root),
            taken_at_ms=now_ms,
            logs=seen_node.logs,
            log_disks=tuple(others) or (last,),
            dependents_disk=last,
            crashed=not runs(node) and node.left_uncleanly,
            used_bytes=sum([segment.disk_bytes for log in seen_node.logs for segment in log.segments]),
        )

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        """Decide as the broker would, from indexes and the cluster's metadata.

        A stopped node's plan deletes only segments that may be deleted without its broker.
        """
        seen_node = self.node.seen_of(snapshot, now_ms)
        topics = read_topic_settings(seen_node.node)
        plans = tuple(
            plan_of_log(log, topics, settings, now_ms)
            for log, settings in logs_of(seen_node, snapshot, topics)
        )
        notices = plan_notices(seen_node.node, topics, forced=request.forced)
        if not runs(seen_node.node):
            plans = cut_to_stopped(seen_node.node, plans, topics, request.replicas_stopped)
            # A running broker decides by itself, and also deletes segments that no lake has.
            plans = self.cut_to_archivable(snapshot, plans, topics)
            plans = limit_plans(plans, request, snapshot.disks, DISKS)
            if request.replicas_stopped:
                notice = f"a person says that all other nodes are stopped: {request.replicas_stopped}"
                notices = (*notices, notice)
        return Plan(snapshot.root, now_ms, (ALWAYS,), plans, notices)

    @property
    def identities(self) -> NodeLogs:
        return NodeLogs(self.node)

    @property
    def consumers(self) -> NodeConsumers:
        return NodeConsumers(self.node)

    @property
    def course(self) -> NodeCourse:
        return NodeCourse(self.node)

    @property
    def process(self) -> NodeProcess:
        return NodeProcess(self.data_paths)

    @property
    def dependents(self) -> SegmentIndexes | None:
        return SegmentIndexes(self.node)

    @property
    def replicas(self) -> NodeReplicas:
        return NodeReplicas(self.node)

    @property
    def tasks(self) -> NodeTasks:
        return NodeTasks(self.node)

    @property
    def limit(self) -> StoreLimit | None:
        if not self.node.root.is_dir():
            return None
        reason = (
            f"{self.node.root}: expected a node's server.properties, found one of its log directories, "
            "which can only be read. Nothing was changed. Name the file as STORE."
        )
        return StoreLimit(reason, may_archive=False)

    def archivable(self, snapshot: StoreSnapshot) -> Archivable:
        """Return the archivable segments.

        They are fully replicated, and end at or before the first offset of an open transaction. No segment of
        a compacted log, or of a log whose segments are copied to remote storage, is archivable.
        """
        node = self.node.node_of(snapshot, snapshot.taken_at_ms)
        return archivable_of_node(node, read_topic_settings(node), snapshot.logs)

    def cut_to_archivable(
        self, snapshot: StoreSnapshot, plans: Sequence[LogPlan], topics: TopicSettings | None = None
    ) -> tuple[LogPlan, ...]:
        """Cut plans for our own deletions: segments that may not be archived yet stay, with all newer ones.

        A whole log is kept if its topic uses remote storage, even if its segments may be archived.

        :param topics: the topics' settings; None to read them.
        """
        going = {plan.log for plan in plans if plan.to_delete}
        if not going:
            return tuple(plans)
        node = self.node.node_of(snapshot, snapshot.taken_at_ms)
        topics = topics or read_topic_settings(node)
        logs = (log for log in snapshot.logs if log.name in going)
        archivable = archivable_of_node(node, topics, logs)
        may = {segment.id for segment in archivable.segments}
        return tuple(
            cut_to_archivable(plan, archivable, may, has_remote=topics.has_remote(plan.log)) for plan in plans
        )

    @contextmanager
    def lock(self) -> Iterator[LockedStore]:
        """Keep brokers away until the block ends.

        :raises BadInputError: only a single log directory is named.
        :raises StoreBusyError: a broker runs, or another run has locked the node.
        """
        # psutil, which reading a node doesn't need.
        from storage_engine.kafka.stopped.store_lock import lock

        check_manageable(self)
        with lock(self.data_paths) as held:
            self.node.held = held
            try:
                yield held
            finally:
                self.node.held = None

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        delete_oldest(self.node.locked, self.node.root, segments, meanwhile, remove)


def open_store(settings: StoreSettings) -> KafkaStore:
    """Open a node.

    :raises BadInputError: there is no node, or settings were given in addition to its own file.
    """
    if settings.broker_conf is not None or settings.overrides:
        raise BadInputError(
            f"{settings.root}: expected only a node's server.properties, found "
            f"{'another configuration file' if settings.broker_conf else 'settings'}. Nothing was changed. "
            "Name that file as STORE."
        )
    store = KafkaStore(OpenNode(Path(settings.root)))
    store.data_paths  # noqa: B018  raises if the file has a fault
    return store


def plan_of_log(
    seen_log: SeenLog, topics: TopicSettings, settings: RetentionSettings | str, now_ms: int
) -> LogPlan:
    """Decide about a log. If one of its files can't be read, all of its segments stay."""
    try:
        return plan_log(seen_log, topics, settings, now_ms)
    except FileNotFoundError:
        # Its running broker is deleting: the next look shows the remaining segments.
        return undecided(seen_log.seen, Reason.UNKNOWN, "a segment vanished while it was read: plan again")
    except OSError as error:
        return undecided(seen_log.seen, Reason.UNKNOWN, f"a file can't be read: {reason_text(error)}")


def _see_node(node: Node) -> SeenNode:
    seen_logs = {}
    for directory, listed in node.logs:
        if listed.name.is_internal:
            continue
        # A log with a file that can't be read doesn't keep other logs from being read.
        if (log_and_end := read_again(listed, partial(known_end, directory))) is not None:
            log, end = log_and_end
            seen_logs[log.name.log] = SeenLog(log_snapshot(directory, log, end), directory, log, end)
    snapshots = tuple(seen_log.seen for seen_log in seen_logs.values())
    return SeenNode(snapshots, _with_seen_logs(node, seen_logs), seen_logs)


def _with_seen_logs(node: Node, seen_logs: Mapping[str, SeenLog]) -> Node:
    """Return a node with its logs as they were read, without logs that vanished afterwards."""
    directories = tuple(
        replace(
            directory,
            logs=tuple(
                log if log.name.is_internal else seen_logs[log.name.log].log
                for log in directory.logs
                if log.name.is_internal or log.name.log in seen_logs
            ),
        )
        for directory in node.directories
    )
    same = all(
        len(new.logs) == len(old.logs) and all(map(operator.is_, new.logs, old.logs))
        for new, old in zip(directories, node.directories, strict=True)
    )
    return node if same else replace(node, directories=directories)
