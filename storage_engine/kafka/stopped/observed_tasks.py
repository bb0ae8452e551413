"""The five background tasks of a broker (LogManager#startup): their results, and the work that they left.

The tasks of a running broker are only observed, in its files and, on request, in its cluster's answers.

A clean stop flushes all logs and writes all checkpoints (LogManager#shutdown). So for a stopped broker, three
tasks are only verified. The other two tasks remove files: our cleanup may remove files that these two left.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, did_you_mean, duration_text
from storage_engine.exceptions import BadInputError, ChangedUnderUsError, StorageEngineError
from storage_engine.kafka.format.checkpoints import LEADER_EPOCHS, LOG_START, RECOVERY_POINT, read_offsets
from storage_engine.kafka.format.file_names import (
    METADATA_TOPIC,
    DirectoryState,
    FileKind,
    FileState,
    log_file,
)
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.log_end import known_end
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id, text_of
from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.stopped.stopped_release import Fault, StoppedNode, stopped_node
from storage_engine.kafka.stopped.store_lock import runs
from storage_engine.model.broker.broker_tasks import BrokerTask, LeftFile, LeftOver, TaskLimits
from storage_engine.model.report.diagnosis import named_in_short, reason_of
from storage_engine.model.store import FileFacts, SegmentId

DELETE_DELAY_MS = 60_000
"""A node's default delay (``log.segment.delete.delay.ms``)."""
TOPIC_IS_GONE = "its topic was deleted"
_OWN = (FileKind.LOG, FileKind.TRANSACTION_INDEX, FileKind.SNAPSHOT)
_UNFINISHED = (FileState.SWAP, FileState.CLEANED)
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_Removable = tuple[list[LeftOver], list[str]]
"""The files that may be removed, and clauses that say which files stay and why."""


def deleted_segments(node: Node, delays_ms: Callable[[str], int | None], now_ms: int) -> _Removable:
    """Find the ``.deleted`` files of logs whose delay is over, grouped by segment.

    :param delays_ms: returns a topic's ``file.delete.delay.ms``; None if not known.
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
        elif young := [file for file in files if renamed_ms(file) + delay_ms >= now_ms]:
            kept.append(f"{log.path}: {_files_text(young)} stay until their delay is over")
        else:
            may += _group_by_segment(log, files)
    return may, kept


def _group_by_segment(log: PartitionLog, files: list[FileFacts]) -> Iterator[LeftOver]:
    """Yield a log's deleted segments, oldest first.

    Leave out segments with a symbolic link, and snapshots whose segment is still in use.
    """
    in_use = {segment.base_offset for segment in log.segments}
    linked = {file.offset for path in log.links if (file := log_file(Path(path).name)) is not None}
    of_segment: dict[int, list[FileFacts]] = {}
    for facts in files:
        file = log_file(Path(facts.path).name)
        if file is not None and not (file.kind is FileKind.SNAPSHOT and file.offset in in_use):
            of_segment.setdefault(file.offset, []).append(facts)
    for offset, group in sorted(of_segment.items()):
        if offset not in linked:
            ordered = sorted(group, key=_order)
            yield LeftOver(f"{log.path}/{offset:020d}", tuple(_left_file(log, facts) for facts in ordered))


def _order(facts: FileFacts) -> tuple[int, str]:
    """Return a file's place in the order of deletion: the log file first, as for a segment in use."""
    file = log_file(Path(facts.path).name)
    kind = _OWN.index(file.kind) if file is not None and file.kind in _OWN else len(_OWN)
    return kind, facts.path


def _left_file(log: PartitionLog, facts: FileFacts) -> LeftFile:
    name = Path(facts.path).name
    file = log_file(name)
    if file is None or file.kind not in _OWN or not facts.size_bytes:
        return LeftFile(facts)
    segment = SegmentId(log.name.log, file.offset)
    if file.kind is FileKind.LOG:
        return LeftFile(facts, segment)
    return LeftFile(facts, segment, name.removesuffix(f".{FileState.DELETED.value}"))


def deleted_logs(
    node: Node, metadata: ClusterMetadata | str, delay_ms: int | None, now_ms: int
) -> _Removable:
    """Find the ``-delete`` directories of deleted topics whose delay is over.

    :param metadata: the cluster's metadata, or a text that says why they aren't known.
    :param delay_ms: delay after which directories are deleted; None if not known.
    """
    may, kept = list[LeftOver](), list[str]()
    for log in deleted_directories(node):
        if log.links:
            kept += map(_link_text, log.links)
            continue
        files, reason = _all_files(log.path)
        if not reason and files:
            reason = still_known(log, metadata)
        if not reason:
            reason = _delay_reason(log, delay_ms, now_ms)
        if reason:
            kept.append(f"{log.path}: {reason}")
            continue
        ordered = sorted(files, key=lambda facts: (facts.path.endswith(PARTITION_METADATA), *_order(facts)))
        proven = tuple(_left_file(log, facts) for facts in ordered)
        may.append(LeftOver(str(log.path), proven, str(log.path), TOPIC_IS_GONE, log.name.topic))
    return may, kept


def _delay_reason(log: PartitionLog, delay_ms: int | None, now_ms: int) -> str:
    if delay_ms is None:
        return "log.segment.delete.delay.ms of the node can't be read"
    over = log.path.stat().st_ctime_ns // 1_000_000 + delay_ms < now_ms
    return "" if over else "its delay isn't over"


def deleted_directories(node: Node) -> Iterator[PartitionLog]:
    """Yield the logs of a node whose topic or replica was deleted."""
    for directory in node.directories:
        yield from (log for log in directory.aside if log.name.state is DirectoryState.DELETED)


def _all_files(path: Path) -> tuple[list[FileFacts], str]:
    """Return a directory's files and "". If a file isn't a log's, return no files and the reason."""
    files = []
    with os.scandir(path) as entries:
        for entry in entries:
            facts = FileFacts.of_stat(entry.path, entry.stat(follow_symlinks=False))
            is_log = entry.name in (PARTITION_METADATA, LEADER_EPOCHS) or log_file(entry.name) is not None
            if not is_log or not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                return [], f"{entry.name} in it is no file of a log"
            files.append(facts)
    return files, ""


def still_known(log: PartitionLog, metadata: ClusterMetadata | str) -> str:
    """Return why a log's topic may still exist; "" if it is certainly deleted."""
    if isinstance(metadata, str):
        return metadata
    try:
        topic_id = read_topic_id(log.path / PARTITION_METADATA)
    except (StorageEngineError, OSError) as error:
        return f"its topic isn't certain: {reason_of(error)}"
    if topic_id in metadata.topic_ids.values() or topic_id in metadata.partitions:
        return f"its topic {text_of(topic_id)} still exists, so only its broker knows why the log is deleted"
    return ""


def remove(left: LeftOver, check: Callable[[], None], meanwhile: Callable[[], object]) -> None:
    """Remove left-over files and, if ``left`` names it, their directory. Durable when it returns.

    :param check: makes sure that brokers are still kept away.
    :raises ChangedUnderUsError: a file has changed since it was read, or a lock was removed.
    """
    path = Path(left.directory or Path(left.what).parent)
    with durable.opened(path, _FLAGS) as descriptor:
        for file in left.files:
            meanwhile()
            check()
            _unlink(file.facts, descriptor)
            os.fsync(descriptor)
    if left.directory:
        with durable.opened(path.parent, _FLAGS) as above:
            os.rmdir(path.name, dir_fd=above)
            os.fsync(above)


def _unlink(facts: FileFacts, directory: int) -> None:
    name = Path(facts.path).name
    current = FileFacts.of_stat(facts.path, os.stat(name, dir_fd=directory, follow_symlinks=False))
    if current != facts:
        raise ChangedUnderUsError(
            f"{facts.path}: expected the file as it was a moment ago, {facts}, found {current}: somebody "
            "changes the node's files while its broker is stopped. The file was not deleted. Find out who "
            "changes files.",
            path=facts.path,
        )
    os.unlink(name, dir_fd=directory)


def renamed_ms(facts: FileFacts) -> int:
    """Return when a file was renamed, in milliseconds since the epoch."""
    return facts.ctime_ns // 1_000_000


def delays(node: Mapping[str, str], topic: Mapping[str, str]) -> int | None:
    """Return the delay, in milliseconds, after which a topic's deleted files are removed; None if unreadable.

    :param topic: settings of the topic. They win over the node's.
    """
    text = topic.get("file.delete.delay.ms", node.get("log.segment.delete.delay.ms", str(DELETE_DELAY_MS)))
    return int(text) if text.strip().isdecimal() else None


def _link_text(path: str) -> str:
    return f"{path}: it is a symbolic link to {Path(path).readlink()}, which is left alone"


def _files_text(files: list[FileFacts]) -> str:
    return f"{len(files)} .deleted files"


def ineffective_decisions(node: Node, topics: Collection[str]) -> Iterator[str]:
    """Yield sentences about decisions of a person that have no effect.

    :param topics: topics that a person calls deleted.
    :raises BadInputError: a topic still exists, so the decision about it is wrong.
    """
    if topics and runs(node):
        yield (
            "While the broker runs, no file is removed by a person's decision: the broker itself removes "
            "the files of deleted topics."
        )
        return
    settings = read_topic_settings(node)
    for topic in topics:
        logs = [log for log in deleted_directories(node) if log.name.topic == topic]
        # If the topic's deletion isn't certain, nothing is removed, and the task reports the reason.
        if any(settings.unknown or not still_known(log, settings.metadata) for log in logs):
            continue
        if place := _place_of_topic(node, settings, topic):
            raise BadInputError(
                f"topic {topic}: expected a deleted topic, found that {place}. No deleted topic of this name "
                f"has left a -delete directory, either. Nothing was removed. Leave out --deleted-topic "
                f"{topic}."
            )
        if not logs:
            names = {log.name.topic for log in deleted_directories(node)}
            yield (
                f"Topic {topic}: no -delete directory of this node has its name, so nothing of it is left to "
                f"be removed.{did_you_mean(topic, names)}"
            )


def _place_of_topic(node: Node, settings: TopicSettings, topic: str) -> str:
    """Return where a topic still exists, as a clause; "" if it doesn't exist, as far as is known."""
    if (topic_id := settings.metadata.topic_ids.get(topic)) is not None:
        return f"the cluster's metadata have it, with id {text_of(topic_id)}"
    here = next((log for _, log in node.logs if log.name.topic == topic), None)
    return "" if here is None else f"its log {here.path} is in use"


OVERDUE_MS = HOUR_MS
"""Grace after the delay. A file that outlasts this couldn't be removed: the broker's log says why."""
_LOOK = "Look into the broker's log for why"
CLEANUP_LOGS = "cleanupLogs"
FLUSH_DIRTY_LOGS = "flushDirtyLogs"
CHECKPOINT_RECOVERY = "checkpointLogRecoveryOffsets"
CHECKPOINT_STARTS = "checkpointLogStartOffsets"
DELETE_LOGS = "deleteLogs"
MOST_NAMED = 5


def tasks_of(node: Node, now_ms: int, limits: TaskLimits) -> tuple[BrokerTask, ...]:
    """Return the state of each task of a node, whether its broker runs or is stopped.

    Log directories that the broker takes offline are left out. Only their markers of a clean stop count.

    :raises OSError: a file can't be read.
    """
    topics = read_topic_settings(node)
    readable = replace(
        node, directories=tuple(directory for directory in node.directories if not directory.fault)
    )
    if runs(node):
        return observed_tasks(readable, topics, now_ms, limits)
    return stopped_tasks(readable, topics, now_ms, stopped_node(node, topics))


def observed_tasks(
    node: Node, topics: TopicSettings, now_ms: int, limits: TaskLimits
) -> tuple[BrokerTask, ...]:
    """Return the state of each task of a running broker.

    :param node: the node, corrected by its cluster's answers if it was asked.
    :raises OSError: a file can't be read.
    """
    return (
        _cleanup(node, topics, now_ms),
        _flush(node, topics, limits),
        _checkpoint(node, CHECKPOINT_RECOVERY, RECOVERY_POINT, now_ms, limits),
        _starts(node, now_ms, limits),
        _deleted_logs(node, topics, now_ms),
    )


def _cleanup(node: Node, topics: TopicSettings, now_ms: int) -> BrokerTask:
    files = [
        (log, facts) for _, log in node.logs for state, facts in log.left_over if state is FileState.DELETED
    ]
    delays_ms = {topic: delay_of(topics, topic) for topic in {log.name.topic for log, _ in files}}
    late = [
        facts
        for log, facts in files
        if (delay_ms := delays_ms[log.name.topic]) is not None
        and renamed_ms(facts) + delay_ms + OVERDUE_MS < now_ms
    ]
    sizes = f"{count_text(len(files), '.deleted file')}, {bytes_text(sum(f.size_bytes for _, f in files))}"
    unknown = sorted(topic for topic, delay_ms in delays_ms.items() if delay_ms is None)
    unknown_text = f"file.delete.delay.ms isn't known of {named_in_short(unknown)}" if unknown else ""
    overdue: tuple[str, ...] = ()
    if late:
        since = duration_text(now_ms - min(map(renamed_ms, late)))
        overdue = (
            f"{late[0].path}: expected it gone after file.delete.delay.ms, found it and "
            f"{len(late) - 1} more after {since}. {_LOOK} they can't be removed",
        )
    return BrokerTask(CLEANUP_LOGS, (sizes, unknown_text) if unknown_text else (sizes,), overdue)


def _flush(node: Node, topics: TopicSettings, limits: TaskLimits) -> BrokerTask:
    """Measure bytes after recovery points. New segments, flush.ms and flush.messages move the points."""
    points = _offsets_of(node, RECOVERY_POINT)
    sizes = ((_unflushed(log, points.get(log.name.log)), log) for _, log in managed_logs(node))
    behind = sorted(sizes, key=lambda pair: pair[0])
    total = sum(size for size, _ in behind)
    overdue = []
    for size, log in reversed(behind):
        settings = topics.of(log.name.topic)
        most = limits.unflushed_bytes + (0 if isinstance(settings, str) else settings.segment_bytes)
        if size > most:
            overdue.append(
                f"{log.path}: expected at most {bytes_text(most)} behind its recovery point, found "
                f"{bytes_text(size)}. {_LOOK} it isn't flushed"
            )
    return BrokerTask(FLUSH_DIRTY_LOGS, (f"{bytes_text(total)} behind recovery points",), tuple(overdue[:1]))


def _unflushed(log: PartitionLog, point: int | None) -> int:
    """Return the size of a log's segments, from the segment with the recovery point on.

    :param point: the recovery point; None if the log has none yet. Then return 0.
    """
    if point is None:
        return 0
    bases = [segment.base_offset for segment in log.segments]
    first = max(bisect_right(bases, point) - 1, 0)
    return sum(segment.log.size_bytes for segment in log.segments[first:])


def _checkpoint(node: Node, task: str, name: str, now_ms: int, limits: TaskLimits) -> BrokerTask:
    ages = {
        path: now_ms - path.stat().st_mtime_ns // 1_000_000
        for directory in node.directories
        if any(log.name.log in directory.high_watermarks for log in directory.logs)
        and (path := directory.path / name).exists()
    }
    oldest = max(ages.values(), default=None)
    overdue = tuple(
        f"{path}: expected it written within {duration_text(limits.checkpoint_ms)}, found it written "
        f"{duration_text(age)} ago. {_LOOK} its directory can't be written"
        for path, age in ages.items()
        if age > limits.checkpoint_ms
    )
    age_text = "no checkpoint" if oldest is None else f"written {duration_text(oldest)} ago"
    return BrokerTask(task, (age_text,), overdue)


def _starts(node: Node, now_ms: int, limits: TaskLimits) -> BrokerTask:
    """Compare log starts in checkpoints with the leaders' log starts. Checkpoints are written each minute."""
    task = _checkpoint(node, CHECKPOINT_STARTS, LOG_START, now_ms, limits)
    live = {} if node.live is None else node.live.partitions
    starts = _offsets_of(node, LOG_START) if live else {}
    behind, records = 0, 0
    for _, log in managed_logs(node):
        partition = live.get(log.name.log)
        if partition is None or partition.log_start is None or not log.segments:
            continue
        start = max(starts.get(log.name.log, 0), log.segments[0].base_offset)
        behind += start < partition.log_start
        records += max(partition.log_start - start, 0)
    if node.live is None:
        compared = "not compared with leaders: no broker was asked"
    else:
        compared = f"{count_text(behind, 'start')} behind the leader's, by {count_text(records, 'offset')}"
    return BrokerTask(CHECKPOINT_STARTS, (*task.found, compared), task.overdue)


def _deleted_logs(node: Node, topics: TopicSettings, now_ms: int) -> BrokerTask:
    logs = list(deleted_directories(node))
    count = (count_text(len(logs), "-delete directory"),)
    delay_ms = delays(topics.node, {})
    if delay_ms is None:
        return BrokerTask(DELETE_LOGS, (*count, "log.segment.delete.delay.ms of the node can't be read"))
    overdue = []
    for log in logs:
        since_ms = now_ms - log.path.lstat().st_ctime_ns // 1_000_000
        if since_ms > delay_ms + OVERDUE_MS:
            overdue.append(
                f"{log.path}: expected it gone {duration_text(delay_ms)} after its log was deleted, found it "
                f"after {duration_text(since_ms)}. {_LOOK} it can't be removed"
            )
    return BrokerTask(DELETE_LOGS, count, tuple(overdue[:1]))


def stopped_tasks(
    node: Node, topics: TopicSettings, now_ms: int, stopped: StoppedNode | Fault
) -> tuple[BrokerTask, ...]:
    """Return the state in which a stopped broker left each task, and the files that it left to be removed.

    :param node: the node with those log directories that are to be read.
    :param stopped: the state of all of its directories, or why no file may be deleted.
    :raises OSError: a file can't be read.
    """
    reason = "" if isinstance(stopped, StoppedNode) else stopped[1]
    metadata = stopped.metadata if isinstance(stopped, StoppedNode) else reason
    segments = deleted_segments(node, partial(delay_of, topics), now_ms)
    logs = deleted_logs(node, metadata, delays(topics.node, {}), now_ms)
    log_ends = {log.name.log: known_end(directory, log) for directory, log in managed_logs(node)}
    ends = {name: end.offset for name, end in log_ends.items() if not end.unread}
    return (
        _removal_task(CLEANUP_LOGS, segments, ".deleted segment", reason),
        _stopped_flush(node),
        _recovery(node, ends),
        _stopped_starts(node, ends),
        _removal_task(DELETE_LOGS, logs, "-delete directory", reason),
    )


def managed_logs(node: Node) -> list[tuple[LogDirectory, PartitionLog]]:
    """Return the logs that these tasks manage. The log of the cluster's metadata has its own tasks."""
    return [(directory, log) for directory, log in node.logs if log.name.topic != METADATA_TOPIC]


def delay_of(topics: TopicSettings, topic: str) -> int | None:
    """Return a topic's delay as :func:`delays` does; None also if the topic's settings aren't known."""
    if topics.unknown and topic not in topics.live:
        return None
    return delays(topics.node, topics.values(topic))


def _removal_task(name: str, left_over: _Removable, kind: str, reason: str) -> BrokerTask:
    may, kept = left_over
    size_bytes = sum(item.size_bytes for item in may)
    text = f"no {kind} may be removed now" if kept else f"no {kind} is left over"
    if may:
        text = f"{count_text(len(may), kind)} left, {bytes_text(size_bytes)}"
    if reason and may:
        return BrokerTask(name, (text,), kept=(*kept, f"nothing is removed: {reason}"))
    return BrokerTask(name, (text,), left=tuple(may), kept=tuple(kept))


def _stopped_flush(node: Node) -> BrokerTask:
    count = count_text(len(managed_logs(node)), "log")
    if node.left_uncleanly:
        unclean = "the last stop wasn't clean: its broker checks the unflushed part when it starts"
        return BrokerTask(FLUSH_DIRTY_LOGS, (f"{count}, {unclean}",))
    return BrokerTask(FLUSH_DIRTY_LOGS, (f"{count}, all flushed by a clean stop",))


def _recovery(node: Node, ends: Mapping[str, int]) -> BrokerTask:
    """Compare recovery points with the logs' ends. After a clean stop they are equal."""
    wrong, points = [], _offsets_of(node, RECOVERY_POINT)
    for directory, log in managed_logs(node):
        point = points.get(log.name.log)
        if log.name.log in ends and point != ends[log.name.log]:
            point_text = "none" if point is None else str(point)
            wrong.append(
                f"{directory.path / RECOVERY_POINT}: log {log.name.log}: expected its end "
                f"{ends[log.name.log]}, as after a clean stop, found {point_text}"
            )
    count = len(ends)
    summary = (f"{count - len(wrong)} of {count_text(count, 'recovery point')} at the log's end",)
    # After an unclean stop the broker recovers all records above the recovery points.
    overdue = () if node.left_uncleanly else _first(wrong)
    return BrokerTask(CHECKPOINT_RECOVERY, summary, overdue)


def _stopped_starts(node: Node, ends: Mapping[str, int]) -> BrokerTask:
    """Compare log starts in checkpoints with the logs' ends. A start above the end deletes the whole log."""
    wrong, entries, inside = [], 0, 0
    starts = _offsets_of(node, LOG_START)
    for directory, log in managed_logs(node):
        if (start := starts.get(log.name.log)) is None:
            continue
        entries += 1
        inside += bool(log.segments) and start > log.segments[0].base_offset
        if log.name.log in ends and start > ends[log.name.log]:
            wrong.append(
                f"{directory.path / LOG_START}: log {log.name.log}: expected a start up to its end "
                f"{ends[log.name.log]}, found {start}: its broker would delete all of it"
            )
    summary = (
        f"{count_text(entries, 'start')} in checkpoints, {inside} inside a first segment, "
        f"{len(wrong)} above an end",
    )
    return BrokerTask(CHECKPOINT_STARTS, summary, _first(wrong))


def _first(sentences: Sequence[str]) -> tuple[str, ...]:
    rest = len(sentences) - MOST_NAMED
    return (*sentences[:MOST_NAMED], *((f"{rest} more logs like these",) if rest > 0 else ()))


def _offsets_of(node: Node, name: str) -> Mapping[str, int]:
    """Return the values of one checkpoint in all directories, by log. Each file is read once."""
    offsets: dict[str, int] = {}
    for directory in node.directories:
        if (path := directory.path / name).exists():
            values = read_offsets(path)
            names = (log.name.log for log in directory.logs)
            offsets |= {log: values[log] for log in names if log in values}
    return offsets
