"""The files that turn restored segments into a log directory, which a node can serve after its next start.

The directory gets no marker of a clean stop, no recovery point and no index. So the broker that opens it
checks each batch, and creates indexes and the state of producers again, as after a crash. The broker removes
the first segment's snapshot, because the log has no record below its start
(ProducerStateManager#truncateAndReload).

A restored log doesn't end between a transaction's records and its marker. A transaction without its marker
stays open for ever, and consumers of committed records never get past such a transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute

from storage_engine.exceptions import RestoreError
from storage_engine.kafka.format import checkpoints, meta_properties, partition_metadata
from storage_engine.kafka.format.checkpoints import START_EVIDENCE, LeaderEpoch
from storage_engine.kafka.format.file_names import DirectoryState, PartitionDirectory, partition_directory
from storage_engine.kafka.format.layout import Node, data_paths, read_node
from storage_engine.kafka.metadata.cluster_metadata import LOG, ClusterMetadata, read_cluster_metadata
from storage_engine.kafka.stopped.store_lock import lock_holder
from storage_engine.model.broker.codec import RestoredConfig, RestoredSetting
from storage_engine.model.proof.receipt import Receipt

DIRECTORY_FILES = (checkpoints.LOG_START, checkpoints.HIGH_WATERMARK, meta_properties.NAME)
# The stubs of pyarrow.compute accept no text beside a column.
pc: Any = pyarrow.compute

_OPEN_STATE = pa.table(
    {
        "producer_id": pa.array([], pa.int64()),
        "marker": pa.array([], pa.int64()),
        "first": pa.array([], pa.int64()),
    }
)
"""For each producer, its last marker, and the first record of a transaction after this marker."""


def log_files(log: str) -> tuple[str, ...]:
    """Return the files in a log's directory that belong to no segment."""
    return tuple(f"{log}/{name}" for name in (checkpoints.LEADER_EPOCHS, partition_metadata.NAME))


def files_of(receipts: Sequence[Receipt], nodes: ServingNodes) -> Mapping[str, bytes]:
    """Return the contents of restored files, except segments and their companions, by path in the directory.

    :param receipts: receipts of whole logs that :func:`check_served` has accepted.
    """
    files: dict[str, bytes] = {}
    starts, watermarks = [], []
    for name, rows in _group_by_log(receipts):
        topic_id, _ = _topic_and_cluster_id(rows[0], name)
        first, end = rows[0].base_offset, rows[-1].end
        epochs, own_id = log_files(name.log)
        files[epochs] = checkpoints.leader_epochs_text(epochs_of(rows))
        files[own_id] = partition_metadata.partition_metadata_text(topic_id)
        start = rows[0].known.get(START_EVIDENCE)
        if isinstance(start, int) and first < start < rows[0].end:
            starts.append((name.topic, name.partition, start))
        # Only records below the high watermark are archived, so all restored records were below it.
        watermarks.append((name.topic, name.partition, end))
    files[checkpoints.LOG_START] = checkpoints.offsets_text(starts)
    files[checkpoints.HIGH_WATERMARK] = checkpoints.offsets_text(watermarks)
    # Written last: a broker doesn't accept a directory without it. The broker adds the directory's id.
    files[meta_properties.NAME] = (
        f"version={meta_properties.KRAFT_VERSION}\ncluster.id={nodes.cluster_id}\n"
        f"node.id={nodes.node_ids[0]}\n"
    ).encode()
    return files


def check_served(receipts: Sequence[Receipt], nodes: ServingNodes) -> None:
    """Make sure that the nodes will serve the restored logs unchanged.

    :raises RestoreError: the nodes would set a log aside, cut it off, or serve another log instead.
    """
    for name, rows in _group_by_log(receipts):
        _check_topic(name, rows, nodes)
        _check_epochs(name, rows, nodes)
        for node_id in nodes.node_ids:
            if (path := nodes.logs.get((node_id, name.log))) is not None:
                raise RestoreError(
                    f"log {name.log}: expected node {node_id} to have no directory of it, found {path}. "
                    "Nothing was written. A broker doesn't start with two directories of a log. Archive its "
                    "records that aren't in the lake yet, and then move that directory out of log.dirs."
                )


def epochs_of(rows: Sequence[Receipt]) -> tuple[LeaderEpoch, ...]:
    """Return the epochs, oldest first, of a log that begins with the first of these segments.

    :param rows: receipts of one log, in order and without a hole.
    :raises RestoreError: a receipt has no epochs, or receipts contradict each other.
    """
    epochs: list[LeaderEpoch] = []
    for row in rows:
        for place, epoch in enumerate(_known_epochs(row)):
            start = max(epoch.start_offset, row.base_offset)
            if epochs and place == 0 and epoch.epoch == epochs[-1].epoch:
                continue
            if start >= row.end or (epochs and epoch.epoch <= epochs[-1].epoch):
                raise _unsound(
                    row, f"leaders' epochs behind {epochs[-1] if epochs else 'none'}, found {epoch}"
                )
            epochs.append(LeaderEpoch(epoch.epoch, start))
    return tuple(epochs)


def continues(left: Receipt, right: Receipt) -> bool:
    """Return whether two adjacent segments belong to one history of the log, by their leaders' epochs.

    After an unclean election a log may have two histories. Then the epochs on both sides of the boundary
    don't fit together.
    """
    before, after = list(_known_epochs(left)), list(_known_epochs(right))
    if left.log_id is None or left.log_id != right.log_id or not before or not after:
        return False
    is_new_epoch = after[0].start_offset == right.base_offset and after[0].epoch > before[-1].epoch
    return is_new_epoch or after[0].epoch == before[-1].epoch


def _known_epochs(row: Receipt) -> Iterator[LeaderEpoch]:
    entries = row.known.get("leader_epochs")
    if not isinstance(entries, list):
        raise _unsound(row, "leaders' epochs, found none")
    for entry in entries:
        if not (isinstance(entry, list) and len(entry) == 2 and all(type(number) is int for number in entry)):
            raise _unsound(row, f"epochs and their first offsets, found {entry!r:.100}")
        yield LeaderEpoch(*entry)


def _check_topic(name: PartitionDirectory, rows: Sequence[Receipt], nodes: ServingNodes) -> None:
    for row in rows:
        topic_id, cluster_id = _topic_and_cluster_id(row, name)
        if cluster_id != nodes.cluster_id:
            raise RestoreError(
                f"log {name.log}: expected a node of cluster {cluster_id}, from which it was archived, "
                f"found {nodes.path} of cluster {nodes.cluster_id}. Nothing was written. Name a node of "
                "its own cluster; export writes the records into a file, to be produced anywhere."
            )
        present_id = nodes.metadata.topic_ids.get(name.topic)
        if present_id != topic_id:
            present = "no such topic" if present_id is None else partition_metadata.text_of(present_id)
            raise RestoreError(
                f"log {name.log}: expected topic id {partition_metadata.text_of(topic_id)} in the cluster's "
                f"metadata of {nodes.path}, found {present}: the topic was deleted since, or created again. "
                "Nothing was written. A broker would set the log aside and serve the partition empty; "
                "export writes the records into a file, to be produced into the new topic."
            )


def _check_epochs(name: PartitionDirectory, rows: Sequence[Receipt], nodes: ServingNodes) -> None:
    topic_id, _ = _topic_and_cluster_id(rows[0], name)
    state = nodes.metadata.partition_states.get((topic_id, name.partition))
    if state is None:
        raise RestoreError(
            f"log {name.log}: expected partition {name.partition} in the cluster's metadata of {nodes.path}, "
            "found none. Nothing was written. Name a node whose copy of the metadata is complete."
        )
    epochs = epochs_of(rows)
    if epochs and epochs[-1].epoch > state.leader_epoch:
        raise RestoreError(
            f"log {name.log}: expected a leader's epoch of {epochs[-1].epoch} or more in the cluster's "
            f"metadata of {nodes.path}, found {state.leader_epoch}: this copy of the metadata is older than "
            "the restored log. Nothing was written. Name a node whose copy is newer."
        )
    missing = sorted(set(state.replicas) - set(nodes.node_ids))
    if missing or nodes.node_ids[0] not in state.replicas:
        replicas = ", ".join(map(str, state.replicas))
        raise RestoreError(
            f"log {name.log}: expected all nodes with a replica of it, {replicas}, found "
            f"{', '.join(map(str, nodes.node_ids))}. Nothing was written. Stop all nodes with a replica "
            "and name each, first the node to restore for. Otherwise a replica with other records may become "
            "the leader, and the restored log would be cut off."
        )


def _group_by_log(receipts: Sequence[Receipt]) -> Iterator[tuple[PartitionDirectory, list[Receipt]]]:
    for log, rows in groupby(receipts, key=lambda row: row.log):
        name, of_log = partition_directory(log), list(rows)
        if name is None or name.state is not DirectoryState.LOG or name.is_internal:
            raise _unsound(of_log[0], f"the name of a topic's log, found {log!r}")
        for left, right in pairwise(of_log):
            if left.end != right.base_offset:
                raise _unsound(right, f"a segment that begins at {left.end}")
        yield name, of_log


def _topic_and_cluster_id(row: Receipt, name: PartitionDirectory) -> tuple[uuid.UUID, str]:
    cluster, _, rest = (row.log_id or "").partition("/")
    topic, _, partition = rest.partition("/")
    if not cluster or partition != str(name.partition):
        raise _unsound(row, f"cluster, topic id and partition {name.partition}, found {row.log_id!r}")
    return partition_metadata.uuid_of(topic, f"receipt of {row.log}/{row.base_offset:020d}", 0), cluster


def _unsound(row: Receipt, expected: str) -> RestoreError:
    return RestoreError(
        f"receipt of {row.log}/{row.base_offset:020d}: expected {expected}. Nothing was written. No node "
        "could serve the restored log. To get its bytes back unchanged, restore it without naming a node. "
        "Run verify."
    )


@dataclass(frozen=True, slots=True)
class ServingNodes:
    """The nodes that will serve a restored log. The first node gets the restored directory.

    :param logs: path of each log of a node, by the node's id and the log's name.
    """

    path: Path
    cluster_id: str
    node_ids: tuple[int, ...]
    metadata: ClusterMetadata
    logs: dict[tuple[int, str], Path] = field(default_factory=dict)


def read_serving_nodes(paths: Sequence[Path]) -> ServingNodes:
    """Read the nodes that will serve a restored directory.

    :param paths: their ``server.properties``.
    :raises RestoreError: a node runs, the nodes are of several clusters, or their cluster's topics aren't on
        disk.
    :raises StorageEngineError: the files of a node can't be read.
    """
    nodes = [_read_stopped(path) for path in paths]
    ids = [_cluster_and_node_id(node) for node in nodes]
    clusters = sorted({cluster for cluster, _ in ids})
    numbers = tuple(number for _, number in ids)
    if len(clusters) > 1 or len(set(numbers)) < len(numbers):
        identities = ", ".join(f"node {number} of cluster {cluster}" for cluster, number in ids)
        raise RestoreError(
            f"{paths[0]}: expected each node of one cluster once, found {identities}. Nothing was written. "
            "Name the nodes that have a replica of the restored logs."
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


def _read_stopped(path: Path) -> Node:
    if path.is_dir():
        raise RestoreError(
            f"{path}: expected a node's server.properties, found a directory. Nothing was written. Name "
            "that file: the restore needs the node's facts about its cluster."
        )
    for directory in data_paths(path):
        if lock_holder(directory) is not None:
            raise RestoreError(
                f"{path}: expected a node that is stopped, found that a process has locked {directory}. "
                "Nothing was written. Stop the node, restore, add the restored directory to its log.dirs, "
                "and start it."
            )
    return read_node(path)


def _cluster_and_node_id(node: Node) -> tuple[str, int]:
    metas = [directory.meta for directory in node.directories if directory.meta is not None]
    pairs = [(meta.cluster_id, meta.node_id) for meta in metas if not meta.zookeeper]
    identities = {
        (cluster, number) for cluster, number in pairs if cluster is not None and number is not None
    }
    if len(identities) != 1:
        raise RestoreError(
            f"{node.root}: expected the log directories of one node of a cluster without ZooKeeper, found "
            f"{len(identities)} identities in their meta.properties. Nothing was written. Name a node whose "
            "directories are formatted."
        )
    (identity,) = identities
    return identity


@dataclass(frozen=True, slots=True)
class RestoredLogDirectory(RestoredConfig):
    """Turns restored logs into a log directory that ``nodes`` can serve."""

    nodes: ServingNodes

    FILES: ClassVar[tuple[str, ...]] = DIRECTORY_FILES
    COLUMNS: ClassVar[tuple[str, ...]] = ("kind", "offset", "producer_id", "transactional", "control")
    NO_QUEUES: ClassVar[pa.Table] = _OPEN_STATE
    ENDS_ANYWHERE: ClassVar[bool] = False
    FINISHED: ClassVar[frozenset[str]] = frozenset()

    def log_files(self, log: str) -> tuple[str, ...]:
        return log_files(log)

    def check(self, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]) -> None:
        check_served(receipts, self.nodes)

    def queues_of(self, rows: pa.Table) -> pa.Table:
        """Return each producer's last marker, and its first transactional record after this marker."""
        records = rows.filter(pc.fill_null(rows["transactional"], False))
        records = records.filter(pc.is_in(records["kind"], pa.array(["message", "control"])))
        ends = pc.is_in(records["control"], pa.array(["commit", "abort"]))
        none = pa.scalar(None, pa.int64())
        markers = pc.if_else(ends, records["offset"], none)
        firsts = pc.if_else(pc.equal(records["kind"], "message"), records["offset"], none)
        columns = [records["producer_id"], markers, firsts]
        return self.merge_queues(pa.Table.from_arrays(columns, names=_OPEN_STATE.column_names))

    def merge_queues(self, queues: pa.Table) -> pa.Table:
        """Return one row for each producer, from any number of results of :func:`queues_of`."""
        markers = queues.group_by("producer_id").aggregate([("marker", "max")])
        joined = queues.join(markers, "producer_id")
        behind = pc.greater(joined["first"], pc.fill_null(joined["marker_max"], -1))
        firsts = pc.if_else(pc.fill_null(behind, False), joined["first"], pa.scalar(None, pa.int64()))
        table = joined.select(["producer_id", "marker"]).append_column("first", firsts)
        result = table.group_by("producer_id").aggregate([("marker", "max"), ("first", "min")])
        return result.rename_columns(_OPEN_STATE.column_names)

    def unfinished(self, queues: pa.Table) -> str:
        still_open = queues.filter(pc.is_valid(queues["first"])).sort_by("first").to_pylist()
        if not still_open:
            return ""
        oldest = still_open[0]
        return (
            f"a transaction of producer {oldest['producer_id']}, which begins at offset {oldest['first']}, "
            "has no marker"
        )

    def config_files(self, queues: pa.Table, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
        return files_of(receipts, self.nodes)

    def settings(self, receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
        """Return no settings: a broker creates the indexes again, by its own settings."""
        return ()

    def finish(self, root: Path, receipts: Sequence[Receipt]) -> None:
        """Do nothing: all files are already written."""
