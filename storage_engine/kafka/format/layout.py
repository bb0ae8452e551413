"""A node's log directories: their logs and files. Reads names, file facts, and a directory's small files."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from storage_engine.core.turns import SharedLock
from storage_engine.exceptions import (
    CorruptFileError,
    StorageEngineError,
    StoreLayoutError,
    StoreNotFoundError,
)
from storage_engine.kafka.format import checkpoints, meta_properties
from storage_engine.kafka.format.file_names import (
    METADATA_TOPIC,
    OFFSET_DIGITS,
    DirectoryState,
    FileKind,
    FileState,
    PartitionDirectory,
    kind_and_state,
    offset_of,
    partition_directory,
)
from storage_engine.kafka.format.meta_properties import MetaProperties
from storage_engine.kafka.format.server_properties import (
    ServerProperties,
    is_server_properties,
    read_server_properties,
)
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import FileFacts


@dataclass(frozen=True, slots=True)
class LivePartition:
    """A cluster's facts about one partition at one moment.

    :param topic_id: id of the topic that has the name now. Files with another id are of a deleted topic.
    :param leader: node that leads the partition. All offsets are those of its log, not of a follower's.
    :param high_watermark: the end for consumers that also read uncommitted records.
    :param last_stable_offset: the end for consumers that read only committed records.
    :param topic_settings: all settings in effect, by Kafka's names, including the node's and defaults.
    :param own_settings: names of the settings that the topic itself has.
    :param replicas: nodes with a replica, the preferred leader first.
    :param in_sync: replicas in sync (ISR).
    :param leader_epoch: number of the leader's term; each change of the leader raises it.
    :param refused: unknown facts, and why the cluster refused them, as clauses.
    """

    topic_id: uuid.UUID | None = None
    leader: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    topic_settings: Mapping[str, str] | None = None
    own_settings: frozenset[str] = frozenset()
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    leader_epoch: int | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """A running cluster's answers.

    :param cluster_id: the cluster's id. Files with another id are of another cluster.
    :param partitions: facts by ``<topic>-<partition>``. A partition without an answer is left out.
    """

    asked_at_ms: int
    cluster_id: str
    partitions: Mapping[str, LivePartition]


Content = TypeVar("Content")
LAST_OFFSET = (1 << 63) - 1


class SegmentFiles(NamedTuple):
    """The files of a segment.

    :param time_index: path of its time index; None if the index is missing.
    :param offset_index: path of its offset index; None if the index is missing.
    :param companions: its transaction index and producer snapshot, which can't be created again.
    """

    base_offset: int
    log: FileFacts
    time_index: str | None
    offset_index: str | None
    companions: tuple[FileFacts, ...]


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The directory of a log.

    :param snapshots: producer snapshots, oldest first. The newest may be at the log's end, where no segment
        begins.
    :param left_over: files that the broker will remove or rename, each with its state.
    :param links: symbolic links, which we don't follow: files of the log, but no segments of a log in use.
        The directory of a log set aside may itself be a link.
    """

    directory: str
    name: PartitionDirectory
    segments: tuple[SegmentFiles, ...]
    snapshots: tuple[FileFacts, ...]
    left_over: tuple[tuple[FileState, FileFacts], ...]
    links: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return Path(self.directory)

    @property
    def is_link(self) -> bool:
        return self.directory in self.links

    @property
    def size_bytes(self) -> int:
        """Return the size of the log's segment files. ``retention.bytes`` limits this size."""
        return sum(segment.log.size_bytes for segment in self.segments)

    @property
    def left_over_bytes(self) -> int:
        return sum(facts.size_bytes for _, facts in self.left_over)

    def has_lost_files(self) -> bool:
        """Return whether files that can't be made again have vanished since the log was listed."""
        files = (file for segment in self.segments for file in (segment.log, *segment.companions))
        return not all(os.path.exists(file.path) for file in (*files, *self.snapshots))  # noqa: PTH110

    def with_ends(self, end: int) -> Iterator[tuple[SegmentFiles, int]]:
        """Yield each segment and its end offset: the next base offset, or ``end`` for the last segment."""
        ends = [*(segment.base_offset for segment in self.segments), end]
        return zip(self.segments, ends[1:], strict=True)


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One of a node's log directories.

    :param meta: its identity; None if the directory was never formatted, or is a plain copy of logs.
    :param stopped_cleanly: it contains the marker of a clean stop. A broker removes it first when it starts.
    :param broker_epoch: the broker's epoch when it stopped; None if no marker contains it.
    :param cleaned_to: for each compacted log, the offset up to which it is cleaned.
    :param aside: logs that are deleted, copied or set aside.
    :param fault: a fault of its small files; "" without one. A broker continues without a directory that has
        a fault, and we decide nothing about its logs.
    :param cleaned_unknown: the cleaner's own checkpoint can't be read.
    :param stable_offsets: for each log, the offset below which a running cluster has no open transaction.
    :param reading: a shared lock that shows other processes that this process reads the directory.
    """

    path: Path
    meta: MetaProperties | None
    stopped_cleanly: bool
    broker_epoch: int | None
    high_watermarks: Mapping[str, int]
    log_starts: Mapping[str, int]
    cleaned_to: Mapping[str, int]
    logs: tuple[PartitionLog, ...]
    aside: tuple[PartitionLog, ...]
    fault: str = ""
    cleaned_unknown: bool = False
    stable_offsets: Mapping[str, int] = field(default_factory=dict)
    reading: SharedLock = field(default_factory=SharedLock, repr=False, compare=False)

    def cleaned_offset(self, log: str) -> int:
        """Return the offset below which a log's records may be cleaned; the highest offset if unknown."""
        return LAST_OFFSET if self.cleaned_unknown else self.cleaned_to.get(log, 0)

    @property
    def left_uncleanly(self) -> bool:
        """Return whether the directory has topics' logs, but no marker of a clean stop."""
        marked = any(log.name.topic != METADATA_TOPIC for log in (*self.logs, *self.aside))
        return marked and not self.stopped_cleanly


@dataclass(frozen=True)
class Node:
    """A node's directories, or one of them alone.

    :param root: the path by which the node was named: its ``server.properties``, or a log directory.
    :param properties: its settings; None if only a log directory is known.
    :param live: its running cluster's answers; None if it was not asked.
    :param failed: reasons why directories can't be read, by path. Empty unless a hold read the node.
    """

    root: Path
    properties: ServerProperties | None
    directories: tuple[LogDirectory, ...]
    live: LiveFacts | None = None
    failed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def logs(self) -> tuple[tuple[LogDirectory, PartitionLog], ...]:
        """Return all logs with their directories, by name."""
        pairs = [(directory, log) for directory in self.directories for log in directory.logs]
        return tuple(sorted(pairs, key=lambda one: (one[1].name.topic, one[1].name.partition)))

    @property
    def cluster_ids(self) -> frozenset[str]:
        return frozenset(d.meta.cluster_id for d in self.directories if d.meta and d.meta.cluster_id)

    @property
    def broker_epochs(self) -> frozenset[int]:
        """Return the broker's epochs in the markers of a clean stop. One stop has one epoch."""
        return frozenset(d.broker_epoch for d in self.directories if d.broker_epoch is not None)

    @property
    def left_uncleanly(self) -> bool:
        """Return whether a marker of a clean stop is missing, or markers are of different stops (KIP-966).

        Then the broker runs, or its last stop was unclean. A node that is only a controller has no marker.
        """
        return len(self.broker_epochs) > 1 or any(directory.left_uncleanly for directory in self.directories)

    @property
    def zookeeper(self) -> bool:
        """Return whether the cluster keeps its topics in ZooKeeper, so their settings aren't on this disk."""
        return any(directory.meta is not None and directory.meta.zookeeper for directory in self.directories)


def store_around(path: Path) -> Path | None:
    """Return ``path`` if it is a node's file, or else the log directory at or around it, or else None."""
    real = Path(os.path.realpath(path))
    if real.suffix == ".properties" and is_server_properties(real):
        return real
    return next((root for root in (real, *real.parents) if (root / meta_properties.NAME).is_file()), None)


def node_name(root: Path) -> str:
    """Return a node's default name by its id and cluster, or else by its path."""
    if root.is_dir():
        return root.name
    try:
        for path in data_paths(root):
            if (path / meta_properties.NAME).exists():
                meta = meta_properties.read_meta_properties(path / meta_properties.NAME)
                if meta.cluster_id and meta.node_id is not None:
                    return f"node-{meta.node_id}-of-{meta.cluster_id}"
    except (StorageEngineError, OSError):
        # The command that needs the file reports the error.
        pass
    return f"{root.parent.name}-{root.name}"


def data_paths(root: Path) -> tuple[Path, ...]:
    """Return a node's directories, as its file names them. A log directory is returned alone.

    :raises BadInputError: the file can't be read.
    """
    if root.is_dir():
        return (root,)
    properties = read_server_properties(root)
    return tuple(dict.fromkeys((*properties.log_dirs, properties.metadata_dir)))


def read_node(root: Path) -> Node:
    """Read a node's directories.

    :param root: its ``server.properties``, or a log directory.
    :raises StoreNotFoundError: a directory is missing, or is no log directory of Kafka.
    :raises StoreLayoutError: a log lies in two directories, or directories are of two clusters.
    :raises FileNotFoundError: files vanish each time that the directories are read.
    """
    properties = None if root.is_dir() else read_server_properties(root)
    for _ in range(_READINGS):
        try:
            return _check(Node(root, properties, tuple(_read_directory(path) for path in data_paths(root))))
        except FileNotFoundError as error:
            failure = error
    raise failure


def read_what_is_left(root: Path) -> Node:
    """Read a node whose broker continues without a failed directory (LogDirFailureChannel).

    :return: the node with its readable directories. ``failed`` names all other directories.
    :raises StorageEngineError: no directory can be read; see :func:`read_node`.
    """
    directories: list[LogDirectory] = []
    failed: dict[str, str] = {}
    for path in data_paths(root):
        try:
            directory = _read_directory(path)
        except (StoreNotFoundError, CorruptFileError, OSError) as error:
            failed[str(path)] = reason_of(error)
            continue
        if directory.fault:
            failed[str(path)] = directory.fault
        else:
            directories.append(directory)
    if any(directory.meta for directory in directories):
        for place in directories:
            if place.meta is None:
                failed[str(place.path)] = f"expected {meta_properties.NAME} in it, found none: is it mounted?"
        directories = [directory for directory in directories if directory.meta]
    if not directories:
        return read_node(root)
    return _check(Node(root, read_server_properties(root), tuple(directories), failed=failed))


def _check(node: Node) -> Node:
    root = node.root
    if len(node.cluster_ids) > 1:
        ids = " and ".join(sorted(node.cluster_ids))
        raise StoreLayoutError(
            f"{root}: expected log directories of one cluster, found those of {ids}. Nothing was "
            "changed. Move each directory back to its own node: no broker starts with these."
        )
    logs: dict[str, PartitionLog] = {}
    for log in (log for directory in node.directories for log in directory.logs):
        first = logs.setdefault(log.name.log, log)
        if first is not log:
            for place in (first, log):
                # If a broker has just moved the log to another directory, the first one is gone by now.
                place.path.stat()
            raise StoreLayoutError(
                f"{root}: log {log.name.log}: expected one directory, found {first.path} and {log.path}. "
                "Nothing was changed. Find out which directory the broker used last: it doesn't start "
                "with both."
            )
    return node


def _read_directory(path: Path) -> LogDirectory:
    if not path.is_dir():
        raise StoreNotFoundError(
            f"{path}: expected a log directory, found none. Nothing was changed. Mount it, or correct "
            "log.dirs. For a broker in a container, name a copy of server.properties with this host's "
            "paths."
        )
    # The directory itself isn't locked: a process that writes our stamp into it locks it.
    reading = SharedLock([path / meta_properties.NAME])
    logs: list[PartitionLog] = []
    aside: list[PartitionLog] = []
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        name = partition_directory(entry.name)
        if name is None:
            continue
        if entry.is_dir(follow_symlinks=False):
            (logs if name.state is DirectoryState.LOG else aside).append(_read_log(entry.path, name))
        elif name.state is DirectoryState.LOG:
            _refuse_link(entry)
        elif entry.is_symlink():
            aside.append(PartitionLog(entry.path, name, (), (), (), (entry.path,)))
    marker = path / meta_properties.CLEAN_SHUTDOWN
    try:
        stopped_cleanly, broker_epoch = True, meta_properties.read_clean_shutdown(marker)
    except (CorruptFileError, FileNotFoundError):
        # An incomplete marker doesn't count: a controller treats such a stop as unclean.
        stopped_cleanly, broker_epoch = False, None
    faults: list[str] = []
    # Only the broker needs recovery points, but a damaged file takes the directory offline.
    _read_small(path / checkpoints.RECOVERY_POINT, checkpoints.read_offsets, faults)
    high_watermarks, log_starts = (
        _read_small(path / name, checkpoints.read_offsets, faults) or {}
        for name in (checkpoints.HIGH_WATERMARK, checkpoints.LOG_START)
    )
    cleaner_faults: list[str] = []
    cleaned_to = _read_small(path / checkpoints.CLEANER, checkpoints.read_offsets, cleaner_faults) or {}
    faults += cleaner_faults
    return LogDirectory(
        path,
        _read_small(path / meta_properties.NAME, meta_properties.read_meta_properties, faults),
        stopped_cleanly,
        broker_epoch,
        high_watermarks,
        log_starts,
        cleaned_to,
        tuple(logs),
        tuple(aside),
        next(iter(faults), ""),
        cleaned_unknown=bool(cleaner_faults),
        reading=reading,
    )


def _read_small(path: Path, read: Callable[[Path], Content], faults: list[str]) -> Content | None:
    """Read a directory's checkpoint or identity. Return None if the file is missing or damaged.

    If such a file is damaged, a broker takes the whole directory offline, and continues with its other
    directories (OffsetCheckpointFile, MetaPropertiesEnsemble#verify).

    :param faults: receives the fault of a damaged file.
    """
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except CorruptFileError as error:
        faults.append(reason_of(error))
        return None


_READINGS = 20
"""Number of attempts to read a log or a node while its files vanish: more than a broker deletes meanwhile."""


def read_again(
    log: PartitionLog, read: Callable[[PartitionLog], Content]
) -> tuple[PartitionLog, Content] | None:
    """Call ``read`` with a log. If one of its files has vanished, list the log again and repeat.

    :return: the log as it was read, and the result of ``read``; None if its directory was removed.
    :raises FileNotFoundError: files of the log vanish at each attempt.
    """
    for _ in range(_READINGS):
        try:
            return log, read(log)
        except FileNotFoundError as error:
            if not os.path.isdir(log.directory):  # noqa: PTH112  takes a third
                return None
            failure, log = error, _read_log(log.directory, log.name)
    raise failure


_IN_USE = FileState.IN_USE
_WITH_FACTS = (FileKind.LOG, FileKind.SNAPSHOT, FileKind.TRANSACTION_INDEX)
_INDEXES = (FileKind.TIME_INDEX, FileKind.OFFSET_INDEX)


def _read_log(path: str, name: PartitionDirectory, readings: int = _READINGS) -> PartitionLog:
    """List a log's files, by the digits of their names. A file that vanishes meanwhile is left out.

    :param readings: largest number of listings, if segments vanish each time.
    """
    with_facts: dict[FileKind, dict[str, FileFacts]] = {kind: {} for kind in _WITH_FACTS}
    logs, snapshots, transaction_indexes = with_facts.values()
    indexes: dict[FileKind, dict[str, str]] = {kind: {} for kind in _INDEXES}
    time_indexes, offset_indexes = indexes.values()
    left_over: list[tuple[FileState, FileFacts]] = []
    links: list[str] = []
    for entry in _files(path):
        file_name = entry.name
        if (parsed := kind_and_state(file_name)) is None:
            continue
        kind, state = parsed
        digits = file_name[:OFFSET_DIGITS]
        is_file = entry.is_file(follow_symlinks=False)
        # Of indexes only the paths are needed, and a node may have 100,000: they get no stat call.
        if is_file and state is _IN_USE and kind in indexes:
            indexes[kind][digits] = entry.path
            continue
        if offset_of(digits) is None:
            continue
        if not is_file:
            if name.state is DirectoryState.LOG and (kind, state) == (FileKind.LOG, _IN_USE):
                _refuse_link(entry)
            elif entry.is_symlink():
                links.append(entry.path)
            continue
        try:
            facts = FileFacts.of_stat(entry.path, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            if kind is FileKind.LOG and state is _IN_USE and readings > 1:
                # Segments that were listed before it may have vanished, too: that would look like a hole.
                return _read_log(path, name, readings - 1)
            continue
        if state is _IN_USE:
            with_facts[kind][digits] = facts
        else:
            left_over.append((state, facts))
    # All names have the same number of digits, so their order is that of the offsets.
    segments = [
        SegmentFiles(
            int(digits),
            logs[digits],
            time_indexes.get(digits),
            offset_indexes.get(digits),
            tuple([files[digits] for files in (transaction_indexes, snapshots) if digits in files]),
        )
        for digits in sorted(logs)
    ]
    ordered = tuple([snapshots[digits] for digits in sorted(snapshots)])
    return PartitionLog(path, name, tuple(segments), ordered, tuple(left_over), tuple(links))


def _refuse_link(entry: os.DirEntry[str]) -> None:
    """Refuse a symbolic link. A broker follows it, but we don't: we would miss the files behind it.

    :raises StoreLayoutError: the entry is a link.
    """
    if entry.is_symlink():
        raise StoreLayoutError(
            f"{entry.path}: expected a file or directory of the node itself, found a symbolic link to "
            f"{Path(entry.path).readlink()}. Nothing was changed. Replace the link with its target."
        )


def _files(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
