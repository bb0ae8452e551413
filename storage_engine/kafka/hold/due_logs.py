"""Unproven segments of a node's logs: when the broker will delete them, and which of them it has deleted.

The active segment is included. The rule for age gives the time of a deletion. The rule for size gives it only
if the log's latest growth is known. If it isn't certain that a segment stays, the segment counts as due.
Segments above the high watermark count, too, because the watermark rises.

This module also decides about topics whose settings we have raised, on a node whose broker deletes by its own
rules. A topic's settings are restored only if this look judged each of the topic's logs that was ever held.
Otherwise the settings stay raised, and a person is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from storage_engine.core.wording import bytes_text, reason_text, time_text
from storage_engine.kafka.hold.drift import FoundLogs
from storage_engine.kafka.hold.hold_state import HoldState, KnownLog, Written, with_first_settings
from storage_engine.kafka.hold.needed_retention import is_judged_elsewhere, needed_by_others
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.retention_rules import LogFacts, RetentionSettings, SegmentFacts
from storage_engine.kafka.store.plan import SeenLog, SeenNode, log_facts
from storage_engine.model.broker.broker_store import UnheldSegments
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.store import FileFacts, Segment, SegmentId, SegmentState

Ranges = tuple[tuple[int, int], ...]
"""Ranges of offsets, each [first, end)."""
_LONGEST_MS = 600_000
"""Growth is measured from a point in time. A point that is older than this is replaced by a later one."""


@dataclass(frozen=True, slots=True)
class DueLog:
    """Unproven segments of a log.

    :param unproven: segments with records that no lake proves, including the active segment.
    :param at_ms: when the rules delete each segment, by base offset; None if never, or if not known.
    :param span_ms: for how long the rules keep a record; None means for ever, or not known.
    :param unknown_size: retention.bytes deletes some of the segments, at an unknown time.
    :param written: the present end, from which the next look measures growth.
    :param unknown: why settings or ages aren't known, so that all segments count as due now; "" if known.
    """

    topic: str
    unproven: tuple[Segment, ...]
    at_ms: Mapping[int, int | None]
    span_ms: float | None
    unknown_size: bool
    written: Written | None
    unknown: str = ""

    def going(self, now_ms: int, margin_ms: float, times: float = 1) -> tuple[Segment, ...]:
        """Return segments that are deleted within ``times`` margins. A margin is at most ``span_ms / 2``."""
        until_ms = now_ms + times * (margin_ms if self.span_ms is None else min(margin_ms, self.span_ms / 2))
        return self._due_segments(until_ms)

    def _due_segments(self, until_ms: float) -> tuple[Segment, ...]:
        moments = [(segment, self.at_ms.get(segment.base_offset)) for segment in self.unproven]
        return tuple(segment for segment, at_ms in moments if at_ms is not None and at_ms <= until_ms)

    def taken(self, until_ms: int) -> tuple[Segment, ...]:
        """Return the segments that are deleted by a given time; all segments if the times aren't known."""
        return self.unproven if self.unknown_size else self._due_segments(until_ms)

    @property
    def ranges(self) -> Ranges:
        return join_ranges((segment.base_offset, segment.end_offset) for segment in self.unproven)


@dataclass(frozen=True, slots=True)
class DueLogs:
    """Results of one look at a node's logs.

    :param of: unproven segments of each log, by name. Logs that are never archived are left out.
    :param gone: logs that lost a file while they were read: nothing about them is known.
    """

    of: Mapping[str, DueLog]
    gone: frozenset[str]


def due_logs(
    seen: SeenNode,
    state: HoldState,
    others: Sequence[HoldState],
    proven: Mapping[SegmentId, FileFacts],
    now_ms: int,
) -> DueLogs:
    """Return the unproven segments of each log, with the time at which the settings before the hold would
    delete them.

    :param proven: the proven segments and their files. A segment in another file counts as unproven: another
        topic of the same name has other files.
    """
    settings = read_topic_settings(with_first_settings(seen.node, (state, *others)))
    changed = {held.topic for hold in (state, *others) for held in hold.settings}
    logs: dict[str, DueLog] = {}
    lost_logs: set[str] = set()
    for name, seen_log in seen.known.items():
        topic = seen_log.log.name.topic
        kept = settings.of(topic)
        if topic in changed and topic not in settings.live:
            # The node's own copy of the metadata contains the values that a hold has set.
            kept = "the cluster doesn't tell them, and a hold has changed them"
        if not isinstance(kept, str) and (kept.compact or kept.is_copied):
            continue
        known_log = state.logs.get(name)
        try:
            logs[name] = _due_log(seen_log, kept, proven, known_log, now_ms)
        except FileNotFoundError:
            lost_logs.add(name)
        except OSError as error:
            logs[name] = _due_log(
                seen_log, f"a file of it can't be read: {reason_text(error)}", proven, known_log, now_ms
            )
    return DueLogs(logs, frozenset(lost_logs))


def _is_proven(segment: Segment, proven: Mapping[SegmentId, FileFacts]) -> bool:
    """Return whether a lake proves a segment, from the same file that is now on disk."""
    proof, here = proven.get(segment.id), segment.facts
    return proof is not None and (proof.device, proof.inode, proof.size_bytes) == (
        here.device,
        here.inode,
        here.size_bytes,
    )


def _due_log(
    seen_log: SeenLog,
    settings: RetentionSettings | str,
    proven: Mapping[SegmentId, FileFacts],
    known_log: KnownLog | None,
    now_ms: int,
) -> DueLog:
    # Segments above the high watermark count, too, because it rises.
    whole = replace(
        seen_log,
        directory=replace(seen_log.directory, high_watermarks={seen_log.seen.name: seen_log.end.offset}),
    )
    unproven = tuple(
        segment
        for segment in seen_log.seen.segments
        if segment.facts.size_bytes
        and (
            segment.end_offset > seen_log.start_offset
            # An active segment that can't be read may contain records.
            or (seen_log.end.unread and segment.state is SegmentState.ACTIVE)
        )
        and not _is_proven(segment, proven)
    )
    topic = seen_log.log.name.topic
    if isinstance(settings, str):
        segments = log_facts(whole, RetentionSettings(retention_ms=-1), now_ms).segments
        at_once = {segment.base_offset: now_ms for segment in unproven}
        return DueLog(topic, unproven, at_once, None, False, written(segments, known_log, now_ms), settings)
    facts = log_facts(whole, settings, now_ms, until_kept=False)
    measured = growth(facts.segments, known_log, now_ms)
    bytes_per_ms = least_growth(facts.segments, known_log, now_ms) if measured is None else measured
    at_ms = expiry(facts, settings, now_ms, bytes_per_ms)
    unknown = settings.delete and settings.kept_bytes >= 0 and measured is None
    return DueLog(
        topic,
        unproven,
        at_ms,
        kept_span_ms(settings, bytes_per_ms),
        unknown and any(at_ms.get(segment.base_offset) != now_ms for segment in unproven),
        written(facts.segments, known_log, now_ms),
    )


def active_and_expired(
    seen: SeenNode, state: HoldState, others: Sequence[HoldState], kept: Collection[str], now_ms: int
) -> Iterator[str]:
    """Yield a notice about each active segment that a broker closes and deletes at once when the hold ends.

    No lake can contain these segments before they are closed.

    :param kept: topics that stay held, because another store needs their raised settings.
    """
    for name, log in due_logs(seen, state, others, {}, now_ms).of.items():
        last = () if log.unknown or log.topic in kept else log.unproven[-1:]
        if last and last[0].state is SegmentState.ACTIVE and log.at_ms.get(last[0].base_offset) == now_ms:
            yield (
                f"log {name}: records of offsets [{last[0].base_offset}, {last[0].end_offset}), "
                f"{bytes_text(last[0].facts.size_bytes)}, have expired and lie in the active segment, which "
                "no lake can have before it is closed: its broker closes and deletes it now"
            )


def join_ranges(ranges: Iterator[tuple[int, int]]) -> Ranges:
    """Return ranges in order. Ranges that touch or overlap are joined."""
    spans: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((first, end))
    return tuple(spans)


def gone_unproven(drift: Sequence[Drift], state: HoldState) -> Iterator[Drift]:
    """Yield the drift to report for a node whose broker deletes by its own rules.

    Changes of leaders aren't reported. Deleted records are reported only if no lake proved them.

    :param state: the state before the look that found the drift.
    """
    for change in drift:
        if change.kind is DriftKind.LEADER_MOVED:
            continue
        if change.kind is not DriftKind.SEGMENT_GONE:
            yield change
            continue
        log = state.logs[change.log]
        # Nobody has seen records that were written and deleted between two looks.
        unseen = (log.high_watermark, max(change.end_offset, log.high_watermark))
        for first, end in join_ranges(iter((*log.unproven, unseen))):
            lost = max(first, change.start_offset), min(end, change.end_offset)
            if lost[0] < lost[1]:
                yield replace(
                    change,
                    detail=f"log {change.log}: records of offsets [{lost[0]}, {lost[1]}) went by the "
                    "broker's own rules, or by somebody's word, and no lake proved them when they were last "
                    "looked at.",
                    start_offset=lost[0],
                    end_offset=lost[1],
                )


def expiry(
    facts: LogFacts, settings: RetentionSettings, now_ms: int, bytes_per_ms: float | None
) -> Mapping[int, int | None]:
    """Return the time at which the rules delete each segment, by base offset; None if never, as far as known.

    A segment is deleted no earlier than older segments. Once all other segments have expired, the active
    segment can expire by age: the broker closes and deletes it (UnifiedLog#deleteOldSegments).

    :param bytes_per_ms: the log's growth; None if not known, so size is ignored.
    """
    if settings.compact or settings.is_copied or not settings.delete:
        return {segment.base_offset: None for segment in facts.segments}
    expiries: dict[int, int | None] = {}
    behind_bytes = sum(segment.size_bytes for segment in facts.segments)
    before_ms: int | None = now_ms
    for segment in facts.segments:
        behind_bytes -= segment.size_bytes
        times = []
        if settings.kept_ms >= 0:
            times.append(max(now_ms, segment.largest_timestamp_ms + settings.kept_ms + 1))
        if 0 <= settings.kept_bytes <= behind_bytes:
            times.append(now_ms)
        elif settings.kept_bytes >= 0 and bytes_per_ms:
            times.append(now_ms + int((settings.kept_bytes - behind_bytes) / bytes_per_ms))
        before_ms = max(before_ms, min(times)) if times and before_ms is not None else None
        expiries[segment.base_offset] = before_ms
    return expiries


def kept_span_ms(settings: RetentionSettings, bytes_per_ms: float | None) -> float | None:
    """Return the time for which the rules keep a record; None means for ever, or not known."""
    spans = [float(settings.kept_ms)] if settings.kept_ms >= 0 else []
    if settings.kept_bytes >= 0 and bytes_per_ms:
        spans.append(settings.kept_bytes / bytes_per_ms)
    return min(spans, default=None)


def grown_bytes(segments: Sequence[SegmentFacts], since: Written) -> int | None:
    """Return the bytes written to a log after ``since``; None if the segment of ``since`` is deleted."""
    later = [segment for segment in segments if segment.base_offset >= since.base_offset]
    if not later or later[0].base_offset != since.base_offset:
        return None
    return max(0, sum(segment.size_bytes for segment in later) - since.size_bytes)


def growth(segments: Sequence[SegmentFacts], known: KnownLog | None, now_ms: int) -> float | None:
    """Return a log's growth since its remembered point, in bytes a millisecond; None if not known."""
    since = None if known is None else known.written
    if since is None or now_ms <= since.at_ms or (grown := grown_bytes(segments, since)) is None:
        return None
    return grown / (now_ms - since.at_ms)


def least_growth(segments: Sequence[SegmentFacts], known: KnownLog | None, now_ms: int) -> float | None:
    """Return a log's least growth in bytes a millisecond; None if not known.

    Call this only if the remembered segment was deleted. In that case all present bytes were written after
    the remembered point.
    """
    since = None if known is None else known.written
    if since is None or now_ms <= since.at_ms:
        return None
    return sum(segment.size_bytes for segment in segments) / (now_ms - since.at_ms)


def written(segments: Sequence[SegmentFacts], known: KnownLog | None, now_ms: int) -> Written | None:
    """Return the point from which the next look measures growth: the remembered one while it is recent."""
    since = None if known is None else known.written
    if since is not None and now_ms - since.at_ms < _LONGEST_MS and grown_bytes(segments, since) is not None:
        return since
    return Written(now_ms, segments[-1].base_offset, segments[-1].size_bytes) if segments else None


@dataclass(frozen=True, slots=True)
class HoldLook:
    """All that one look at a node has shown.

    :param deleted: topics that no longer exist in the cluster.
    """

    now_ms: int
    logs: DueLogs
    found: FoundLogs
    deleted: Collection[str]
    others: Sequence[HoldState]


@dataclass(frozen=True, slots=True)
class HoldDecision:
    """The decision about a topic whose settings we have raised.

    :param stays: the settings stay raised; otherwise they are restored.
    :param alarm: a problem that a person has to solve; "" if none.
    """

    stays: bool
    alarm: str = ""


def decide(
    state: HoldState, wanted: Collection[str], look: HoldLook, margin_ms: int
) -> Mapping[str, HoldDecision]:
    """Decide about each topic whose settings we have raised.

    :param wanted: topics with records that will be deleted soon and that no lake has.
    :param margin_ms: how long before its deletion a segment is held.
    """
    topics = dict.fromkeys(held.topic for held in state.settings)
    return {topic: _decide(topic, state, topic in wanted, look, margin_ms) for topic in topics}


def _decide(topic: str, state: HoldState, is_wanted: bool, look: HoldLook, margin_ms: int) -> HoldDecision:
    if is_wanted:
        return HoldDecision(True, _long_hold_alarm(topic, state, look, margin_ms))
    if topic in look.deleted:
        return HoldDecision(False)
    if reason := next(unjudged_reasons(topic, state, look), ""):
        return HoldDecision(
            True,
            f"topic {topic} stays held, and can't be put back as it was, as what of it is unproven isn't "
            f"known: {reason}",
        )
    return HoldDecision(False)


def unjudged_reasons(topic: str, state: HoldState, look: HoldLook) -> Iterator[str]:
    """Yield reasons why the state of one of a topic's logs is unknown at this look."""
    if look.found.failed:
        paths = ", ".join(look.found.failed)
        yield f"log directory {paths} has failed. Mend the disk, or take the directory out of log.dirs"
    for name in look.logs.gone:
        if name.rpartition("-")[0] == topic:
            yield f"log {name} lost files while it was looked at. The next look knows"
    for name, log in state.logs.items():
        if name.rpartition("-")[0] == topic and name not in look.found.here:
            yield from _absence_reasons(name, log, look)


def _absence_reasons(name: str, log: KnownLog, look: HoldLook) -> Iterator[str]:
    live = look.found.elsewhere.get(name)
    if is_judged_elsewhere(look.others, name, log.topic_id, look.now_ms):
        return
    if live is None or live.topic_id is None:
        yield (
            f"log {name} isn't on this node any more, and the cluster doesn't tell where it is. Let its "
            "account describe the topic"
        )
    elif str(live.topic_id) == log.topic_id:
        nodes = ", ".join(map(str, live.replicas)) or "none that is known"
        yield (
            f"log {name} is on other nodes, {nodes}, and no store of this journal looks at it there. Hold "
            "the store of one of them with this journal, or archive there and unmanage this one"
        )


def _long_hold_alarm(topic: str, state: HoldState, look: HoldLook, margin_ms: int) -> str:
    """Return an alarm about a topic that has been held for more than two margins; "" if there is none.

    An active segment can't be archived yet, so it alone causes no alarm.
    """
    since_ms = min(held.since_ms for held in state.settings if held.topic == topic)
    sealed = [
        (name, segment)
        for name, log in look.logs.of.items()
        if log.topic == topic
        for segment in log.going(look.now_ms, margin_ms)
        if segment.state is SegmentState.SEALED
    ]
    if not since_ms or not sealed or look.now_ms <= since_ms + 2 * margin_ms:
        return ""
    name, first = sealed[0]
    return (
        f"topic {topic} is held since {time_text(since_ms)}, long after records of it would have gone: no "
        f"lake has what log {name} holds from offset {first.base_offset} on, and the hold fills its disk. "
        "Find out why it isn't archived"
    )


def unheld_segments(state: HoldState, look: HoldLook, until_ms: int) -> UnheldSegments:
    """Return the segments that will be deleted by a given time once our settings are restored.

    Active segments are included. If another store of the journal still needs a topic's raised settings, they
    stay raised. If retention.bytes limits a log whose growth isn't known, all of its segments are included.

    :param look: a look for which no segment counts as proven.
    """
    raised = {held.topic for held in state.settings}
    back = {held.topic for held in state.settings if not needed_by_others(look.others, held, look.now_ms)[0]}
    kept, released = raised - back, back - set(look.deleted)
    unknown = [
        f"topic {topic}: {reason}"
        for topic in sorted(released)
        for reason in unjudged_reasons(topic, state, look)
    ]
    unknown += [
        f"log {name}: files of it vanished at each look"
        for name in sorted(look.logs.gone)
        if name.rpartition("-")[0] not in released | kept
    ]
    if not released:
        unknown += [f"log directory {path}: {reason}" for path, reason in look.found.failed.items()]
    segments = (
        segment for log in look.logs.of.values() if log.topic not in kept for segment in log.taken(until_ms)
    )
    return UnheldSegments(tuple(segments), tuple(dict.fromkeys(unknown)))
