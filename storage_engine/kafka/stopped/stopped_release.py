"""Deleting the oldest segments of a stopped node's logs, as its broker would: from the oldest on, whole ones.

No checkpoint is written. Where a log has lost its first segments, a broker takes the first one that is there
for the log's start, whatever lower offset ``log-start-offset-checkpoint`` has. With an entry that was raised
before, the broker would delete what we refuse a moment later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.core import durable
from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.kafka.format import checkpoints, meta_properties, partition_metadata
from storage_engine.kafka.format.file_names import FileKind, FileState, log_file
from storage_engine.kafka.format.layout import Node
from storage_engine.model.broker.broker_store import Remove
from storage_engine.model.plan import DependentFile
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.same_bytes.own_acts import remove_unchanged

if TYPE_CHECKING:
    from storage_engine.kafka.stopped.store_lock import LockedDirectories

_NODE_SIGNS = (
    meta_properties.CLEAN_SHUTDOWN,
    meta_properties.NAME,
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.HIGH_WATERMARK,
    checkpoints.CLEANER,
)
_LOG_SIGNS = (partition_metadata.NAME, checkpoints.LEADER_EPOCHS)
_INDEXES = {FileKind.OFFSET_INDEX: "offset index", FileKind.TIME_INDEX: "time index"}


def delete_oldest(
    held: LockedDirectories,
    root: Path,
    segments: Sequence[Segment],
    meanwhile: Callable[[], object],
    remove: Remove,
) -> None:
    """Delete the oldest segments of logs, each with its producers' snapshot and its transaction index.

    :param held: the node's directories.
    :param root: the store's.
    :param segments: oldest first in each log.
    :param meanwhile: called before each one.
    :raises ChangedUnderUsError: another process changes the node's files, or has removed a lock; the segment
        that it names was not deleted.
    """
    for segment in segments:
        meanwhile()
        held.check()
        _check_is_oldest(segment)
        # What a killed run removed may come back by a power loss. Then it would lie before a hole.
        durable.fsync_path(Path(segment.facts.path).parent)
        remove_unchanged(segment, root, remove)


def _check_is_oldest(segment: Segment) -> None:
    """Make sure that a segment is the oldest of its log, and that the one behind it is there."""
    path = Path(segment.facts.path)
    there = sorted(offset for offset, kind, _ in _files_in_use(path.parent) if kind is FileKind.LOG)
    expected = [segment.base_offset, segment.end_offset]
    if segment.state is SegmentState.SEALED and there[:2] == expected:
        return
    raise ChangedUnderUsError(
        f"{path}: expected the oldest segment of its log, with the next one at {segment.end_offset}, found "
        f"segments at {', '.join(map(str, there[:3])) or 'no offset'}. It was not deleted, older ones of "
        "the plan may be. Find out who changes the node's files while its broker is stopped.",
        path=str(path),
    )


def indexes_below(node: Node, min_offsets: Mapping[str, int]) -> Iterator[DependentFile]:
    """Yield the indexes of segments that lie below offsets. A broker removes those without a segment, too.

    :param min_offsets: by the name of the log.
    :raises OSError: a directory can't be read.
    """
    for _, log in node.logs:
        name = log.name.log
        if name not in min_offsets:
            continue
        for offset, kind, path in sorted(_files_in_use(log.path)):
            if kind in _INDEXES and offset < min_offsets[name]:
                why = f"its segment lies below the log's start {min_offsets[name]}"
                yield DependentFile(_INDEXES[kind], FileFacts.of(path), why)


def delete_indexes(
    held: LockedDirectories, files: Sequence[DependentFile], meanwhile: Callable[[], object], remove: Remove
) -> None:
    """Delete the indexes of segments that are gone, and flush their directories.

    :raises ChangedUnderUsError: a lock was removed.
    """
    by_directory: dict[Path, list[Path]] = {}
    for path in (Path(file.facts.path) for file in files):
        by_directory.setdefault(path.parent, []).append(path)
    for directory, paths in by_directory.items():
        meanwhile()
        held.check()
        with durable.opened(
            directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        ) as descriptor:
            for path in paths:
                if not os.path.lexists(path.with_suffix(".log")):
                    remove(path, descriptor)
            os.fsync(descriptor)


def signs_of_a_run(log_directories: Sequence[Path], logs: Iterable[Path]) -> Iterator[Path]:
    """Yield the files by which it shows that a node's broker has run, or that a log was replaced.

    A broker removes the marker of a clean stop first thing when it starts. It writes checkpoints again within
    a minute, and as it stops. What a log begins with decides what its leaders' epochs keep.

    :param logs: directories of those that lose segments.
    :raises OSError: one can't be read.
    """
    yield from (path / name for path in log_directories for name in _NODE_SIGNS)
    for log in logs:
        yield from (log / name for name in _LOG_SIGNS)
        # The broker writes to this one.
        newest = max((one for one in _files_in_use(log) if one[1] is FileKind.LOG), default=None)
        if newest is not None:
            yield Path(newest[2])


def _files_in_use(directory: Path) -> Iterator[tuple[int, FileKind, str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            found = log_file(entry.name)
            if found is not None and found.state is FileState.IN_USE and entry.is_file(follow_symlinks=False):
                yield found.offset, found.kind, entry.path
