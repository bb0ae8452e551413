"""Who consumes from a running cluster, and how far, by the word of the groups' coordinators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_engine.exceptions import BrokerRefusedError, BrokerUnavailableError
from storage_engine.kafka.live.client import TIMEOUT_SECONDS, Cluster
from storage_engine.model.diagnosis import named_in_short


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """How far groups have read.

    :param committed: by group, topic and partition; None: the group reads there and never committed.
    :param notices: what isn't known, for a person.
    """

    committed: Mapping[tuple[str, str, int], int | None]
    notices: tuple[str, ...] = ()


def listed_groups(cluster: Cluster) -> tuple[str, ...]:
    """Return the consumer groups that the account may see, classic ones and those of KIP-848, by name.

    :raises BrokerError: not every broker answers, so that groups may be missing.
    """
    asked = cluster.admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS)
    listed = cluster.answer("consumer groups", asked)
    if listed.errors:
        raise BrokerUnavailableError(
            f"{cluster.address}: asked for consumer groups, expected an answer of each broker, found: "
            f"{cluster.shown(str(listed.errors[0]))}"
        )
    return tuple(sorted(one.group_id for one in listed.valid))


def group_positions(cluster: Cluster, topics: Collection[str]) -> GroupPositions:
    """Ask how far each group has read in some topics.

    A group reads the topics that it has committed in, or that its members are assigned now.

    :raises BrokerError: the cluster can't be asked.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions

    groups = listed_groups(cluster)
    admin, limit = cluster.admin, TIMEOUT_SECONDS
    committed: dict[tuple[str, str, int], int | None] = {}
    unknown: dict[str, str] = {}

    def members(some: Sequence[str]) -> Any:
        return admin.describe_consumer_groups(list(some), request_timeout=limit)

    for group, answer in cluster.answers("consumer groups", groups, members):
        if isinstance(answer, BrokerRefusedError):
            unknown[group] = answer.remark
            continue
        for member in answer.members:
            for one in member.assignment.topic_partitions if member.assignment else ():
                if one.topic in topics:
                    committed[group, one.topic, one.partition] = None

    def offsets(some: Sequence[str]) -> Any:
        # The client takes one group a request; requests of several are under way at once.
        return {
            group: future
            for one in some
            for group, future in admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(one)], request_timeout=limit
            ).items()
        }

    for group, answer in cluster.answers("positions of consumer groups", groups, offsets):
        if isinstance(answer, BrokerRefusedError):
            unknown[group] = answer.remark
            continue
        for one in answer.topic_partitions:
            if one.topic in topics:
                is_known = one.error is None and one.offset >= 0
                committed[group, one.topic, one.partition] = one.offset if is_known else None
    notices = [
        f"positions of {named_in_short([group for group in unknown if unknown[group] == why])} aren't known: "
        f"{why.removesuffix('.')}"
        for why in dict.fromkeys(unknown.values())
    ]
    return GroupPositions(committed, tuple(notices))
