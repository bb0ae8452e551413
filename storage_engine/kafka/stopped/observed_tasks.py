"""The five background tasks of a broker that runs, as its files tell, and its cluster where that is asked.

They are its own: here is looked at what they did, and what they should have done by now.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.kafka.format.checkpoints import LOG_START, RECOVERY_POINT
from storage_engine.kafka.format.file_names import FileState
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.stopped.left_overs import delays, deleted_directories, renamed_ms
from storage_engine.kafka.stopped.lock_holder import runs
from storage_engine.kafka.stopped.log_manager import (
    CHECKPOINT_RECOVERY,
    CHECKPOINT_STARTS,
    CLEANUP_LOGS,
    DELETE_LOGS,
    FLUSH_DIRTY_LOGS,
    delay_of,
    managed_logs,
    offsets_in,
    stopped_tasks,
)
from storage_engine.kafka.stopped.stopped_plan import stopped_node
from storage_engine.model.broker.broker_tasks import BrokerTask, TaskLimits
from storage_engine.model.report.diagnosis import named_in_short

OVERDUE_MS = HOUR_MS
"""Behind a delay of a minute: a removal that is later has failed, and the broker's log says why."""
_LOOK = "Look into the broker's log for why"


def tasks_of(node: Node, now_ms: int, limits: TaskLimits) -> tuple[BrokerTask, ...]:
    """Look how far each task of a node is, whether its broker runs or is stopped.

    Of log directories that its broker takes offline nothing is looked at, and nothing goes. What they say
    of how it stopped counts for the others too.

    :raises OSError: a file can't be read.
    """
    topics = read_topic_settings(node)
    whole = replace(node, directories=tuple(one for one in node.directories if not one.fault))
    if runs(node):
        return observed_tasks(whole, topics, now_ms, limits)
    return stopped_tasks(whole, topics, now_ms, stopped_node(node, topics))


def observed_tasks(
    node: Node, topics: TopicSettings, now_ms: int, limits: TaskLimits
) -> tuple[BrokerTask, ...]:
    """Look how far each task is.

    :param node: as its cluster says it, where that was asked.
    :raises OSError: a file can't be read.
    """
    return (
        _cleanup(node, topics, now_ms),
        _flush(node, topics, limits),
        _checkpoint(node, CHECKPOINT_RECOVERY, (RECOVERY_POINT,), now_ms, limits),
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
    found = f"{count_text(len(files), '.deleted file')}, {bytes_text(sum(f.size_bytes for _, f in files))}"
    unknown = sorted(topic for topic, delay_ms in delays_ms.items() if delay_ms is None)
    said = f"file.delete.delay.ms isn't known of {named_in_short(unknown)}" if unknown else ""
    overdue: tuple[str, ...] = ()
    if late:
        since = duration_text(now_ms - min(map(renamed_ms, late)))
        overdue = (
            f"{late[0].path}: expected it gone after file.delete.delay.ms, found it and "
            f"{len(late) - 1} more after {since}. {_LOOK} they can't be removed",
        )
    return BrokerTask(CLEANUP_LOGS, (found, said) if said else (found,), overdue)


def _flush(node: Node, topics: TopicSettings, limits: TaskLimits) -> BrokerTask:
    """Measure what lies behind recovery points. A log's point moves when a segment is closed, or by
    ``flush.ms`` and ``flush.messages`` where these are set.
    """
    behind = sorted(((_unflushed(directory, log), log) for directory, log in managed_logs(node)), key=_size)
    total = sum(size for size, _ in behind)
    overdue = []
    for size, log in reversed(behind):
        most = limits.unflushed_bytes + _segment_bytes(topics, log.name.topic)
        if size > most:
            overdue.append(
                f"{log.path}: expected at most {bytes_text(most)} behind its recovery point, found "
                f"{bytes_text(size)}. {_LOOK} it isn't flushed"
            )
    return BrokerTask(FLUSH_DIRTY_LOGS, (f"{bytes_text(total)} behind recovery points",), tuple(overdue[:1]))


def _size(one: tuple[int, PartitionLog]) -> int:
    return one[0]


def _unflushed(directory: LogDirectory, log: PartitionLog) -> int:
    """Return the bytes of a log's segments that end behind its recovery point; 0 where it has none yet.

    Of the segment that the point lies in, all of it counts.
    """
    point = offsets_in(directory, RECOVERY_POINT).get(log.name.log)
    if point is None:
        return 0
    bases = [segment.base_offset for segment in log.segments]
    first = max(bisect_right(bases, point) - 1, 0)
    return sum(segment.log.size_bytes for segment in log.segments[first:])


def _segment_bytes(topics: TopicSettings, topic: str) -> int:
    settings = topics.of(topic)
    return 0 if isinstance(settings, str) else settings.segment_bytes


def _checkpoint(node: Node, task: str, names: tuple[str, ...], now_ms: int, limits: TaskLimits) -> BrokerTask:
    ages = dict(_ages(node, names, now_ms))
    oldest = max(ages.values(), default=None)
    overdue = tuple(
        f"{path}: expected it written within {duration_text(limits.checkpoint_ms)}, found it written "
        f"{duration_text(age)} ago. {_LOOK} its directory can't be written"
        for path, age in ages.items()
        if age > limits.checkpoint_ms
    )
    found = "no checkpoint" if oldest is None else f"written {duration_text(oldest)} ago"
    return BrokerTask(task, (found,), overdue)


def _ages(node: Node, names: tuple[str, ...], now_ms: int) -> Iterator[tuple[str, int]]:
    for directory in node.directories:
        if any(log.name.log in directory.high_watermarks for log in directory.logs):
            for name in names:
                path = directory.path / name
                if path.exists():
                    yield str(path), now_ms - path.stat().st_mtime_ns // 1_000_000


def _starts(node: Node, now_ms: int, limits: TaskLimits) -> BrokerTask:
    """Compare starts in checkpoints with where leaders begin. A checkpoint follows within a minute."""
    said = _checkpoint(node, CHECKPOINT_STARTS, (LOG_START,), now_ms, limits)
    live = {} if node.live is None else node.live.partitions
    behind, records = 0, 0
    for directory, log in managed_logs(node):
        known = live.get(log.name.log)
        if known is None or known.log_start is None or not log.segments:
            continue
        start = max(offsets_in(directory, LOG_START).get(log.name.log, 0), log.segments[0].base_offset)
        behind += start < known.log_start
        records += max(known.log_start - start, 0)
    if node.live is None:
        compared = "not compared with leaders: no broker was asked"
    else:
        compared = f"{count_text(behind, 'start')} behind the leader's, by {count_text(records, 'offset')}"
    return BrokerTask(CHECKPOINT_STARTS, (*said.found, compared), said.overdue)


def _deleted_logs(node: Node, topics: TopicSettings, now_ms: int) -> BrokerTask:
    logs = list(deleted_directories(node))
    found = (count_text(len(logs), "-delete directory"),)
    delay_ms = delays(topics.node, {})
    if delay_ms is None:
        return BrokerTask(DELETE_LOGS, (*found, "log.segment.delete.delay.ms of the node can't be read"))
    overdue = []
    for log in logs:
        since_ms = now_ms - log.path.lstat().st_ctime_ns // 1_000_000
        if since_ms > delay_ms + OVERDUE_MS:
            overdue.append(
                f"{log.path}: expected it gone {duration_text(delay_ms)} after its log was deleted, found it "
                f"after {duration_text(since_ms)}. {_LOOK} it can't be removed"
            )
    return BrokerTask(DELETE_LOGS, found, tuple(overdue[:1]))
