"""Logs that a node has no directory of: whether it should have one, by its own copy of the metadata.

The copy says which topics there are, and which nodes have their partitions. Where it can't be read, or
reaches less far than it did, nothing is known of what isn't here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.format.partition_metadata import cluster_of, text_of, topic_of
from storage_engine.kafka.metadata.cluster_metadata import LOG, ClusterMetadata
from storage_engine.kafka.metadata.replica_state import nodes_text
from storage_engine.kafka.metadata.topic_settings import read_replicas
from storage_engine.kafka.store.archiving import log_id_of
from storage_engine.model.store.known_logs import Absence, LogIdentity, may_be_one

_UNTOLD = "whether its topic was deleted isn't known"


def identities(node: Node) -> dict[str, LogIdentity]:
    """Return which logs a node has, by name.

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
    """Return where a broker has set a log aside, under another name; "": nowhere.

    :param log_id: of the log. Where it or that of a directory can't be told, the name decides.
    """
    for directory in node.directories:
        for log in directory.aside:
            if log.name.log != name or log.is_link:
                continue
            if may_be_one(log_id, _identity(directory, log, 0).log_id):
                return log.directory
    return ""


def _metadata_end(node: Node) -> int:
    """Return where a node's copy of the cluster's metadata ends; 0: it has none."""
    return next((end_offset(log) for _, log in node.logs if log.name.log == LOG), 0)


def absences(node: Node, logs: Mapping[str, LogIdentity]) -> dict[str, Absence]:
    """Say of logs that were here, and have no directory now, why that is.

    :param logs: as they were, by name.
    :raises OSError: a file can't be read.
    """
    metadata, end = _metadata(node), _metadata_end(node)
    known = {} if isinstance(metadata, str) else {text_of(one): one for one in metadata.topic_ids.values()}

    def absence(name: str, log: LogIdentity) -> Absence:
        if node.failed:
            return _unknown(f"it may lie in {next(iter(node.failed))}, which can't be read")
        if isinstance(metadata, str):
            return _unknown(f"{_UNTOLD}: {metadata}")
        if end < log.told_at:
            return _unknown(
                f"{_UNTOLD}: the node's copy of the metadata ends at {end}, and reached {log.told_at} "
                "before, so it is another one or an older one"
            )
        topic, _, number = name.rpartition("-")
        if not log.log_id:
            topic_id = metadata.topic_ids.get(topic)
        elif cluster_of(log.log_id) not in node.cluster_ids:
            return _unknown(f"{_UNTOLD}: the node is of another cluster than the log was")
        else:
            topic_id = known.get(topic_of(log.log_id))
        if topic_id is None:
            return Absence(True, "its topic was deleted")
        told = _by_replicas(node, metadata, topic_id, int(number))
        aside = "" if told.is_right else aside_path(node, name, log.log_id)
        return _unknown(f"its broker has set it aside as {aside}") if aside else told

    return {name: absence(name, log) for name, log in logs.items()}


def _unknown(why: str) -> Absence:
    return Absence(False, why, is_unknown=True)


def _metadata(node: Node) -> ClusterMetadata | str:
    """Return what a node's copy says; text: why it tells nothing."""
    if node.properties is None or node.zookeeper:
        return "only a node of a cluster without ZooKeeper has a copy of its metadata"
    if not str(node.properties.node_id).isdecimal():
        return f"{node.root} names no node.id"
    metadata, unknown = read_replicas(node.properties.metadata_dir / LOG)
    return unknown or metadata


def _by_replicas(node: Node, metadata: ClusterMetadata, topic_id: uuid.UUID, number: int) -> Absence:
    assert node.properties is not None
    state = metadata.partition_states.get((topic_id, number))
    if state is None or not state.replicas:
        return _unknown("the cluster's metadata on this node don't say which nodes have its replicas")
    if int(node.properties.node_id) not in state.replicas:
        return Absence(True, f"its replicas are on {nodes_text(state.replicas)} by now")
    return Absence(False, "by its copy of the cluster's metadata this node has a replica of it")
