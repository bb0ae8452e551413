"""Why each segment of a log is deleted by its broker, or isn't yet. Pure but for what indexes say."""

from __future__ import annotations

from storage_engine.kafka.file_names import METADATA_TOPIC
from storage_engine.kafka.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.log_end import segment_facts
from storage_engine.kafka.rules import (
    Halt,
    LogFacts,
    RetentionPass,
    RetentionSettings,
    Rule,
    SegmentFacts,
    Stop,
    retention_pass,
)
from storage_engine.kafka.topic_settings import TopicSettings
from storage_engine.model.diagnosis import named_in_short
from storage_engine.model.plan import Decision, LogPlan, Reason
from storage_engine.model.store import LogSnapshot, Segment, SegmentState
from storage_engine.wording import bytes_text, time_text

_BY_RULE = {
    Rule.LOG_START: "lies below the log's start: its records count as deleted",
    Rule.SIZE: "what stays has at least retention.bytes",
    Rule.TIME: "its newest record is older than retention.ms",
}


def plan_log(
    seen: LogSnapshot, directory: LogDirectory, log: PartitionLog, settings: TopicSettings, now_ms: int
) -> LogPlan:
    """Decide on a log's segments as its broker would in a pass at this moment.

    :raises OSError: an index can't be read.
    """
    topic = settings.of(log.name.topic)
    if isinstance(topic, str):
        return undecided(seen, f"how long the topic's segments stay isn't known: {topic}")
    if topic.compact:
        return undecided(seen, "cleanup.policy has compact: only the broker's cleaner deletes")
    facts = log_facts(seen, directory, log)
    return _decided(seen, facts, topic, retention_pass(facts, topic, now_ms))


def log_facts(seen: LogSnapshot, directory: LogDirectory, log: PartitionLog) -> LogFacts:
    """Return what the rules ask of a log.

    :raises OSError: an index can't be read.
    """
    first = seen.min_offset
    last = len(log.segments) - 1
    return LogFacts(
        tuple(segment_facts(files, active=place == last) for place, files in enumerate(log.segments)),
        max(directory.log_starts.get(seen.name, first), first),
        seen.dispatched_offset,
        seen.max_offset,
    )


def undecided(seen: LogSnapshot, detail: str) -> LogPlan:
    """Return a plan that keeps all of a log for one reason."""
    return LogPlan(
        seen.name,
        tuple(
            Decision(segment, Reason.ACTIVE, "the broker writes to it")
            if segment.state is SegmentState.ACTIVE
            else Decision(segment, Reason.NOT_EXPIRED, detail)
            for segment in seen.segments
        ),
    )


def _decided(
    seen: LogSnapshot, facts: LogFacts, settings: RetentionSettings, found: RetentionPass
) -> LogPlan:
    by_offset = {one.base_offset: one.rule for one in found.deletions}
    of = {one.base_offset: one for one in facts.segments}
    decisions: list[Decision] = []
    stopped = False
    for segment in seen.segments:
        rule = by_offset.get(segment.base_offset)
        if segment.state is SegmentState.ACTIVE:
            more = "; it has expired, so the broker closes it and deletes it too" if rule else ""
            decisions.append(Decision(segment, Reason.ACTIVE, f"the broker writes to it{more}"))
        elif rule is not None:
            decisions.append(Decision(segment, Reason.EXPIRED, f"{rule.value}: {_BY_RULE[rule]}"))
        elif stopped:
            decisions.append(Decision(segment, Reason.BEHIND_KEPT, "an older segment of its log stays"))
        else:
            stopped = True
            behind = any(halt.stop is Stop.HIGH_WATERMARK for halt in found.halts)
            reason = Reason.NOT_DISPATCHED if behind else Reason.NOT_EXPIRED
            fact = of.get(segment.base_offset)
            decisions.append(Decision(segment, reason, _why(segment, fact, facts, settings, found)))
    return LogPlan(seen.name, tuple(decisions))


def _why(
    segment: Segment,
    fact: SegmentFacts | None,
    facts: LogFacts,
    settings: RetentionSettings,
    found: RetentionPass,
) -> str:
    reasons = [_reason(halt, fact, facts, settings) for halt in found.halts]
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def _reason(halt: Halt, fact: SegmentFacts | None, facts: LogFacts, settings: RetentionSettings) -> str:
    """Say why a rule stops at a segment; "" where that is nothing to tell."""
    if halt.stop is Stop.HIGH_WATERMARK:
        return f"it reaches above the high watermark {facts.high_watermark}"
    if halt.stop is Stop.POLICY:
        return "cleanup.policy has no delete"
    if halt.rule is Rule.LOG_START or fact is None:
        return ""
    if halt.rule is Rule.SIZE:
        if settings.kept_bytes < 0:
            return "retention.bytes is off"
        size = sum(one.size_bytes for one in facts.segments)
        return f"retention.bytes {bytes_text(settings.kept_bytes)}: the log has {bytes_text(size)}"
    if halt.stop is Stop.OFF:
        return "retention.ms is off"
    newest = time_text(fact.largest_timestamp_ms)
    if halt.stop is Stop.FUTURE:
        return f"its newest record is of {newest}, in the future, and keeps all behind it"
    return f"retention.ms {settings.kept_ms}: its newest record is of {newest}"


def plan_notices(node: Node, settings: TopicSettings) -> tuple[str, ...]:
    """Return what a person should know of logs that no plan has, or has for reading alone."""
    notices = []
    internal = [log.name.log for _, log in node.logs if log.name.is_internal]
    if internal:
        notices.append(f"internal topics are Kafka's own, and not planned: {named_in_short(internal)}")
    if settings.unknown:
        notices.append(f"topics' own settings are unknown, so nothing expires: {settings.unknown}")
        return tuple(notices)
    remote = [log.name.log for _, log in node.logs if _is_remote(settings, log)]
    if remote:
        notices.append(f"logs with remote storage, by their local retention alone: {named_in_short(remote)}")
    return tuple(notices)


def _is_remote(settings: TopicSettings, log: PartitionLog) -> bool:
    found = settings.of(log.name.topic) if log.name.topic != METADATA_TOPIC else ""
    return not isinstance(found, str) and found.remote
