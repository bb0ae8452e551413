"""Rights that an account needs to look, or to hold and delete. The cluster tells which of them it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.kafka.cluster.client import TIMEOUT_SECONDS, Cluster
from storage_engine.kafka.metadata.consumer_offsets import TOPIC as OFFSETS_TOPIC
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short


@dataclass(frozen=True, slots=True)
class Right:
    """A right that an account needs to look at a cluster, or to hold and delete.

    :param resource: ``cluster``, ``topic`` or ``group``.
    :param operation: its name in Kafka's tools.
    :param without: the consequence if the right is missing, as a clause.
    """

    resource: str
    operation: str
    without: str


RIGHTS = (
    Right("cluster", "Describe", "it isn't known which consumer groups there are"),
    Right("cluster", "DescribeConfigs", "the settings of this node aren't known"),
    Right("topic", "Describe", "leader, replicas and offsets of their partitions aren't known"),
    Right("topic", "DescribeConfigs", "it isn't known how long their records stay"),
    Right("group", "Describe", "it isn't known how far they have read"),
)
"""Rights that an account needs to look at a cluster. They allow no change."""
_OFFSETS_RIGHT = Right("topic", "Describe", "it isn't known whether consumer groups are missing")
"""Right on the topic in which groups commit their offsets. No other right on this topic is needed."""
DELETING_RIGHTS = (
    Right("topic", "AlterConfigs", "they can't be held, and nothing of them is deleted"),
    Right("topic", "Delete", "nothing of them is deleted"),
    Right(
        "topic", "Read", "it can't be shown that their leaders have the archived records: nothing is deleted"
    ),
)
"""Further rights that an account needs to hold and to delete."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A missing right. ``names`` are the topics or groups without it; empty for a right on the cluster."""

    right: Right
    names: tuple[str, ...] = ()

    @property
    def finding(self) -> Finding:
        resource, operation = self.right.resource, self.right.operation
        on = {
            "cluster": "the cluster",
            "topic": f"topics: {named_in_short(self.names)}",
            "group": f"consumer groups: {named_in_short(self.names)}",
        }[resource]
        target = "--cluster" if resource == "cluster" else f"--{resource} NAME"
        return Finding(
            Severity.WARNING,
            "rights",
            f"the account lacks {operation} on {on}; so {self.right.without}",
            f"grant it: kafka-acls --add --allow-principal User:NAME --operation {operation} {target}",
        )


def lacking_rights(
    cluster: Cluster, topics: Sequence[str], groups: Sequence[str], *, deleting: bool = False
) -> tuple[Lack, ...]:
    """Ask the cluster which rights the account lacks.

    A topic or group that the cluster doesn't know needs no right.

    :param topics: may contain the topic in which groups commit their offsets.
    :param deleting: check also the rights to hold and to delete.
    :raises BrokerUnavailableError: no broker answers.
    """
    rights = (*RIGHTS, *DELETING_RIGHTS) if deleting else RIGHTS
    lacking: dict[Right, list[str]] = {}
    for resource, name, operations in _granted_operations(cluster, topics, groups):
        for right in (_OFFSETS_RIGHT,) if (resource, name) == ("topic", OFFSETS_TOPIC) else rights:
            if right.resource == resource and _key(right.operation) not in operations:
                lacking.setdefault(right, []).append(name)
    return tuple(
        Lack(right, () if right.resource == "cluster" else tuple(sorted(lacking[right])))
        for right in (*rights, _OFFSETS_RIGHT)
        if right in lacking
    )


def _granted_operations(
    cluster: Cluster, topics: Sequence[str], groups: Sequence[str]
) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield each resource and its name, with the operations that the account may do there."""
    from confluent_kafka import KafkaError, TopicCollection

    denied = (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
    admin, limit = cluster.admin, TIMEOUT_SECONDS
    subject = "what the account may do"
    described = admin.describe_cluster(include_authorized_operations=True, request_timeout=limit)
    yield "cluster", "", _operations(cluster.answer(subject, described))

    def ask_topics(some: Sequence[str]) -> Any:
        collection = TopicCollection(list(some))
        return admin.describe_topics(collection, include_authorized_operations=True, request_timeout=limit)

    def ask_groups(some: Sequence[str]) -> Any:
        return admin.describe_consumer_groups(
            list(some), include_authorized_operations=True, request_timeout=limit
        )

    for resource, names, ask in (("topic", topics, ask_topics), ("group", groups, ask_groups)):
        for name, answer in cluster.answers(subject, names, ask):
            if not isinstance(answer, BrokerRefusedError):
                yield resource, name, _operations(answer)
            elif answer.code in denied:
                yield resource, name, frozenset()


def _operations(answer: Any) -> frozenset[str]:
    return frozenset(_key(operation.name) for operation in answer.authorized_operations or ())


def _key(operation: str) -> str:
    """Return one spelling of an operation: tools write DescribeConfigs, the client DESCRIBE_CONFIGS."""
    return operation.replace("_", "").lower()
