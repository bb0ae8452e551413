"""Deletion of a stopped node's oldest segments, and reasons to keep segments while the broker is stopped.

No checkpoint is written. If a log has lost its first segments, a broker takes the first remaining segment as
the log's start, even if ``log-start-offset-checkpoint`` contains a lower offset. If we raised that entry
first, the broker would also delete segments whose deletion we refuse a moment later.

The rules of retention tell which segments have expired. A running broker also knows facts that its files
don't contain. If such a fact about a log isn't certain, the whole log stays, and the reason names the fact.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.core import durable
from storage_engine.exceptions import ChangedUnderUsError, StorageEngineError
from storage_engine.kafka.format import checkpoints, meta_properties, partition_metadata
from storage_engine.kafka.format.file_names import DirectoryState, FileKind, FileState, log_file
from storage_engine.kafka.format.layout import Node, PartitionLog
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.metadata.cluster_metadata import LOG, ClusterMetadata, replica_fault
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_replicas
from storage_engine.model.broker.broker_store import Remove
from storage_engine.model.plan import DependentFile, LogPlan, Reason
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.same_bytes.removing import remove_unchanged

if TYPE_CHECKING:
    from storage_engine.kafka.stopped.store_lock import LockedDirectories

_NODE_SIGNS = (
    meta_properties.CLEAN_SHUTDOWN,
    meta_properties.NAME,
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.HIGH_WATERMARK,
    checkpoints.CLEANER,
)
_LOG_SIGNS = (partition_metadata.NAME, checkpoints.LEADER_EPOCHS)
_INDEXES = {FileKind.OFFSET_INDEX: "offset index", FileKind.TIME_INDEX: "time index"}


def delete_oldest(
    held: LockedDirectories,
    root: Path,
    segments: Sequence[Segment],
    meanwhile: Callable[[], object],
    remove: Remove,
) -> None:
    """Delete the oldest segments of logs, each with its producers' snapshot and its transaction index.

    :param segments: oldest first in each log.
    :param meanwhile: called before each segment.
    :raises ChangedUnderUsError: another process changes the node's files, or has removed a lock. The named
        segment was not deleted.
    """
    for segment in segments:
        meanwhile()
        held.check()
        _check_is_oldest(segment)
        # A power loss may bring back a segment that a killed run removed. It would lie before a hole.
        durable.fsync_path(Path(segment.facts.path).parent)
        remove_unchanged(segment, root, remove)


def _check_is_oldest(segment: Segment) -> None:
    """Make sure that a segment is the oldest of its log, and that the next segment exists.

    :raises ChangedUnderUsError: an older segment exists, or the next segment is missing.
    """
    path = Path(segment.facts.path)
    offsets = sorted(offset for offset, kind, _ in _files_in_use(path.parent) if kind is FileKind.LOG)
    expected = [segment.base_offset, segment.end_offset]
    if segment.state is SegmentState.SEALED and offsets[:2] == expected:
        return
    raise ChangedUnderUsError(
        f"{path}: expected the oldest segment of its log, with the next one at {segment.end_offset}, found "
        f"segments at {', '.join(map(str, offsets[:3])) or 'no offset'}. It was not deleted; older segments "
        "of the plan may have been. Find out who changes the node's files while its broker is stopped.",
        path=str(path),
    )


def indexes_below(node: Node, min_offsets: Mapping[str, int]) -> Iterator[DependentFile]:
    """Yield the index files whose base offset is below their log's offset in ``min_offsets``.

    An index is also yielded if its segment no longer exists, because a broker removes such an index, too.

    :param min_offsets: the logs' new first offsets, by the name of the log.
    :raises OSError: a directory can't be read.
    """
    for _, log in node.logs:
        name = log.name.log
        if name not in min_offsets:
            continue
        for offset, kind, path in sorted(_files_in_use(log.path)):
            if kind in _INDEXES and offset < min_offsets[name]:
                reason = f"its segment lies below the log's start {min_offsets[name]}"
                yield DependentFile(_INDEXES[kind], FileFacts.of(path), reason)


def delete_indexes(
    held: LockedDirectories, files: Sequence[DependentFile], meanwhile: Callable[[], object], remove: Remove
) -> None:
    """Delete the indexes of deleted segments, and flush their directories.

    :raises ChangedUnderUsError: a lock was removed.
    """
    by_directory: dict[Path, list[Path]] = {}
    for path in (Path(file.facts.path) for file in files):
        by_directory.setdefault(path.parent, []).append(path)
    for directory, paths in by_directory.items():
        meanwhile()
        held.check()
        with durable.opened(
            directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        ) as descriptor:
            for path in paths:
                if not os.path.lexists(path.with_suffix(".log")):
                    remove(path, descriptor)
            os.fsync(descriptor)


def signs_of_a_run(log_directories: Sequence[Path], logs: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that change when a node's broker runs, or when a log is replaced.

    A broker that starts removes the marker of a clean stop first. It writes checkpoints within a minute, and
    again when it stops. The leaders' epochs change with a log's first segment.

    :param logs: directories of the logs that lose segments.
    :raises OSError: a directory can't be read.
    """
    yield from (path / name for path in log_directories for name in _NODE_SIGNS)
    for log in logs:
        yield from (log / name for name in _LOG_SIGNS)
        # The broker writes to the newest segment.
        newest = max((file for file in _files_in_use(log) if file[1] is FileKind.LOG), default=None)
        if newest is not None:
            yield Path(newest[2])


def _files_in_use(directory: Path) -> Iterator[tuple[int, FileKind, str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            file = log_file(entry.name)
            if file is not None and file.state is FileState.IN_USE and entry.is_file(follow_symlinks=False):
                yield file.offset, file.kind, entry.path


Fault = tuple[Reason, str]
_UNFINISHED = (FileState.SWAP, FileState.CLEANED)


@dataclass(frozen=True, slots=True)
class StoppedNode:
    """State of a stopped node, as its files show it.

    :param copied: logs that its broker copies to another log directory.
    """

    node_id: int
    metadata: ClusterMetadata
    copied: frozenset[str]


def cut_to_stopped(
    node: Node, plans: Sequence[LogPlan], topics: TopicSettings, replicas_stopped: str = ""
) -> tuple[LogPlan, ...]:
    """Keep all segments of logs in which nothing can be deleted while the node's broker is stopped.

    :param replicas_stopped: a person's statement that all other nodes with a replica are stopped; "" without
        a statement.
    """
    if not any(plan.to_delete for plan in plans):
        return tuple(plans)
    stopped = stopped_node(node, topics)
    logs = {log.name.log: log for _, log in node.logs}

    def fault_of(log: PartitionLog) -> Fault | None:
        if not isinstance(stopped, StoppedNode):
            return stopped
        topic_id = topic_or_fault(log, stopped)
        if not isinstance(topic_id, uuid.UUID):
            return topic_id
        return replica_fault(
            stopped.metadata, topic_id, log.name.partition, stopped.node_id, replicas_stopped
        )

    def cut_plan(plan: LogPlan) -> LogPlan:
        fault = fault_of(logs[plan.log]) if plan.to_delete else None
        return plan if fault is None else keep_all(plan, fault)

    return tuple(map(cut_plan, plans))


_CRASHED: Fault = (
    Reason.STORE_CRASHED,
    "its broker did not stop cleanly, so the ends of its logs are not certain: start it, let it recover, and "
    "stop it cleanly",
)


def stopped_node(node: Node, topics: TopicSettings | None = None) -> StoppedNode | Fault:
    """Return a cleanly stopped node's state from its files, or the reason to keep all of its logs."""
    return _CRASHED if node.left_uncleanly else read_stopped(node, topics)


def read_stopped(node: Node, topics: TopicSettings | None = None) -> StoppedNode | Fault:
    """Return the node's state from its files, or the reason to keep all of its logs.

    :param topics: its topics, as read before. If None, or if its cluster was asked, the files are read here.
    """
    if node.properties is None or node.zookeeper:
        why = "no segment is deleted in a cluster with ZooKeeper, or if only a log directory is named"
        return Reason.UNKNOWN, why
    for directory in node.directories:
        if directory.fault and directory.path == node.properties.metadata_dir:
            return (
                Reason.UNKNOWN,
                f"no broker starts without the directory of its metadata: {directory.fault}",
            )
    # Nothing is deleted from a directory with a fault, so it needn't belong to this node.
    metas = [directory.meta for directory in node.directories if not directory.fault]
    ids = {(meta.cluster_id, meta.node_id) if meta is not None else None for meta in metas}
    first, *others = ids or {None}
    if others or first is None or first[1] is None or str(first[1]) != node.properties.node_id:
        why = "its log directories don't all name one cluster and the node.id of server.properties"
        return Reason.UNKNOWN, why
    if topics is None or node.live is not None:
        metadata, unknown = read_replicas(node.properties.metadata_dir / LOG)
    else:
        metadata, unknown = topics.metadata, topics.replicas_unknown
    if unknown:
        return Reason.UNKNOWN, unknown
    copied = frozenset(
        log.name.log
        for directory in node.directories
        for log in directory.aside
        if log.name.state is DirectoryState.FUTURE
    )
    return StoppedNode(first[1], metadata, copied)


def topic_or_fault(log: PartitionLog, stopped: StoppedNode) -> uuid.UUID | Fault:
    """Return the id of a log's topic by the log's files, or the reason why these files forbid a deletion."""
    if unfinished := [facts.path for state, facts in log.left_over if state in _UNFINISHED]:
        return Reason.UNKNOWN, f"{unfinished[0]}: its broker has to finish what the cleaner was doing"
    if log.name.log in stopped.copied:
        return Reason.UNKNOWN, "its broker copies it to another log directory"
    try:
        topic_id = read_topic_id(f"{log.directory}/{PARTITION_METADATA}")
    except (StorageEngineError, OSError) as error:
        return Reason.UNKNOWN, f"its topic isn't certain: {reason_of(error)}"
    if stopped.metadata.topic_ids.get(log.name.topic) != topic_id:
        return Reason.UNKNOWN, "the cluster's metadata on this node have no such topic"
    return topic_id


def keep_all(plan: LogPlan, fault: Fault) -> LogPlan:
    """Return a log's plan without deletions. The fault becomes the reason to keep each segment."""
    reason, detail = fault
    return plan.with_going(
        lambda going: replace(
            going, reason=reason, detail=f"{detail} (by its broker's rules: {going.detail})"
        )
    )
