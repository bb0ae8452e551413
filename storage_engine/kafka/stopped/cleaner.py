"""State of the broker's log cleaner, from its files.

A cleaner that dies leaves only one line in the broker's log. A living cleaner writes a checkpoint after each
log that it has cleaned. So the cleaner is dead if a log has been due for an hour, no checkpoint was written
since it became due, and no new segment within an hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.exceptions import BrokerConfigError
from storage_engine.kafka.format import checkpoints
from storage_engine.kafka.format.file_names import FileState
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.log_end import first_batch_ms
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short

_PATIENCE_MS = HOUR_MS
"""How long a log may be due without a finding: the cleaner looks for work every 15 seconds, and cleans a
large log within minutes."""
_SKIPPED_MS = DAY_MS
_MILLION = 1_000_000
_FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """Settings that decide when a compacted log is due (LogCleanerManager#grabFilthiestCompactedLog).

    :param dirty_ratio: a log is due if the uncleaned share of its closed segments is larger than this.
    :param lag_ms: records younger than this aren't cleaned.
    :param max_lag_ms: a record of this age makes its log due.
    """

    dirty_ratio: float = 0.5
    lag_ms: int = 0
    max_lag_ms: int = _FOREVER


@dataclass(frozen=True, slots=True)
class Due:
    """A compacted log that is due since ``since_ms``, with ``dirty_bytes`` in segments not yet cleaned."""

    log: str
    dirty_bytes: int
    size_bytes: int
    since_ms: int


def cleaner_settings(node: Mapping[str, str], topic: Mapping[str, str]) -> CleanerSettings:
    """Return the settings that decide when a topic's logs are due.

    :param topic: the topic's own settings. They win over the node's.
    :raises BrokerConfigError: a setting has a value that the broker would refuse.
    """

    def value(own: str, of_node: str, default: str) -> str:
        return topic.get(own, node.get(of_node, default))

    try:
        return CleanerSettings(
            float(value("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", "0.5")),
            int(value("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", "0")),
            int(value("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", str(_FOREVER))),
        )
    except ValueError as error:
        raise BrokerConfigError(
            f"settings of the cleaner: expected numbers, found {error}. Nothing was changed. Correct them."
        ) from error


def due(log: PartitionLog, cleaned_to: int, settings: CleanerSettings, first_open: int | None) -> Due | None:
    """Return the part of a compacted log that the cleaner should have cleaned; None if the log isn't due.

    :param cleaned_to: offset up to which the log is clean.
    :param first_open: first offset of the oldest open transaction, where the cleaner stops; None without one.
    :raises OSError: a segment can't be read.
    """
    closed = log.segments[:-1]
    clean_bytes = sum(segment.log.size_bytes for segment in closed if segment.base_offset < cleaned_to)
    dirty_bytes, since_ms = 0, None
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        if segment.base_offset < cleaned_to:
            continue
        if first_open is not None and following.base_offset > first_open:
            break
        dirty_bytes += segment.log.size_bytes
        closed_ms = segment.log.mtime_ns // _MILLION + settings.lag_ms
        total_bytes = clean_bytes + dirty_bytes
        if since_ms is None and total_bytes and dirty_bytes > settings.dirty_ratio * total_bytes:
            since_ms = closed_ms
        if since_ms is None and settings.max_lag_ms != _FOREVER:
            oldest_ms = first_batch_ms(segment)
            if oldest_ms is not None:
                since_ms = max(closed_ms, oldest_ms + settings.max_lag_ms)
    if since_ms is None:
        return None
    return Due(log.name.log, dirty_bytes, log.size_bytes, since_ms)


def cleaner_findings(
    node: Node, topics: TopicSettings, first_open: Mapping[str, int], at_ms: int
) -> Iterator[Finding]:
    """Yield findings that the cleaner is dead or off, or that it skips a log.

    :param first_open: first offset of the oldest open transaction, by log.
    :param at_ms: now, or for a stopped node the time of its last activity.
    """
    for directory in node.directories:
        logs = [
            log
            for log in directory.logs
            if log.segments
            and not isinstance(settings := topics.of(log.name.topic), str)
            and settings.compact
        ]
        if not logs:
            continue
        if topics.node.get("log.cleaner.enable", "true").lower() == "false":
            yield Finding(
                Severity.WARNING,
                "cleaner-off",
                f"{directory.path}: log.cleaner.enable is false, and {count_text(len(logs), 'log')} of "
                "compacted topics grow without bound",
                "set it to true: internal topics need it, too",
            )
        elif not directory.fault:
            yield from _directory_findings(directory, logs, topics, first_open, at_ms)


def _directory_findings(
    directory: LogDirectory,
    logs: list[PartitionLog],
    topics: TopicSettings,
    first_open: Mapping[str, int],
    at_ms: int,
) -> Iterator[Finding]:
    overdue: list[Due] = []
    for log in logs:
        cleaned_to = directory.cleaned_to.get(log.name.log, log.segments[0].base_offset)
        try:
            settings = cleaner_settings(topics.node, topics.values(log.name.topic))
            log_due = due(log, cleaned_to, settings, first_open.get(log.name.log))
        except (BrokerConfigError, FileNotFoundError):
            # The broker refuses this setting, or is deleting the log: whether the log is due isn't certain.
            continue
        if log_due is not None and at_ms - log_due.since_ms > _PATIENCE_MS:
            overdue.append(log_due)
    # The cleaner is at work if it has written a new segment of a log within the last hour.
    is_at_work = any(
        state is FileState.CLEANED and at_ms - facts.mtime_ns // _MILLION < _PATIENCE_MS
        for log in logs
        for state, facts in log.left_over
    )
    if not overdue or is_at_work:
        return
    checkpoint = directory.path / checkpoints.CLEANER
    wrote_ms = checkpoint.stat().st_mtime_ns // _MILLION if checkpoint.exists() else None
    dead = [late for late in overdue if wrote_ms is None or wrote_ms < late.since_ms]
    if dead:
        worst = [_text(late) for late in sorted(dead, key=lambda log_due: -log_due.dirty_bytes)]
        since = time_text(min(late.since_ms for late in dead))
        when = "never" if wrote_ms is None else f"last at {time_text(wrote_ms)}"
        yield Finding(
            Severity.WARNING,
            "cleaner-dead",
            f"{directory.path}: the cleaner finished a log {when}, and "
            f"{count_text(len(dead), 'log')} should have been cleaned since {since}: {named_in_short(worst)}",
            "look for the error of kafka-log-cleaner-thread in the broker's log-cleaner.log; after a "
            "restart it cleans again until the same error occurs",
        )
    skipped = [late for late in overdue if late not in dead and at_ms - late.since_ms > _SKIPPED_MS]
    for log_due in sorted(skipped, key=lambda log_due: -log_due.dirty_bytes)[:3]:
        yield Finding(
            Severity.WARNING,
            "cleaner-skips",
            f"log {_text(log_due)} should have been cleaned since {time_text(log_due.since_ms)}, and the "
            "cleaner cleans other logs: it skips this log because of an error",
            "look for uncleanable partitions in the broker's log-cleaner.log",
        )


def _text(log_due: Due) -> str:
    return (
        f"{log_due.log} ({bytes_text(log_due.dirty_bytes)} of {bytes_text(log_due.size_bytes)} not cleaned)"
    )
