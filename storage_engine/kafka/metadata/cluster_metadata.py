"""Topics in a node's copy of the cluster's metadata: ids, own settings, and replicas.

Only the records of topics, settings and, on request, partitions are read. So the version of other records
doesn't matter.

A copy is the log ``__cluster_metadata-0`` and the snapshots beside it. Its offsets have no holes, and its
oldest segments are deleted only after a snapshot contains them (KafkaMetadataLog#maybeClean). If a record is
lost, an existing topic may look deleted, so a hole is an error. Whether a complete copy is outdated
can't be detected.

The copy also tells whether a log of a stopped node has replicas on other nodes. Once the replica with the
latest log start leads, all other replicas lose their earlier records. So segments of a log are deleted here
only if no other node has a replica, or if all such nodes are stopped. If that is unknown, nothing is deleted.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Generator, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from storage_engine.exceptions import UnsupportedLayoutError
from storage_engine.kafka.format.file_names import (
    METADATA_TOPIC,
    FileKind,
    FileState,
    corrupt,
    log_file,
    read_stored,
)
from storage_engine.model.plan import Reason

REMEDY = "Compare the file with another node's."
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint\Z", re.ASCII)
_FOOTER = "snapshot-footer"
_MAX_BYTES = 1 << 30
_Values = Generator[tuple[Path, bytes], None, tuple[int, str | None]]
"""Generator of each record's file and value. It returns the offset after the last record and, if this is a
control record, its kind."""


def metadata_values(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the values of the newest snapshot's records and of later records, each with its file.

    Only a caller that reads to the end knows that the copy is complete.

    :raises CorruptFileError: a file is damaged; a file ends within a batch, as after an unclean stop; or
        records are missing before the first segment, between two segments, or at the end.
    :raises OSError: a file can't be read.
    """
    names = sorted(path.name for path in directory.iterdir())
    files = [(name, file) for name in names if (file := log_file(name)) and file.state is FileState.IN_USE]
    segments = [(file.offset, directory / name) for name, file in files if file.kind is FileKind.LOG]
    snapshots = [name for name in names if _SNAPSHOT.match(name)]
    begin = int(snapshots[-1][:20]) if snapshots else 0
    if not segments or segments[0][0] > begin:
        begin_text = f"they begin at {segments[0][0]}" if segments else "none"
        raise corrupt(directory, 0, f"segments that begin at or before offset {begin}", begin_text, REMEDY)
    if snapshots:
        path = directory / snapshots[-1]
        _, last = yield from _values(path, 0, 0)
        if last != _FOOTER:
            raise corrupt(path, path.stat().st_size, "the record that ends a snapshot", "none", REMEDY)
    end = segments[0][0]
    for base, path in segments:
        if base != end:
            raise corrupt(path, 0, f"offset {end}, where the segment before ends", f"{base}", REMEDY)
        end, _ = yield from _values(path, base, begin)
    # A broker writes a producer snapshot where a segment ends, and at the log's end when it stops.
    newest = max((file.offset for _, file in files if file.kind is FileKind.SNAPSHOT), default=1)
    if end < max(newest, begin):
        path = segments[-1][1]
        raise corrupt(
            path,
            path.stat().st_size,
            f"records up to offset {max(newest, begin)}",
            f"the end at {end}",
            REMEDY,
        )


def _values(path: Path, base: int, begin: int) -> _Values:
    """Yield the values of a file's records from offset ``begin`` on. ``base`` is its first offset."""
    # Loading Arrow takes longer than reading many a store.
    from storage_engine.kafka.codec.codec import CODEC

    end, last = base, None
    for rows, damages in CODEC.decode(memoryview(read_stored(path, _MAX_BYTES)), 0):
        for damage in damages:
            raise corrupt(path, damage.offset, damage.expected, damage.found, REMEDY)
        # Only a batch's own row has all of these columns.
        batches = rows.select(["physical_offset", "base_offset", "last_offset_delta"]).drop_null()
        for at, first, delta in zip(*(column.to_pylist() for column in batches.columns), strict=True):
            if first != end:
                raise corrupt(path, at, f"a batch that begins at offset {end}", f"{first}", REMEDY)
            end += delta + 1
        last = rows["control"][-1].as_py()
        columns = (rows[name].to_pylist() for name in ("kind", "offset", "value"))
        for kind, offset, value in zip(*columns, strict=True):
            if kind == "message" and value and offset >= begin:
                yield path, value
    return end, last


LOG = f"{METADATA_TOPIC}-0"
_TOPIC, _PARTITION, _CONFIG, _REMOVE_TOPIC, _FEATURE_LEVEL = 2, 3, 4, 9, 12
_PARTITION_CHANGE = 5
_NEWEST_PARTITION = 2
_LEADER_TAG, _REPLICAS_TAG, _REMOVING_TAG, _ADDING_TAG, _SAME_LEADER = 1, 2, 3, 4, -2
_VERSION_FEATURE, _NEWEST_VERSION = "metadata.version", 33
"""The newest version of Kafka 4.4 (MetadataVersion). Later versions may keep settings in other records."""
_ALWAYS = frozenset({_TOPIC, _CONFIG, _REMOVE_TOPIC, _FEATURE_LEVEL})
_OF_PARTITIONS = frozenset({_PARTITION, _PARTITION_CHANGE})
_OF_BROKER, _OF_TOPIC = 4, 2
_BEGIN = struct.Struct(">BBBi16s")
"""Start of a PartitionRecord: frame version, kind and version of one byte each, number, topic's id."""
_SEVERAL_BYTES = 0x80


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's replicas, its leader's epoch, and the replicas that a reassignment removes or adds."""

    replicas: tuple[int, ...]
    leader_epoch: int
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()


@dataclass(slots=True)
class ClusterMetadata:
    """Topics and settings, as of the end of this node's copy.

    :param partition_states: states by the topic's id and the partition's number; empty unless requested.
    :param node_settings: dynamic settings by node, made while the cluster ran; "" means all nodes.
    :param partitions: numbers of a topic's partitions in the whole cluster, by the topic's id.
    """

    topic_ids: dict[str, uuid.UUID] = field(default_factory=dict)
    topic_settings: dict[str, dict[str, str]] = field(default_factory=dict)
    node_settings: dict[str, dict[str, str]] = field(default_factory=dict)
    partitions: dict[uuid.UUID, set[int]] = field(default_factory=dict)
    partition_states: dict[tuple[uuid.UUID, int], PartitionState] = field(default_factory=dict)

    def partitions_of(self, topic: str) -> frozenset[int]:
        """Return the numbers of a topic's partitions in the whole cluster. An unknown topic has none."""
        topic_id = self.topic_ids.get(topic)
        return frozenset() if topic_id is None else frozenset(self.partitions.get(topic_id, ()))

    def settings_of_node(self, node_id: str) -> Mapping[str, str]:
        """Return a node's dynamic settings. Its own settings win over settings for all nodes."""
        return {**self.node_settings.get("", {}), **self.node_settings.get(node_id, {})}


def read_cluster_metadata(directory: Path, *, partition_states: bool = False) -> ClusterMetadata:
    """Read a node's copy of the cluster's metadata.

    :param partition_states: also read the states of partitions. There are many, and few callers need them.
    :raises CorruptFileError: bytes are no record of the metadata, or records are missing
        (:func:`metadata_values`).
    :raises UnsupportedLayoutError: records have an unknown version.
    :raises OSError: the copy can't be read.
    """
    metadata = ClusterMetadata()
    kinds = _ALWAYS | _OF_PARTITIONS if partition_states else _ALWAYS
    for path, value in metadata_values(directory):
        if len(value) < _BEGIN.size or value[1] != _PARTITION or max(value[:3]) >= _SEVERAL_BYTES:
            _apply(metadata, kinds, value, path)
            continue
        # Nearly all records are of a partition and begin with the same fields.
        _, _, version, number, topic_id = _BEGIN.unpack_from(value)
        _put(metadata, kinds, version, number, _uuid_of(topic_id), value[_BEGIN.size :], path)
    return metadata


@lru_cache(maxsize=256)
def _uuid_of(data: bytes) -> uuid.UUID:
    """Return a topic's id. It is cached, because each of the topic's partitions repeats it."""
    return uuid.UUID(bytes=data)


class _Reader:
    """Reads the fields of a record, in their order."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data = data
        self._path = path
        self._at = 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if size < 0 or len(part) < size:
            raise corrupt(self._path, self._at, f"{size} more bytes of a record", f"{len(part)}", REMEDY)
        self._at += size
        return part

    def varint(self) -> int:
        # A node may have 100,000 partitions, and nearly all of their numbers have one byte.
        if self._at < len(self._data) and self._data[self._at] < 0x80:
            self._at += 1
            return self._data[self._at - 1]
        value = shift = 0
        while shift < 35:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise corrupt(self._path, self._at, "a number of at most 5 bytes", "a longer one", REMEDY)

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def numbers(self) -> tuple[int, ...]:
        count = self.varint() - 1
        return () if count <= 0 else struct.unpack(f">{count}i", self.take(4 * count))

    def rest(self) -> tuple[bytes, Path]:
        """Return the bytes that aren't read yet, and their file."""
        return self._data[self._at :], self._path

    def id(self) -> uuid.UUID:
        return _uuid_of(self.take(16))

    def tagged(self) -> Iterator[tuple[int, _Reader]]:
        """Yield the optional fields of a record, by their tags."""
        for _ in range(self.varint()):
            tag = self.varint()
            yield tag, _Reader(self.take(self.varint()), self._path)

    def text(self) -> str | None:
        size = self.varint()
        return None if size == 0 else self.take(size - 1).decode("utf-8", "replace")


def _apply(metadata: ClusterMetadata, kinds: Set[int], value: bytes, path: Path) -> None:
    reader = _Reader(value, path)
    reader.varint()
    kind, version = reader.varint(), reader.varint()
    if kind in _OF_PARTITIONS:
        # All versions of these records begin with these fields.
        number, topic_id = reader.number(), reader.id()
    if kind == _PARTITION:
        _put(metadata, kinds, version, number, topic_id, *reader.rest())
    if kind == _PARTITION or kind not in kinds:
        return
    _check_version(kind, version, path)
    if kind == _PARTITION_CHANGE:
        before = metadata.partition_states.get((topic_id, number), PartitionState((), 0))
        metadata.partition_states[topic_id, number] = _parse_change(reader, before)
    elif kind == _FEATURE_LEVEL:
        feature, level = reader.text(), int.from_bytes(reader.take(2), "big", signed=True)
        if feature == _VERSION_FEATURE and level > _NEWEST_VERSION:
            raise UnsupportedLayoutError(
                f"{path}: expected {_VERSION_FEATURE} up to {_NEWEST_VERSION}, found {level}. Nothing was "
                "changed. Use a newer storage-engine."
            )
    elif kind == _TOPIC:
        name = reader.text() or ""
        metadata.topic_ids[name] = reader.id()
    elif kind == _REMOVE_TOPIC:
        removed = reader.id()
        metadata.partitions.pop(removed, None)
        for name in [name for name, topic_id in metadata.topic_ids.items() if topic_id == removed]:
            del metadata.topic_ids[name]
            metadata.topic_settings.pop(name, None)
    else:
        resource = int.from_bytes(reader.take(1), "big", signed=True)
        name, setting, text = reader.text() or "", reader.text() or "", reader.text()
        if resource in (_OF_TOPIC, _OF_BROKER):
            settings = metadata.topic_settings if resource == _OF_TOPIC else metadata.node_settings
            values = settings.setdefault(name, {})
            if text is None:
                values.pop(setting, None)
            else:
                values[setting] = text


def _put(
    metadata: ClusterMetadata,
    kinds: Set[int],
    version: int,
    number: int,
    topic_id: uuid.UUID,
    data: bytes,
    path: Path,
) -> None:
    """Apply a PartitionRecord. ``data`` are its bytes after the topic's id."""
    metadata.partitions.setdefault(topic_id, set()).add(number)
    if _PARTITION in kinds:
        _check_version(_PARTITION, version, path)
        metadata.partition_states[topic_id, number] = _parse_partition(data, path)


def _check_version(kind: int, version: int, path: Path) -> None:
    newest = _NEWEST_PARTITION if kind in _OF_PARTITIONS else 0
    if version > newest:
        raise UnsupportedLayoutError(
            f"{path}: expected metadata records of version {newest}, found kind {kind} of version {version}. "
            "Nothing was changed. Use a newer storage-engine."
        )


@lru_cache(maxsize=4096)
def _parse_partition(data: bytes, path: Path) -> PartitionState:
    """Parse the fields after the topic's id in a PartitionRecord. Many partitions have equal fields."""
    reader = _Reader(data, path)
    replicas, _, removing, adding = (reader.numbers() for _ in ("replicas", "isr", "removing", "adding"))
    reader.number()
    return PartitionState(replicas, reader.number(), removing, adding)


def _parse_change(reader: _Reader, before: PartitionState) -> PartitionState:
    """Parse the fields after the topic's id in a PartitionChangeRecord (PartitionRegistration#merge)."""
    state = before
    for tag, value in reader.tagged():
        if tag == _REPLICAS_TAG:
            state = replace(state, replicas=value.numbers())
        elif tag == _REMOVING_TAG:
            state = replace(state, removing=value.numbers())
        elif tag == _ADDING_TAG:
            state = replace(state, adding=value.numbers())
        elif tag == _LEADER_TAG and value.number() != _SAME_LEADER:
            state = replace(state, leader_epoch=state.leader_epoch + 1)
    return state


def replica_fault(
    metadata: ClusterMetadata, topic_id: uuid.UUID, partition: int, node_id: int, replicas_stopped: str
) -> tuple[Reason, str] | None:
    """Return why a log's replicas forbid to delete segments of it; None if they don't.

    :param metadata: with the states of partitions.
    :param node_id: id of the node that has the log.
    :param replicas_stopped: a person's statement that all other nodes with a replica are stopped; "" without
        a statement.
    """
    state = metadata.partition_states.get((topic_id, partition))
    if state is None or not state.replicas:
        return Reason.UNKNOWN, "the cluster's metadata on this node don't say which nodes have its replicas"
    if node_id not in state.replicas:
        return Reason.UNKNOWN, (
            f"the cluster's metadata have its replicas on {nodes_text(state.replicas)}, not on node "
            f"{node_id}: its broker would set it aside"
        )
    if state.removing or state.adding:
        moves = [("added", state.adding), ("removed", state.removing)]
        text = ", ".join(f"{nodes_text(nodes)} {verb}" for verb, nodes in moves if nodes)
        return Reason.UNKNOWN, f"its replicas are being reassigned ({text}): wait until that is done"
    others = tuple(node for node in state.replicas if node != node_id)
    if others and not replicas_stopped.strip():
        return Reason.REPLICAS_ELSEWHERE, (
            f"{nodes_text(others)} {'have' if len(others) > 1 else 'has'} a replica, and no option says "
            "that every such node is stopped. A running node would lose the same records once this node "
            "leads: stop all of them and state that, or let the brokers delete"
        )
    return None


def nodes_text(nodes: tuple[int, ...]) -> str:
    numbers = [str(number) for number in sorted(nodes)]
    return f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {', '.join(numbers[:-1])} and {numbers[-1]}"
