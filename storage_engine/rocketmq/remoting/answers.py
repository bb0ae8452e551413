"""Decoding of answers of brokers and name servers, and their dataclasses. Pure.

A function raises :class:`AnswerError` if an answer lacks a required value. Other malformed answers may raise
any error of ``MALFORMED``, which :func:`check_answer` turns into an :class:`AnswerError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from storage_engine.core.untrusted import MALFORMED
from storage_engine.rocketmq.codec.frame_layout import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_BYTES,
    PHYSICAL_OFFSET_AT,
)
from storage_engine.rocketmq.format import config_files
from storage_engine.rocketmq.format.broker_config import has_timers

MASTER_ID: Final = 0
"""Broker id of a master (MixAll.MASTER_ID). Slaves have higher ids."""
Parsed = TypeVar("Parsed")

UNKNOWN_TIME: Final = -1
"""Time that brokers report for a message that doesn't exist."""
SECRET_SETTINGS: Final = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Settings with passwords, which a broker includes in its answer (AuthConfig)."""


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """A broker's state (DefaultMessageStore#getRuntimeInfo, AdminBrokerProcessor#prepareRuntimeInfo).

    :param version: the broker's release, as in ``V5_3_3``.
    :param boot_timestamp_ms: start time of the broker's process. Another time means another process.
    :param commitlog_max_offset: offset at which the next message will begin.
    :param commitlog_used_percent: used share of each commitlog path's partition; None if unknown.
    :param earliest_message_timestamp_ms: store time of the first message; None if the log is empty.
    :param dispatch_behind_bytes: bytes of the log that consume queues and index still lack.
    :param timer_behind_messages: number of timer messages in the log that the timer log still lacks.
    :param values: all values of the broker's answer.
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
class BrokerMembers:
    """The brokers of one name: a master and its slaves.

    :param addresses: ``host:port`` by broker id. The master's id is 0.
    """

    cluster: str
    name: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """Return the master's address; None if no master is registered."""
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Clusters and brokers that one name server knows.

    :param clusters: names of brokers by cluster.
    :param brokers: members by broker name.
    """

    clusters: Mapping[str, tuple[str, ...]]
    brokers: Mapping[str, BrokerMembers]


class AnswerError(ValueError):
    """An answer lacks a required value. The message names the expected and the found value."""


def check_answer(parse: Callable[[], Parsed]) -> Parsed:
    """Call ``parse``, and return its result.

    :raises AnswerError: the answer is malformed in any way.
    """
    try:
        return parse()
    except AnswerError:
        raise
    except MALFORMED as error:
        raise AnswerError(f"expected a broker's answer, found a malformed one ({error!r})") from error


def runtime_info(body: bytes, release: str = "") -> RuntimeInfo:
    """Read a broker's runtime info.

    :param release: the broker's release. With "" (unknown), the answer must have all values of RocketMQ 5.
    """
    table = {str(key): str(value) for key, value in _table(_object(body), "table").items()}
    prefix = "commitLogDiskRatio_"
    return RuntimeInfo(
        version=_require(table, "brokerVersionDesc"),
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
    """Read the offset up to which all connected replicas have the log (AutoSwitchHAService#getRuntimeInfo).

    All connected replicas count: the controller may list one as in sync that the master doesn't yet list.

    :return: None if the broker is no master, a replica in sync isn't connected, or no controller has chosen
        the broker as master yet.
    """
    answer = _object(body)
    if _require(answer, "master") != "True":
        return None
    replicas = _list(answer.get("haConnectionInfo"), "haConnectionInfo")
    if [_require(row, "inSync") for row in replicas].count("True") != _integer(answer, "inSyncSlaveNums"):
        return None
    acknowledged = (_integer(row, "slaveAckOffset") for row in replicas)
    return min([_integer(answer, "masterCommitLogMaxOffset"), *acknowledged])


def has_slaves(body: bytes) -> bool:
    """Return whether a broker is sending its log to slaves (HAService#getRuntimeInfo)."""
    return bool(_list(_object(body).get("haConnectionInfo"), "haConnectionInfo"))


def parse_in_sync(body: bytes) -> frozenset[str]:
    """Read the ids of the brokers that a controller lists as in sync (SyncStateSet)."""
    return frozenset(map(str, _list(_object(body).get("syncStateSet"), "syncStateSet")))


def config(body: bytes) -> dict[str, str]:
    """Read a broker's settings, without passwords. The broker escapes nothing (MixAll#properties2String)."""
    settings = {}
    for line in _decode(body).splitlines():
        key, separator, value = line.partition("=")
        if not separator:
            raise AnswerError(f"expected lines of key=value, found {line[:40]!r}")
        if key not in SECRET_SETTINGS:
            settings[key] = value
    if not settings:
        raise AnswerError("expected a broker's settings, found none")
    return settings


def groups(body: bytes) -> frozenset[str]:
    """Read the names of a broker's consumer groups."""
    return frozenset(map(str, _table(_object(body), "subscriptionGroupTable")))


def clustering_subscriptions(body: bytes) -> frozenset[str]:
    """Read the topics whose messages a group's connected members share; none for broadcasting."""
    answer = _object(body)
    if _require(answer, "messageModel") == "BROADCASTING":
        return frozenset()
    return frozenset(map(str, _table(answer, "subscriptionTable")))


def cluster_info(body: bytes) -> ClusterInfo:
    answer = _object(body)
    # A name server without registered brokers leaves the tables out.
    brokers = _table(answer, "brokerAddrTable") if answer.get("brokerAddrTable") else {}
    clusters = _table(answer, "clusterAddrTable") if answer.get("clusterAddrTable") else {}
    return ClusterInfo(
        {str(name): tuple(sorted(map(str, _list(members, name)))) for name, members in clusters.items()},
        {str(name): _members(data) for name, data in brokers.items()},
    )


def message_at(body: bytes, physical_offset: int) -> bytes | None:
    """Return the frame if it is complete and begins at the requested offset; otherwise None.

    A broker sends whatever bytes are at the offset, but for offset 0 its first frame (CommitLog#getData).
    """
    if len(body) < MIN_MESSAGE_BYTES:
        return None
    size, magic = struct.unpack_from(">iI", body)
    (offset,) = struct.unpack_from(">q", body, PHYSICAL_OFFSET_AT)
    return body if size == len(body) and magic in (MAGIC_V1, MAGIC_V2) and offset == physical_offset else None


def known_time(timestamp_ms: int) -> int | None:
    return None if timestamp_ms == UNKNOWN_TIME else timestamp_ms


def _members(data: Any) -> BrokerMembers:
    members = _table(data, "brokerAddrs").items()
    addresses = {_number(number, "broker id"): str(address) for number, address in members}
    # Old releases don't tell the cluster.
    return BrokerMembers(str(data.get("cluster") or ""), _require(data, "brokerName"), addresses)


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AnswerError(f"expected UTF-8, found {body[error.start : error.start + 8].hex(' ')}") from None


def _object(body: bytes) -> dict[Any, Any]:
    try:
        value = config_files.loads(_decode(body))
    except AnswerError:
        raise
    except ValueError as error:
        raise AnswerError(f"expected an object in fastjson's dialect, found a fault {error}") from None
    if not isinstance(value, dict):
        raise AnswerError(f"expected an object, found {str(value)[:40]!r}")
    return value


def _table(data: Any, key: str) -> dict[Any, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, dict):
        raise AnswerError(f"expected a table {key}, found {str(value)[:40]!r}")
    return value


def _list(value: Any, key: object) -> list[Any]:
    if not isinstance(value, list):
        raise AnswerError(f"expected a list for {key}, found {str(value)[:40]!r}")
    return value


def _require(data: Any, key: str) -> str:
    value = data.get(key) if isinstance(data, Mapping) else None
    if value is None or value == "":
        raise AnswerError(f"expected a value for {key}, found none")
    return str(value)


def _integer(data: Any, key: str) -> int:
    return _number(_require(data, key), key)


def _number(value: object, key: str) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise AnswerError(f"expected an integer for {key}, found {str(value)[:40]!r}") from None


def _percent(table: Mapping[str, str], key: str) -> float | None:
    text = _require(table, key)
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not math.isfinite(ratio):
        raise AnswerError(f"expected a ratio for {key}, found {text[:40]!r}")
    return ratio * 100 if ratio >= 0 else None
