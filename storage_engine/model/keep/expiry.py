"""Which segments leave a lake now. Pure; what is not known keeps a segment, and each that stays has a reason.

A segment leaves whole, once all of its streams are past and its store no longer has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from storage_engine.core.wording import time_text
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.keep_policy import KeepPolicy, goes_at_ms
from storage_engine.model.keep.rules import Stream
from storage_engine.model.proof.receipt import SegmentIdentity, StoredFile


class ExpiryReason(StrEnum):
    """Why a segment leaves a lake, or why it stays."""

    PAST = "past"
    """It leaves: all of its streams are past, and its store no longer has it."""
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


@dataclass(frozen=True, slots=True)
class SegmentStream:
    """:param newest_ms: from when its age counts; None: not known."""

    stream: Stream
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class ExpirySegment:
    """What a lake has of a segment, by the receipt that counts.

    :param file: its data file, by the name that the receipt gives it.
    :param streams: None: the receipt doesn't say, nor does anybody else.
    :param is_alone: the data file has its rows as they were archived, and no other segment's.
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
    """What a store still has, by the last plan in its journal, or by a person's word.

    :param unknown: why that can't be told, as a clause; "": it can.
    :param is_gone: a person says that the store is.
    :param planned_at_ms: when that plan was made.
    :param logs: of the plan, each with the offsets from where to where its segments reach.
    :param remembered: logs that its journal remembers: it forgets those that are rightly gone. None: its
        journal remembers none.
    """

    unknown: str = ""
    is_gone: bool = False
    planned_at_ms: int = 0
    logs: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    remembered: Set[str] | None = None


@dataclass(frozen=True, slots=True)
class ExpiryVerdict:
    """:param detail: the reason as a sentence."""

    segment: ExpirySegment
    reason: ExpiryReason
    detail: str

    @property
    def leaves(self) -> bool:
        return self.reason is ExpiryReason.PAST


_NO_CONTENT = StoreContent("no journal was asked")


def judge_segments(
    segments: Sequence[ExpirySegment],
    stores: Mapping[str, StoreContent],
    policies: Sequence[KeepPolicy],
    now_ms: int,
    fault: tuple[ExpiryReason, str] | None = None,
) -> tuple[ExpiryVerdict, ...]:
    """Return which segments leave a lake now, and why each other one stays.

    :param segments: every one that counts in the lake and is whole.
    :param stores: what each store has; one that isn't among them keeps its segments.
    :param policies: every one that the lake had, the one in force last; and with its holds those of the
        store's other lakes.
    :param now_ms: by the lake's clock.
    :param fault: why nothing at all leaves the lake.
    """
    overlapping = _overlapping(segments)
    return tuple(
        ExpiryVerdict(
            segment,
            *(
                _keeping(segment, policies, now_ms)
                or fault
                or _doubt(segment, overlapping)
                or _presence(segment, stores.get(segment.identity.store_id, _NO_CONTENT))
                or (ExpiryReason.PAST, "all of its streams are past, and its store no longer has it")
            ),
        )
        for segment in segments
    )


def _keeping(
    segment: ExpirySegment, policies: Sequence[KeepPolicy], now_ms: int
) -> tuple[ExpiryReason, str] | None:
    """Return why the policies keep a segment; None: they don't."""
    streams = segment.streams
    if not streams:
        return ExpiryReason.STREAMS_UNKNOWN, "neither its receipt nor a journal says which topics it has"
    if held := [hold for it in streams for policy in policies[-1:] for hold in policy.holds_of(it.stream)]:
        return ExpiryReason.HELD, f"the hold {held[0].hold_id[:SHOWN_CHARACTERS]} covers it: {held[0].reason}"
    # What has no topic goes with the last of the others.
    for it in [it for it in streams if it.stream.topic] or streams:
        what = f"topic {it.stream.topic}" if it.stream.topic else "what has no topic"
        if it.newest_ms is None:
            return ExpiryReason.STREAMS_UNKNOWN, f"nobody knows how old {what} is in it"
        goes_ms = goes_at_ms(policies, it.stream, it.newest_ms)
        if goes_ms is None:
            return ExpiryReason.NO_RULE, f"{what} is kept for ever"
        if goes_ms > now_ms:
            return ExpiryReason.NOT_PAST, f"{what} is past at {time_text(goes_ms)}"
    return None


def _doubt(
    segment: ExpirySegment, overlapping: frozenset[SegmentIdentity]
) -> tuple[ExpiryReason, str] | None:
    if not segment.is_alone:
        return (
            ExpiryReason.MOVED,
            "the table of rows doesn't have its data file as it was archived, for this segment alone",
        )
    if segment.identity in overlapping:
        return ExpiryReason.OVERLAPS, "another receipt has some of its offsets"
    return None


def _presence(segment: ExpirySegment, store: StoreContent) -> tuple[ExpiryReason, str] | None:
    """Return why the store may have a segment still; None: it doesn't."""
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


def _overlapping(segments: Sequence[ExpirySegment]) -> frozenset[SegmentIdentity]:
    """Return the segments that share an offset with another one of their log and lineage."""

    def log_of(segment: ExpirySegment) -> tuple[str, str, int]:
        return segment.identity.store_id, segment.identity.log, segment.identity.lineage

    found: set[SegmentIdentity] = set()
    ordered = sorted(segments, key=lambda it: (log_of(it), it.identity.base_offset, it.end_offset))
    for _, of_log in groupby(ordered, key=log_of):
        widest: ExpirySegment | None = None
        for segment in of_log:
            if widest is not None and segment.identity.base_offset < widest.end_offset:
                found |= {segment.identity, widest.identity}
            if widest is None or segment.end_offset > widest.end_offset:
                widest = segment
    return frozenset(found)
