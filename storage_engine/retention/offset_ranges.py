"""Where each byte of a store's logs is, as runs that stay few where segments are many. Pure.

Unknown is its own place: where a lake can't be asked, what only it could tell is neither archived nor lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

from storage_engine.lake.archived_spans import ArchivedSpan
from storage_engine.lake.coverage import LocalSpan, ReleasedSpan
from storage_engine.model.by_log import by_log
from storage_engine.model.known_logs import log_label
from storage_engine.model.lineages import Lineages
from storage_engine.model.plan import Decision
from storage_engine.model.store import SegmentId, SegmentState

S = TypeVar("S", ArchivedSpan, LocalSpan, ReleasedSpan)
Interval = tuple[int, int]

FAULTY = "faulty"
_FAULTY_BESIDE = "a lake has it, and verify found a fault in it there"
_SHIELDED = "gone from the log, and kept in the shield"
_NOBODY = "neither on disk nor in a lake, and none of our runs deleted it"


ACCEPTED = "accepted"
"""Reason of a loss that a person has accepted."""
MISSING = "missing"
"""Reason of what should be somewhere and isn't, or of which nobody can tell whether it should."""


class Place(StrEnum):
    """Where a range is, as pages name it; the journal keeps these words."""

    LOCAL = "local"
    """On disk, and in no lake."""
    BOTH = "both"
    ARCHIVED = "archived"
    """Only in a lake, by its receipts."""
    DUE = "due"
    """On disk, and the broker's rules would delete it now."""
    LOST = "lost"
    """Neither on disk nor in a lake."""
    UNKNOWN = "unknown"
    """A lake can't be asked, or nobody can tell whether it should be on disk."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start_offset, end_offset) of a log that share a place and a reason.

    :param segments: how many; 0 for what is nowhere.
    :param reason: a stable word: the plan's, of what is on disk; shielded; accepted or missing, if lost;
        missing, if nobody can tell whether it should be on disk; faulty, if verifying found a fault in the
        lake that no later look found gone.
    :param detail: of its first segment, as a sentence; "" where the reason says it all.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    where: Place
    reason: str = ""
    detail: str = ""

    @property
    def is_missing(self) -> bool:
        """Return whether it should be somewhere and isn't, as far as anybody can tell; not once accepted."""
        return self.reason == MISSING


@dataclass(frozen=True, slots=True)
class Lakes:
    """What lakes tell of a store.

    :param spans: what those have that could be asked. What is on disk as well is told segment by segment.
    :param proven: sealed segments on disk that a lake proves.
    :param unasked: why a lake can't be asked, as a sentence; "" where all could be.
    :param faulty: sealed segments on disk that lakes have, but that verifying found at fault there.
    """

    spans: Sequence[ArchivedSpan] = ()
    proven: frozenset[SegmentId] = frozenset()
    unasked: str = ""
    faulty: frozenset[SegmentId] = frozenset()


def offset_ranges(
    decisions: Iterable[Decision],
    ends: Mapping[str, int],
    lakes: Lakes,
    lineages: Lineages,
    *,
    shielded: Iterable[LocalSpan] = (),
    gone: Iterable[ReleasedSpan] = (),
) -> tuple[OffsetRange, ...]:
    """Return all ranges of all logs, by log, lineage and offset.

    :param decisions: on every segment on disk.
    :param ends: by log, its logical end; files behind it have no byte yet.
    :param shielded: gone from the log, and kept under a second name.
    :param gone: what was deleted, by the journal. It is part of the log, so a loss at its beginning shows.
        What went from logs whose names others have by now is left out.
    """
    local: dict[str, list[OffsetRange]] = defaultdict(list)
    for decision in decisions:
        one = _local(decision, ends[decision.segment.log], lakes, lineages)
        if one.start_offset < one.end_offset:
            local[one.log].append(one)
    archived, kept, missing = (
        _by_log(lakes.spans),
        _by_log(shielded),
        _by_log(one for one in gone if not one.is_other),
    )
    found: list[OffsetRange] = []
    for log in sorted({*local, *archived, *kept, *missing}):
        lineage = lineages.of(log)
        pieces = list(local[log])
        on_disk = _merged(pieces)
        for span in archived[log]:
            # Of an older lineage they are other bytes, whatever the disk has under these offsets.
            cover = on_disk if span.lineage == lineage else ()
            if not span.fault:
                parts = _without(span.start_offset, span.end_offset, cover)
                pieces += (_archived(span, *part) for part in parts)
        pieces += _faulty(archived[log], pieces)
        cover = _merged(pieces)
        pieces += (
            OffsetRange(log, lineage, *part, 1, part[1] - part[0], Place.LOCAL, "shielded", _SHIELDED)
            for span in kept[log]
            for part in _without(span.start_offset, span.end_offset, cover)
        )
        pieces += _nowhere(log, lineage, _covered(pieces, lineage, missing[log]), missing[log], lakes.unasked)
        found += _condensed(pieces)
    return tuple(found)


def ranges_of_others(
    gone: Iterable[ReleasedSpan],
    proven: Callable[[ReleasedSpan], Iterable[Interval]],
    unasked: str,
) -> Iterator[OffsetRange]:
    """Yield what went from logs whose names others have by now, and is in no place that is known.

    :param proven: returns what lakes have of the very log of a span.
    :param unasked: why a lake can't be asked; "" where all could be.
    """
    for span in gone:
        if span.is_other:
            label = log_label(span.log, span.log_id)
            for part in _without(span.start_offset, span.end_offset, _merged(proven(span))):
                where, reason, detail = _why(part, [span], unasked)
                yield OffsetRange(label, span.lineage, *part, 0, 0, where, reason, detail)


def _by_log(spans: Iterable[S]) -> dict[str, list[S]]:
    return defaultdict(list, by_log(span for span in spans if span.start_offset < span.end_offset))


def _local(decision: Decision, end_offset: int, lakes: Lakes, lineages: Lineages) -> OffsetRange:
    segment = decision.segment
    if segment.id in lakes.proven:
        where, beside = Place.BOTH, "a lake has it"
    elif segment.id in lakes.faulty:
        where, beside = Place.LOCAL, _FAULTY_BESIDE
    elif lakes.unasked and segment.state is SegmentState.SEALED:
        where, beside = Place.UNKNOWN, f"on disk; {lakes.unasked}"
    else:
        where, beside = Place.LOCAL, "no lake has it"
    detail, reason = decision.detail if where is not Place.UNKNOWN else beside, decision.reason.value
    if segment.id in lakes.faulty:
        detail, reason = f"{decision.detail}; {beside}", FAULTY
    if decision.deletes:
        where, detail = Place.DUE, f"{decision.detail}; {beside}"
    return OffsetRange(
        segment.log,
        lineages.of(segment.log),
        segment.base_offset,
        min(segment.end_offset, end_offset),
        1,
        segment.disk_bytes,
        where,
        reason,
        detail,
    )


def _archived(span: ArchivedSpan, start: int, end: int) -> OffsetRange:
    is_whole = (start, end) == (span.start_offset, span.end_offset)
    size_bytes = span.size_bytes if is_whole else min(span.size_bytes, end - start)
    where, reason, detail = Place.ARCHIVED, "", ""
    if span.fault:
        where, reason, detail = Place.UNKNOWN, FAULTY, f"a lake has it, and verify found: {span.fault}"
    segments = span.segments if is_whole else 1
    return OffsetRange(span.log, span.lineage, start, end, segments, size_bytes, where, reason, detail)


def _faulty(spans: Iterable[ArchivedSpan], pieces: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return what lakes have, with a fault, of which nothing sound is in any place."""
    found = {(span.lineage, span.start_offset): span for span in spans if span.fault}
    covers = {lineage: _in_lineage(pieces, lineage) for lineage, _ in found}
    return [
        _archived(span, *part)
        for span in found.values()
        for part in _without(span.start_offset, span.end_offset, covers[span.lineage])
    ]


def _covered(pieces: Sequence[OffsetRange], lineage: int, gone: Sequence[ReleasedSpan]) -> list[Interval]:
    """Return what has a place. What went in the present lineage is no older bytes under the same offsets."""
    own = _in_lineage(pieces, lineage)
    went = _merged(span for span in gone if span.lineage == lineage)
    older = [
        part
        for one in pieces
        if one.lineage != lineage
        for part in _without(one.start_offset, one.end_offset, went)
    ]
    return _merged([*own, *older])


def _nowhere(
    log: str, lineage: int, cover: Sequence[Interval], gone: Sequence[ReleasedSpan], unasked: str
) -> Iterator[OffsetRange]:
    """Yield what lies between the ends of a log and is in no place that is known."""
    edges = [*(edge for part in cover for edge in part)]
    edges += [edge for span in gone for edge in (span.start_offset, span.end_offset)]
    if not edges:
        return
    cuts = sorted(set(edges))
    for start, end in _without(cuts[0], cuts[-1], cover):
        inside = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
        for part in pairwise([start, *inside, end]):
            where, reason, detail = _why(part, gone, unasked)
            yield OffsetRange(log, lineage, *part, 0, 0, where, reason, detail)


def _why(part: Interval, gone: Sequence[ReleasedSpan], unasked: str) -> tuple[Place, str, str]:
    if unasked:
        return Place.UNKNOWN, "", unasked
    by = [one for one in gone if one.start_offset <= part[0] and part[1] <= one.end_offset]
    open_spans = [one for one in by if not one.excused]
    if by and not open_spans:
        return Place.LOST, ACCEPTED, "; ".join(sorted({one.excused for one in by}))
    is_unknown = bool(open_spans) and all(one.unknown for one in open_spans)
    where = Place.UNKNOWN if is_unknown else Place.LOST
    if others := sorted({one.others for one in by if one.others}):
        return where, MISSING, "; ".join(others)
    return where, MISSING, "deleted by a run, and no lake has it" if by else _NOBODY


def _in_lineage(pieces: Iterable[OffsetRange], lineage: int) -> list[Interval]:
    return _merged(one for one in pieces if one.lineage == lineage)


def _merged(pieces: Iterable[OffsetRange | ReleasedSpan | Interval]) -> list[Interval]:
    """Return what ranges cover, as intervals that don't touch, by offset."""
    found: list[Interval] = []
    ends = (one if isinstance(one, tuple) else (one.start_offset, one.end_offset) for one in pieces)
    for start, end in sorted(ends):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _without(start: int, end: int, cover: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the parts of an interval that intervals don't cover.

    :param cover: as :func:`_merged` returns them.
    """
    for begun, ended in cover[max(0, bisect_right(cover, (start, end)) - 1) :]:
        if begun >= end:
            break
        if start < begun:
            yield start, begun
        start = max(start, ended)
    if start < end:
        yield start, end


def _condensed(pieces: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield ranges by lineage and offset, with neighbours of one place and one reason as one."""
    run: OffsetRange | None = None
    for one in sorted(pieces, key=lambda piece: (piece.lineage, piece.start_offset)):
        if run is not None and _is_same(run, one):
            run = replace(
                run,
                end_offset=one.end_offset,
                segments=run.segments + one.segments,
                size_bytes=run.size_bytes + one.size_bytes,
            )
        else:
            if run is not None:
                yield run
            run = one
    if run is not None:
        yield run


def _is_same(run: OffsetRange, one: OffsetRange) -> bool:
    alike = (run.lineage, run.where, run.reason) == (one.lineage, one.where, one.reason)
    # What is lost is told one loss by one.
    told = run.where not in (Place.LOST, Place.UNKNOWN) or run.reason == FAULTY or run.detail == one.detail
    return alike and told and run.end_offset == one.start_offset
