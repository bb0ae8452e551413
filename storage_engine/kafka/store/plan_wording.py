"""Why a segment stays, as a reason for programs and a sentence for people. Pure."""

from __future__ import annotations

from storage_engine.core.wording import bytes_text, duration_text, time_text
from storage_engine.kafka.format.layout import PartitionLog
from storage_engine.kafka.format.log_end import LogEnd
from storage_engine.kafka.rules import (
    Halt,
    LogFacts,
    RetentionPass,
    RetentionSettings,
    Rule,
    SegmentFacts,
    Stop,
)
from storage_engine.model.plan.plan import Reason

DELETED_BY = {
    Rule.LOG_START: "lies below the log's start: its records count as deleted",
    Rule.SIZE: "what stays has at least retention.bytes",
    Rule.TIME: "its newest record is older than retention.ms",
}


def active_text(end: LogEnd, log: PartitionLog, settings: RetentionSettings, now_ms: int) -> str:
    """Say what closes a log's active segment (LogSegment#shouldRoll): until then nothing of it goes.

    Time alone closes none: the broker looks at it when a record comes.
    """
    if not log.segments:
        return ""
    size_bytes = log.segments[-1].log.size_bytes
    by_size = f"segment.bytes {bytes_text(settings.segment_bytes)} (it has {bytes_text(size_bytes)})"
    if not size_bytes:
        return "it is empty, and an empty segment isn't deleted"
    if end.first_ms < 0:
        return f"it closes at {by_size}, or by segment.ms {duration_text(settings.segment_ms)}"
    closes_ms = end.first_ms + settings.segment_ms
    if closes_ms > now_ms:
        return f"it closes with a record of {time_text(closes_ms)} or later, by segment.ms; or at {by_size}"
    return f"it closes with the next record: segment.ms was over at {time_text(closes_ms)}; or at {by_size}"


def remote_text(settings: RetentionSettings) -> str:
    """Say that a segment goes by its local retention, where remote storage has it."""
    if settings.local_without_delete:
        return (
            "the broker deletes it once remote storage has it, which files don't tell; with an empty "
            "cleanup.policy only Kafka 4.3 and newer do so"
        )
    return "the broker deletes it once remote storage has it, which files don't tell"


def kept_because(
    fact: SegmentFacts,
    facts: LogFacts,
    settings: RetentionSettings,
    found: RetentionPass,
    *,
    is_only_replica: bool,
) -> tuple[Reason, str]:
    """Return why the first segment of a log that stays does so.

    :param is_only_replica: no other node has one, so that a high watermark below the end is only old.
    """
    at_start, by_size, by_age = found.halts
    if is_only_replica and Stop.HIGH_WATERMARK in {halt.stop for halt in found.halts}:
        return Reason.UNKNOWN, (
            f"its high watermark isn't known: the last one that was written down, {facts.high_watermark}, is "
            "older than the segment, and the broker, which has the only replica, sets it when it starts"
        )
    # What keeps a segment by its time tells more than the size that it may have.
    halts = (at_start, by_age, by_size)
    said = [text for halt in halts if (text := _sentence(halt, fact, facts, settings, found))]
    return _reason(found, settings), "; ".join(dict.fromkeys(said))


def _reason(found: RetentionPass, settings: RetentionSettings) -> Reason:
    stops = [halt.stop for halt in found.halts]
    if Stop.UNKNOWN in stops:
        return Reason.UNKNOWN
    if Stop.HIGH_WATERMARK in stops:
        return Reason.NOT_REPLICATED
    if stops[-1] is Stop.FUTURE:
        return Reason.FUTURE_TIMESTAMP
    by_age = settings.delete and settings.kept_ms >= 0
    by_size = settings.delete and settings.kept_bytes >= 0
    if by_age:
        return Reason.NOT_EXPIRED
    return Reason.SIZE_NOT_REACHED if by_size else Reason.UNLIMITED


def _sentence(
    halt: Halt, fact: SegmentFacts, facts: LogFacts, settings: RetentionSettings, found: RetentionPass
) -> str:
    """Say why a rule stops at a segment; "" where that is nothing to tell."""
    if halt.stop is Stop.UNKNOWN:
        return "its high watermark isn't known: no checkpoint has one of this log"
    if halt.stop is Stop.HIGH_WATERMARK:
        return f"it reaches above the high watermark {facts.high_watermark}: a replica hasn't got it yet"
    if halt.stop is Stop.POLICY:
        return "cleanup.policy has no delete"
    if halt.rule is Rule.LOG_START:
        return ""
    if halt.rule is Rule.SIZE:
        return _of_size(fact, facts, settings, found)
    name = "retention.ms" if settings.kept_ms == settings.retention_ms else "local.retention.ms"
    if halt.stop is Stop.OFF:
        return f"{name} is off"
    newest = time_text(fact.largest_timestamp_ms)
    goes = time_text(fact.largest_timestamp_ms + settings.kept_ms)
    if halt.stop is Stop.FUTURE:
        return f"its newest record is of {newest}, in the future, and keeps all behind it until {goes}"
    return f"{name} {settings.kept_ms}: its newest record is of {newest}, so it stays until {goes}"


def _of_size(fact: SegmentFacts, facts: LogFacts, settings: RetentionSettings, found: RetentionPass) -> str:
    name = "retention.bytes" if settings.kept_bytes == settings.retention_bytes else "local.retention.bytes"
    if settings.kept_bytes < 0:
        return f"{name} is off"
    left = sum(one.size_bytes for one in facts.segments[len(found.deletions) :])
    bound = f"{name} {bytes_text(settings.kept_bytes)}"
    if left < settings.kept_bytes:
        return f"{bound} isn't reached: the log has {bytes_text(left)}"
    return f"{bound}: the log has {bytes_text(left)}, and {bytes_text(left - fact.size_bytes)} without it"
