"""Consumer groups of a running cluster, and how far each has read. Groups' coordinators are asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_engine.core.wording import count_text
from storage_engine.exceptions import BrokerRefusedError, BrokerUnavailableError
from storage_engine.kafka.cluster.client import NO_LEADER, TIMEOUT_SECONDS, Cluster
from storage_engine.kafka.cluster.rights import lacking_rights
from storage_engine.kafka.metadata.consumer_offsets import TOPIC as OFFSETS_TOPIC
from storage_engine.model.report.diagnosis import named_in_short

_TOPICS, _GROUPS = ("topic", "Describe"), ("cluster", "Describe")
"""Without these rights there is no error, but the answers leave out positions or groups."""
_TAKE_OVER_SECONDS = 30.0
"""Time that a coordinator may need to load groups that it takes over, as after each start of a broker."""
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """The positions of consumer groups.

    :param committed: next offset by group, topic and partition; None if the group reads the partition and its
        position isn't known.
    :param all_groups: the account sees every group and all of the group's positions.
    :param unseen_topics: topics in which the account sees no positions.
    """

    committed: Mapping[tuple[str, str, int], int | None]
    notices: tuple[str, ...] = ()
    all_groups: bool = True
    unseen_topics: frozenset[str] = frozenset()


def listed_groups(cluster: Cluster) -> tuple[str, ...]:
    """Return the consumer groups that the account may see, classic ones and those of KIP-848, by name.

    If a coordinator is still taking over groups, the request is repeated for a while.

    :raises BrokerError: not every broker answers, so groups may be missing.
    """
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while True:
        future = cluster.admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS)
        listed = cluster.answer("consumer groups", future)
        if not listed.errors:
            return tuple(sorted(group.group_id for group in listed.valid))
        passing = _passing_codes()
        lasting = [error for error in listed.errors if error.args[0].code() not in passing]
        if lasting or time.monotonic() > deadline:
            raise BrokerUnavailableError(
                f"{cluster.address}: asked for consumer groups, expected an answer of each broker, found: "
                f"{cluster.shown(str((lasting or listed.errors)[0]))}"
            )
        time.sleep(_PAUSE_SECONDS)


def _missing_groups(cluster: Cluster) -> str:
    """Return why groups may be missing in the brokers' answers; "" if no group is missing.

    If a partition of the offsets' topic has no leader, its groups have no coordinator: no broker names them.
    """
    from confluent_kafka import KafkaError

    ((_, answer),) = cluster.topics("where groups are kept", [OFFSETS_TOPIC])
    if isinstance(answer, BrokerRefusedError):
        # The topic doesn't exist before a group commits.
        if answer.code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return ""
        return f"whether groups are missing isn't known: {OFFSETS_TOPIC}: {answer.remark.removesuffix('.')}"
    unled = [
        partition.id
        for partition in answer.partitions
        if partition.leader is None or partition.leader.id == NO_LEADER
    ]
    if not unled:
        return ""
    return f"groups are missing: {count_text(len(unled), 'partition')} of {OFFSETS_TOPIC} without a leader"


def _ask_groups(
    cluster: Cluster, subject: str, groups: Sequence[str], ask: Callable[[Sequence[str]], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield each group's answer or error. Ask again while a new coordinator takes over the group."""
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    passing, pending = _passing_codes(), groups
    while pending:
        again = []
        for group, answer in cluster.answers(subject, pending, ask):
            is_passing = isinstance(answer, BrokerRefusedError) and answer.code in passing
            if is_passing and time.monotonic() <= deadline:
                again.append(group)
            else:
                yield group, answer
        if pending := again:
            time.sleep(_PAUSE_SECONDS)


def _passing_codes() -> frozenset[int]:
    """Return the error codes of a group that has no coordinator, but will have one after a moment."""
    from confluent_kafka import KafkaError

    return frozenset(
        (
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.NOT_COORDINATOR,
        )
    )


def group_positions(cluster: Cluster, topics: Collection[str]) -> GroupPositions:
    """Ask how far each group has read in some topics.

    A group reads the topics in which it has committed offsets, and those assigned to its members now.

    :raises BrokerError: the cluster can't be asked.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions

    missing = _missing_groups(cluster)
    groups = listed_groups(cluster)
    # A partition that has lost its leader in between hides groups, too.
    missing = missing or _missing_groups(cluster)
    admin, limit = cluster.admin, TIMEOUT_SECONDS
    committed: dict[tuple[str, str, int], int | None] = {}
    unknown: dict[str, str] = {}
    positions: dict[str, set[str]] = {group: set() for group in groups}

    def members(some: Sequence[str]) -> Any:
        return admin.describe_consumer_groups(list(some), request_timeout=limit)

    for group, answer in _ask_groups(cluster, "consumer groups", groups, members):
        if isinstance(answer, BrokerRefusedError):
            unknown[group] = answer.remark
            continue
        for member in answer.members:
            for place in member.assignment.topic_partitions if member.assignment else ():
                positions[group].add(place.topic)
                if place.topic in topics:
                    committed[group, place.topic, place.partition] = None

    def offsets(some: Sequence[str]) -> Any:
        # The client takes one group per request; several requests are under way at once.
        return {
            group: future
            for name in some
            for group, future in admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name)], request_timeout=limit
            ).items()
        }

    for group, answer in _ask_groups(cluster, "positions of consumer groups", groups, offsets):
        if isinstance(answer, BrokerRefusedError):
            unknown[group] = answer.remark
            continue
        for place in answer.topic_partitions:
            positions[group].add(place.topic)
            if place.topic in topics:
                is_known = place.error is None and place.offset >= 0
                committed[group, place.topic, place.partition] = place.offset if is_known else None
    lacks = lacking_rights(cluster, sorted(topics), ())
    unseen = frozenset(
        name
        for lack in lacks
        if (lack.right.resource, lack.right.operation) == _TOPICS
        for name in lack.names
    )
    hidden = any((lack.right.resource, lack.right.operation) == _GROUPS for lack in lacks)
    reading = {group for group, _, _ in committed}
    # Groups that are known to read only other topics aren't silent.
    elsewhere = {group for group, read in positions.items() if read and not set(read) & set(topics)}
    silent = sorted(set(groups) - reading - unknown.keys() - elsewhere)
    return GroupPositions(
        committed,
        (*((missing,) if missing else ()), *_notices(unknown, unseen, silent, hidden=hidden)),
        all_groups=not (missing or unknown or silent or hidden),
        unseen_topics=unseen,
    )


def _notices(
    unknown: Mapping[str, str], unseen: Collection[str], silent: Sequence[str], *, hidden: bool
) -> Iterator[str]:
    for reason in dict.fromkeys(unknown.values()):
        groups = named_in_short([group for group in unknown if unknown[group] == reason])
        yield f"positions of {groups} aren't known: {reason.removesuffix('.')}"
    if hidden:
        yield "groups that the account may not see are left out: it lacks Describe on the cluster"
    if unseen:
        yield f"positions in {named_in_short(sorted(unseen))} aren't known: the account lacks Describe there"
    if silent:
        yield f"what groups without any offset read isn't known: {named_in_short(silent)}"
