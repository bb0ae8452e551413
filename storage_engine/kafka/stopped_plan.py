"""What of a broker's own plan may be deleted without it, while its node is stopped.

The rules of retention say what has expired. A running broker also knows what its files alone don't tell.
So a log for which anything of that is in doubt stays whole, with the doubt as the reason.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.cluster_metadata import LOG, ClusterMetadata, read_cluster_metadata
from storage_engine.kafka.file_names import DirectoryState, FileState
from storage_engine.kafka.layout import Node, PartitionLog
from storage_engine.kafka.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.partition_metadata import read_topic_id
from storage_engine.kafka.replica_state import replica_fault
from storage_engine.model.diagnosis import reason_of
from storage_engine.model.plan import LogPlan, Reason

Fault = tuple[Reason, str]
_UNFINISHED = (FileState.SWAP, FileState.CLEANED)


def cut_to_stopped(node: Node, plans: Sequence[LogPlan], replicas_stopped: str = "") -> tuple[LogPlan, ...]:
    """Keep the segments of logs that can't be deleted from while the node's broker is stopped.

    :param plans: by the rules of retention.
    :param replicas_stopped: a person says that all other nodes with a replica are stopped; "": nobody does.
    """
    if not any(plan.to_delete for plan in plans):
        return tuple(plans)
    fault, node_id, metadata = _of_node(node)
    logs = {log.name.log: log for _, log in node.logs}
    copied = {log.name.log for one in node.directories for log in one.aside if _is_copy(log)}

    def decided(plan: LogPlan) -> LogPlan:
        if not plan.to_delete:
            return plan
        why = fault or _of_log(logs[plan.log], copied, metadata, node_id, replicas_stopped)
        return plan if why is None else _kept(plan, why)

    return tuple(map(decided, plans))


def _of_node(node: Node) -> tuple[Fault | None, int, ClusterMetadata]:
    """Return what keeps all logs of a node, its id, and the metadata that it has."""
    unknown = ClusterMetadata()
    if node.left_uncleanly:
        return (
            (
                Reason.STORE_CRASHED,
                "its broker did not stop cleanly, so where its logs end is not certain: start it, let it "
                "recover, and stop it cleanly",
            ),
            -1,
            unknown,
        )
    if node.properties is None or node.zookeeper:
        why = "nothing of a cluster with ZooKeeper is deleted, nor of a log directory alone"
        return (Reason.UNKNOWN, why), -1, unknown
    metas = [one.meta for one in node.directories]
    ids = {(one.cluster_id, one.node_id) if one is not None else None for one in metas}
    (first, *others) = ids
    if others or first is None or first[1] is None or str(first[1]) != node.properties.node_id:
        why = "its log directories don't say, all alike, which node of which cluster they are of"
        return (Reason.UNKNOWN, why), -1, unknown
    try:
        metadata = read_cluster_metadata(node.properties.metadata_dir / LOG, partition_states=True)
    except (StorageEngineError, OSError) as error:
        return (Reason.UNKNOWN, f"the cluster's metadata can't be read: {reason_of(error)}"), -1, unknown
    return None, first[1], metadata


def _of_log(
    log: PartitionLog,
    copied: Set[str],
    metadata: ClusterMetadata,
    node_id: int,
    replicas_stopped: str,
) -> Fault | None:
    if unfinished := [facts.path for state, facts in log.left_over if state in _UNFINISHED]:
        return Reason.UNKNOWN, f"{unfinished[0]}: its broker has to finish what the cleaner was doing"
    if log.name.log in copied:
        return Reason.UNKNOWN, "its broker copies it to another log directory"
    try:
        topic_id = read_topic_id(log.path / PARTITION_METADATA)
    except (StorageEngineError, OSError) as error:
        return Reason.UNKNOWN, f"its topic isn't certain: {reason_of(error)}"
    if metadata.topic_ids.get(log.name.topic) != topic_id:
        return Reason.UNKNOWN, "the cluster's metadata on this node have no such topic"
    return replica_fault(metadata, topic_id, log.name.partition, node_id, replicas_stopped)


def _is_copy(log: PartitionLog) -> bool:
    return log.name.state is DirectoryState.FUTURE


def _kept(plan: LogPlan, fault: Fault) -> LogPlan:
    reason, why = fault
    return LogPlan(
        plan.log,
        tuple(
            replace(one, reason=reason, detail=f"{why} (by its broker's rules: {one.detail})")
            if one.deletes
            else one
            for one in plan.decisions
        ),
    )
