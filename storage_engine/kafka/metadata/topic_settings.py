"""Retention of each topic's segments, as a node's files tell it, or the reason why it is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BrokerConfigError, StorageEngineError
from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.format.server_properties import retention_settings
from storage_engine.kafka.metadata.cluster_metadata import LOG, ClusterMetadata, read_cluster_metadata
from storage_engine.kafka.retention_rules import RetentionSettings
from storage_engine.model.report.diagnosis import reason_of

_UNREAD = "the replicas weren't read from the cluster's metadata"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of topics.

    :param node: settings that apply if a topic has none of its own.
    :param unknown: why topics' own settings aren't known; "" if they are known.
    :param live: all settings of topics as their running cluster reports them, by topic. They win over others.
    :param replicas_unknown: why the metadata don't tell which nodes have a partition; "" if they tell it.
    :param only_replicas: logs of the node that are known to have no replica on another node.
    """

    node: Mapping[str, str]
    metadata: ClusterMetadata
    unknown: str
    live: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    replicas_unknown: str = _UNREAD
    only_replicas: frozenset[str] = frozenset()
    _known: dict[str, RetentionSettings | str] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def of(self, topic: str) -> RetentionSettings | str:
        """Return how long a topic's segments stay, or a text that says why that is unknown."""
        # Cached, because a topic may have thousands of logs.
        if topic in self._known:
            return self._known[topic]
        settings: RetentionSettings | str = "the cluster's metadata on this node have no such topic"
        if topic in self.live:
            settings = _read({}, self.live[topic])
        elif self.unknown:
            settings = self.unknown
        elif topic in self.metadata.topic_ids:
            settings = _read(self.node, self.metadata.topic_settings.get(topic, {}))
        self._known[topic] = settings
        return settings

    def has_remote(self, log: str) -> bool:
        """Return whether a log's topic is known to use remote storage, even if copying is disabled."""
        topic = self.of(log.rpartition("-")[0])
        return not isinstance(topic, str) and topic.remote

    def values(self, topic: str) -> Mapping[str, str]:
        """Return a topic's settings by name: all that its cluster reports, or else those in the metadata."""
        return self.live.get(topic) or self.metadata.topic_settings.get(topic, {})


def _read(node: Mapping[str, str], topic: Mapping[str, str]) -> RetentionSettings | str:
    try:
        return retention_settings(node, topic)
    except BrokerConfigError as error:
        return str(error).partition(" Nothing was changed.")[0]


def read_topic_settings(node: Node) -> TopicSettings:
    """Return topics' settings from a node's disk and its cluster's answers. Unknown settings are no error."""
    properties, metadata, unknown = node.properties, ClusterMetadata(), ""
    replicas_unknown = _UNREAD
    if properties is None:
        unknown = "a log directory alone doesn't contain them: name the node's server.properties"
    elif node.zookeeper:
        unknown = "the cluster keeps them in ZooKeeper"
    else:
        directory = properties.metadata_dir / LOG
        if node.live is None:
            metadata, replicas_unknown = read_replicas(directory)
        if replicas_unknown:
            try:
                metadata = read_cluster_metadata(directory)
            except (StorageEngineError, OSError) as error:
                unknown = f"the cluster's metadata can't be read: {reason_text(error)}"
    node_settings = {} if properties is None else properties.values
    while_running = metadata.settings_of_node(properties.node_id) if properties is not None else {}
    live: dict[str, Mapping[str, str]] = {}
    partitions = {} if node.live is None else node.live.partitions
    for _, log in node.logs:
        if (partition := partitions.get(log.name.log)) is None:
            continue
        if partition.topic_settings is not None:
            live[log.name.topic] = partition.topic_settings
        if partition.topic_id is not None:
            metadata.topic_ids[log.name.topic] = partition.topic_id
    if live and all(log.name.topic in live or log.name.is_internal for _, log in node.logs):
        unknown = ""
    only = frozenset(_only_replicas(node, metadata))
    return TopicSettings({**node_settings, **while_running}, metadata, unknown, live, replicas_unknown, only)


def _only_replicas(node: Node, metadata: ClusterMetadata) -> Iterator[str]:
    """Yield a node's logs that no other node has: so says the running cluster or the node's metadata."""
    live = {} if node.live is None else node.live.partitions
    for _, log in node.logs:
        topic_id = metadata.topic_ids.get(log.name.topic)
        state = live.get(log.name.log) or (
            None if topic_id is None else metadata.partition_states.get((topic_id, log.name.partition))
        )
        if state is not None and len(state.replicas) == 1:
            yield log.name.log


def read_replicas(directory: Path) -> tuple[ClusterMetadata, str]:
    """Read a node's copy of the cluster's metadata with the replicas of each partition.

    :param directory: the metadata log's directory.
    :return: its content, and why it can't be read; "" if it was read.
    """
    try:
        return read_cluster_metadata(directory, partition_states=True), ""
    except (StorageEngineError, OSError) as error:
        return ClusterMetadata(), f"the cluster's metadata can't be read: {reason_of(error)}"
