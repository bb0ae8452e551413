"""What a stopped broker was about to remove, and what of it may go without it.

A broker that deletes a segment renames its files to ``.deleted`` and unlinks them ``file.delete.delay.ms``
later (UnifiedLog#deleteSegmentFiles); what is left when it stops goes as soon as it starts (LogLoader). A log
of a topic or replica that is gone becomes a ``-delete`` directory (LogManager#asyncDelete), which goes
``log.segment.delete.delay.ms`` later (LogManager#deleteLogs), counted again from each start.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from storage_engine.core.nearest import meant
from storage_engine.exceptions import BadInputError, ChangedUnderUsError, StorageEngineError
from storage_engine.kafka.format.checkpoints import LEADER_EPOCHS
from storage_engine.kafka.format.file_names import DirectoryState, FileKind, FileState, log_file
from storage_engine.kafka.format.layout import Node, PartitionLog
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id, text_of
from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.stopped.store_lock import runs
from storage_engine.model.broker.broker_tasks import LeftFile, LeftOver
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store.store import FileFacts, SegmentId

DELETE_DELAY_MS = 60_000
"""What a node has where nothing is set (``log.segment.delete.delay.ms``)."""
TOPIC_IS_GONE = "its topic was deleted"
_OWN = (FileKind.LOG, FileKind.TRANSACTION_INDEX, FileKind.SNAPSHOT)
_UNFINISHED = (FileState.SWAP, FileState.CLEANED)
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Found = tuple[list[LeftOver], list[str]]
"""What may go, and clauses of what stays and why."""


def deleted_segments(node: Node, delays_ms: Callable[[str], int | None], now_ms: int) -> Found:
    """Find the ``.deleted`` files of logs whose time is over, a segment's together.

    :param delays_ms: returns a topic's ``file.delete.delay.ms``; None: it isn't known.
    """
    may, kept = list[LeftOver](), list[str]()
    for _, log in node.logs:
        files = [facts for state, facts in log.left_over if state is FileState.DELETED]
        kept += map(_link_text, log.links)
        if not files:
            continue
        delay_ms = delays_ms(log.name.topic)
        if unfinished := [facts.path for state, facts in log.left_over if state in _UNFINISHED]:
            kept.append(f"{log.path}: {_files_text(files)} stay beside {unfinished[0]}")
        elif delay_ms is None:
            kept.append(f"{log.path}: {_files_text(files)} stay, as the topic's settings aren't known")
        elif young := [one for one in files if renamed_ms(one) + delay_ms >= now_ms]:
            kept.append(f"{log.path}: {_files_text(young)} stay until their delay is over")
        else:
            may += _by_segment(log, files)
    return may, kept


def _by_segment(log: PartitionLog, files: list[FileFacts]) -> Iterator[LeftOver]:
    """Yield a log's deleted segments, oldest first, without those of which a file is a symbolic link. A
    snapshot of a segment that stays isn't among them.
    """
    in_use = {segment.base_offset for segment in log.segments}
    linked = {found.offset for path in log.links if (found := log_file(Path(path).name)) is not None}
    of_segment: dict[int, list[FileFacts]] = {}
    for facts in files:
        found = log_file(Path(facts.path).name)
        if found is not None and not (found.kind is FileKind.SNAPSHOT and found.offset in in_use):
            of_segment.setdefault(found.offset, []).append(facts)
    for offset, mine in sorted(of_segment.items()):
        if offset not in linked:
            ordered = sorted(mine, key=_order)
            yield LeftOver(f"{log.path}/{offset:020d}", tuple(_left_file(log, one) for one in ordered))


def _order(facts: FileFacts) -> tuple[int, str]:
    """Return where a file comes in: the log's own first, as when a segment in use goes."""
    found = log_file(Path(facts.path).name)
    kind = _OWN.index(found.kind) if found is not None and found.kind in _OWN else len(_OWN)
    return kind, facts.path


def _left_file(log: PartitionLog, facts: FileFacts) -> LeftFile:
    name = Path(facts.path).name
    found = log_file(name)
    if found is None or found.kind not in _OWN or not facts.size_bytes:
        return LeftFile(facts)
    segment = SegmentId(log.name.log, found.offset)
    if found.kind is FileKind.LOG:
        return LeftFile(facts, segment)
    return LeftFile(facts, segment, name.removesuffix(f".{FileState.DELETED.value}"))


def deleted_logs(node: Node, metadata: ClusterMetadata | str, delay_ms: int | None, now_ms: int) -> Found:
    """Find the ``-delete`` directories of topics that are gone, whose time is over.

    :param metadata: the cluster's; text: why it isn't known.
    :param delay_ms: after which they go; None: it isn't known.
    """
    may, kept = list[LeftOver](), list[str]()
    for log in deleted_directories(node):
        if log.links:
            kept += map(_link_text, log.links)
            continue
        files, why = _all_files(log.path)
        if not why and files:
            why = still_known(log, metadata)
        if not why:
            why = _delay_left(log, delay_ms, now_ms)
        if why:
            kept.append(f"{log.path}: {why}")
            continue
        ordered = sorted(files, key=lambda one: (one.path.endswith(PARTITION_METADATA), *_order(one)))
        proven = tuple(_left_file(log, one) for one in ordered)
        may.append(LeftOver(str(log.path), proven, str(log.path), TOPIC_IS_GONE, log.name.topic))
    return may, kept


def _delay_left(log: PartitionLog, delay_ms: int | None, now_ms: int) -> str:
    if delay_ms is None:
        return "log.segment.delete.delay.ms of the node can't be read"
    over = log.path.stat().st_ctime_ns // 1_000_000 + delay_ms < now_ms
    return "" if over else "its delay isn't over"


def deleted_directories(node: Node) -> Iterator[PartitionLog]:
    """Yield the logs of a node whose topic or replica is gone."""
    for directory in node.directories:
        yield from (log for log in directory.aside if log.name.state is DirectoryState.DELETED)


def _all_files(path: Path) -> tuple[list[FileFacts], str]:
    """Return the files of a directory, or why it has what a broker's log doesn't."""
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            facts = FileFacts.of_stat(entry.path, entry.stat(follow_symlinks=False))
            known = entry.name in (PARTITION_METADATA, LEADER_EPOCHS) or log_file(entry.name) is not None
            if not known or not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                return [], f"{entry.name} in it is no file of a log"
            found.append(facts)
    return found, ""


def still_known(log: PartitionLog, metadata: ClusterMetadata | str) -> str:
    """Return why a log's topic may be there still; "" where it is gone for certain."""
    if isinstance(metadata, str):
        return metadata
    try:
        topic_id = read_topic_id(log.path / PARTITION_METADATA)
    except (StorageEngineError, OSError) as error:
        return f"its topic isn't certain: {reason_of(error)}"
    if topic_id in metadata.topic_ids.values() or topic_id in metadata.partitions:
        return f"its topic {text_of(topic_id)} is there still, so its broker alone knows why it goes"
    return ""


def remove(left: LeftOver, check: Callable[[], None], meanwhile: Callable[[], object]) -> None:
    """Remove files and, where it goes too, their directory; durable when it returns.

    :param check: makes sure that brokers are still kept away.
    :raises ChangedUnderUsError: a file isn't as it was a moment ago, or a lock was removed.
    """
    path = Path(left.directory or Path(left.what).parent)
    descriptor = os.open(path, _FLAGS)
    try:
        for one in left.files:
            meanwhile()
            check()
            _unlink(one.facts, descriptor)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if left.directory:
        above = os.open(path.parent, _FLAGS)
        try:
            os.rmdir(path.name, dir_fd=above)
            os.fsync(above)
        finally:
            os.close(above)


def _unlink(facts: FileFacts, directory: int) -> None:
    name = Path(facts.path).name
    found = FileFacts.of_stat(facts.path, os.stat(name, dir_fd=directory, follow_symlinks=False))
    if found != facts:
        raise ChangedUnderUsError(
            f"{facts.path}: expected it as it was a moment ago, {facts}, found {found}: somebody changes the "
            "node's files while its broker is stopped. It was not deleted. Find out who does.",
            path=facts.path,
        )
    os.unlink(name, dir_fd=directory)


def renamed_ms(facts: FileFacts) -> int:
    """Return when a file got its name, in milliseconds since the epoch."""
    return facts.ctime_ns // 1_000_000


def delays(topics: Mapping[str, str], topic: Mapping[str, str]) -> int | None:
    """Return after how many milliseconds a topic's deleted files go; None: it can't be read.

    :param topics: settings of the node.
    :param topic: those of the topic, which win.
    """
    text = topic.get("file.delete.delay.ms", topics.get("log.segment.delete.delay.ms", str(DELETE_DELAY_MS)))
    return int(text) if text.strip().isdecimal() else None


def _link_text(path: str) -> str:
    return f"{path}: it is a symbolic link to {Path(path).readlink()}, which is left alone"


def _files_text(files: list[FileFacts]) -> str:
    return f"{len(files)} .deleted files"


def words_for_nothing(node: Node, topics: Collection[str]) -> Iterator[str]:
    """Yield which words of a person are for nothing, as sentences.

    :raises BadInputError: a topic is there still, so that the word for it is wrong.
    """
    if topics and runs(node):
        yield (
            "Beside a running broker nothing is removed by a person's word: the broker itself removes what "
            "is left of deleted topics."
        )
        return
    settings = read_topic_settings(node)
    for topic in topics:
        left = [log for log in deleted_directories(node) if log.name.topic == topic]
        # Where it isn't known whether it is gone, nothing goes, and the task says so.
        if any(settings.unknown or not still_known(log, settings.metadata) for log in left):
            continue
        if found := _found(node, settings, topic):
            raise BadInputError(
                f"topic {topic}: expected a topic that was deleted, found that {found}, and that no deleted "
                "one of its name has left a -delete directory. Nothing was removed. Leave its "
                "--deleted-topic out."
            )
        if not left:
            names = {log.name.topic for log in deleted_directories(node)}
            yield (
                f"Topic {topic}: no -delete directory of this node has its name, so nothing of it is left to "
                f"be removed.{meant(topic, names)}"
            )


def _found(node: Node, settings: TopicSettings, topic: str) -> str:
    """Return by what a topic is there, as a clause; "": it isn't, as far as that is known."""
    if (topic_id := settings.metadata.topic_ids.get(topic)) is not None:
        return f"the cluster's metadata have it, with id {text_of(topic_id)}"
    here = next((log for _, log in node.logs if log.name.topic == topic), None)
    return "" if here is None else f"its log {here.path} is in use"
