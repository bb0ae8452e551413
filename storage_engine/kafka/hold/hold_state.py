"""The remembered state that a hold of topics rests on, and a node's files corrected by its cluster's answers.

Everything in a :class:`HoldState` was durable in the journal before it was done to the cluster: whoever
comes after a kill knows each setting's first value, and how far each log was released.
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
"""Of a topic: by them alone its records expire."""
UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic, as the cluster says it.

    :param value: that is in effect.
    :param is_own: the topic has it itself; otherwise it is its brokers'.
    """

    value: int
    is_own: bool


@dataclass(frozen=True, slots=True)
class HeldSetting:
    """A setting that we changed, or are about to.

    :param topic_id: of the topic; another one of its name is another topic, which we never changed.
    :param original: the value in effect before; restored by deleting ours where it wasn't the topic's own.
    :param ours: values that it may have if nobody else changed it; the last one is what it is to have.
    :param is_set: the cluster said so. Otherwise it may still be as it was.
    :param counts_from_ms: from when on it holds for sure: brokers apply a change later than they show it.
    :param is_left: we need it no more; it is put back once no other store of the journal needs it either.
    :param since_ms: from when on we need it; 0: not known.
    :param until_then: the least value that brokers may work by until it holds; None: ``original``'s.
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

    def least_value(self, found: int, now_ms: int) -> int:
        """Return the smallest value that a broker may still apply while the cluster shows ``found``."""
        if now_ms >= self.counts_from_ms:
            return found
        return lesser(found, self.original.value if self.until_then is None else self.until_then)

    def has_set(self, found: TopicSetting) -> bool:
        """Return whether we have set this value, or are about to."""
        return found.is_own and found.value in self.ours

    def is_ours(self, found: TopicSetting) -> bool:
        """Return whether only we have changed the setting."""
        return self.has_set(found) or (not self.is_set and found == self.original)


def lesser(one: int, other: int) -> int:
    """Return the value that keeps less."""
    return min(one, other, key=lambda value: (value == UNLIMITED, value))


@dataclass(frozen=True, slots=True)
class Written:
    """The end of a log at one moment.

    :param base_offset: of its active segment.
    :param size_bytes: of that segment.
    """

    at_ms: int
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A held log when it was last looked at. The offsets are its leader's.

    :param let_go: up to where we have released it, or are about to; -1: not at all.
    :param unproven: ranges of offsets that no lake proved, where its broker deletes by its own rules.
    :param written: how far it was written, for how fast it grows; None: not known.
    :param is_away: this node has it no more, and drift says so already; its unproven ranges are unknown.
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
    """Everything that has to be known again after a kill.

    :param logs: by name, those that are held.
    :param holds_for_ms: for how long raised settings keep records from then on; 0: for ever, or not known.
    """

    looked_at_ms: int = 0
    settings: tuple[HeldSetting, ...] = ()
    logs: Mapping[str, KnownLog] = field(default_factory=dict)
    holds_for_ms: int = 0

    @property
    def ends_at_ms(self) -> int | None:
        """Return when the hold ends by itself unless it is renewed; None: never, or not known."""
        return self.looked_at_ms + self.holds_for_ms if self.holds_for_ms else None

    def has_ended(self, now_ms: int) -> bool:
        """Return whether the hold has ended by itself, for lack of a renewal."""
        return self.ends_at_ms is not None and self.ends_at_ms < now_ms

    def has_settings(self, topic: str) -> bool:
        """Return whether we changed any of a topic's settings."""
        return any(one.topic == topic for one in self.settings)

    def setting(self, topic: str, key: str) -> HeldSetting | None:
        """Return our change of a setting; None: there is none."""
        return next((one for one in self.settings if (one.topic, one.key) == (topic, key)), None)


def load_state(memory: HoldMemory | None) -> HoldState | None:
    """
    :raises GateRefusedError: the remembered state isn't in this release's form.
    """
    return load_hold(memory, HoldState)


def save_state(memory: HoldMemory, state: HoldState | None) -> None:
    """Durable when it returns."""
    save_hold(memory, state)


def with_live(node: Node, facts: LiveFacts, address: str) -> Node:
    """Return a node as its running cluster knows it.

    Of a log whose topic has another id by now nothing is taken: its files are of a topic that is gone.

    :param address: of the cluster, for a message.
    :raises NotOnBrokerError: the directories are of another cluster.
    """
    check_cluster(node, facts.cluster_id, address)
    same = {
        log.name.log: known
        for _, log in node.logs
        if (known := facts.partitions.get(log.name.log)) is not None and is_same_topic(log, known)
    }
    directories = tuple(_directory(directory, same) for directory in node.directories)
    return replace(node, directories=directories, live=replace(facts, partitions=same))


def check_cluster(node: Node, cluster_id: str, address: str) -> None:
    """Make sure that a node's directories are of a cluster.

    :param address: of the cluster, for a message.
    :raises NotOnBrokerError: they are of another one.
    """
    if other := node.cluster_ids - {cluster_id}:
        raise NotOnBrokerError(
            f"{node.root}: expected log directories of the cluster at {address}, {cluster_id}, found "
            f"those of {', '.join(sorted(other))}. Nothing was changed. Name a broker of their own cluster."
        )


def with_first_settings(node: Node, states: Sequence[HoldState]) -> Node:
    """Return a node whose topics have the settings that they had before they were held: by these it is
    decided what has expired.

    :param states: of all stores of the journal, as any of them may have set a topic's.
    """
    if not states or node.live is None:
        return node
    partitions = dict(node.live.partitions)
    topics = {log.name.log: log.name.topic for _, log in node.logs}
    for name, known in partitions.items():
        first = {
            held.key: str(held.original.value)
            for state in states
            for held in state.settings
            if held.topic == topics.get(name) and held.topic_id == str(known.topic_id)
            if known.topic_settings is not None
            and known.topic_settings.get(held.key) in {str(value) for value in held.ours}
        }
        if first and known.topic_settings is not None:
            partitions[name] = replace(known, topic_settings={**known.topic_settings, **first})
    return replace(node, live=replace(node.live, partitions=partitions))


def from_their_starts(node: Node) -> Node:
    """Return a node without the segments that lie below where their leaders begin: they are deleted, though
    the broker removes their files later.
    """

    def left(log: PartitionLog, start: int | None) -> PartitionLog:
        if start is None:
            return log
        gone = sum(following.base_offset <= start for following in log.segments[1:])
        return replace(log, segments=log.segments[gone:]) if gone else log

    known = {} if node.live is None else node.live.partitions
    starts = {name: one.log_start for name, one in known.items()}
    return replace(
        node,
        directories=tuple(
            replace(directory, logs=tuple(left(log, starts.get(log.name.log)) for log in directory.logs))
            for directory in node.directories
        ),
    )


def is_same_topic(log: PartitionLog, known: LivePartition) -> bool:
    """Return whether a log may be of the topic that has its name now: nothing contradicts it."""
    if known.topic_id is None:
        return True
    try:
        return read_topic_id(log.path / PARTITION_METADATA) == known.topic_id
    except FileNotFoundError:
        return True
    except (StorageEngineError, OSError):
        return False


def _directory(directory: LogDirectory, known: Mapping[str, LivePartition]) -> LogDirectory:
    def offsets(one: Callable[[LivePartition], int | None]) -> dict[str, int]:
        names = (log.name.log for log in directory.logs)
        found = ((name, one(known[name])) for name in names if name in known)
        return {name: offset for name, offset in found if offset is not None}

    return replace(
        directory,
        high_watermarks={**directory.high_watermarks, **offsets(lambda one: one.high_watermark)},
        log_starts={**directory.log_starts, **offsets(lambda one: one.log_start)},
        stable_offsets=offsets(lambda one: one.last_stable_offset),
    )
