"""Segments that leave a lake now, and a forecast by day. Pure. Anything unknown keeps a segment. A segment
leaves once all of its streams are past their retention and its store no longer has it. If only some
streams are past, the segment is thinned once these have enough of its bytes, or one has been past for long
enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, pairwise

from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import time_text
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.keep_rules import (
    FOREVER,
    GRACE_MS,
    ArchiveRule,
    Hold,
    KeepPolicy,
    KeepRule,
    Stream,
    goes_at_ms,
    rule_for,
)
from storage_engine.model.proof.receipt import SegmentIdentity, StoredFile


class ExpiryReason(StrEnum):
    """The reason why a segment leaves a lake, or why it is kept."""

    PAST = "past"
    """The segment leaves: all of its streams are past, and its store no longer has it."""
    THINNED = "thinned"
    """Some of its streams leave. Its data file is written again with the rows of the remaining streams."""
    NO_RULE = "no-rule"
    NOT_PAST = "not-past"
    HELD = "held"
    STREAMS_UNKNOWN = "streams-unknown"
    MOVED = "moved"
    OVERLAPS = "overlaps"
    IN_STORE = "in-store"
    STORE_UNKNOWN = "store-unknown"
    CLOCK = "clock"
    COPY = "copy"
    ACTS_LOST = "acts-lost"
    SHARED = "shared"
    """The segment would leave, whole or in part, but another segment in its data file is kept."""


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """Rule for thinning a segment: writing a data file again costs more than removing one.

    :param at_percent: thin a segment once this share of its bytes would leave.
    :param within_days: also thin a segment once one of its streams has been past for this many days.
    """

    at_percent: float = 30
    within_days: float = 90


REWRITE_RULE = RewriteRule()


@dataclass(frozen=True, slots=True)
class SegmentStream:
    """:param newest_ms: the time from which its age counts; None if not known."""

    stream: Stream
    newest_ms: int | None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ExpirySegment:
    """A segment's content in a lake, by the valid receipt.

    :param file: its data file, by its name in the receipt.
    :param streams: the streams that are still in the lake; None if neither the receipt nor a journal says.
    :param is_alone: the data file has the segment's rows as they were archived. It has no other rows, except
        those of segments that name the same ``file``: these leave together, or none of them leaves.
    """

    identity: SegmentIdentity
    end_offset: int
    size_bytes: int
    proven_at_ms: int
    file: StoredFile
    streams: tuple[SegmentStream, ...] | None
    is_alone: bool = True


@dataclass(frozen=True, slots=True)
class StoreContent:
    """A store's present content, from the last plan in its journal or from a person's statement.

    :param unknown: why the content is unknown, as a clause; "" if it is known.
    :param is_gone: a person says that the store no longer exists.
    :param planned_at_ms: when that plan was made.
    :param logs: the plan's logs, each with the ranges of offsets that its segments cover.
    :param remembered: logs that its journal remembers. The journal forgets logs that were deleted as
        intended. None if the journal doesn't remember logs.
    """

    unknown: str = ""
    is_gone: bool = False
    planned_at_ms: int = 0
    logs: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    remembered: Set[str] | None = None


@dataclass(frozen=True, slots=True)
class ExpiryVerdict:
    """:param detail: the reason as a sentence.
    :param gone: names of the streams whose rows leave the lake if the segment is thinned.
    :param gone_bytes: bytes of these streams, as the broker stored them.
    """

    segment: ExpirySegment
    reason: ExpiryReason
    detail: str
    gone: tuple[str, ...] = ()
    gone_bytes: int = 0

    @property
    def leaves(self) -> bool:
        return self.reason is ExpiryReason.PAST

    @property
    def is_thinned(self) -> bool:
        return self.reason is ExpiryReason.THINNED


_NO_CONTENT = StoreContent("no journal was asked")


def judge_segments(
    segments: Sequence[ExpirySegment],
    stores: Mapping[str, StoreContent],
    policies: Sequence[KeepPolicy],
    now_ms: int,
    fault: tuple[ExpiryReason, str] | None = None,
    rewrite: RewriteRule = REWRITE_RULE,
    elsewhere: Sequence[Sequence[KeepPolicy]] = (),
) -> tuple[ExpiryVerdict, ...]:
    """Return a verdict on each segment: it leaves the lake now, whole or in part, or is kept for a reason.

    :param segments: all segments of which the lake has rows, by valid receipts.
    :param stores: the present content of each store. The segments of a missing store are kept.
    :param policies: all policies that the lake has had. The last policy is in force. It also has
        the holds of other lakes.
    :param now_ms: the time on the lake's clock.
    :param fault: why no segment at all may leave the lake.
    :param elsewhere: for each other lake of the stores, all policies that it has had.
    """
    overlapping = _find_overlaps(segments)

    def judge(segment: ExpirySegment) -> ExpiryVerdict:
        verdict = _judge_by_policies(segment, policies, now_ms, rewrite)
        if not (verdict.leaves or verdict.is_thinned):
            return verdict
        content = stores.get(segment.identity.store_id, _NO_CONTENT)
        why = (
            fault
            or next(
                filter(None, (_find_hold(segment, lake, now_ms) for lake in (policies, *elsewhere))), None
            )
            or _find_fault(segment, overlapping)
            or _find_in_store(segment, content)
        )
        return verdict if why is None else ExpiryVerdict(segment, *why)

    return tuple(_keep_shared(list(map(judge, segments))))


def _keep_shared(verdicts: Sequence[ExpiryVerdict]) -> Iterator[ExpiryVerdict]:
    """Keep segments that share their data file with a kept segment: a shared file leaves whole or stays."""
    sharing: dict[StoredFile, list[ExpiryVerdict]] = {}
    for verdict in verdicts:
        sharing.setdefault(verdict.segment.file, []).append(verdict)
    for verdict in verdicts:
        others = sharing[verdict.segment.file]
        staying = next((other for other in others if not other.leaves), None)
        if len(others) == 1 or staying is None or not (verdict.leaves or verdict.is_thinned):
            yield verdict
            continue
        if staying is verdict:
            detail = (
                f"its data file has {len(others) - 1} more segments, and leaves only when all of them leave "
                "whole"
            )
        else:
            at = staying.segment.identity
            detail = f"its data file has {at.log}/{at.base_offset:020d} too, which is kept: {staying.detail}"
        yield ExpiryVerdict(verdict.segment, ExpiryReason.SHARED, detail)


def _judge_by_policies(
    segment: ExpirySegment, policies: Sequence[KeepPolicy], now_ms: int, rewrite: RewriteRule
) -> ExpiryVerdict:
    streams = segment.streams
    if not streams:
        detail = "neither its receipt nor a journal says which topics it has"
        return ExpiryVerdict(segment, ExpiryReason.STREAMS_UNKNOWN, detail)
    if holds := [hold for row in streams for policy in policies[-1:] for hold in policy.holds_of(row.stream)]:
        detail = f"the hold {holds[0].hold_id[:SHOWN_CHARACTERS]} covers it: {holds[0].reason}"
        return ExpiryVerdict(segment, ExpiryReason.HELD, detail)
    # Rows without a topic leave with the last topic of the segment.
    rows = [row for row in streams if row.stream.topic] or list(streams)
    past: list[tuple[int, SegmentStream]] = []
    reasons: list[tuple[ExpiryReason, str]] = []
    for row in rows:
        subject = f"topic {row.stream.topic}" if row.stream.topic else "the part without a topic"
        if row.newest_ms is None:
            detail = f"the age of {subject} in it is unknown"
            return ExpiryVerdict(segment, ExpiryReason.STREAMS_UNKNOWN, detail)
        goes_ms = goes_at_ms(policies, row.stream, row.newest_ms)
        if goes_ms is None:
            reasons.append((ExpiryReason.NO_RULE, f"{subject} is kept for ever"))
        elif goes_ms > now_ms:
            reasons.append((ExpiryReason.NOT_PAST, f"{subject} is past at {time_text(goes_ms)}"))
        else:
            past.append((goes_ms, row))
    if not reasons:
        detail = "all of its streams are past, and its store no longer has it"
        return ExpiryVerdict(segment, ExpiryReason.PAST, detail)
    gone_bytes, size_bytes = sum(row.size_bytes for _, row in past), sum(row.size_bytes for row in streams)
    percent = 100 * gone_bytes / max(1, size_bytes)
    has_waited = any(now_ms - goes_ms >= rewrite.within_days * DAY_MS for goes_ms, _ in past)
    if not past or not (percent >= rewrite.at_percent or has_waited):
        return ExpiryVerdict(segment, *reasons[0])
    names = tuple(sorted(row.stream.topic for _, row in past))
    topics = f"topic {names[0]}" + (f" and {len(names) - 1} more are" if len(names) > 1 else " is")
    detail = f"{topics} past, {percent:.0f} % of its bytes; {reasons[0][1]}"
    return ExpiryVerdict(segment, ExpiryReason.THINNED, detail, names, gone_bytes)


def _find_hold(
    segment: ExpirySegment, policies: Sequence[KeepPolicy], now_ms: int
) -> tuple[ExpiryReason, str] | None:
    """Return why a hold that was lifted within the last day still keeps all of a segment, or None."""
    for policy, following in pairwise(policies):
        goes_ms = following.since_ms + GRACE_MS
        streams = segment.streams if goes_ms > now_ms else None
        for hold in (hold for row in streams or () for hold in policy.holds_of(row.stream)):
            clause = f"the hold {hold.hold_id[:SHOWN_CHARACTERS]} covered it within the last day"
            return ExpiryReason.NOT_PAST, f"{clause}; it may go from {time_text(goes_ms)} on"
    return None


def _find_fault(
    segment: ExpirySegment, overlapping: frozenset[SegmentIdentity]
) -> tuple[ExpiryReason, str] | None:
    if not segment.is_alone:
        return (
            ExpiryReason.MOVED,
            "the table of rows doesn't have its data file unchanged, with the rows of this segment only",
        )
    if segment.identity in overlapping:
        return ExpiryReason.OVERLAPS, "another receipt has some of its offsets"
    return None


def _find_in_store(segment: ExpirySegment, store: StoreContent) -> tuple[ExpiryReason, str] | None:
    """Return why the store may still have a segment. None if the store no longer has it."""
    if store.unknown:
        return ExpiryReason.STORE_UNKNOWN, store.unknown
    if store.is_gone:
        return None
    log, start = segment.identity.log, segment.identity.base_offset
    if store.planned_at_ms <= segment.proven_at_ms:
        return ExpiryReason.STORE_UNKNOWN, "it was archived after the last plan of its store"
    if log not in store.logs:
        if store.remembered is not None and log not in store.remembered:
            return None
        return ExpiryReason.STORE_UNKNOWN, f"the last plan of its store doesn't name log {log}"
    if any(first < segment.end_offset and start < end for first, end in store.logs[log]):
        return ExpiryReason.IN_STORE, "its store has it, by the last plan"
    return None


def _find_overlaps(segments: Sequence[ExpirySegment]) -> frozenset[SegmentIdentity]:
    """Return the segments that share an offset with another segment of the same log and lineage."""

    def log_of(segment: ExpirySegment) -> tuple[str, str, int]:
        return segment.identity.store_id, segment.identity.log, segment.identity.lineage

    shared: set[SegmentIdentity] = set()
    ordered = sorted(segments, key=lambda item: (log_of(item), item.identity.base_offset, item.end_offset))
    for _, of_log in groupby(ordered, key=log_of):
        widest: ExpirySegment | None = None
        for segment in of_log:
            if widest is not None and segment.identity.base_offset < widest.end_offset:
                shared |= {segment.identity, widest.identity}
            if widest is None or segment.end_offset > widest.end_offset:
                widest = segment
    return frozenset(shared)


GB_BYTES = 10**9
"""Object stores bill decimal gigabytes."""


@dataclass(frozen=True, slots=True)
class ArchivedStream:
    """Bytes of one topic in an archived segment.

    :param size_bytes: bytes as the broker stores them.
    :param lake_bytes: the topic's share of the data file.
    :param newest_ms: the time from which its age counts. A time from a journal is up to a day late.
    """

    stream: Stream
    size_bytes: int
    lake_bytes: int
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class GoingBytes:
    """:param day: UTC day, counted from 1970-01-01."""

    day: int
    size_bytes: int
    lake_bytes: int


@dataclass(frozen=True, slots=True)
class TopicForecast:
    """:param keep: the retention by the rule that applies; ``forever`` where no rule does.
    :param rule: the streams that the rule applies to, in words; "" if no rule applies.
    :param held_by: ids of the holds that cover the topic.
    :param goes: the bytes that may leave from each day on. The remaining bytes never leave.
    :param month_cost: monthly cost of the present bytes at the given price; None if no price was given.
    """

    store_id: str
    store: str
    topic: str
    size_bytes: int
    lake_bytes: int
    keep: str
    rule: str
    held_by: tuple[str, ...]
    goes: tuple[GoingBytes, ...]
    month_cost: float | None = None


@dataclass(frozen=True, slots=True)
class KeepForecast:
    """:param version: SHA-256 of the act that began the policy; "" if no act did, or if the act isn't
    recorded yet.
    :param uncounted_bytes: bytes of segments whose topics no journal knows.
    """

    location: str
    version: str
    rules: tuple[KeepRule, ...]
    holds: tuple[Hold, ...]
    topics: tuple[TopicForecast, ...]
    uncounted_bytes: int
    archive_rules: tuple[ArchiveRule, ...] = ()


def forecast_topics(
    policies: Sequence[KeepPolicy],
    archived: Iterable[ArchivedStream],
    now_ms: int,
    price: float | None = None,
) -> tuple[TopicForecast, ...]:
    """Return the forecast of each topic of a store, the largest first.

    :param policies: all policies that the lake has had; the last one is in force.
    :param price: the price of 10⁹ bytes for a month.
    """
    policy = policies[-1] if policies else None
    grouped: dict[tuple[str, str, str, str, str, tuple[str, ...]], list[ArchivedStream]] = defaultdict(list)
    for entry in archived:
        stream = entry.stream
        rule = rule_for(policy.rules, stream) if policy else None
        held_by = tuple(hold.hold_id for hold in policy.holds_of(stream)) if policy else ()
        name = stream.store_names[-1] if stream.store_names else stream.store_id
        of_rule = (rule.keep, rule.scope.text) if rule else (FOREVER, "")
        grouped[stream.store_id, name, stream.topic, *of_rule, held_by].append(entry)
    topics = [
        TopicForecast(
            store_id,
            name,
            topic,
            sum(entry.size_bytes for entry in streams),
            lake_bytes := sum(entry.lake_bytes for entry in streams),
            keep,
            rule_text,
            held_by,
            _forecast_days(policies, streams, now_ms),
            None if price is None else month_cost(lake_bytes, price),
        )
        for (store_id, name, topic, keep, rule_text, held_by), streams in grouped.items()
    ]
    return tuple(sorted(topics, key=lambda topic: (-topic.size_bytes, topic.store, topic.topic)))


def month_cost(lake_bytes: int, price: float) -> float:
    """Return the cost of bytes for a month, at a price for 10⁹ bytes."""
    return lake_bytes / GB_BYTES * price


def _forecast_days(
    policies: Sequence[KeepPolicy], streams: Iterable[ArchivedStream], now_ms: int
) -> tuple[GoingBytes, ...]:
    days: dict[int, list[ArchivedStream]] = defaultdict(list)
    for entry in streams:
        goes_ms = goes_at_ms(policies, entry.stream, entry.newest_ms)
        if goes_ms is not None:
            # The first day that begins after the stream is past.
            days[-(-max(goes_ms, now_ms) // DAY_MS)].append(entry)
    return tuple(
        GoingBytes(day, sum(entry.size_bytes for entry in going), sum(entry.lake_bytes for entry in going))
        for day, going in sorted(days.items())
    )
