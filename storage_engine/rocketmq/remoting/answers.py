"""What brokers and name servers say, as dataclasses, and how these are read from the bodies of answers. Pure.

Each function raises :class:`AnswerError` for an answer that lacks what it must have; or another of
``MALFORMED`` for one that no broker would give, which :func:`checked` turns into it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from storage_engine.core.untrusted import MALFORMED
from storage_engine.rocketmq.codec.frame import MAGIC_V1, MAGIC_V2, MIN_MESSAGE_BYTES, PHYSICAL_OFFSET_AT
from storage_engine.rocketmq.format import fastjson
from storage_engine.rocketmq.format.config_files import TopicConfig
from storage_engine.rocketmq.format.releases import has_timers
from storage_engine.rocketmq.remoting import command

MASTER_ID: Final = 0
"""Broker id of a master (MixAll.MASTER_ID); slaves have higher ones."""
Parsed = TypeVar("Parsed")

UNKNOWN_TIME: Final = -1
"""What brokers say for the time of a message that isn't there."""
SECRET_SETTINGS: Final = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Settings that hold passwords, which a broker shows to anybody who may ask (AuthConfig)."""


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

    FOUND = command.SUCCESS
    NOT_FOUND = command.PULL_NOT_FOUND
    """Nothing at this offset yet."""
    RETRY = command.PULL_RETRY_IMMEDIATELY
    """Nothing that matches; go on at the next offset."""
    OFFSET_MOVED = command.PULL_OFFSET_MOVED
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
    """The brokers of one name, as ``host:port`` by broker id: a master, whose id is 0, and its slaves."""

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
    """What one name server knows: brokers' names by cluster, and their members by name."""

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


class AnswerError(ValueError):
    """An answer lacks something that it must have; the message says what was expected and found."""


def checked(parse: Callable[[], Parsed]) -> Parsed:
    """Return what ``parse`` makes of an answer.

    :raises AnswerError: whatever is wrong with the answer.
    """
    try:
        return parse()
    except AnswerError:
        raise
    except MALFORMED as error:
        raise AnswerError(f"expected what a broker answers, found something else ({error!r})") from error


def runtime_info(body: bytes, release: str = "") -> RuntimeInfo:
    """Read what a broker of a release says of itself; of an unknown one, "", all that a newer one does."""
    table = {str(key): str(value) for key, value in _table(_object(body), "table").items()}
    prefix = "commitLogDiskRatio_"
    return RuntimeInfo(
        version=_required(table, "brokerVersionDesc"),
        boot_timestamp_ms=_integer(table, "bootTimestamp"),
        commitlog_min_offset=_integer(table, "commitLogMinOffset"),
        commitlog_max_offset=_integer(table, "commitLogMaxOffset"),
        commitlog_used_percent={
            key.removeprefix(prefix): _percent(table, key) for key in sorted(table) if key.startswith(prefix)
        },
        consume_queue_used_percent=_percent(table, "consumeQueueDiskRatio"),
        earliest_message_timestamp_ms=known_time(_integer(table, "earliestMessageTimeStamp")),
        dispatch_behind_bytes=_integer(table, "dispatchBehindBytes"),
        timer_behind_messages=_integer(table, "timerOffsetBehind") if has_timers(release) else 0,
        values=table,
    )


def confirmed_offset(body: bytes) -> int | None:
    """Read up to where all connected replicas have a log (AutoSwitchHAService#getRuntimeInfo).

    Not only those in sync: of what a controller has just added to them the master may not know yet.

    :return: None: it is no master, or one in sync isn't connected, or no controller has chosen it yet.
    """
    found = _object(body)
    if _required(found, "master") != "True":
        return None
    replicas = _list(found.get("haConnectionInfo"), "haConnectionInfo")
    if [_required(one, "inSync") for one in replicas].count("True") != _integer(found, "inSyncSlaveNums"):
        return None
    acknowledged = (_integer(one, "slaveAckOffset") for one in replicas)
    return min([_integer(found, "masterCommitLogMaxOffset"), *acknowledged])


def has_slaves(body: bytes) -> bool:
    """Return whether a broker sends its log to others now (HAService#getRuntimeInfo)."""
    return bool(_list(_object(body).get("haConnectionInfo"), "haConnectionInfo"))


def in_sync(body: bytes) -> frozenset[str]:
    """Read the ids of the brokers that a controller has in sync (SyncStateSet)."""
    return frozenset(map(str, _list(_object(body).get("syncStateSet"), "syncStateSet")))


def config(body: bytes) -> dict[str, str]:
    """A broker's settings, without passwords. The broker escapes nothing (MixAll#properties2String)."""
    settings = {}
    for line in _decoded(body).splitlines():
        key, separator, value = line.partition("=")
        if not separator:
            raise AnswerError(f"expected lines of key=value, found {line[:40]!r}")
        if key not in SECRET_SETTINGS:
            settings[key] = value
    if not settings:
        raise AnswerError("expected a broker's settings, found none")
    return settings


def topic_config(body: bytes) -> TopicConfig:
    found = _object(body)
    return TopicConfig(
        _required(found, "topicName"),
        _integer(found, "readQueueNums"),
        _integer(found, "writeQueueNums"),
        _integer(found, "perm"),
    )


def groups(body: bytes) -> frozenset[str]:
    """Names of the consumer groups that a broker has."""
    return frozenset(map(str, _table(_object(body), "subscriptionGroupTable")))


def clustering_subscriptions(body: bytes) -> frozenset[str]:
    """Topics that a group's connected members share among them; none for a group that broadcasts."""
    found = _object(body)
    if _required(found, "messageModel") == "BROADCASTING":
        return frozenset()
    return frozenset(map(str, _table(found, "subscriptionTable")))


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


def cluster_info(body: bytes) -> ClusterInfo:
    found = _object(body)
    # A name server that knows nobody leaves the tables out.
    brokers = _table(found, "brokerAddrTable") if found.get("brokerAddrTable") else {}
    clusters = _table(found, "clusterAddrTable") if found.get("clusterAddrTable") else {}
    return ClusterInfo(
        {str(name): tuple(sorted(map(str, _list(members, name)))) for name, members in clusters.items()},
        {str(name): _members(data) for name, data in brokers.items()},
    )


def topic_route(topic: str, body: bytes) -> TopicRoute:
    found = _object(body)
    return TopicRoute(
        topic,
        tuple(_members(data) for data in _list(found.get("brokerDatas"), "brokerDatas")),
        {
            _required(data, "brokerName"): QueueCounts(
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


def message_at(body: bytes, physical_offset: int) -> bytes | None:
    """The frame, where it is whole and is the one asked for.

    A broker gives whatever lies at the offset, and its first frame for offset 0 (CommitLog#getData).
    """
    if len(body) < MIN_MESSAGE_BYTES:
        return None
    size, magic = struct.unpack_from(">iI", body)
    (found,) = struct.unpack_from(">q", body, PHYSICAL_OFFSET_AT)
    return body if size == len(body) and magic in (MAGIC_V1, MAGIC_V2) and found == physical_offset else None


def offset(fields: Mapping[str, str], name: str) -> int:
    """A number among an answer's fields."""
    return _integer(fields, name)


def known_time(timestamp_ms: int) -> int | None:
    return None if timestamp_ms == UNKNOWN_TIME else timestamp_ms


def _members(data: Any) -> BrokerMembers:
    addresses = {}
    for number, address in _table(data, "brokerAddrs").items():
        addresses[_number(number, "broker id")] = str(address)
    # Old releases say nothing of the cluster.
    return BrokerMembers(str(data.get("cluster") or ""), _required(data, "brokerName"), addresses)


def _by_queue(body: bytes) -> list[tuple[tuple[str, int], Any]]:
    """Entries of an offset table: their keys are queues, written as objects (MessageQueue)."""
    entries = []
    for key, value in _table(_object(body), "offsetTable").items():
        if not isinstance(key, tuple):
            raise AnswerError(f"expected queues as keys of offsetTable, found {str(key)[:40]!r}")
        queue = dict(key)
        entries.append(((_required(queue, "topic"), _integer(queue, "queueId")), value))
    return entries


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AnswerError(f"expected UTF-8, found {body[error.start : error.start + 8].hex(' ')}") from None


def _object(body: bytes) -> dict[Any, Any]:
    try:
        found = fastjson.loads(_decoded(body))
    except AnswerError:
        raise
    except ValueError as error:
        raise AnswerError(f"expected an object in fastjson's dialect, found it broken {error}") from None
    if not isinstance(found, dict):
        raise AnswerError(f"expected an object, found {str(found)[:40]!r}")
    return found


def _table(found: Any, key: str) -> dict[Any, Any]:
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, dict):
        raise AnswerError(f"expected a table {key}, found {str(value)[:40]!r}")
    return value


def _list(value: Any, what: object) -> list[Any]:
    if not isinstance(value, list):
        raise AnswerError(f"expected a list for {what}, found {str(value)[:40]!r}")
    return value


def _required(found: Any, key: str) -> str:
    value = found.get(key) if isinstance(found, Mapping) else None
    if value is None or value == "":
        raise AnswerError(f"expected a value for {key}, found none")
    return str(value)


def _integer(found: Any, key: str) -> int:
    return _number(_required(found, key), key)


def _number(value: object, what: str) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise AnswerError(f"expected an integer for {what}, found {str(value)[:40]!r}") from None


def _percent(table: Mapping[str, str], key: str) -> float | None:
    text = _required(table, key)
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not math.isfinite(ratio):
        raise AnswerError(f"expected a ratio for {key}, found {text[:40]!r}")
    return ratio * 100 if ratio >= 0 else None
