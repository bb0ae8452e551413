"""The remembered state of a hold of topics, and a node's facts corrected by its cluster's answers.

Everything in a :class:`HoldState` is durable in the journal before the cluster is changed. So after a kill,
each setting's first value is known, and the offset up to which each log was released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from storage_engine.exceptions import NotOnBrokerError, StorageEngineError
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.model.hold import HoldMemory, load_hold, save_hold

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
HELD_SETTINGS: Final = (RETENTION_MS, RETENTION_BYTES)
"""The only settings of a held topic that decide when its records expire."""
UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A topic's setting, as the cluster reports it. If not ``is_own``, the value comes from its brokers."""

    value: int
    is_own: bool


@dataclass(frozen=True, slots=True)
class HeldSetting:
    """A setting that we changed or are about to change.

    :param topic_id: the topic's id. A topic with the same name and another id is another topic, which we
        never changed.
    :param original: the setting before our change. If it wasn't the topic's own, our value is deleted to
        restore it.
    :param ours: values that we have set, or are about to set. The last one is the wanted value.
    :param is_set: the cluster has confirmed the change. Otherwise the old value may still be in effect.
    :param counts_from_ms: time from which the change is certainly in effect: brokers apply a change later
        than they show it.
    :param is_left: we no longer need the change. It is undone once no other store of the journal needs it.
    :param since_ms: time since which we need the change; 0 if not known.
    :param until_then: the least value that brokers may apply until the change is in effect. None means the
        original value.
    """

    topic: str
    topic_id: str
    key: str
    original: TopicSetting
    ours: tuple[int, ...]
    is_set: bool
    counts_from_ms: int
    is_left: bool = False
    since_ms: int = 0
    until_then: int | None = None

    def least_value(self, shown: int, now_ms: int) -> int:
        """Return the smallest value that a broker may still apply while the cluster shows ``shown``."""
        if now_ms >= self.counts_from_ms:
            return shown
        return lesser(shown, self.original.value if self.until_then is None else self.until_then)

    def has_set(self, setting: TopicSetting) -> bool:
        """Return whether the value is one that we have set, or are about to set."""
        return setting.is_own and setting.value in self.ours

    def is_ours(self, setting: TopicSetting) -> bool:
        """Return whether no other program has changed the setting."""
        return self.has_set(setting) or (not self.is_set and setting == self.original)


def lesser(*values: int) -> int:
    """Return the value that keeps fewer records."""
    return min(values, key=lambda value: (value == UNLIMITED, value))


@dataclass(frozen=True, slots=True)
class Written:
    """The end of a log at one moment: base offset and size of its active segment."""

    at_ms: int
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A held log at the last look. The offsets are its leader's.

    :param let_go: offset up to which we have deleted records of the log, or are about to; -1 if we have not.
    :param unproven: ranges of offsets that no lake proved; known only if the broker deletes by its own rules.
    :param written: the log's end, from which growth is measured; None if not known.
    :param is_away: the log is no longer on this node, and drift has reported that. Its unproven ranges are
        unknown.
    """

    topic_id: str
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    log_start: int
    high_watermark: int
    let_go: int = -1
    unproven: tuple[tuple[int, int], ...] = ()
    written: Written | None = None
    is_away: bool = False


@dataclass(frozen=True, slots=True)
class HoldState:
    """Everything that must still be known after a kill.

    :param holds_for_ms: how long raised settings keep records after the look; 0 means for ever, or not known.
    """

    looked_at_ms: int = 0
    settings: tuple[HeldSetting, ...] = ()
    logs: Mapping[str, KnownLog] = field(default_factory=dict)
    holds_for_ms: int = 0

    @property
    def ends_at_ms(self) -> int | None:
        """Return when the hold ends by itself if it isn't renewed; None if never, or not known."""
        return self.looked_at_ms + self.holds_for_ms if self.holds_for_ms else None

    def has_ended(self, now_ms: int) -> bool:
        """Return whether the hold has ended by itself because nobody renewed it."""
        return self.ends_at_ms is not None and self.ends_at_ms < now_ms

    def has_settings(self, topic: str) -> bool:
        return any(setting.topic == topic for setting in self.settings)

    def setting(self, topic: str, key: str) -> HeldSetting | None:
        """Return our change of a setting; None if we didn't change it."""
        return next(
            (setting for setting in self.settings if (setting.topic, setting.key) == (topic, key)), None
        )


def load_state(memory: HoldMemory | None) -> HoldState | None:
    """Return the remembered state; None if the store isn't held.

    :raises GateRefusedError: the state isn't in this release's form.
    """
    return load_hold(memory, HoldState)


def save_state(memory: HoldMemory, state: HoldState | None) -> None:
    """Store the state durably."""
    save_hold(memory, state)


def with_live(node: Node, facts: LiveFacts, address: str) -> Node:
    """Return a node with offsets and settings from its running cluster's answers.

    If a log's topic has another id by now, the answers about it are ignored: the log's files belong to a
    deleted topic.

    :raises NotOnBrokerError: the directories belong to another cluster.
    """
    check_cluster(node, facts.cluster_id, address)
    same = {
        log.name.log: partition
        for _, log in node.logs
        if (partition := facts.partitions.get(log.name.log)) is not None and is_same_topic(log, partition)
    }
    directories = tuple(_directory(directory, same) for directory in node.directories)
    return replace(node, directories=directories, live=replace(facts, partitions=same))


def check_cluster(node: Node, cluster_id: str, address: str) -> None:
    """Make sure that a node's directories belong to a cluster.

    :raises NotOnBrokerError: the directories belong to another cluster.
    """
    if others := node.cluster_ids - {cluster_id}:
        raise NotOnBrokerError(
            f"{node.root}: expected log directories of the cluster at {address}, {cluster_id}, found "
            f"those of {', '.join(sorted(others))}. Nothing was changed. Name a broker of their own cluster."
        )


def with_first_settings(node: Node, states: Sequence[HoldState]) -> Node:
    """Return a node with the topics' settings from before the hold. They decide which records have expired.

    :param states: holds of all stores of the journal: any store may have changed a topic's settings.
    """
    if not states or node.live is None:
        return node
    partitions = dict(node.live.partitions)
    topics = {log.name.log: log.name.topic for _, log in node.logs}
    for name, partition in partitions.items():
        first = {
            held.key: str(held.original.value)
            for state in states
            for held in state.settings
            if held.topic == topics.get(name) and held.topic_id == str(partition.topic_id)
            if partition.topic_settings is not None
            and partition.topic_settings.get(held.key) in {str(value) for value in held.ours}
        }
        if first and partition.topic_settings is not None:
            partitions[name] = replace(partition, topic_settings={**partition.topic_settings, **first})
    return replace(node, live=replace(node.live, partitions=partitions))


def from_their_starts(node: Node) -> Node:
    """Return a node without segments below the leaders' log starts: only files of such segments remain."""

    def cut_log(log: PartitionLog, start: int | None) -> PartitionLog:
        if start is None:
            return log
        count = sum(following.base_offset <= start for following in log.segments[1:])
        return replace(log, segments=log.segments[count:]) if count else log

    partitions = {} if node.live is None else node.live.partitions
    starts = {name: partition.log_start for name, partition in partitions.items()}
    return replace(
        node,
        directories=tuple(
            replace(directory, logs=tuple(cut_log(log, starts.get(log.name.log)) for log in directory.logs))
            for directory in node.directories
        ),
    )


def is_same_topic(log: PartitionLog, live: LivePartition) -> bool:
    """Return whether a log may belong to the present topic of its name. A missing id doesn't forbid that."""
    if live.topic_id is None:
        return True
    try:
        return read_topic_id(log.path / PARTITION_METADATA) == live.topic_id
    except FileNotFoundError:
        return True
    except (StorageEngineError, OSError):
        return False


def _directory(directory: LogDirectory, partitions: Mapping[str, LivePartition]) -> LogDirectory:
    def offsets(offset_of: Callable[[LivePartition], int | None]) -> dict[str, int]:
        names = (log.name.log for log in directory.logs)
        pairs = ((name, offset_of(partitions[name])) for name in names if name in partitions)
        return {name: offset for name, offset in pairs if offset is not None}

    return replace(
        directory,
        high_watermarks={**directory.high_watermarks, **offsets(lambda live: live.high_watermark)},
        log_starts={**directory.log_starts, **offsets(lambda live: live.log_start)},
        stable_offsets=offsets(lambda live: live.last_stable_offset),
    )
