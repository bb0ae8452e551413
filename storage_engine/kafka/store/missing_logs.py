"""Logs that a node should have by the cluster's metadata, and that lie in none of its log directories.

A directory that is taken out of ``log.dirs`` is looked at by nobody any more, and says so nowhere.
"""

from __future__ import annotations

import uuid

from storage_engine.core.wording import count_text
from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.format.partition_metadata import log_id_text
from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.kafka.store.absent_logs import aside_path
from storage_engine.model.report.diagnosis import named_in_short

ADVICE = (
    "put the directory that has them back into log.dirs, or mount its disk, before a broker starts: it would "
    "begin them again, empty"
)


def missing_logs(node: Node, topics: TopicSettings) -> tuple[str, ...]:
    """Return the names of logs that no directory of a node has, though its copy of the metadata counts on a
    replica here. Where that isn't known, or directories have failed, which is said elsewhere, none. One that
    its broker has set aside is not missing.

    :param topics: of the node, as its files alone say them.
    """
    node_ids = {one.meta.node_id for one in node.directories if one.meta is not None}
    if topics.replicas_unknown or node.failed or len(node_ids) != 1:
        return ()
    (node_id,) = node_ids
    here = {log.name.log for _, log in node.logs}
    cluster_id = next(iter(node.cluster_ids), "")
    return tuple(
        name
        for name, (topic_id, partition) in sorted(_expected(topics.metadata, node_id).items())
        if name not in here
        # A topic that was made just now has its directory by now.
        and not any((one.path / name).is_dir() for one in node.directories)
        and not aside_path(node, name, log_id_text(cluster_id, topic_id, partition))
    )


def _expected(metadata: ClusterMetadata, node_id: int | None) -> dict[str, tuple[uuid.UUID, int]]:
    """Return the logs of which a node has a replica that is neither on its way here nor away."""
    topics = {topic_id: name for name, topic_id in metadata.topic_ids.items()}
    return {
        f"{topics[topic_id]}-{partition}": (topic_id, partition)
        for (topic_id, partition), state in metadata.partition_states.items()
        if topic_id in topics
        and node_id in state.replicas
        and node_id not in (*state.adding, *state.removing)
    }


def missing_text(missing: tuple[str, ...]) -> str:
    """Say which logs are missing, as a clause."""
    return (
        f"no directory of log.dirs has {count_text(len(missing), 'log')} that the cluster's metadata count "
        f"on here, {named_in_short(list(missing))}: a directory was taken out of log.dirs, or its disk isn't "
        "mounted"
    )
