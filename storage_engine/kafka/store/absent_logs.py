"""Logs without a directory on a node. The node's copy of the metadata tells whether it should have them.

The copy tells which topics exist, and which nodes have their partitions. If it can't be read, or ends earlier
than before, nothing is known about missing logs.

A missing log may lie in a directory that was taken out of ``log.dirs``. Nobody reads such a directory.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from storage_engine.core.wording import count_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.format.partition_metadata import cluster_of, log_id_text, text_of, topic_of
from storage_engine.kafka.metadata.cluster_metadata import LOG, ClusterMetadata, nodes_text
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_replicas
from storage_engine.kafka.store.archivable import log_id_of
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store import Absence, LogIdentity, may_be_one

_UNTOLD = "whether its topic was deleted isn't known"
ADVICE = (
    "put their directory back into log.dirs, or mount its disk, before a broker starts: it would create "
    "them again, empty"
)


def identities(node: Node) -> dict[str, LogIdentity]:
    """Return the identities of a node's logs, by name.

    :raises OSError: its copy of the metadata can't be read.
    """
    end = _metadata_end(node)
    return {log.name.log: _identity(directory, log, end) for directory, log in node.logs}


def _identity(directory: LogDirectory, log: PartitionLog, told_at: int) -> LogIdentity:
    if directory.meta is None or not directory.meta.cluster_id:
        return LogIdentity("", told_at)
    try:
        return LogIdentity(log_id_of(directory, log), told_at)
    except (StorageEngineError, OSError):
        return LogIdentity("", told_at)


def aside_path(node: Node, name: str, log_id: str) -> str:
    """Return the path of a log's directory that its broker has renamed to set it aside; "" without one.

    :param log_id: the log's id. If this id or a directory's id is unknown, the name decides.
    """
    for directory in node.directories:
        for log in directory.aside:
            if log.name.log != name or log.is_link:
                continue
            if may_be_one(log_id, _identity(directory, log, 0).log_id):
                return log.directory
    return ""


def _metadata_end(node: Node) -> int:
    """Return the end offset of a node's copy of the cluster's metadata; 0 if the node has no copy."""
    return next((end_offset(log) for _, log in node.logs if log.name.log == LOG), 0)


def absences(node: Node, logs: Mapping[str, LogIdentity]) -> dict[str, Absence]:
    """Return why logs that were on this node have no directory now.

    :raises OSError: a file can't be read.
    """
    metadata, end = _metadata(node), _metadata_end(node)
    by_text = (
        {}
        if isinstance(metadata, str)
        else {text_of(topic_id): topic_id for topic_id in metadata.topic_ids.values()}
    )

    def absence(name: str, log: LogIdentity) -> Absence:
        if node.failed:
            return _unknown(f"it may lie in {next(iter(node.failed))}, which can't be read")
        if isinstance(metadata, str):
            return _unknown(f"{_UNTOLD}: {metadata}")
        if end < log.told_at:
            return _unknown(
                f"{_UNTOLD}: the node's copy of the metadata ends at {end}, and ended at {log.told_at} "
                "before, so it is another copy or an older one"
            )
        topic, _, number = name.rpartition("-")
        if not log.log_id:
            topic_id = metadata.topic_ids.get(topic)
        elif cluster_of(log.log_id) not in node.cluster_ids:
            return _unknown(f"{_UNTOLD}: the node is of another cluster than the log was")
        else:
            topic_id = by_text.get(topic_of(log.log_id))
        if topic_id is None:
            return Absence(True, "its topic was deleted")
        result = _judge_by_replicas(node, metadata, topic_id, int(number))
        aside = "" if result.is_right else aside_path(node, name, log.log_id)
        return _unknown(f"its broker has set it aside as {aside}") if aside else result

    return {name: absence(name, log) for name, log in logs.items()}


def _unknown(reason: str) -> Absence:
    return Absence(False, reason, is_unknown=True)


def _metadata(node: Node) -> ClusterMetadata | str:
    """Return the metadata in a node's copy, or a text that says why they can't be read."""
    if node.properties is None or node.zookeeper:
        return "only a node of a cluster without ZooKeeper has a copy of its metadata"
    if not str(node.properties.node_id).isdecimal():
        return f"{node.root} names no node.id"
    metadata, unknown = read_replicas(node.properties.metadata_dir / LOG)
    return unknown or metadata


def _judge_by_replicas(node: Node, metadata: ClusterMetadata, topic_id: uuid.UUID, number: int) -> Absence:
    assert node.properties is not None
    state = metadata.partition_states.get((topic_id, number))
    if state is None or not state.replicas:
        return _unknown("the cluster's metadata on this node don't say which nodes have its replicas")
    if int(node.properties.node_id) not in state.replicas:
        return Absence(True, f"its replicas are on {nodes_text(state.replicas)} by now")
    return Absence(False, "by its copy of the cluster's metadata this node has a replica of it")


def missing_logs(node: Node, topics: TopicSettings) -> tuple[str, ...]:
    """Return the names of logs that have no directory on a node, though its metadata place a replica there.

    Return no name if the node's replicas are unknown, or if directories have failed. Failed directories are
    reported elsewhere. A log that its broker has set aside is not missing.

    :param topics: the node's topics, read from its files only.
    """
    node_ids = {directory.meta.node_id for directory in node.directories if directory.meta is not None}
    if topics.replicas_unknown or node.failed or len(node_ids) != 1:
        return ()
    (node_id,) = node_ids
    here = {log.name.log for _, log in node.logs}
    cluster_id = next(iter(node.cluster_ids), "")
    return tuple(
        name
        for name, (topic_id, partition) in sorted(_expected_logs(topics.metadata, node_id).items())
        if name not in here
        # The directory of a new topic may have been created since the node was read.
        and not any((directory.path / name).is_dir() for directory in node.directories)
        and not aside_path(node, name, log_id_text(cluster_id, topic_id, partition))
    )


def _expected_logs(metadata: ClusterMetadata, node_id: int | None) -> dict[str, tuple[uuid.UUID, int]]:
    """Return the logs that a node should have according to its metadata.

    A replica that is being added to the node, or removed from it, doesn't count.
    """
    topics = {topic_id: name for name, topic_id in metadata.topic_ids.items()}
    return {
        f"{topics[topic_id]}-{partition}": (topic_id, partition)
        for (topic_id, partition), state in metadata.partition_states.items()
        if topic_id in topics
        and node_id in state.replicas
        and node_id not in (*state.adding, *state.removing)
    }


def missing_text(missing: tuple[str, ...]) -> str:
    return (
        f"no directory of log.dirs has {count_text(len(missing), 'log')} that this node should have by the "
        f"cluster's metadata, {named_in_short(list(missing))}: a directory was taken out of log.dirs, or "
        "its disk isn't mounted"
    )
