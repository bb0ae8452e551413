"""Topics of a running node: their settings, ages and growth, and which of them can't be held.

Reads the node's files and asks its cluster. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import bytes_text, duration_text, reason_text
from storage_engine.exceptions import BrokerRefusedError, StorageEngineError
from storage_engine.kafka.cluster.client import Cluster, is_topics_own
from storage_engine.kafka.format.checkpoints import LEADER_EPOCHS, LeaderEpoch, read_leader_epochs
from storage_engine.kafka.format.file_names import partition_directory
from storage_engine.kafka.format.layout import LivePartition, Node, PartitionLog
from storage_engine.kafka.format.log_end import first_batch_ms, segment_facts
from storage_engine.kafka.hold.drift import FoundLogs, FoundSettings
from storage_engine.kafka.hold.hold_state import HELD_SETTINGS, KnownLog, TopicSetting
from storage_engine.kafka.hold.needed_retention import LogAge, TopicAge, bearable_ms
from storage_engine.kafka.live.observe import NOT_SERVED, node_id_of, offline_directories
from storage_engine.kafka.live.observe import observe as observe_cluster
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.retention_rules import RetentionSettings
from storage_engine.kafka.store.plan import SeenLog, SeenNode
from storage_engine.model.disk import DiskUsage
from storage_engine.model.report.diagnosis import reason_of

if TYPE_CHECKING:
    from storage_engine.kafka.live.observe import LiveNode

CHECK_INTERVAL = "log.retention.check.interval.ms"
_DEFAULT_INTERVAL_MS = 300_000


_NO_SUCH_TOPIC = 3
"""UNKNOWN_TOPIC_OR_PARTITION of Kafka's protocol (Errors). A lack of rights has another code."""


def is_deleted(answer: object) -> bool:
    return isinstance(answer, BrokerRefusedError) and answer.code == _NO_SUCH_TOPIC


def read_settings(
    cluster: Cluster, topics: Sequence[str]
) -> Mapping[str, Mapping[str, TopicSetting] | BrokerRefusedError]:
    """Ask for the settings that decide when topics' records expire.

    :return: settings by topic, or the error if the cluster refuses a topic.
    :raises BrokerUnavailableError: no broker answers.
    """
    settings: dict[str, Mapping[str, TopicSetting] | BrokerRefusedError] = {}
    for name, answer in cluster.topic_settings(topics):
        if isinstance(answer, BrokerRefusedError):
            settings[name] = answer
            continue
        missing = [key for key in HELD_SETTINGS if key not in answer or answer[key].value is None]
        settings[name] = (
            BrokerRefusedError(
                f"{cluster.address}: asked for settings of topic {name}, the cluster doesn't say "
                f"{', '.join(missing)}",
                remark=f"the cluster doesn't say {', '.join(missing)}",
            )
            if missing
            else {
                key: TopicSetting(int(answer[key].value), is_topics_own(answer[key])) for key in HELD_SETTINGS
            }
        )
    return settings


def check_interval_ms(cluster: Cluster, node_id: int | None, properties: Mapping[str, str]) -> int:
    """Return the interval of a node's retention check, or Kafka's default if it isn't set.

    :param properties: settings in the node's own file.
    :raises BrokerUnavailableError: no broker answers.
    """
    text = {**properties, **cluster.node_settings(node_id)}.get(CHECK_INTERVAL, "")
    return int(text) if text.strip().isdecimal() else _DEFAULT_INTERVAL_MS


_KEPT_FREE_PERCENT: Final = 10
"""Share of a disk, in percent, that no hold fills."""


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """The disk that limits the length of a hold.

    :param free_bytes: bytes that the broker may write.
    :param fillable_bytes: the part of these bytes that a hold may fill. 0 or less means none.
    :param grown_bytes: size of the log files that were written to within ``span_ms``.
    """

    path: str
    free_bytes: int
    fillable_bytes: int
    grown_bytes: int
    span_ms: int

    def __str__(self) -> str:
        return (
            f"{self.path} has {bytes_text(self.free_bytes)} free, of which a hold may fill "
            f"{bytes_text(max(self.fillable_bytes, 0))}, as a tenth of the disk stays free; log files "
            f"of {bytes_text(self.grown_bytes)} were written to within the last "
            f"{duration_text(self.span_ms)}, and twice as much may come"
        )


@dataclass(frozen=True, slots=True)
class Bearable:
    """Time for which disks have room if nothing is deleted.

    :param limit: the disk because of which ``kept_ms`` is less than ``wanted_ms``; None if no disk limits it,
        or if a disk couldn't be measured.
    """

    kept_ms: int
    wanted_ms: int
    notices: tuple[str, ...] = ()
    limit: DiskLimit | None = None


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """One look at a node and its cluster.

    :param topics: topics that can be held.
    :param of_logs: the present state of these topics' logs, and of remembered logs.
    :param unheld: why other topics can't be held, by topic.
    :param unread: why the age of some logs of ``topics`` is unknown, by log. These logs aren't held.
    :param interval_ms: time after which brokers apply a change.
    :param bears: for each topic, the time for which its disks have room if none of its records expires.
    """

    at_ms: int
    topics: tuple[TopicAge, ...]
    of_logs: FoundLogs
    unheld: Mapping[str, str]
    interval_ms: int
    bears: Mapping[str, Bearable]
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> FoundSettings:
        return {topic.topic: topic.settings for topic in self.topics}


def observe(
    live_node: LiveNode,
    now_ms: int,
    *,
    remembered: Mapping[str, KnownLog] = MappingProxyType({}),
    seen: SeenNode | None = None,
    topics: Collection[str] | None = None,
    kept_from: Mapping[str, int] | None = None,
) -> ObservedNode:
    """Look at a node's topics, and at the cluster's facts about them.

    :param seen: the node as it was just read; None to read it here.
    :param topics: the wanted topics; None means all.
    :param kept_from: for each log, the base offset of the first segment that must stay. None means that all
        segments must stay.
    :raises BrokerError: the cluster doesn't answer.
    """
    seen = seen or live_node.look(now_ms)
    node, live = seen.node, seen.node.live
    partitions = {} if live is None else live.partitions
    settings = read_topic_settings(node)
    unheld: dict[str, str] = {}
    by_topic: dict[str, list[SeenLog]] = {}
    for seen_log in seen.known.values():
        topic = seen_log.log.name.topic
        if topics is not None and topic not in topics:
            continue
        reason = _cannot_be_held(settings.of(topic), partitions.get(seen_log.seen.name))
        if reason:
            unheld[topic] = reason
        by_topic.setdefault(topic, []).append(seen_log)
    candidates = [topic for topic in by_topic if topic not in unheld]
    answers = read_settings(live_node.asked, candidates)
    unheld |= {
        topic: f"its settings aren't known: {answer.remark}"
        for topic, answer in answers.items()
        if isinstance(answer, BrokerRefusedError)
    }
    properties = node.properties.values if node.properties is not None else {}
    interval_ms = check_interval_ms(live_node.asked, node_id_of(node), properties)
    wanted_ms = live_node.live.hold_hours * HOUR_MS
    bears = bearable(seen, now_ms, wanted_ms)
    spans_ms = (wanted_ms, 2 * interval_ms)
    ages: list[TopicAge] = []
    logs: dict[str, LivePartition] = {}
    unread: dict[str, str] = {}
    for topic in candidates:
        answer = answers.get(topic)
        if topic in unheld or answer is None or isinstance(answer, BrokerRefusedError):
            continue
        kept = settings.of(topic)
        assert isinstance(kept, RetentionSettings)
        live_logs = {seen_log.seen.name: partitions[seen_log.seen.name] for seen_log in by_topic[topic]}
        logs |= live_logs
        topic_id = next(iter(live_logs.values())).topic_id
        log_ages = []
        for seen_log in by_topic[topic]:
            name, log = seen_log.seen.name, _from(seen_log.log, kept_from)
            try:
                if log.segments:
                    replicas = len(live_logs[name].replicas)
                    log_ages.append(_age(log, replicas, kept.segment_bytes, now_ms, spans_ms))
            except OSError as error:
                unread[name] = (
                    f"how old it is isn't known, as a file of it can't be read: {reason_text(error)}"
                )
        ages.append(TopicAge(topic, str(topic_id), answer, tuple(log_ages)))
    of_logs = found_logs(live_node, node, logs, remembered, now_ms)
    return ObservedNode(now_ms, tuple(ages), of_logs, unheld, interval_ms, bears, unread)


def found_logs(
    live_node: LiveNode,
    node: Node,
    told: Mapping[str, LivePartition],
    remembered: Mapping[str, KnownLog],
    now_ms: int,
) -> FoundLogs:
    """Find out how logs have changed since they were remembered.

    :raises BrokerError: the cluster doesn't answer.
    """
    here = {log.name.log: log for _, log in node.logs}
    names = [partition_directory(name) for name in remembered if name not in here]
    elsewhere = (
        observe_cluster(live_node.asked, [name for name in names if name], now_ms).partitions if names else {}
    )
    epochs: dict[str, tuple[LeaderEpoch, ...] | str] = {}
    for name, live in told.items():
        known_log = remembered.get(name)
        if known_log is None or live.leader_epoch is None or live.leader_epoch <= known_log.leader_epoch:
            continue
        try:
            epochs[name] = read_leader_epochs(here[name].path / LEADER_EPOCHS)
        except (StorageEngineError, OSError) as error:
            epochs[name] = reason_of(error)
    failed = {
        path: f"it can't be read: {reason}. What its logs have is unknown, and nothing of the node is "
        "planned, archived or deleted until it is back"
        for path, reason in node.failed.items()
    }
    failed |= {str(path): f"{NOT_SERVED}. Nothing of these is deleted" for path in offline_directories(node)}
    cluster_id = "" if node.live is None else node.live.cluster_id
    return FoundLogs(told, frozenset(here), elsewhere, epochs, failed, node_id_of(node), cluster_id)


def _cannot_be_held(kept: RetentionSettings | str, live: LivePartition | None) -> str:
    """Return why a topic can't be held; "" if it can be held."""
    if isinstance(kept, str):
        return f"its settings aren't known: {kept}"
    if kept.compact:
        return "cleanup.policy contains compact: the cleaner deletes its records by other rules"
    if kept.is_copied:
        return "remote storage has its segments"
    if live is None or live.topic_id is None:
        return "the cluster doesn't tell of it, or it is another topic by now"
    return ""


def _from(log: PartitionLog, kept_from: Mapping[str, int] | None) -> PartitionLog:
    """Return a log with only its segments that must stay; ``kept_from`` is as for :func:`observe`."""
    if kept_from is None:
        return log
    first = kept_from.get(log.name.log)
    segments = (
        () if first is None else tuple(segment for segment in log.segments if segment.base_offset >= first)
    )
    return replace(log, segments=segments)


def _age(
    log: PartitionLog, replicas: int, segment_bytes: int, now_ms: int, spans_ms: tuple[int, int]
) -> LogAge:
    """Measure a log's age and growth.

    :param spans_ms: the spans in which growth is measured: the hold's length, and the time until a change
        takes effect.
    """
    segments = log.segments
    ages = []
    for files in segments:
        # A segment that its broker has just deleted, before the hold, has no age.
        with suppress(FileNotFoundError):
            ages.append(segment_facts(files, active=files is segments[-1]).largest_timestamp_ms)
    # Segments of another replica may begin at other offsets, and its first segment may be older.
    with suppress(FileNotFoundError):
        if replicas > 1 and (first_ms := first_batch_ms(segments[0])) is not None:
            ages.append(first_ms)
    grown, latest = (_written_bytes(log, now_ms - span_ms) for span_ms in spans_ms)
    oldest_ms = min(ages, default=None)
    return LogAge(oldest_ms, log.size_bytes, grown, segment_bytes, spans_ms[0], latest, log.name.log)


def _written_bytes(log: PartitionLog, since_ms: int) -> int:
    """Return the size of a log's files that were written to since a given time."""
    since_ns = since_ms * 1_000_000
    return sum(files.log.size_bytes for files in log.segments if files.log.mtime_ns >= since_ns)


def bearable(seen: SeenNode, now_ms: int, wanted_ms: int) -> Mapping[str, Bearable]:
    """Return, for each topic, for how long its disks have room if none of its records is deleted."""
    grown: dict[int | None, int] = {}
    disks: dict[int | None, DiskUsage] = {}
    devices: dict[str, set[int | None]] = {}
    for directory, log in seen.node.logs:
        disk = DiskUsage.of(directory.path)
        disks[disk.device] = disk
        grown[disk.device] = grown.get(disk.device, 0) + _written_bytes(log, now_ms - wanted_ms)
        devices.setdefault(log.name.topic, set()).add(disk.device)
    limits = {device: _limit(disk, grown[device], wanted_ms) for device, disk in disks.items()}
    return {topic: shortest(wanted_ms, [limits[device] for device in of]) for topic, of in devices.items()}


def _limit(disk: DiskUsage, grown_bytes: int, wanted_ms: int) -> DiskLimit | None:
    """Return the limit of a hold; None if the disk's level is unknown."""
    if disk.total_bytes is None or disk.usable_bytes is None:
        return None
    fillable = disk.usable_bytes - disk.total_bytes * _KEPT_FREE_PERCENT // 100
    return DiskLimit(disk.path, disk.usable_bytes, fillable, grown_bytes, wanted_ms)


def shortest(wanted_ms: int, limits: Collection[DiskLimit | None]) -> Bearable:
    """Return the time for which all disks have room, and the disk with the least room.

    :param limits: the limit of each disk; None if the disk's level is unknown.
    """
    known_limits = [limit for limit in limits if limit is not None]
    if len(known_limits) < len(limits):
        unknown = (
            "the level of its disk is unknown, and so is the time for which the disk has room for a hold"
        )
        return Bearable(wanted_ms, wanted_ms, (unknown,))
    times = [
        (bearable_ms(wanted_ms, [(limit.fillable_bytes, limit.grown_bytes)]), limit) for limit in known_limits
    ]
    kept_ms, limit = min(times, key=lambda pair: pair[0], default=(wanted_ms, None))
    if limit is None or kept_ms == wanted_ms:
        return Bearable(wanted_ms, wanted_ms)
    notice = (
        f"the hold lasts only {duration_text(kept_ms)}, because the disk of {limit.path} has no room for "
        f"{duration_text(wanted_ms)}"
    )
    return Bearable(kept_ms, wanted_ms, (notice,), limit)


def bears_notices(bears: Mapping[str, Bearable]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notice for room in bears.values() for notice in room.notices))
