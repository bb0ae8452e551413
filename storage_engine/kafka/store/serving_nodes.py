"""Stopped nodes that are to serve a restored log directory, and what their cluster knows of its topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage_engine.exceptions import RestoreError
from storage_engine.kafka.format.layout import Node, data_paths, read_node
from storage_engine.kafka.metadata.cluster_metadata import LOG, ClusterMetadata, read_cluster_metadata
from storage_engine.kafka.stopped.lock_holder import lock_holder


@dataclass(frozen=True, slots=True)
class ServingNodes:
    """What restoring has to know of the nodes. The first one is the restored directory's own.

    :param logs: where each of a node's logs is, by node and name.
    """

    path: Path
    cluster_id: str
    node_ids: tuple[int, ...]
    metadata: ClusterMetadata
    logs: dict[tuple[int, str], Path] = field(default_factory=dict)


def read_serving_nodes(paths: Sequence[Path]) -> ServingNodes:
    """Look at the nodes.

    :param paths: their ``server.properties``.
    :raises RestoreError: one runs, they are of several clusters, or their cluster's topics aren't on disk.
    :raises StorageEngineError: the files of one can't be read.
    """
    nodes = [_stopped(path) for path in paths]
    ids = [_identity(node) for node in nodes]
    clusters = sorted({cluster for cluster, _ in ids})
    numbers = tuple(number for _, number in ids)
    if len(clusters) > 1 or len(set(numbers)) < len(numbers):
        found = ", ".join(f"node {number} of cluster {cluster}" for cluster, number in ids)
        raise RestoreError(
            f"{paths[0]}: expected each node of one cluster once, found {found}. Nothing was written. Name "
            "the nodes that have a replica of what is restored."
        )
    properties = nodes[0].properties
    assert properties is not None
    return ServingNodes(
        paths[0],
        clusters[0],
        numbers,
        read_cluster_metadata(properties.metadata_dir / LOG, partition_states=True),
        {
            (number, log.name.log): log.path
            for number, node in zip(numbers, nodes, strict=True)
            for _, log in node.logs
        },
    )


def _stopped(path: Path) -> Node:
    if path.is_dir():
        raise RestoreError(
            f"{path}: expected a node's server.properties, found a directory. Nothing was written. Name that "
            "file: what is restored depends on what the node knows of its cluster."
        )
    for directory in data_paths(path):
        if lock_holder(directory) is not None:
            raise RestoreError(
                f"{path}: expected a node that is stopped, found that a process has {directory}. Nothing was "
                "written. Stop the node, restore, add the restored directory to its log.dirs, and start it."
            )
    return read_node(path)


def _identity(node: Node) -> tuple[str, int]:
    """Return cluster id and node id."""
    metas = [directory.meta for directory in node.directories if directory.meta is not None]
    known = [(meta.cluster_id, meta.node_id) for meta in metas if not meta.zookeeper]
    found = {(cluster, number) for cluster, number in known if cluster is not None and number is not None}
    if len(found) != 1:
        raise RestoreError(
            f"{node.root}: expected the log directories of one node of a cluster without ZooKeeper, found "
            f"{len(found)} identities in their meta.properties. Nothing was written. Name a node whose "
            "directories are formatted."
        )
    (identity,) = found
    return identity
