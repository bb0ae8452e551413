"""A node of a running cluster, and one look at the cluster's answers about its partitions. Changes nothing.

A fact that the cluster refuses to tell is unknown, and is reported. If no broker answers, the look fails.

Findings compare these answers with a node that was read before. Of its files, only topics' ids are read.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import BrokerRefusedError
from storage_engine.kafka.cluster.client import NO_LEADER, TIMEOUT_SECONDS, Cluster, is_topics_own
from storage_engine.kafka.format.file_names import METADATA_TOPIC, PartitionDirectory
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, Node, read_node, read_what_is_left
from storage_engine.kafka.hold.hold_state import (
    from_their_starts,
    is_same_topic,
    with_first_settings,
    with_live,
)
from storage_engine.kafka.hold.needed_retention import all_states
from storage_engine.kafka.store.plan import SeenNode
from storage_engine.kafka.store.store import OpenNode
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short
from storage_engine.model.settings.store_settings import WE_DELETE

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition


def observe(cluster: Cluster, partitions: Collection[PartitionDirectory], now_ms: int) -> LiveFacts:
    """Ask a cluster for all its facts about partitions.

    :param partitions: partitions of a node's logs, including internal topics.
    :raises BrokerUnavailableError: no broker answers.
    :raises BrokerRefusedError: the account may not even ask for the cluster's id.
    """
    described = cluster.described()
    topics = _topics(cluster, sorted({partition.topic for partition in partitions}))
    answers: dict[str, LivePartition] = {}
    for partition in partitions:
        topic = topics[partition.topic]
        if partition.partition in topic.partitions or topic.refused:
            leader, replicas, in_sync = topic.partitions.get(partition.partition, (None, (), ()))
            answers[partition.log] = LivePartition(
                topic_id=topic.topic_id,
                leader=leader,
                topic_settings=topic.settings,
                own_settings=topic.own_settings,
                replicas=replicas,
                in_sync=in_sync,
                refused=topic.refused,
            )
    led = [
        partition
        for partition in partitions
        if (live := answers.get(partition.log)) and live.leader is not None
    ]
    for kind, log, answer in _offsets(cluster, led):
        if isinstance(answer, BrokerRefusedError):
            reasons = (*answers[log].refused, f"{kind}: {answer.remark}")
            answers[log] = replace(answers[log], refused=reasons)
            continue
        answers[log] = replace(answers[log], **{kind: answer.offset})
        if kind == "high_watermark" and answer.leader_epoch is not None:
            answers[log] = replace(answers[log], leader_epoch=answer.leader_epoch)
    return LiveFacts(now_ms, described.cluster_id or "", answers)


@dataclass(slots=True)
class _Topic:
    """A cluster's facts about a topic: ``partitions`` has their leaders, replicas and replicas in sync."""

    topic_id: uuid.UUID | None = None
    partitions: dict[int, tuple[int | None, tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    settings: Mapping[str, str] | None = None
    own_settings: frozenset[str] = frozenset()
    refused: tuple[str, ...] = ()


def _topics(cluster: Cluster, names: Sequence[str]) -> dict[str, _Topic]:
    topics = {name: _Topic() for name in names}
    for name, answer in cluster.topics("topics", names):
        if isinstance(answer, BrokerRefusedError):
            topics[name].refused = (f"topic: {answer.remark}",)
            continue
        topics[name].topic_id = _uuid(answer.topic_id)
        topics[name].partitions = {
            partition.id: (
                None if partition.leader is None or partition.leader.id == NO_LEADER else partition.leader.id,
                tuple(node.id for node in partition.replicas),
                tuple(node.id for node in partition.isr),
            )
            for partition in answer.partitions
        }
    existing = [name for name in names if topics[name].partitions]
    for name, answer in cluster.topic_settings(existing):
        topic = topics[name]
        if isinstance(answer, BrokerRefusedError):
            topic.refused = (*topic.refused, f"settings: {answer.remark}")
            continue
        topic.settings = {entry.name: entry.value for entry in answer.values() if entry.value is not None}
        topic.own_settings = frozenset(entry.name for entry in answer.values() if is_topics_own(entry))
    return topics


def _uuid(answer: Any) -> uuid.UUID | None:
    """Return a topic's id; None if the cluster is older than 2.8 or doesn't tell the id."""
    bits = ((answer.get_most_significant_bits() & _MASK) << 64) | (
        answer.get_least_significant_bits() & _MASK
    )
    return uuid.UUID(int=bits) if bits else None


_MASK = (1 << 64) - 1


def _offsets(
    cluster: Cluster, partitions: Sequence[PartitionDirectory]
) -> Iterator[tuple[str, str, Any | BrokerRefusedError]]:
    """Yield the leaders' answers for each kind of offset and each log.

    The log starts are requested last. A log start only grows, so all records below it are certainly deleted.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    keys = [TopicPartition(partition.topic, partition.partition) for partition in partitions]
    kinds = (
        ("last_stable_offset", OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
        ("high_watermark", OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        ("log_start", OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
    )
    for name, spec, isolation in kinds:

        def ask(some: Sequence[TopicPartition], spec: Any = spec, isolation: Any = isolation) -> Any:
            return cluster.admin.list_offsets(
                dict.fromkeys(some, spec), isolation_level=isolation, request_timeout=TIMEOUT_SECONDS
            )

        for key, answer in cluster.answers("offsets of partitions", keys, ask):
            yield name, f"{key.topic}-{key.partition}", answer


@dataclass(frozen=True, slots=True)
class LeadersWord:
    """A cluster's answers at one moment. ``running`` are the registered brokers that aren't fenced."""

    facts: LiveFacts
    running: frozenset[int]

    def of(self, log: str) -> LivePartition | None:
        """Return the facts about a log; None if no facts are known."""
        return self.facts.partitions.get(log)


def ask_leaders(cluster: Cluster, logs: Collection[PartitionDirectory], now_ms: int) -> LeadersWord:
    """Ask a cluster for the leaders of logs, and then for its running brokers.

    :raises BrokerUnavailableError: no broker answers.
    :raises BrokerRefusedError: the account may not even ask for the cluster's id.
    """
    facts = observe(cluster, logs, now_ms)
    # Asked last, so that a broker that has started meanwhile, and doesn't lead yet, counts as running.
    return LeadersWord(facts, frozenset(node.id for node in cluster.described().nodes))


NOT_SERVED = "its broker serves none of its logs, and serves those of other directories: it has failed"


def live_findings(node: Node, facts: LiveFacts) -> Iterator[Finding]:
    """Yield findings about a node's partitions, also if their topic was deleted and created again.

    :param facts: the cluster's answers, not corrected by the node's files.
    """
    node_id = node_id_of(node)
    for _, log in node.logs:
        partition = facts.partitions.get(log.name.log)
        if partition is None:
            continue
        if not is_same_topic(log, partition):
            yield Finding(
                Severity.URGENT,
                "topic-id",
                f"log {log.name.log}: its topic has another id in the running cluster: it was deleted and "
                "made again, and these files are of the deleted topic",
                "keep the directory: it has the only copy of its records",
            )
        elif partition.replicas:
            yield from _partition(log.name.log, partition, node_id)
    yield from _unknown(facts)


def _partition(name: str, partition: LivePartition, node_id: int | None) -> Iterator[Finding]:
    if partition.leader is None:
        yield Finding(
            Severity.URGENT,
            "no-leader",
            f"log {name}: no replica leads it: nothing is written, and the high watermark isn't known",
            "start one of its replicas: " + ", ".join(map(str, partition.replicas)),
        )
    behind = [replica for replica in partition.replicas if replica not in partition.in_sync]
    if behind and partition.leader is not None:
        nodes = ("node " if len(behind) == 1 else "nodes ") + ", ".join(map(str, behind))
        yield Finding(
            Severity.WARNING,
            "not-in-sync",
            f"log {name}: its replica on {nodes} isn't in sync with leader {partition.leader}: the high "
            "watermark may be left behind, and nothing above it is deleted",
            f"check that the broker of {nodes} runs and reaches the leader",
        )
    if node_id is not None and node_id not in partition.replicas:
        yield Finding(
            Severity.WARNING,
            "no-replica",
            f"log {name}: by the cluster's answer its replicas are on nodes "
            f"{', '.join(map(str, partition.replicas))}, not on node {node_id}, whose broker will delete the "
            "directory",
        )


def offline_directories(node: Node) -> Iterator[Path]:
    """Yield log directories in which a broker serves no log, though it serves logs in other directories.

    A broker takes a directory offline if its disk fails (ReplicaManager#handleLogDirFailure).

    :param node: with its cluster's answers.
    """
    node_id, live = node_id_of(node), node.live
    if live is None or node_id is None:
        return
    served: dict[Path, list[bool]] = defaultdict(list)
    for directory, log in node.logs:
        partition = live.partitions.get(log.name.log)
        if partition is not None and node_id in partition.replicas:
            served[directory.path].append(node_id in partition.in_sync or partition.leader == node_id)
    if any(map(any, served.values())):
        yield from (path for path, of_logs in served.items() if not any(of_logs))


def offline_findings(node: Node) -> Iterator[Finding]:
    """Yield a finding for each log directory in which the broker serves no log."""
    for path in offline_directories(node):
        yield Finding(
            Severity.URGENT,
            "directory-offline",
            f"{path}: {NOT_SERVED}",
            "look for the error of its disk in the broker's log, mend the disk, and start the broker again",
        )


def waiting_files(node: Node) -> Iterator[Finding]:
    """Yield a finding about files below the leaders' log starts. The broker has yet to remove these files."""
    partitions = {} if node.live is None else node.live.partitions
    waiting = [
        (log.name.log, files.log.size_bytes)
        for _, log in node.logs
        if (live := partitions.get(log.name.log)) is not None and live.log_start is not None
        for files, following in pairwise(log.segments)
        if following.base_offset <= live.log_start
    ]
    if waiting:
        names = list(dict.fromkeys(name for name, _ in waiting))
        yield Finding(
            Severity.NOTE,
            "waiting-files",
            f"{bytes_text(sum(size for _, size in waiting))} of {named_in_short(names)} are below their "
            "leaders' log starts: the records are deleted, and the broker removes the files in its next "
            "round",
            "wait for log.retention.check.interval.ms, and file.delete.delay.ms after that",
        )


def _unknown(facts: LiveFacts) -> Iterator[Finding]:
    """Yield findings about facts that the cluster didn't tell, grouped by the reason."""
    refused: dict[str, list[str]] = defaultdict(list)
    for name, partition in facts.partitions.items():
        for reason in partition.refused:
            refused[reason].append(name)
    for reason, names in refused.items():
        logs = f"{count_text(len(names), 'log')}, {named_in_short(names)}"
        text = f"the cluster doesn't tell all of {logs}: {reason}"
        yield Finding(Severity.WARNING, "live-unknown", text.removesuffix("."))


def node_id_of(node: Node) -> int | None:
    """Return the node's own id; None if no directory contains it."""
    ids = (directory.meta.node_id for directory in node.directories if directory.meta is not None)
    return next((node_id for node_id in ids if node_id is not None), None)


@dataclass(slots=True)
class LiveNode(OpenNode):
    """A node whose broker runs: its files, its cluster, and the remembered hold.

    :param unheld: reasons why logs weren't held at the last look, by name. We delete no record of these logs.
    """

    live: LiveBroker = field(default_factory=LiveBroker)
    unheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> Cluster:
        """Return the cluster. A closed connection is opened again."""
        if self.cluster is None:
            self.cluster = Cluster(self.live)
        return self.cluster

    def look(self, now_ms: int) -> SeenNode:
        """Read the node's logs for a hold. ``seen`` stays the node at an earlier snapshot.

        A failed directory doesn't stop the broker, so it doesn't prevent a hold of logs in other directories.
        """
        return self.see(now_ms, lambda at_ms: self._with_live(read_what_is_left(self.root), at_ms))

    @property
    def is_ours(self) -> bool:
        return self.live.deletes == WE_DELETE

    def read(self, now_ms: int) -> Node:
        return self._with_live(read_node(self.root), now_ms)

    def _with_live(self, files: Node, now_ms: int) -> Node:
        node = read_live_node(files, self.asked, now_ms)
        if not self.is_ours:
            return node
        return from_their_starts(with_first_settings(node, all_states(self.memory)))


def read_live_node(node: Node, cluster: Cluster, now_ms: int) -> Node:
    """Return a node with its cluster's present answers.

    :param node: read from its files before the cluster is asked, so the answers can only be newer.
    :raises BrokerError: the cluster doesn't answer.
    """
    names = [log.name for _, log in node.logs if log.name.topic != METADATA_TOPIC]
    return with_live(node, observe(cluster, names, now_ms), cluster.address)
