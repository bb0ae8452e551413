"""A node's files with what its running cluster knows better: high watermarks, log starts and topic ids. Pure
but for the small file with a log's topic id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from storage_engine.exceptions import NotOnBrokerError, StorageEngineError
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.hold.hold_state import HoldState


def with_live(node: Node, facts: LiveFacts, address: str) -> Node:
    """Return a node as its running cluster knows it.

    Of a log whose topic has another id by now nothing is taken: its files are of a topic that is gone.

    :param address: of the cluster, for a message.
    :raises NotOnBrokerError: the directories are of another cluster.
    """
    other = node.cluster_ids - {facts.cluster_id}
    if other:
        raise NotOnBrokerError(
            f"{node.root}: expected log directories of the cluster at {address}, {facts.cluster_id}, found "
            f"those of {', '.join(sorted(other))}. Nothing was changed. Name a broker of their own cluster."
        )
    same = {
        log.name.log: known
        for _, log in node.logs
        if (known := facts.partitions.get(log.name.log)) is not None and is_same_topic(log, known)
    }
    directories = tuple(_directory(directory, same) for directory in node.directories)
    return replace(node, directories=directories, live=replace(facts, partitions=same))


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
    """Return whether nothing speaks against a log being of the topic that has its name now."""
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
