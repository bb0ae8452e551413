"""On what ground a stopped node's log may lose its first segments, by its cluster's own word. Pure.

There are three. No other node has a replica. No broker runs that has one: the cluster says so now, or, where
none is asked, a person does. Or another node leads the log. Below that leader's start the records are deleted
already, and every replica drops them when it follows. Above it the leader is told to begin further on, before
anything goes here. What isn't known is none.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from storage_engine.kafka.format.live_facts import LivePartition
from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata
from storage_engine.kafka.metadata.replica_state import nodes_text, replica_fault
from storage_engine.kafka.reclaim.leaders_word import LeadersWord
from storage_engine.model.plan.plan import Reason

Fault = tuple[Reason, str]


@dataclass(frozen=True, slots=True)
class Way:
    """A ground that holds now.

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
