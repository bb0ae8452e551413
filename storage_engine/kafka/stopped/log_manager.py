"""The five background tasks of a broker (LogManager#startup), of a node whose broker is stopped.

A clean stop flushes all logs and writes all checkpoints (LogManager#shutdown), so of three there is only to
verify that it did. The other two remove files, and what they left a cleanup may remove in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from storage_engine.core.wording import bytes_text, count_text
from storage_engine.kafka.format.checkpoints import LOG_START, RECOVERY_POINT, read_offsets
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.log_end import known_end
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.kafka.stopped.left_overs import Found, delays, deleted_logs, deleted_segments
from storage_engine.kafka.stopped.stopped_plan import Fault, StoppedNode
from storage_engine.model.broker.broker_tasks import BrokerTask

CLEANUP_LOGS = "cleanupLogs"
FLUSH_DIRTY_LOGS = "flushDirtyLogs"
CHECKPOINT_RECOVERY = "checkpointLogRecoveryOffsets"
CHECKPOINT_STARTS = "checkpointLogStartOffsets"
DELETE_LOGS = "deleteLogs"
MOST_NAMED = 5


def stopped_tasks(
    node: Node, topics: TopicSettings, now_ms: int, stopped: StoppedNode | Fault
) -> tuple[BrokerTask, ...]:
    """Look how far each task was when the node's broker stopped, and what it left.

    :param node: with the log directories to look at.
    :param stopped: what all of its directories say, or why nothing goes.
    :raises OSError: a file can't be read.
    """
    why = "" if isinstance(stopped, StoppedNode) else stopped[1]
    metadata = stopped.metadata if isinstance(stopped, StoppedNode) else why
    segments = deleted_segments(node, partial(delay_of, topics), now_ms)
    logs = deleted_logs(node, metadata, delays(topics.node, {}), now_ms)
    known = {log.name.log: known_end(directory, log) for directory, log in managed_logs(node)}
    ends = {name: end.offset for name, end in known.items() if not end.unread}
    return (
        _removing(CLEANUP_LOGS, segments, ".deleted segment", why),
        _flushed(node),
        _recovery(node, ends),
        _starts(node, ends),
        _removing(DELETE_LOGS, logs, "-delete directory", why),
    )


def managed_logs(node: Node) -> list[tuple[LogDirectory, PartitionLog]]:
    """Return the logs that these tasks are for: the cluster's metadata have tasks of their own."""
    return [(directory, log) for directory, log in node.logs if log.name.topic != METADATA_TOPIC]


def delay_of(topics: TopicSettings, topic: str) -> int | None:
    """Return after how many milliseconds a topic's deleted files go; None: it isn't known."""
    if topics.unknown and topic not in topics.live:
        return None
    return delays(topics.node, topics.values(topic))


def _removing(name: str, found: Found, what: str, why: str) -> BrokerTask:
    may, kept = found
    size_bytes = sum(one.size_bytes for one in may)
    said = f"no {what} goes now" if kept else f"no {what} is left over"
    if may:
        said = f"{count_text(len(may), what)} left, {bytes_text(size_bytes)}"
    if why and may:
        return BrokerTask(name, (said,), kept=(*kept, f"nothing goes: {why}"))
    return BrokerTask(name, (said,), left=tuple(may), kept=tuple(kept))


def _flushed(node: Node) -> BrokerTask:
    count = count_text(len(managed_logs(node)), "log")
    if node.left_uncleanly:
        unclean = "the last stop wasn't clean: what wasn't flushed the broker makes sure of when it starts"
        return BrokerTask(FLUSH_DIRTY_LOGS, (f"{count}, {unclean}",))
    return BrokerTask(FLUSH_DIRTY_LOGS, (f"{count}, all flushed by a clean stop",))


def _recovery(node: Node, ends: Mapping[str, int]) -> BrokerTask:
    """Compare recovery points with where logs end: after a clean stop they are the same."""
    wrong = []
    for directory, log in managed_logs(node):
        point = offsets_in(directory, RECOVERY_POINT).get(log.name.log)
        if log.name.log in ends and point != ends[log.name.log]:
            said = "none" if point is None else str(point)
            wrong.append(
                f"{directory.path / RECOVERY_POINT}: log {log.name.log}: expected its end "
                f"{ends[log.name.log]}, as after a clean stop, found {said}"
            )
    count = len(ends)
    found = (f"{count - len(wrong)} of {count_text(count, 'recovery point')} at the log's end",)
    # After another stop the broker reads all above its recovery points again.
    overdue = () if node.left_uncleanly else _first(wrong)
    return BrokerTask(CHECKPOINT_RECOVERY, found, overdue)


def _starts(node: Node, ends: Mapping[str, int]) -> BrokerTask:
    """Compare logs' starts with where they end: above it, a broker deletes all of the log."""
    wrong, entries, inside = [], 0, 0
    for directory, log in managed_logs(node):
        start = offsets_in(directory, LOG_START).get(log.name.log)
        if start is None:
            continue
        entries += 1
        inside += bool(log.segments) and start > log.segments[0].base_offset
        if log.name.log in ends and start > ends[log.name.log]:
            wrong.append(
                f"{directory.path / LOG_START}: log {log.name.log}: expected a start up to its end "
                f"{ends[log.name.log]}, found {start}: its broker would delete all of it"
            )
    found = (
        f"{count_text(entries, 'start')} in checkpoints, {inside} inside a first segment, "
        f"{len(wrong)} above an end",
    )
    return BrokerTask(CHECKPOINT_STARTS, found, _first(wrong))


def _first(sentences: Sequence[str]) -> tuple[str, ...]:
    rest = len(sentences) - MOST_NAMED
    return (*sentences[:MOST_NAMED], *((f"{rest} more logs like these",) if rest > 0 else ()))


_NO_OFFSETS: Mapping[str, int] = {}


def offsets_in(directory: LogDirectory, name: str) -> Mapping[str, int]:
    """Return what one of a directory's checkpoints says, by log; nothing where there is none."""
    path = directory.path / name
    return read_offsets(path) if path.exists() else _NO_OFFSETS
