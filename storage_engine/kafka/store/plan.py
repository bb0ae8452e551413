"""Plans of logs: why the broker deletes each segment, or keeps it. Only reads files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from storage_engine.commands import Command, Text
from storage_engine.core.wording import bytes_text, duration_text, time_text
from storage_engine.exceptions import BrokerConfigError, CorruptFileError
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.log_end import LogEnd, segment_facts
from storage_engine.kafka.metadata.log_faults import epochs_fault, holes, link_fault, start_fault, topic_fault
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.kafka.retention_rules import (
    Halt,
    LogFacts,
    RetentionPass,
    RetentionSettings,
    Rule,
    SegmentFacts,
    Stop,
    delete_old_segments,
    retention_pass,
)
from storage_engine.kafka.stopped.cleaner import cleaner_settings, due
from storage_engine.kafka.store.absent_logs import ADVICE, missing_logs, missing_text
from storage_engine.kafka.transactions import oldest_open
from storage_engine.model.plan import Decision, LogPlan, Reason
from storage_engine.model.report.diagnosis import named_in_short, reason_of
from storage_engine.model.store import (
    Archivable,
    LogSnapshot,
    Segment,
    SegmentId,
    SegmentState,
    StoreSnapshot,
)

DELETED_BY = {
    Rule.LOG_START: "lies below the log's start: its records count as deleted",
    Rule.SIZE: "the segments that stay have at least retention.bytes",
    Rule.TIME: "its newest record is older than retention.ms",
}


def active_text(end: LogEnd, log: PartitionLog, settings: RetentionSettings, now_ms: int) -> str:
    """Return what will close a log's active segment (LogSegment#shouldRoll). Until then, its records stay.

    Time alone doesn't close a segment: the broker checks the time only when a record arrives.
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
    """Explain that local retention deletes a segment that remote storage has."""
    text = "the broker deletes it once remote storage has it, but files don't tell whether it has"
    if settings.local_without_delete:
        text += "; with an empty cleanup.policy only Kafka 4.3 and newer do so"
    return text


def kept_because(
    fact: SegmentFacts,
    facts: LogFacts,
    settings: RetentionSettings,
    result: RetentionPass,
    *,
    is_only_replica: bool,
) -> tuple[Reason, str]:
    """Return why the first remaining segment of a log stays.

    :param is_only_replica: no other node has a replica. Then no record waits for its replication, and a high
        watermark below the log's end is an outdated value.
    """
    at_start, by_size, by_age = result.halts
    if is_only_replica and Stop.HIGH_WATERMARK in {halt.stop for halt in result.halts}:
        return Reason.UNKNOWN, (
            f"its high watermark isn't known: the last written value, {facts.high_watermark}, is older "
            "than the segment. The broker has the only replica, and sets it when it starts"
        )
    # The age comes before the size, because it tells more.
    halts = (at_start, by_age, by_size)
    sentences = [text for halt in halts if (text := _sentence(halt, fact, facts, settings, result))]
    return _reason(result, settings), "; ".join(dict.fromkeys(sentences))


def _reason(result: RetentionPass, settings: RetentionSettings) -> Reason:
    stops = [halt.stop for halt in result.halts]
    if Stop.UNKNOWN in stops:
        return Reason.UNKNOWN
    if Stop.HIGH_WATERMARK in stops:
        return Reason.NOT_REPLICATED
    if stops[-1] is Stop.FUTURE:
        return Reason.FUTURE_TIMESTAMP
    if settings.delete and settings.kept_ms >= 0:
        return Reason.NOT_EXPIRED
    return Reason.SIZE_NOT_REACHED if settings.delete and settings.kept_bytes >= 0 else Reason.UNLIMITED


def _sentence(
    halt: Halt, fact: SegmentFacts, facts: LogFacts, settings: RetentionSettings, result: RetentionPass
) -> str:
    """Return a clause about why a rule stops at a segment; "" if there is nothing to say."""
    if halt.stop is Stop.UNKNOWN:
        return "its high watermark isn't known: no checkpoint contains it"
    if halt.stop is Stop.HIGH_WATERMARK:
        return f"it reaches above the high watermark {facts.high_watermark}: a replica hasn't copied it yet"
    if halt.stop is Stop.POLICY:
        return "cleanup.policy has no delete"
    if halt.rule is Rule.LOG_START:
        return ""
    if halt.rule is Rule.SIZE:
        return _size_text(fact, facts, settings, result)
    name = "retention.ms" if settings.kept_ms == settings.retention_ms else "local.retention.ms"
    if halt.stop is Stop.OFF:
        return f"{name} is off"
    newest = time_text(fact.largest_timestamp_ms)
    end = time_text(fact.largest_timestamp_ms + settings.kept_ms)
    if halt.stop is Stop.FUTURE:
        return (
            f"its newest record is of {newest}, in the future, and keeps this and all newer segments until "
            f"{end}"
        )
    return f"{name} {settings.kept_ms}: its newest record is of {newest}, so it stays until {end}"


def _size_text(
    fact: SegmentFacts, facts: LogFacts, settings: RetentionSettings, result: RetentionPass
) -> str:
    name = "retention.bytes" if settings.kept_bytes == settings.retention_bytes else "local.retention.bytes"
    if settings.kept_bytes < 0:
        return f"{name} is off"
    left_bytes = sum(segment.size_bytes for segment in facts.segments[len(result.deletions) :])
    bound = f"{name} {bytes_text(settings.kept_bytes)}"
    if left_bytes < settings.kept_bytes:
        return f"{bound} isn't reached: the log has {bytes_text(left_bytes)}"
    without = bytes_text(left_bytes - fact.size_bytes)
    return f"{bound}: the log has {bytes_text(left_bytes)}, and {without} without this segment"


_ACTIVE = "the broker writes to it"


@dataclass(frozen=True, slots=True)
class SeenLog:
    """A log with all facts from which its plan is made. ``seen`` is the log's snapshot for retention."""

    seen: LogSnapshot
    directory: LogDirectory
    log: PartitionLog
    end: LogEnd

    @property
    def high_watermark(self) -> int | None:
        """Return the offset below which all replicas in sync have the records; None if not known."""
        watermark = self.directory.high_watermarks.get(self.seen.name)
        return None if watermark is None else min(watermark, self.end.offset)

    @property
    def start_offset(self) -> int:
        """Return the offset below which records count as deleted."""
        first = self.seen.min_offset
        return max(self.directory.log_starts.get(self.seen.name, first), first)


def plan_log(
    seen_log: SeenLog, topics: TopicSettings, settings: RetentionSettings | str, now_ms: int
) -> LogPlan:
    """Decide about a log's segments as its broker would in a pass at this moment.

    :param settings: settings of its topic, or a text that says why they aren't known.
    :raises OSError: a file can't be read.
    """
    if seen_log.end.unread:
        return undecided(seen_log.seen, Reason.UNKNOWN, seen_log.end.unread)
    if seen_log.directory.fault:
        return undecided(seen_log.seen, Reason.REFUSED, seen_log.directory.fault)
    if (
        fault := link_fault(seen_log.log)
        or topic_fault(seen_log.log, topics)
        or start_fault(seen_log.directory, seen_log.log, seen_log.end.offset)
    ):
        return undecided(seen_log.seen, Reason.REFUSED, fault)
    if isinstance(settings, str):
        reason = f"how long the topic's segments stay isn't known: {settings}"
        return undecided(seen_log.seen, Reason.UNKNOWN, reason)
    active = f"{_ACTIVE}; {active_text(seen_log.end, seen_log.log, settings, now_ms)}"
    if settings.compact:
        return undecided(
            seen_log.seen, Reason.COMPACTED, _compaction(seen_log, settings, topics, now_ms), active
        )
    if not seen_log.log.segments:
        return LogPlan(seen_log.seen.name, ())
    if settings.local_without_delete:
        settings = replace(settings, delete=True)
    facts = log_facts(seen_log, settings, now_ms)
    result = retention_pass(facts, settings, now_ms)
    active_base = facts.segments[-1].base_offset
    going = sum(deletion.base_offset != active_base for deletion in result.deletions)
    # Checked only if the log loses segments: a node may have thousands of logs.
    if going and (
        fault := next(holes(seen_log.directory, seen_log.log, seen_log.log.segments[: going + 1]), "")
        or epochs_fault(seen_log.directory, seen_log.log, seen_log.end.offset)
    ):
        return undecided(seen_log.seen, Reason.REFUSED, fault, active)
    remote = f"{remote_text(settings)}{_open_text(seen_log, 'it is copied')[1]}" if settings.is_copied else ""
    only = seen_log.seen.name in topics.only_replicas
    return LogPlan(
        seen_log.seen.name, tuple(_decisions(seen_log.seen, facts, settings, result, active, remote, only))
    )


def log_facts(
    seen_log: SeenLog, settings: RetentionSettings, now_ms: int, *, until_kept: bool = True
) -> LogFacts:
    """Return the facts about a log that the rules need.

    To read a segment's timestamp, its index must be opened. So no timestamp is read for a segment that is
    deleted at any age.

    :param until_kept: read no timestamp after the first segment that is too young: the rule stops there.
    :raises OSError: an index can't be read.
    """
    segments = seen_log.log.segments
    start, watermark = seen_log.start_offset, seen_log.high_watermark
    unread = [SegmentFacts(files.base_offset, files.log.size_bytes, now_ms) for files in segments]
    whole = LogFacts(tuple(unread), start, watermark, seen_log.end.offset)
    if not segments or not settings.delete or settings.kept_ms < 0 or watermark is None:
        return whole
    going = 0
    if settings.kept_bytes >= 0 or start > segments[0].base_offset:
        ageless = replace(settings, retention_ms=-1, local_retention_ms=-1)
        going = len(delete_old_segments(whole, ageless, now_ms).deletions)
    for place in range(going, len(segments)):
        unread[place] = segment_facts(segments[place], active=place + 1 == len(segments))
        if until_kept and unread[place].largest_timestamp_ms >= now_ms - settings.kept_ms:
            break
    return LogFacts(tuple(unread), start, watermark, seen_log.end.offset)


def _compaction(seen_log: SeenLog, settings: RetentionSettings, topics: TopicSettings, now_ms: int) -> str:
    also = ", and deletes expired segments" if settings.delete else ""
    cleaned_to = seen_log.directory.cleaned_to.get(seen_log.seen.name)
    progress = (
        "it never has, by its checkpoint"
        if cleaned_to is None
        else f"it has cleaned the log up to offset {cleaned_to}"
    )
    first_open, open_text = _open_text(seen_log, "it cleans")
    return (
        f"cleanup.policy contains compact: only the broker's cleaner removes records{also}; "
        f"{progress}{open_text}{_due_text(seen_log, topics, first_open, now_ms)}"
    )


def _open_text(seen_log: SeenLog, action: str) -> tuple[int | None, str]:
    """Return the oldest open transaction's first offset, if known, and a text about open transactions."""
    try:
        transaction = oldest_open(seen_log.log, seen_log.end.offset)
    except CorruptFileError as error:
        return None, f"; its open transactions aren't known: {reason_of(error)}"
    if transaction is None:
        return None, ""
    return transaction.first_offset, (
        f"; {action} only up to offset {transaction.first_offset}, where the transaction of producer "
        f"{transaction.producer_id} is open, last written at {time_text(transaction.written_ms)}"
    )


def _due_text(seen_log: SeenLog, topics: TopicSettings, first_open: int | None, now_ms: int) -> str:
    """Return a clause about the bytes that are due for cleaning, or why they are unknown; "" without any."""
    cleaned_to = seen_log.directory.cleaned_to.get(seen_log.seen.name, seen_log.seen.min_offset)
    try:
        settings = cleaner_settings(topics.node, topics.values(seen_log.log.name.topic))
        backlog = due(seen_log.log, cleaned_to, settings, first_open)
    except BrokerConfigError as error:
        return f"; {reason_of(error)}"
    if backlog is None or backlog.since_ms > now_ms:
        return ""
    return f"; {bytes_text(backlog.dirty_bytes)} are due since {time_text(backlog.since_ms)}"


def undecided(seen: LogSnapshot, reason: Reason, detail: str, active: str = _ACTIVE) -> LogPlan:
    """Return a plan that keeps all of a log for one reason."""
    return LogPlan(
        seen.name,
        tuple(
            Decision(segment, Reason.ACTIVE, active)
            if segment.state is SegmentState.ACTIVE
            else Decision(segment, reason, detail)
            for segment in seen.segments
        ),
    )


def _decisions(
    seen: LogSnapshot,
    facts: LogFacts,
    settings: RetentionSettings,
    result: RetentionPass,
    active: str,
    remote: str,
    is_only_replica: bool,
) -> Iterator[Decision]:
    rules = {deletion.base_offset: deletion.rule for deletion in result.deletions} if result.deletions else {}
    by_offset = {segment.base_offset: segment for segment in facts.segments}
    stopped = False
    for segment in seen.segments:
        rule, fact = rules.get(segment.base_offset), by_offset.get(segment.base_offset)
        if segment.state is SegmentState.ACTIVE:
            going = rule is not None and not settings.is_copied
            more = f"{_ACTIVE}; it has expired, so the broker closes it and deletes it too"
            yield Decision(segment, Reason.ACTIVE, more if going else active)
        elif fact is None:
            yield Decision(segment, Reason.UNKNOWN, "it no longer existed when the plan was made")
        elif rule is not None and settings.is_copied:
            yield Decision(segment, Reason.REMOTE_STORAGE, f"{rule.value}: {remote}")
        elif rule is not None:
            yield Decision(segment, Reason.EXPIRED, f"{rule.value}: {DELETED_BY[rule]}")
        elif stopped:
            yield Decision(segment, Reason.BEHIND_KEPT, "an older segment of its log stays")
        else:
            stopped = True
            reason = kept_because(fact, facts, settings, result, is_only_replica=is_only_replica)
            yield Decision(segment, *reason)


def cut_to_archivable(
    plan: LogPlan, archivable: Archivable, may: Set[SegmentId], *, has_remote: bool
) -> LogPlan:
    """Return a log's plan for our deletions. Segments from the first non-archivable one on stay in the log.

    :param may: ids of the archivable segments of all logs.
    :param has_remote: the log's topic uses remote storage, even if no segment is copied to it now.
    """
    if not plan.to_delete:
        return plan
    if has_remote:
        # A higher log start makes its broker delete segments in the remote storage, too (RemoteLogManager).
        reason = (
            "remote storage is on, though no segment is copied to it now: only its broker may delete records "
            "of this log"
        )
        return plan.with_going(lambda going: replace(going, reason=Reason.REMOTE_STORAGE, detail=reason))
    return cut_from(
        plan, lambda going: None if going.segment.id in may else _not_archivable(going.segment, archivable)
    )


def cut_from(plan: LogPlan, fault_of: Callable[[Decision], tuple[Reason, str] | None]) -> LogPlan:
    """Return a log's plan that keeps all segments from the first segment with a fault on."""

    def decide_all() -> Iterator[Decision]:
        stops = False
        for decision in plan.decisions:
            if not decision.deletes:
                yield decision
            elif stops:
                yield Decision(decision.segment, Reason.BEHIND_KEPT, "an older segment of its log stays")
            elif (fault := fault_of(decision)) is not None:
                stops = True
                yield Decision(decision.segment, *fault)
            else:
                yield decision

    return LogPlan(plan.log, tuple(decide_all()))


def _not_archivable(segment: Segment, archivable: Archivable) -> tuple[Reason, str]:
    """Return why an expired segment stays, if it may not be archived."""
    if why := archivable.refused.get(segment.log):
        return Reason.REFUSED, why
    why = archivable.kept_out.get(segment.log, "its broker doesn't say that it may be archived")
    if not segment.facts.size_bytes:
        why = "the cleaner has left it empty, so it has no bytes to prove: its broker deletes it when it runs"
    return Reason.NOT_ARCHIVABLE, f"it may not be archived yet: {why}"


def plan_notices(node: Node, settings: TopicSettings, *, forced: bool = False) -> tuple[str, ...]:
    """Return notices about logs that are in no plan, and about facts on which a plan depends."""
    notices: list[str] = []
    if forced:
        notices.append(
            Text(
                "Kafka never ignores age, so a forced run deletes only expired segments: lower "
                "retention.ms or retention.bytes of large topics to free more. On a stopped node, ",
                Command("kafka make-room", "--force REASON"),
                " also deletes segments that have not expired",
            )
        )
    internal = [log.name.log for _, log in node.logs if log.name.is_internal]
    if internal:
        notices.append(f"internal topics are Kafka's own, and not planned: {named_in_short(internal)}")
    if settings.unknown:
        notices.append(f"topics' own settings are unknown, so nothing expires: {settings.unknown}")
    if missing := missing_logs(node, settings):
        notices.append(f"{missing_text(missing)}; {ADVICE}")
    if node.left_uncleanly and node.live is None:
        notices.append(
            "no clean stop is marked: a broker that starts reads the logs' ends again, and may cut "
            "records off"
        )
    return tuple(notices)


def deletes_at_ms(facts: LogFacts, settings: RetentionSettings, now_ms: int) -> Mapping[int, int | None]:
    """Return when the rules allow each segment's deletion, by base offset; None if no age allows it.

    A segment is deleted no earlier than older segments. Segments above the high watermark and the active
    segment are left out, because it isn't known when the watermark rises or the segment is closed.
    """
    going = {deletion.base_offset for deletion in retention_pass(facts, settings, now_ms).deletions}
    moments: dict[int, int | None] = {}
    by_age = settings.delete and not settings.compact and settings.kept_ms >= 0
    at_ms = now_ms
    for segment, following in zip(facts.segments, facts.segments[1:], strict=False):
        if segment.base_offset in going:
            moments[segment.base_offset] = now_ms
            continue
        if facts.high_watermark is None or facts.high_watermark < following.base_offset:
            break
        at_ms = max(at_ms, segment.largest_timestamp_ms + settings.kept_ms + 1)
        moments[segment.base_offset] = at_ms if by_age else None
    return moments


@dataclass(frozen=True, slots=True)
class SeenNode:
    """The facts from which a snapshot was made. ``known`` has all facts about each log, by name."""

    logs: tuple[LogSnapshot, ...]
    node: Node
    known: Mapping[str, SeenLog]


def logs_of(
    seen: SeenNode, snapshot: StoreSnapshot, topics: TopicSettings
) -> Iterator[tuple[SeenLog, RetentionSettings | str]]:
    """Yield a snapshot's logs, each with its topic's retention, or why that is unknown."""
    for log in snapshot.logs:
        if (seen_log := seen.known.get(log.name)) is not None:
            settings = topics.of(seen_log.log.name.topic)
            yield seen_log if seen_log.seen is log else replace(seen_log, seen=log), settings
