"""Whether a log of a stopped node has replicas on other nodes, by the node's copy of the cluster's metadata.

A replica that begins later than the others takes their records from all of them once it leads. So a log may
only lose segments here where no other node has it, or every other one is stopped. What isn't known is no.
"""

from __future__ import annotations

import uuid

from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata, PartitionState
from storage_engine.model.plan.plan import Reason


def replica_fault(
    metadata: ClusterMetadata, topic_id: uuid.UUID, partition: int, node_id: int, replicas_stopped: str
) -> tuple[Reason, str] | None:
    """Return why a log has to stay whole for its replicas; None: nothing speaks against a deletion.

    :param metadata: with the states of partitions.
    :param node_id: of the node that has the log.
    :param replicas_stopped: a person says that all other nodes with a replica are stopped; "": nobody does.
    """
    state = metadata.partition_states.get((topic_id, partition))
    if state is None or not state.replicas:
        return Reason.UNKNOWN, "the cluster's metadata on this node don't say which nodes have its replicas"
    if node_id not in state.replicas:
        return Reason.UNKNOWN, (
            f"the cluster's metadata have its replicas on {nodes_text(state.replicas)}, not on node "
            f"{node_id}: its broker would set it aside"
        )
    if state.removing or state.adding:
        return (
            Reason.UNKNOWN,
            f"its replicas are being reassigned ({_moving_text(state)}): wait until that is done",
        )
    others = tuple(one for one in state.replicas if one != node_id)
    if others and not replicas_stopped.strip():
        return Reason.REPLICAS_ELSEWHERE, (
            f"{nodes_text(others)} {'have' if len(others) > 1 else 'has'} a replica, and nobody says that "
            "every such node is stopped. One that runs would lose the same records once this node leads: "
            "stop all of them and say so, or let the brokers delete"
        )
    return None


def nodes_text(nodes: tuple[int, ...]) -> str:
    """Name nodes by their numbers."""
    numbers = [str(one) for one in sorted(nodes)]
    return f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {', '.join(numbers[:-1])} and {numbers[-1]}"


def _moving_text(state: PartitionState) -> str:
    said = [("added", state.adding), ("removed", state.removing)]
    return ", ".join(f"{nodes_text(nodes)} {what}" for what, nodes in said if nodes)
