"""The part of a broker's own plan that may be deleted without the broker, while its node is stopped.

The rules of retention say what has expired. A running broker also knows what its files alone don't tell.
So a log for which anything of that is in doubt stays whole, with the doubt as the reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.file_names import DirectoryState, FileState
from storage_engine.kafka.format.layout import Node, PartitionLog
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.metadata.cluster_metadata import LOG, ClusterMetadata, replica_fault
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_replicas
from storage_engine.model.plan import LogPlan, Reason
from storage_engine.model.report.diagnosis import reason_of

Fault = tuple[Reason, str]
_UNFINISHED = (FileState.SWAP, FileState.CLEANED)


@dataclass(frozen=True, slots=True)
class StoppedNode:
    """State of a stopped node by its files.

    :param metadata: its copy of the cluster's.
    :param copied: logs that its broker copies to another log directory.
    """

    node_id: int
    metadata: ClusterMetadata
    copied: frozenset[str]


def cut_to_stopped(
    node: Node, plans: Sequence[LogPlan], topics: TopicSettings, replicas_stopped: str = ""
) -> tuple[LogPlan, ...]:
    """Keep the segments of logs that can't be deleted from while the node's broker is stopped.

    :param plans: by the rules of retention.
    :param replicas_stopped: a person's statement that all other nodes with a replica are stopped; "": there
        is none.
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

    def decided(plan: LogPlan) -> LogPlan:
        why = fault_of(logs[plan.log]) if plan.to_delete else None
        return plan if why is None else kept(plan, why)

    return tuple(map(decided, plans))


_CRASHED: Fault = (
    Reason.STORE_CRASHED,
    "its broker did not stop cleanly, so where its logs end is not certain: start it, let it recover, and "
    "stop it cleanly",
)


def stopped_node(node: Node, topics: TopicSettings | None = None) -> StoppedNode | Fault:
    """Return the node's state by its files after a clean stop, or why all of its logs are kept."""
    return _CRASHED if node.left_uncleanly else read_stopped(node, topics)


def read_stopped(node: Node, topics: TopicSettings | None = None) -> StoppedNode | Fault:
    """Return the node's state by its files, or the reason why that state keeps all of its logs.

    :param topics: its topics, as read; None, or beside a running cluster: the files are read here.
    """
    if node.properties is None or node.zookeeper:
        return Reason.UNKNOWN, "nothing of a cluster with ZooKeeper is deleted, nor of a log directory alone"
    for one in node.directories:
        if one.fault and one.path == node.properties.metadata_dir:
            return Reason.UNKNOWN, f"no broker starts without the directory of its metadata: {one.fault}"
    # Nothing of a directory that its broker goes on without is deleted, whosever it is.
    metas = [one.meta for one in node.directories if not one.fault]
    ids = {(one.cluster_id, one.node_id) if one is not None else None for one in metas}
    first, *others = ids or {None}
    if others or first is None or first[1] is None or str(first[1]) != node.properties.node_id:
        why = "its log directories don't say, all alike, which node of which cluster they are of"
        return Reason.UNKNOWN, why
    if topics is None or node.live is not None:
        metadata, unknown = read_replicas(node.properties.metadata_dir / LOG)
    else:
        metadata, unknown = topics.metadata, topics.replicas_unknown
    if unknown:
        return Reason.UNKNOWN, unknown
    copied = frozenset(log.name.log for one in node.directories for log in one.aside if _is_copy(log))
    return StoppedNode(first[1], metadata, copied)


def topic_or_fault(log: PartitionLog, stopped: StoppedNode) -> uuid.UUID | Fault:
    """Return the id of the topic that a log's files are of, or what about its files keeps the log."""
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


def _is_copy(log: PartitionLog) -> bool:
    return log.name.state is DirectoryState.FUTURE


def kept(plan: LogPlan, fault: Fault) -> LogPlan:
    """Return a log's plan of which nothing is deleted."""
    reason, why = fault
    return plan.with_going(
        lambda one: replace(one, reason=reason, detail=f"{why} (by its broker's rules: {one.detail})")
    )
