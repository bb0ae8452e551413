"""What demos and tests ask of a broker beyond administration: a topic's queues, and what lies in them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from storage_engine.exceptions import BrokerRefusedError, NotOnBrokerError
from storage_engine.rocketmq.codec.frame_layout import MAGIC_V1, MAGIC_V2, MIN_MESSAGE_BYTES
from storage_engine.rocketmq.format.config_files import TopicConfig
from storage_engine.rocketmq.remoting import answers, command
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.answers import (
    MASTER_ID,
    UNKNOWN_TIME,
    AnswerError,
    BrokerMembers,
    _integer,
    _list,
    _members,
    _object,
    _require,
    _table,
    known_time,
)
from storage_engine.rocketmq.remoting.command import RemotingCommand
from storage_engine.rocketmq.remoting.connection import Connection
from storage_engine.rocketmq.remoting.masters import NameServers

PULL_MESSAGE: Final = 11
GET_MAX_OFFSET: Final = 30
GET_MIN_OFFSET: Final = 31
GET_EARLIEST_MESSAGE_STORE_TIME: Final = 32
GET_ROUTE_INFO_BY_TOPIC: Final = 105
GET_TOPIC_STATS_INFO: Final = 202
GET_CONSUME_STATS: Final = 208
CLEAN_EXPIRED_CONSUME_QUEUE: Final = 306
GET_TOPIC_CONFIG: Final = 351
TOPIC_NOT_EXIST: Final = 17
PULL_NOT_FOUND: Final = 19
PULL_RETRY_IMMEDIATELY: Final = 20
PULL_OFFSET_MOVED: Final = 21

READER_GROUP: Final = "TOOLS_CONSUMER"
"""A group that every broker has from the start (MixAll.TOOLS_CONSUMER_GROUP); any other it would create."""
_PULL_WITH_SUBSCRIPTION: Final = 4
_T = TypeVar("_T")


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

    FOUND = command.SUCCESS
    NOT_FOUND = PULL_NOT_FOUND
    """Nothing at this offset yet."""
    RETRY = PULL_RETRY_IMMEDIATELY
    """Nothing that matches; go on at the next offset."""
    OFFSET_MOVED = PULL_OFFSET_MOVED
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


class ReadingAdmin(BrokerAdmin):
    """An administration client that also reads topics and messages."""

    def clean_expired_consume_queues(self) -> None:
        """Drop consume queues that lie below the log's min offset (CLEAN_EXPIRED_CONSUMEQUEUE).

        Success says nothing of what went: the files tell.

        :raises BrokerError: with ``may_have_acted`` when it may have happened all the same.
        """
        self._connection.act(CLEAN_EXPIRED_CONSUME_QUEUE)

    def topic_config(self, topic: str) -> TopicConfig:
        """
        :raises NotOnBrokerError: the broker doesn't have the topic.
        """
        return self._of_topic(topic, GET_TOPIC_CONFIG, lambda answer: topic_config(answer.body))

    def topic_stats(self, topic: str) -> dict[int, QueueStats]:
        """Offsets of all queues of a topic, by queue id (GET_TOPIC_STATS_INFO).

        :raises NotOnBrokerError: the broker doesn't have the topic.
        """
        return self._of_topic(topic, GET_TOPIC_STATS_INFO, lambda answer: topic_stats(answer.body))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[tuple[str, int], QueueConsumption]:
        """Return how far a group is, by topic and queue id (GET_CONSUME_STATS).

        :param topic: one topic only; None: every topic of which the broker knows an offset of the group.
        :return: empty for a group that never committed an offset.
        :raises NotOnBrokerError: the broker has neither such a group nor offsets of one, or not the topic.
        """
        found = self._read(
            GET_CONSUME_STATS,
            lambda answer: consume_stats(answer.body),
            {"consumerGroup": group} | ({} if topic is None else {"topic": topic}),
        )
        if not found:
            if topic is not None:
                self.topic_config(topic)
            if group not in self.groups():
                raise NotOnBrokerError(
                    f"{self.address}: expected consumer group {group!r}, found no such group and no "
                    "offset of one. Check the name."
                )
        return found

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset that is still served (GET_MIN_OFFSET).

        :raises NotOnBrokerError: the broker doesn't have the topic, or not that many queues of it.
        """
        return self._of_queue(GET_MIN_OFFSET, topic, queue_id, "offset")

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The next message's queue offset (GET_MAX_OFFSET).

        :raises NotOnBrokerError: the broker doesn't have the topic, or not that many queues of it.
        """
        return self._of_queue(GET_MAX_OFFSET, topic, queue_id, "offset")

    def earliest_message_timestamp_ms(self, topic: str, queue_id: int) -> int | None:
        """Store time of a queue's first message; None when it has none (GET_EARLIEST_MSG_STORETIME).

        :raises NotOnBrokerError: the broker doesn't have the topic, or not that many queues of it.
        """
        code = GET_EARLIEST_MESSAGE_STORE_TIME
        return known_time(self._of_queue(code, topic, queue_id, "timestamp"))

    def pull(
        self, topic: str, queue_id: int, offset: int, *, max_messages: int = 32, group: str = READER_GROUP
    ) -> PullResult:
        """Frames from a queue offset on; doesn't wait for new ones and commits nothing (PULL_MESSAGE).

        :param group: a group that exists: brokers create one that doesn't.
        :raises NotOnBrokerError: the broker doesn't have the topic.
        """
        return self._of_topic(
            topic,
            PULL_MESSAGE,
            lambda answer: pull_result(answer.code, answer.fields, answer.body),
            {
                "consumerGroup": group,
                "queueId": queue_id,
                "queueOffset": offset,
                "maxMsgNums": max_messages,
                "sysFlag": _PULL_WITH_SUBSCRIPTION,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
                "expressionType": "TAG",
            },
            accept=tuple(status.value for status in PullStatus),
        )

    def _of_queue(self, code: int, topic: str, queue_id: int, field: str) -> int:
        # Asked for a queue that it doesn't have, a broker says 0 and makes one (findOrCreateConsumeQueue).
        config = self.topic_config(topic)
        queues = max(config.read_queues, config.write_queues)
        if not 0 <= queue_id < queues:
            raise NotOnBrokerError(
                f"{self.address}: expected queue {queue_id} of topic {topic!r}, found {queues} queues. Check "
                "the queue id."
            )
        fields = {"topic": topic, "queueId": queue_id}
        return self._read(code, lambda answer: offset(answer.fields, field), fields)

    def _of_topic(
        self,
        topic: str,
        code: int,
        parse: Callable[[RemotingCommand], _T],
        fields: Mapping[str, object] | None = None,
        *,
        accept: tuple[int, ...] = (command.SUCCESS,),
    ) -> _T:
        try:
            return self._read(code, parse, {"topic": topic, **(fields or {})}, accept=accept)
        except BrokerRefusedError as error:
            if error.code != TOPIC_NOT_EXIST:
                raise
            raise NotOnBrokerError(
                f"{self.address}: expected topic {topic!r}, found that the broker doesn't have it. "
                "Check the name, and by its route which brokers have it."
            ) from error


def route(servers: NameServers, topic: str) -> TopicRoute:
    """Return where a topic lies (GET_ROUTEINFO_BY_TOPIC).

    Where slaves may act as masters (enableActingMaster), it names one as master while there is none.
    Ask the servers' ``broker`` for the real one.

    :raises NotOnBrokerError: no registered broker has the topic.
    :raises BrokerUnavailableError: no name server can be asked.
    """

    def ask(connection: Connection) -> TopicRoute:
        answer = connection.read(
            GET_ROUTE_INFO_BY_TOPIC,
            {"topic": topic},
            accept=(command.SUCCESS, TOPIC_NOT_EXIST),
        )
        if answer.code == TOPIC_NOT_EXIST:
            raise NotOnBrokerError(
                f"Name server {connection.address}: expected topic {topic!r}, found that no registered "
                "broker has it. Check the name, and that its brokers run."
            )
        return answers.check_answer(lambda: topic_route(topic, answer.body))

    return servers._first(ask)


def slaves_of(members: BrokerMembers) -> tuple[str, ...]:
    return tuple(address for number, address in sorted(members.addresses.items()) if number != MASTER_ID)


def topic_config(body: bytes) -> TopicConfig:
    found = _object(body)
    return TopicConfig(
        _require(found, "topicName"),
        _integer(found, "readQueueNums"),
        _integer(found, "writeQueueNums"),
        _integer(found, "perm"),
    )


def topic_stats(body: bytes) -> dict[int, QueueStats]:
    return {
        queue_id: QueueStats(
            _integer(stats, "minOffset"),
            _integer(stats, "maxOffset"),
            # 0 for a queue that has no message
            known_time(_integer(stats, "lastUpdateTimestamp") or UNKNOWN_TIME),
        )
        for (_, queue_id), stats in _by_queue(body)
    }


def consume_stats(body: bytes) -> dict[tuple[str, int], QueueConsumption]:
    return {
        queue: QueueConsumption(
            _integer(stats, "brokerOffset"),
            _integer(stats, "consumerOffset"),
            _integer(stats, "pullOffset"),
            known_time(_integer(stats, "lastTimestamp") or UNKNOWN_TIME),
        )
        for queue, stats in _by_queue(body)
    }


def topic_route(topic: str, body: bytes) -> TopicRoute:
    found = _object(body)
    return TopicRoute(
        topic,
        tuple(_members(data) for data in _list(found.get("brokerDatas"), "brokerDatas")),
        {
            _require(data, "brokerName"): QueueCounts(
                _integer(data, "readQueueNums"), _integer(data, "writeQueueNums"), _integer(data, "perm")
            )
            for data in _list(found.get("queueDatas"), "queueDatas")
        },
    )


def pull_result(code: int, fields: Mapping[str, str], body: bytes) -> PullResult:
    status = PullStatus(code)
    return PullResult(
        status,
        _integer(fields, "minOffset"),
        _integer(fields, "maxOffset"),
        _integer(fields, "nextBeginOffset"),
        split_frames(body) if status is PullStatus.FOUND else (),
    )


def split_frames(body: bytes) -> tuple[bytes, ...]:
    """Cut commitlog frames that stand back to back."""
    frames, position = [], 0
    while position < len(body):
        if position + MIN_MESSAGE_BYTES > len(body):
            raise AnswerError(f"expected whole frames, found {len(body) - position} bytes behind the last")
        size, magic = struct.unpack_from(">iI", body, position)
        if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_MESSAGE_BYTES <= size <= len(body) - position:
            raise AnswerError(f"expected a frame at byte {position}, found size {size} and magic {magic:#x}")
        frames.append(body[position : position + size])
        position += size
    return tuple(frames)


def offset(fields: Mapping[str, str], name: str) -> int:
    """A number among an answer's fields."""
    return _integer(fields, name)


def _by_queue(body: bytes) -> list[tuple[tuple[str, int], Any]]:
    """Entries of an offset table: their keys are queues, written as objects (MessageQueue)."""
    entries = []
    for key, value in _table(_object(body), "offsetTable").items():
        if not isinstance(key, tuple):
            raise AnswerError(f"expected queues as keys of offsetTable, found {str(key)[:40]!r}")
        queue = dict(key)
        entries.append(((_require(queue, "topic"), _integer(queue, "queueId")), value))
    return entries
