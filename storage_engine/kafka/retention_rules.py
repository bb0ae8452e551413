"""Kafka's retention: the segments that it deletes, and the reason to keep the next segment. Pure.

A pass applies three rules in order. Each rule goes from the oldest segment to the first segment that it
doesn't delete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from storage_engine.core.clock import DAY_MS

UNLIMITED = -1
LIKE_RETENTION = -2
"""Value of ``local.retention.ms`` or ``.bytes`` that means: the same as ``retention.ms`` or ``.bytes``."""


@dataclass(frozen=True)
class RetentionSettings:
    """A topic's settings that decide what is deleted (LogConfig).

    :param delete: ``cleanup.policy`` contains delete.
    :param compact: ``cleanup.policy`` contains compact.
    :param remote: ``remote.storage.enable`` is true. Only the broker may delete the topic's segments and
        raise log starts.
    :param copy_disabled: ``remote.log.copy.disable`` is true. No more segments are copied, and
        ``local.retention.*`` doesn't count (UnifiedLog#remoteLogEnabledAndRemoteCopyEnabled).
    :param local_without_delete: the policy is empty. Since Kafka 4.3, segments that are copied to remote
        storage are deleted by the local bounds all the same.
    :param segment_ms: once the active segment's first record is this old, the next record closes the segment.
    :param segment_bytes: size at which the active segment is closed.
    """

    delete: bool = True
    compact: bool = False
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    remote: bool = False
    local_retention_ms: int = LIKE_RETENTION
    local_retention_bytes: int = LIKE_RETENTION
    local_without_delete: bool = False
    segment_ms: int = 7 * DAY_MS
    segment_bytes: int = 1 << 30
    copy_disabled: bool = False

    @property
    def is_copied(self) -> bool:
        """Return whether segments are copied to remote storage, and then deleted locally."""
        return self.remote and not self.copy_disabled

    @cached_property
    def kept_ms(self) -> int:
        """Return how long segments stay on the node's disk (UnifiedLog#localRetentionMs)."""
        own = self.local_retention_ms if self.remote else LIKE_RETENTION
        return self.retention_ms if own == LIKE_RETENTION else own

    @cached_property
    def kept_bytes(self) -> int:
        """Return how many bytes at least stay on the node's disk (UnifiedLog#localRetentionSize)."""
        own = self.local_retention_bytes if self.remote else LIKE_RETENTION
        return self.retention_bytes if own == LIKE_RETENTION else own


class SegmentFacts(NamedTuple):
    """A segment's facts that the rules need.

    :param size_bytes: size of its ``.log`` file only.
    :param largest_timestamp_ms: largest timestamp of its records. If no record has a timestamp, the time at
        which the file was last written (LogSegment#largestTimestamp).
    """

    base_offset: int
    size_bytes: int
    largest_timestamp_ms: int


class LogFacts(NamedTuple):
    """A log's facts that the rules need.

    :param segments: oldest first; the last one is active.
    :param start_offset: records below it count as deleted.
    :param high_watermark: None if not known. Then nothing is deleted.
    """

    segments: tuple[SegmentFacts, ...]
    start_offset: int
    high_watermark: int | None
    end_offset: int


class Rule(StrEnum):
    """The rule by which a segment is deleted."""

    LOG_START = "log-start"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


_RULES = tuple(Rule)


class Stop(StrEnum):
    """The reason why a rule stops."""

    OFF = "off"
    COMPACTED = "compacted"
    """The policy contains compact: only the cleaner deletes records of the log."""
    POLICY = "policy"
    """The policy doesn't contain delete."""
    UNKNOWN = "unknown"
    """The high watermark isn't known, so no segment may be deleted."""
    HIGH_WATERMARK = "high-watermark"
    EMPTY = "empty"
    """The last segment is empty."""
    FUTURE = "future-timestamp"
    KEPT = "kept"
    """The rule keeps the segment."""
    END = "end"
    """No segment is left."""


class SegmentDeletion(NamedTuple):
    """A segment that a pass deletes, with the rule that deletes it."""

    base_offset: int
    rule: Rule


class Halt(NamedTuple):
    """The segment at which a rule stops. ``base_offset`` is None if the rule looks at no segment."""

    rule: Rule
    stop: Stop
    base_offset: int | None = None


class RetentionPass(NamedTuple):
    """The changes of one pass to a log.

    :param deletions: oldest first. They include the active segment only if all segments are deleted.
    :param halts: one for each rule, in the order of the rules.
    """

    deletions: tuple[SegmentDeletion, ...]
    halts: tuple[Halt, ...]


def retention_pass(log: LogFacts, settings: RetentionSettings, now_ms: int) -> RetentionPass:
    """Return the segments that a pass deletes (LogManager#cleanupLogs, UnifiedLog#deleteOldSegments)."""
    if settings.compact:
        return RetentionPass((), tuple(Halt(rule, Stop.COMPACTED) for rule in _RULES))
    return delete_old_segments(log, settings, now_ms)


def delete_old_segments(log: LogFacts, settings: RetentionSettings, now_ms: int) -> RetentionPass:
    """Return the segments to delete, in a log that isn't compacted (UnifiedLog#deleteOldSegments)."""
    deletions: list[SegmentDeletion] = []
    halts: list[Halt] = []
    segments = log.segments
    for rule in _RULES:
        if rule is not Rule.LOG_START and not settings.delete:
            halts.append(Halt(rule, Stop.POLICY))
            continue
        if (breaches := _breaches_of(rule, log, segments, settings, now_ms)) is None:
            halts.append(Halt(rule, Stop.OFF))
            continue
        count, halt = _walk(rule, log, segments, breaches, now_ms)
        halts.append(halt)
        if segments and not count:
            continue
        deletions += [SegmentDeletion(segment.base_offset, rule) for segment in segments[:count]]
        segments = segments[count:]
        if not segments:
            # The broker has closed the active segment: the new one is empty.
            halts += [Halt(later, Stop.END) for later in _RULES[len(halts) :]]
            break
    return RetentionPass(tuple(deletions), tuple(halts))


Breaches = Callable[[SegmentFacts, SegmentFacts | None], bool]
"""Returns whether a rule deletes a segment, given the segment and the next one."""


def _breaches_of(
    rule: Rule, log: LogFacts, segments: Sequence[SegmentFacts], settings: RetentionSettings, now_ms: int
) -> Breaches | None:
    if rule is Rule.LOG_START:
        return log_start_breached(log.start_offset)
    if rule is Rule.SIZE:
        return size_breached(segments, settings.kept_bytes)
    return time_breached(settings.kept_ms, now_ms)


def log_start_breached(start_offset: int) -> Breaches:
    """Return the check by log start (UnifiedLog#deleteLogStartOffsetBreachedSegments)."""
    return lambda segment, following: following is not None and following.base_offset <= start_offset


def size_breached(segments: Sequence[SegmentFacts], kept_bytes: int) -> Breaches | None:
    """Return the check by size (UnifiedLog#deleteRetentionSizeBreachedSegments); None if the rule is off.

    At least ``kept_bytes`` stay. The check counts the deleted bytes: call it once for each segment, in order.
    """
    if kept_bytes < 0:
        return None
    excess_bytes = sum(segment.size_bytes for segment in segments) - kept_bytes
    if excess_bytes < 0:
        return None

    def breaches(segment: SegmentFacts, following: SegmentFacts | None) -> bool:
        nonlocal excess_bytes
        if excess_bytes < segment.size_bytes:
            return False
        excess_bytes -= segment.size_bytes
        return True

    return breaches


def time_breached(kept_ms: int, now_ms: int) -> Breaches | None:
    """Return the check by age (UnifiedLog#deleteRetentionMsBreachedSegments); None if the rule is off."""
    if kept_ms < 0:
        return None
    return lambda segment, following: now_ms - segment.largest_timestamp_ms > kept_ms


def _walk(
    rule: Rule, log: LogFacts, segments: Sequence[SegmentFacts], breaches: Breaches, now_ms: int
) -> tuple[int, Halt]:
    """Return how many of the oldest segments a rule deletes, and why it stops (UnifiedLog#deletableSegments).

    A segment that reaches above the high watermark is never deleted, nor is an empty last segment.
    """
    for place, (segment, following) in enumerate(zip_longest(segments, segments[1:])):
        upper_bound = log.end_offset if following is None else following.base_offset
        at = segment.base_offset
        if log.high_watermark is None:
            return place, Halt(rule, Stop.UNKNOWN, at)
        if log.high_watermark < upper_bound:
            return place, Halt(rule, Stop.HIGH_WATERMARK, at)
        if not breaches(segment, following):
            future = rule is Rule.TIME and segment.largest_timestamp_ms > now_ms
            return place, Halt(rule, Stop.FUTURE if future else Stop.KEPT, at)
        if following is None and segment.size_bytes == 0:
            return place, Halt(rule, Stop.EMPTY, at)
    return len(segments), Halt(rule, Stop.END)
