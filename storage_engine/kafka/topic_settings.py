"""How long each topic's segments stay, by all that a node's disk says; or why that isn't known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_engine.exceptions import BrokerConfigError, StorageEngineError
from storage_engine.kafka.cluster_metadata import LOG, ClusterMetadata, read_cluster_metadata
from storage_engine.kafka.layout import Node
from storage_engine.kafka.rules import RetentionSettings
from storage_engine.kafka.server_properties import retention_settings


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of topics.

    :param node: what counts where a topic has none of its own.
    :param unknown: why topics' own settings aren't known; "" where they are.
    """

    node: Mapping[str, str]
    metadata: ClusterMetadata
    unknown: str

    def of(self, topic: str) -> RetentionSettings | str:
        """Return how long a topic's segments stay; text: why that isn't known."""
        if self.unknown:
            return self.unknown
        if topic not in self.metadata.topic_ids:
            return "the cluster's metadata on this node have no such topic"
        try:
            return retention_settings(self.node, self.metadata.topic_settings.get(topic, {}))
        except BrokerConfigError as error:
            return str(error).partition(" Nothing was changed.")[0]


def read_topic_settings(node: Node) -> TopicSettings:
    """Read what a node's disk says of its topics' settings. What can't be read is unknown, not an error."""
    properties, metadata, unknown = node.properties, ClusterMetadata(), ""
    if properties is None:
        unknown = "a log directory alone doesn't say: name the node's server.properties"
    elif node.zookeeper:
        unknown = "the cluster keeps them in ZooKeeper"
    else:
        try:
            metadata = read_cluster_metadata(properties.metadata_dir / LOG)
        except (StorageEngineError, OSError) as error:
            unknown = f"the cluster's metadata can't be read: {error}"
    own = {} if properties is None else properties.values
    while_running = metadata.settings_of_node(properties.node_id) if properties is not None else {}
    return TopicSettings({**own, **while_running}, metadata, unknown)
