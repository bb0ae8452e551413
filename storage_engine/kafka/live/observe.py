"""One look at what a running cluster says of a node's partitions. Changes nothing.

What the cluster refuses is unknown, and said; where nobody answers the whole look is an error.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.kafka.cluster.client import NO_LEADER, TIMEOUT_SECONDS, Cluster, is_topics_own
from storage_engine.kafka.format.file_names import PartitionDirectory
from storage_engine.kafka.format.layout import LiveFacts, LivePartition

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition


def observe(cluster: Cluster, partitions: Collection[PartitionDirectory], now_ms: int) -> LiveFacts:
    """Ask a cluster for all that it says of partitions.

    :param partitions: those of a node's logs; internal topics are asked about likewise.
    :raises BrokerUnavailableError: no broker answers.
    :raises BrokerRefusedError: the account may not even ask which cluster it is.
    """
    described = cluster.described()
    topics = _topics(cluster, sorted({one.topic for one in partitions}))
    asked = {
        one.log: _of_topic(topics[one.topic], one.partition)
        for one in partitions
        if one.partition in topics[one.topic].partitions or topics[one.topic].refused
    }
    led = [one for one in partitions if (known := asked.get(one.log)) and known.leader is not None]
    for name, refused, offsets, epochs in _offsets(cluster, led):
        for log, offset in offsets.items():
            asked[log] = replace(asked[log], **{name: offset})  # type: ignore[arg-type]
        if name == "high_watermark":
            for log, epoch in epochs.items():
                asked[log] = replace(asked[log], leader_epoch=epoch)
        for log, why in refused.items():
            asked[log] = replace(asked[log], refused=(*asked[log].refused, f"{name}: {why}"))
    return LiveFacts(now_ms, described.cluster_id or "", asked)


@dataclass(slots=True)
class _Topic:
    """A cluster's facts about a topic.

    :param partitions: leader, replicas and replicas in sync of each.
    """

    topic_id: uuid.UUID | None = None
    partitions: dict[int, tuple[int | None, tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    settings: Mapping[str, str] | None = None
    own_settings: frozenset[str] = frozenset()
    refused: tuple[str, ...] = ()


def _topics(cluster: Cluster, names: Sequence[str]) -> dict[str, _Topic]:
    found = {name: _Topic() for name in names}
    for name, answer in cluster.topics("topics", names):
        if isinstance(answer, BrokerRefusedError):
            found[name].refused = (f"topic: {answer.remark}",)
            continue
        found[name].topic_id = _uuid(answer.topic_id)
        found[name].partitions = {
            one.id: (
                None if one.leader is None or one.leader.id == NO_LEADER else one.leader.id,
                tuple(node.id for node in one.replicas),
                tuple(node.id for node in one.isr),
            )
            for one in answer.partitions
        }
    known = [name for name in names if found[name].partitions]
    for name, answer in cluster.topic_settings(known):
        topic = found[name]
        if isinstance(answer, BrokerRefusedError):
            topic.refused = (*topic.refused, f"settings: {answer.remark}")
            continue
        topic.settings = {entry.name: entry.value for entry in answer.values() if entry.value is not None}
        topic.own_settings = frozenset(entry.name for entry in answer.values() if is_topics_own(entry))
    return found


def _of_topic(topic: _Topic, partition: int) -> LivePartition:
    leader, replicas, in_sync = topic.partitions.get(partition, (None, (), ()))
    return LivePartition(
        topic_id=topic.topic_id,
        leader=leader,
        topic_settings=topic.settings,
        own_settings=topic.own_settings,
        replicas=replicas,
        in_sync=in_sync,
        refused=topic.refused,
    )


def _uuid(found: Any) -> uuid.UUID | None:
    """Return a topic's id; None: a cluster before 2.8, or one that doesn't say it."""
    bits = ((found.get_most_significant_bits() & _MASK) << 64) | (found.get_least_significant_bits() & _MASK)
    return uuid.UUID(int=bits) if bits else None


_MASK = (1 << 64) - 1


def _offsets(
    cluster: Cluster, partitions: Sequence[PartitionDirectory]
) -> Iterable[tuple[str, Mapping[str, str], Mapping[str, int], Mapping[str, int]]]:
    """Yield, for each kind of offset, its name, why it is refused by log, what it is by log, and its epoch.

    The log's start is asked for last: it only grows, so that what lies below it is gone for sure.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    keys = [TopicPartition(one.topic, one.partition) for one in partitions]
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

        refused: dict[str, str] = {}
        offsets: dict[str, int] = {}
        epochs: dict[str, int] = {}
        for key, answer in cluster.answers("offsets of partitions", keys, ask):
            log = f"{key.topic}-{key.partition}"
            if isinstance(answer, BrokerRefusedError):
                refused[log] = answer.remark
            else:
                offsets[log] = answer.offset
                if answer.leader_epoch is not None:
                    epochs[log] = answer.leader_epoch
        yield name, refused, offsets, epochs


@dataclass(frozen=True, slots=True)
class LeadersWord:
    """A cluster's word of one moment.

    :param running: brokers that are registered with the controller, and not fenced.
    """

    facts: LiveFacts
    running: frozenset[int]

    def of(self, log: str) -> LivePartition | None:
        """Return its value for a log; None: it has none."""
        return self.facts.partitions.get(log)


def ask_leaders(cluster: Cluster, logs: Collection[PartitionDirectory], now_ms: int) -> LeadersWord:
    """Ask a cluster for the leaders of logs, and then which brokers run.

    :raises BrokerUnavailableError: no broker answers.
    :raises BrokerRefusedError: the account may not even ask which cluster it is.
    """
    facts = observe(cluster, logs, now_ms)
    # Last: a broker that has started since, and doesn't lead yet, is among them.
    return LeadersWord(facts, frozenset(node.id for node in cluster.described().nodes))
