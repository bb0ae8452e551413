"""What brokers and name servers say, as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from storage_engine.rocketmq.remoting import codes

MASTER_ID: Final = 0
"""Broker id of a master (MixAll.MASTER_ID); slaves have higher ones."""


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """A broker's state (DefaultMessageStore#getRuntimeInfo, AdminBrokerProcessor#prepareRuntimeInfo).

    :param version: the broker's release, as in ``V5_3_3``.
    :param boot_timestamp_ms: when this process started: another one is another process.
    :param commitlog_max_offset: where the next message will begin.
    :param commitlog_used_percent: of each commitlog path's partition, 0 to 100; None where it
        can't tell.
    :param earliest_message_timestamp_ms: store time of the first message; None for an empty log.
    :param dispatch_behind_bytes: how far consume queues and index are behind the log.
    :param timer_behind_messages: timer messages that are in the log, and not yet in the timer's.
    :param values: everything that the broker said.
    """

    version: str
    boot_timestamp_ms: int
    commitlog_min_offset: int
    commitlog_max_offset: int
    commitlog_used_percent: Mapping[str, float | None]
    consume_queue_used_percent: float | None
    earliest_message_timestamp_ms: int | None
    dispatch_behind_bytes: int
    timer_behind_messages: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue's offsets (TopicOffset).

    :param max_offset: the next message's.
    :param last_update_timestamp_ms: store time of its newest message; None when there is none.
    """

    min_offset: int
    max_offset: int
    last_update_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueConsumption:
    """How far a group is in a queue (OffsetWrapper).

    :param broker_offset: the queue's max offset.
    :param consumer_offset: the group's; 0 also where it never committed one: all consumer offsets tell which.
    :param last_timestamp_ms: store time of the newest message that it has consumed; None when it isn't there.
    """

    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp_ms: int | None


class PullStatus(Enum):
    """What became of a pull (PullMessageProcessor)."""

    FOUND = codes.SUCCESS
    NOT_FOUND = codes.PULL_NOT_FOUND
    """Nothing at this offset yet."""
    RETRY = codes.PULL_RETRY_IMMEDIATELY
    """Nothing that matches; go on at the next offset."""
    OFFSET_MOVED = codes.PULL_OFFSET_MOVED
    """The offset lies outside the queue: what was there is deleted, or was never there."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """Answer to a pull.

    :param frames: commitlog frames, byte for byte; their queue offsets follow each other.
    """

    status: PullStatus
    min_offset: int
    max_offset: int
    next_offset: int
    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BrokerMembers:
    """The brokers of one name: a master and its slaves.

    :param addresses: broker id → ``host:port``; id 0 is the master.
    """

    cluster: str
    name: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """The master's address; None while there is none."""
        return self.addresses.get(MASTER_ID)

    @property
    def slaves(self) -> tuple[str, ...]:
        return tuple(address for number, address in sorted(self.addresses.items()) if number != MASTER_ID)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What one name server knows.

    :param clusters: cluster → names of its brokers.
    :param brokers: broker name → its members.
    """

    clusters: Mapping[str, tuple[str, ...]]
    brokers: Mapping[str, BrokerMembers]


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many queues of a topic a broker has, and what is allowed there (QueueData)."""

    read_queues: int
    write_queues: int
    permission: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic lies: its brokers, and its queues on each by broker name."""

    topic: str
    brokers: tuple[BrokerMembers, ...]
    queues: Mapping[str, QueueCounts]
