"""Directories and files in a node's log directories. Reads names, facts of files, and the small files of a
directory.
"""

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

    :param topic_id: of the topic that has the name now; files of another one are of a topic that is gone.
    :param leader: node that leads it. All offsets are those of its log, not of a follower's.
    :param log_start: its first offset.
    :param high_watermark: the end for who reads uncommitted records too.
    :param last_stable_offset: the end for who reads committed records alone.
    :param topic_settings: all that are in effect, by Kafka's names, those of the node and defaults too.
    :param own_settings: names of those that the topic itself has.
    :param replicas: nodes that have one, the preferred leader first.
    :param in_sync: those that follow (ISR).
    :param leader_epoch: how often the partition has changed its leader, by who leads it.
    :param refused: facts that the cluster did not tell, and why, as a list of clauses.
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

    :param cluster_id: its own; a node's files that name another one are of another cluster.
    :param partitions: by ``<topic>-<partition>``; one that is missing was not answered.
    """

    asked_at_ms: int
    cluster_id: str
    partitions: Mapping[str, LivePartition]


Found = TypeVar("Found")
LAST_OFFSET = (1 << 63) - 1


class SegmentFiles(NamedTuple):
    """The files of a segment.

    :param time_index: its path; None: there is none.
    :param offset_index: likewise.
    :param companions: its transaction index and its snapshot, which can't be made again.
    """

    base_offset: int
    log: FileFacts
    time_index: str | None
    offset_index: str | None
    companions: tuple[FileFacts, ...]


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The directory of a log.

    :param directory: its path.
    :param snapshots: of its producers, oldest first; the newest may lie at its end, where no segment begins.
    :param left_over: files that the broker removes or renames by itself, by their fate.
    :param links: symbolic links that nothing reads through: the directory of a log aside, or files in it;
        of a log in use any but segments.
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
        """Return whether its directory is a symbolic link."""
        return self.directory in self.links

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its segments' own files, which ``retention.bytes`` is compared with."""
        return sum(segment.log.size_bytes for segment in self.segments)

    def has_lost_files(self) -> bool:
        """Return whether files that can't be made again have vanished since they were listed."""
        files = (one for segment in self.segments for one in (segment.log, *segment.companions))
        return not all(os.path.exists(one.path) for one in (*files, *self.snapshots))  # noqa: PTH110

    def with_ends(self, end: int) -> Iterator[tuple[SegmentFiles, int]]:
        """Yield each segment and the offset behind it: the next base offset; of the last one ``end``."""
        ends = [*(segment.base_offset for segment in self.segments), end]
        return zip(self.segments, ends[1:], strict=True)


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One of a node's log directories.

    :param meta: None: it was never formatted, or is a plain copy.
    :param stopped_cleanly: the marker is there, which a broker removes first thing when it starts.
    :param broker_epoch: of the broker when it stopped; None: no marker says it.
    :param cleaned_to: by compacted log, up to where the cleaner has cleaned it.
    :param aside: logs that are deleted, copied or set aside.
    :param fault: what is wrong with its small files, so that a broker goes on without it; nothing of its
        logs is decided then.
    :param cleaned_unknown: the cleaner's own checkpoint can't be read.
    :param stable_offsets: by log, below which a running cluster has no open transaction.
    :param reading: tells others that this process reads the directory, as long as it may.
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
        """Return the offset below which a log's records may be cleaned; unknown counts as all of them."""
        return LAST_OFFSET if self.cleaned_unknown else self.cleaned_to.get(log, 0)

    @property
    def left_uncleanly(self) -> bool:
        """Return whether it lacks the marker; of the cluster's metadata alone a broker makes none."""
        marked = any(log.name.topic != METADATA_TOPIC for log in (*self.logs, *self.aside))
        return marked and not self.stopped_cleanly


@dataclass(frozen=True)
class Node:
    """A node's directories, or one of them alone.

    :param root: the path that named it: its ``server.properties``, or a log directory.
    :param properties: None: only a log directory is known.
    :param live: its running cluster's answers; None: it was not asked.
    :param failed: why directories can't be read, by path; only who keeps a hold goes on without them.
    """

    root: Path
    properties: ServerProperties | None
    directories: tuple[LogDirectory, ...]
    live: LiveFacts | None = None
    failed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def logs(self) -> tuple[tuple[LogDirectory, PartitionLog], ...]:
        """Return all logs with their directories, by name."""
        found = [(directory, log) for directory in self.directories for log in directory.logs]
        return tuple(sorted(found, key=lambda one: (one[1].name.topic, one[1].name.partition)))

    @property
    def cluster_ids(self) -> frozenset[str]:
        return frozenset(d.meta.cluster_id for d in self.directories if d.meta and d.meta.cluster_id)

    @property
    def broker_epochs(self) -> frozenset[int]:
        """Return the broker's epochs that the markers of a clean stop name: one, if all are of one stop."""
        return frozenset(d.broker_epoch for d in self.directories if d.broker_epoch is not None)

    @property
    def left_uncleanly(self) -> bool:
        """Return whether its last stop was unclean for a broker or a controller (KIP-966)."""
        return len(self.broker_epochs) > 1 or any(one.left_uncleanly for one in self.directories)

    @property
    def zookeeper(self) -> bool:
        """Return whether the cluster keeps its topics in ZooKeeper, so that their settings aren't on this
        disk.
        """
        return any(directory.meta is not None and directory.meta.zookeeper for directory in self.directories)


def store_around(path: Path) -> Path | None:
    """Return the node's file that ``path`` is, or the log directory that it is or lies in; None: neither."""
    real = Path(os.path.realpath(path))
    if is_server_properties(real):
        return real
    return next((root for root in (real, *real.parents) if (root / meta_properties.NAME).is_file()), None)


def node_name(root: Path) -> str:
    """Return a node's default name, by its number and cluster.

    Where these can't be read, or of a log directory alone: by its place.
    """
    if root.is_dir():
        return root.name
    try:
        for path in data_paths(root):
            if (path / meta_properties.NAME).exists():
                meta = meta_properties.read_meta_properties(path / meta_properties.NAME)
                if meta.cluster_id and meta.node_id is not None:
                    return f"node-{meta.node_id}-of-{meta.cluster_id}"
    except (StorageEngineError, OSError):
        # Which file can't be read, is told by the command that needs it.
        pass
    return f"{root.parent.name}-{root.name}"


def data_paths(root: Path) -> tuple[Path, ...]:
    """Return a node's directories, by its file or by one of them.

    :raises BadInputError: the file can't be read.
    """
    if root.is_dir():
        return (root,)
    properties = read_server_properties(root)
    return tuple(dict.fromkeys((*properties.log_dirs, properties.metadata_dir)))


def read_node(root: Path) -> Node:
    """Look at a node.

    :param root: its ``server.properties``, or a log directory.
    :raises StoreNotFoundError: a directory is missing, or is none of Kafka's.
    :raises StoreLayoutError: a log lies in two directories, or directories are of two clusters.
    :raises FileNotFoundError: files vanish each time that it is looked at.
    """
    properties = None if root.is_dir() else read_server_properties(root)
    for _ in range(_READINGS):
        try:
            return _checked(Node(root, properties, tuple(_read_directory(path) for path in data_paths(root))))
        except FileNotFoundError as error:
            gone = error
    raise gone


def read_what_is_left(root: Path) -> Node:
    """Look at a node whose broker goes on without a directory that has failed (LogDirFailureChannel).

    :return: the node with readable directories; the others are ``failed``.
    :raises StorageEngineError: as :func:`read_node` does, where nothing can be read.
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
    if any(one.meta for one in directories):
        for one in directories:
            if one.meta is None:
                failed[str(one.path)] = f"expected {meta_properties.NAME} in it, found none: is it mounted?"
        directories = [one for one in directories if one.meta]
    if not directories:
        return read_node(root)
    return _checked(Node(root, read_server_properties(root), tuple(directories), failed=failed))


def _checked(node: Node) -> Node:
    root = node.root
    if len(node.cluster_ids) > 1:
        found = " and ".join(sorted(node.cluster_ids))
        raise StoreLayoutError(
            f"{root}: expected log directories of one cluster, found those of {found}. Nothing was changed. "
            "Put each directory back where it belongs: no broker starts on these."
        )
    seen: dict[str, PartitionLog] = {}
    for log in (log for directory in node.directories for log in directory.logs):
        other = seen.setdefault(log.name.log, log)
        if other is not log:
            for one in (other, log):
                # A broker moves it to another of its directories just now: that ends with the one gone.
                one.path.stat()
            raise StoreLayoutError(
                f"{root}: log {log.name.log}: expected one directory, found {other.path} and {log.path}. "
                "Nothing was changed. Find out which one the broker used last: it doesn't start on both."
            )
    return node


def _read_directory(path: Path) -> LogDirectory:
    if not path.is_dir():
        raise StoreNotFoundError(
            f"{path}: expected a log directory, found none. Nothing was changed. Mount it, or correct "
            "log.dirs; of a broker in a container, in a copy of server.properties with this host's paths."
        )
    # Not the directory: who writes our stamp into it locks that whole.
    reading = SharedLock([path / meta_properties.NAME])
    logs: list[PartitionLog] = []
    aside: list[PartitionLog] = []
    for entry in sorted(os.scandir(path), key=lambda one: one.name):
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
        # One that isn't whole is none: a controller takes such a stop for an unclean one.
        stopped_cleanly, broker_epoch = False, None
    faults: list[str] = []
    # What the recovery points are matters to the broker alone.
    _read_small(path / checkpoints.RECOVERY_POINT, checkpoints.read_offsets, faults)
    high_watermarks, log_starts = (
        _read_small(path / name, checkpoints.read_offsets, faults) or {}
        for name in (checkpoints.HIGH_WATERMARK, checkpoints.LOG_START)
    )
    of_cleaner: list[str] = []
    cleaned_to = _read_small(path / checkpoints.CLEANER, checkpoints.read_offsets, of_cleaner) or {}
    faults += of_cleaner
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
        cleaned_unknown=bool(of_cleaner),
        reading=reading,
    )


def _read_small(path: Path, read: Callable[[Path], Found], faults: list[str]) -> Found | None:
    """Read a directory's checkpoint or identity; None: there is none, or it can't be what its name says.

    A broker takes its whole directory offline for such a one, and goes on with the others
    (OffsetCheckpointFile, MetaPropertiesEnsemble#verify).

    :param faults: gets its fault.
    """
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except CorruptFileError as error:
        faults.append(reason_of(error))
        return None


_READINGS = 20
"""Times that a log or a node is read again while its files vanish: more often than a broker deletes."""


def read_again(log: PartitionLog, read: Callable[[PartitionLog], Found]) -> tuple[PartitionLog, Found] | None:
    """Read of a log as it was listed, and as it is by now where a file of it vanished.

    :return: the log as it was read, and the result of ``read``; None: its directory is gone.
    :raises FileNotFoundError: files of it vanish each time.
    """
    for _ in range(_READINGS):
        try:
            return log, read(log)
        except FileNotFoundError as error:
            if not os.path.isdir(log.directory):  # noqa: PTH112  takes a third
                return None
            gone, log = error, _read_log(log.directory, log.name)
    raise gone


_IN_USE = FileState.IN_USE
_WITH_FACTS = (FileKind.LOG, FileKind.SNAPSHOT, FileKind.TRANSACTION_INDEX)
_INDEXES = (FileKind.TIME_INDEX, FileKind.OFFSET_INDEX)


def _read_log(path: str, name: PartitionDirectory, readings: int = _READINGS) -> PartitionLog:
    """List a log's files, by the digits of their names. One that goes away meanwhile isn't there.

    :param readings: so often at most, where segments vanish each time.
    """
    with_facts: dict[FileKind, dict[str, FileFacts]] = {kind: {} for kind in _WITH_FACTS}
    logs, snapshots, transaction_indexes = with_facts.values()
    indexes: dict[FileKind, dict[str, str]] = {kind: {} for kind in _INDEXES}
    time_indexes, offset_indexes = indexes.values()
    left_over: list[tuple[FileState, FileFacts]] = []
    links: list[str] = []
    for entry in _files(path):
        file_name = entry.name
        if (found := kind_and_state(file_name)) is None:
            continue
        kind, state = found
        digits = file_name[:OFFSET_DIGITS]
        is_file = entry.is_file(follow_symlinks=False)
        # Nothing is asked of indexes but where they are, and a node may have 100,000.
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
                # Others that were listed before it may be gone, too: there would be a hole.
                return _read_log(path, name, readings - 1)
            continue
        if state is _IN_USE:
            with_facts[kind][digits] = facts
        else:
            left_over.append((state, facts))
    # All have as many digits, so their order is that of the offsets.
    segments = [
        SegmentFiles(
            int(digits),
            logs[digits],
            time_indexes.get(digits),
            offset_indexes.get(digits),
            tuple([of[digits] for of in (transaction_indexes, snapshots) if digits in of]),
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
            f"{Path(entry.path).readlink()}. Nothing was changed. Put what it stands for in its place."
        )


def _files(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
