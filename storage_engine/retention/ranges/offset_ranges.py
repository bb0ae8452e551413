"""The place of each byte of a store's logs, in few ranges even if there are many segments.

Unknown is a place of its own: if a lake can't be asked, a range that only it may have is neither archived nor
lost. The broker's package is asked for the ends of sealed segments. The rest is pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from storage_engine.lake.coverage.coverage import (
    Interval,
    LocalSpan,
    ReleasedSpan,
    judge_absent,
    merge_intervals,
    names_of_logs,
    subtract_intervals,
)
from storage_engine.lake.coverage.spans import ArchivedSpan
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.plan import Decision
from storage_engine.model.proof.receipt import NOT_ARCHIVED, Receipt
from storage_engine.model.report.validation import Where
from storage_engine.model.store import (
    Lineages,
    Segment,
    SegmentId,
    SegmentState,
    StoreSnapshot,
    group_by_log,
    split_runs,
)
from storage_engine.retention.store.broker_answers import take_archivable
from storage_engine.same_bytes.own_acts import OwnActs


def _list_sealed(broker: BrokerStore, snapshot: StoreSnapshot) -> dict[SegmentId, Segment]:
    """Return the sealed segments. Logs that are kept out of lakes are left out: gaps in them are usual.

    :raises OSError: a file can't be read.
    """
    archivable = take_archivable(broker, snapshot)
    segments = {segment.id: segment for segment in archivable.segments}
    for log in snapshot.logs:
        if log.name not in archivable.kept_out:
            segments |= {segment.id: segment for segment in log.sealed}
    return segments


def own_ends(
    broker: BrokerStore, snapshot: StoreSnapshot, proven: Mapping[SegmentId, int]
) -> dict[SegmentId, int]:
    """Return the ends of sealed segments that end before the next one begins.

    :param proven: ends from receipts of exactly these files. Segments with such an end aren't read.
    :raises StorageEngineError: the broker's package can't find the ends.
    :raises OSError: a file can't be read.
    """
    if (identities := broker.identities) is None:
        return {}
    sealed = _list_sealed(broker, snapshot)
    unread = [segment for segment_id, segment in sealed.items() if segment_id not in proven]
    ends = {**proven, **identities.own_ends(unread)}
    return {slot: ends[slot] for slot in sealed if slot in ends and ends[slot] < sealed[slot].end_offset}


def proven_ends(
    snapshot: StoreSnapshot, rows_of: Callable[[SegmentId], Iterable[Receipt]], acts: OwnActs
) -> dict[SegmentId, int]:
    """Return the end offsets of sealed segments, by receipts of exactly these files.

    :param rows_of: returns sound receipts of a segment in its log's lineage.
    """
    return {
        segment.id: row.end
        for log in snapshot.logs
        for segment in log.sealed
        for row in rows_of(segment.id)
        if acts.same_file(segment.facts, row.source_facts)
    }


FAULTY = "faulty"
_FAULTY_BESIDE = "a lake has it, and verify found a fault in it there"
_SHIELDED = "deleted from the log, and kept in the shield"

ACCEPTED = "accepted"
"""Reason of a range whose loss a person has accepted."""
MISSING = "missing"
"""Reason of a range that is missing and should exist, or may have to exist."""


class Place(StrEnum):
    """The place of a range, with its name on pages. The journal stores these words."""

    LOCAL = "local"
    """On disk, and in no lake."""
    BOTH = "both"
    ARCHIVED = "archived"
    """Only in a lake, as its receipts show."""
    DUE = "due"
    """On disk, and the broker's rules would delete it now."""
    EXPIRED = "expired"
    """A keep rule removed it from the lake, and no other place has it."""
    NOT_ARCHIVED = "not_archived"
    """It was deleted without a copy, by an archive rule."""
    LOST = "lost"
    """Neither on disk nor in a lake."""
    UNKNOWN = "unknown"
    """A lake can't be asked, or it is unknown whether the range should be on disk."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start_offset, end_offset) of a log that share a place and a reason.

    :param segments: number of segments; 0 if no place has the range, or it expired.
    :param reason: a stable word. On disk: the plan's reason. If lost: accepted or missing. If it is unknown
        whether the range should be on disk: missing. In the shield: shielded. If verify found a fault in a
        lake's copy, and no later check found the copy sound: faulty.
    :param detail: a sentence on its first segment, or "" if the reason is enough.
    :param log_id: identity of the log, for a range that no place has, or "" if it is unknown.
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
    log_id: str = ""

    @property
    def is_missing(self) -> bool:
        """Return whether the range should exist, no known place has it, and the loss isn't accepted."""
        return self.reason == MISSING


@dataclass(frozen=True, slots=True)
class Lakes:
    """Ranges and proofs of a store in its lakes.

    :param spans: the ranges of lakes that could be asked. Ranges also on disk are listed segment by segment.
    :param proven: sealed segments on disk that a lake proves.
    :param unasked: why a lake can't be asked, as a sentence, or "" if all could be asked.
    :param faulty: sealed segments on disk that lakes have, but with a fault that verify found.
    :param unnamed: clauses on lakes that weren't named and have receipts of the store.
    """

    spans: Sequence[ArchivedSpan] = ()
    proven: frozenset[SegmentId] = frozenset()
    unasked: str = ""
    faulty: frozenset[SegmentId] = frozenset()
    unnamed: Sequence[str] = ()


def offset_ranges(
    decisions: Iterable[Decision],
    ends: Mapping[str, int],
    lakes: Lakes,
    lineages: Lineages,
    *,
    shielded: Iterable[LocalSpan] = (),
    gone: Iterable[ReleasedSpan] = (),
    present: Mapping[str, str] | None = None,
) -> tuple[OffsetRange, ...]:
    """Return all ranges of all logs, in the order of logs, lineages and offsets.

    If another log now has a log's name, the former log is listed separately under its label.

    :param ends: name of a log → its logical end. Files after it have no bytes yet.
    :param shielded: ranges that are gone from the log and kept in the shield.
    :param gone: deleted ranges in the journal. They also show a loss at the beginning of a log.
    :param present: identities of the logs on disk, by name.
    """
    gone = [span for span in gone if span.start_offset < span.end_offset]
    every_span = [span for span in lakes.spans if span.start_offset < span.end_offset]
    spans = [span for span in every_span if not span.ended]
    names = names_of_logs(present or {}, every_span, gone)
    local: dict[str, list[OffsetRange]] = defaultdict(list)
    in_part = {
        (span.log, span.lineage, span.start_offset): f", but {span.ended}"
        for span in every_span
        if span.ended.startswith(NOT_ARCHIVED)
    }
    for decision in decisions:
        log, base_offset = decision.segment.id
        but = in_part.get((log, lineages.of(log), base_offset), "")
        piece = _local_range(decision, ends[log], lakes, lineages, but)
        if piece.start_offset < piece.end_offset:
            local[piece.log].append(piece)
    archived, missing = group_by_log(spans, names.name_of), group_by_log(gone, names.name_of)
    expired = group_by_log((span for span in every_span if span.ended), names.name_of)
    kept = group_by_log(span for span in shielded if span.start_offset < span.end_offset)
    ranges: list[OffsetRange] = []
    for log in sorted({*local, *archived, *expired, *kept, *missing}):
        # No lineage was opened under a label, so the newest lineage of its ranges counts.
        used = (row.lineage for row in (*archived.get(log, ()), *expired.get(log, ()), *missing.get(log, ())))
        lineage = max(used) if names.is_label(log) else lineages.of(log)
        pieces = list(local[log])
        on_disk = merge_intervals(pieces)
        for span in archived.get(log, ()):
            # An older lineage has other bytes than those on disk at the same offsets.
            cover = on_disk if span.lineage == lineage else ()
            if not span.fault:
                parts = subtract_intervals(span.start_offset, span.end_offset, cover)
                pieces += (_archived_range(log, span, *part) for part in parts)
        pieces += _find_faulty(log, archived.get(log, ()), pieces)
        cover = merge_intervals(pieces)
        pieces += (
            OffsetRange(log, lineage, *part, 1, part[1] - part[0], Place.LOCAL, "shielded", _SHIELDED)
            for span in kept.get(log, ())
            for part in subtract_intervals(span.start_offset, span.end_offset, cover)
        )
        deleted = missing.get(log, [])
        pieces += _expired_ranges(log, expired.get(log, ()), pieces, _list_losses(deleted))
        covered = _list_covered(pieces, lineage, deleted)
        pieces += (
            replace(piece, log_id=names.ids.get(log, ""))
            for piece in _unplaced_ranges(log, lineage, covered, deleted, lakes)
        )
        ranges += _condense(pieces)
    return tuple(ranges)


def _local_range(
    decision: Decision, end_offset: int, lakes: Lakes, lineages: Lineages, but: str
) -> OffsetRange:
    """Return the range of a segment on disk.

    :param but: a clause on topics that the lake's copy lacks, or "" if it lacks none.
    """
    segment = decision.segment
    if segment.id in lakes.proven:
        where, beside = Place.BOTH, f"a lake has it{but}"
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
    elif where is Place.BOTH and but:
        detail = f"{decision.detail}; {beside}"
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


def _archived_range(log: str, span: ArchivedSpan, start: int, end: int) -> OffsetRange:
    is_whole = (start, end) == (span.start_offset, span.end_offset)
    size_bytes = span.size_bytes if is_whole else min(span.size_bytes, end - start)
    where, reason, detail = Place.ARCHIVED, "", ""
    if span.fault:
        where, reason, detail = Place.UNKNOWN, FAULTY, f"a lake has it, and verify found: {span.fault}"
    segments = span.segments if is_whole else 1
    return OffsetRange(log, span.lineage, start, end, segments, size_bytes, where, reason, detail)


def _find_faulty(log: str, spans: Iterable[ArchivedSpan], pieces: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges that are faulty in a lake and sound in no other place."""
    faulty = {(span.lineage, span.start_offset): span for span in spans if span.fault}
    covers = {lineage: _lineage_intervals(pieces, lineage) for lineage, _ in faulty}
    return [
        _archived_range(log, span, *part)
        for span in faulty.values()
        for part in subtract_intervals(span.start_offset, span.end_offset, covers[span.lineage])
    ]


def _expired_ranges(
    log: str, spans: Sequence[ArchivedSpan], pieces: Sequence[OffsetRange], lost: Sequence[Interval]
) -> list[OffsetRange]:
    """Return the ranges that no place has because they expired or an archive rule left them out.

    :param lost: ranges that were deleted though no rule permitted it.
    """
    covers = {span.lineage: _lineage_intervals(pieces, span.lineage) for span in spans}
    reached = dict.fromkeys(covers, 0)
    ranges: list[OffsetRange] = []
    for span in sorted(spans, key=lambda span: (span.start_offset, -span.end_offset, span.ended)):
        start = max(span.start_offset, reached[span.lineage])
        place, cover = Place.EXPIRED, covers[span.lineage]
        if span.ended.startswith(NOT_ARCHIVED):
            place, cover = Place.NOT_ARCHIVED, merge_intervals((*cover, *lost))
        ranges += (
            OffsetRange(log, span.lineage, *part, 0, 0, place, "", span.ended)
            for part in subtract_intervals(start, span.end_offset, cover)
        )
        reached[span.lineage] = max(reached[span.lineage], span.end_offset)
    return ranges


def _list_losses(released: Sequence[ReleasedSpan]) -> list[Interval]:
    """Return the ranges that others, and not our runs, deleted though no rule permitted it."""
    by_runs = merge_intervals(span for span in released if not span.others)
    return merge_intervals(
        part
        for span in released
        if span.is_loss
        for part in subtract_intervals(span.start_offset, span.end_offset, by_runs)
    )


def _list_covered(
    pieces: Sequence[OffsetRange], lineage: int, released: Sequence[ReleasedSpan]
) -> list[Interval]:
    """Return the ranges that have a place.

    Bytes of an older lineage don't cover a range that was deleted in the present lineage.
    """
    covered = _lineage_intervals(pieces, lineage)
    deleted = merge_intervals(span for span in released if span.lineage == lineage)
    older = [
        part
        for piece in pieces
        if piece.lineage != lineage
        for part in subtract_intervals(piece.start_offset, piece.end_offset, deleted)
    ]
    return merge_intervals([*covered, *older])


def _unplaced_ranges(
    log: str, lineage: int, cover: Sequence[Interval], released: Sequence[ReleasedSpan], lakes: Lakes
) -> Iterator[OffsetRange]:
    """Yield a log's ranges, between its first and its last known offset, that no known place has."""
    edges = {edge for span in released for edge in (span.start_offset, span.end_offset)}
    cuts = sorted(edges.union(*cover))
    if not cuts:
        return
    for start, end in subtract_intervals(cuts[0], cuts[-1], cover):
        inside = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
        for part in pairwise([start, *inside, end]):
            where, reason, detail = _judge_part(part, released, lakes)
            yield OffsetRange(log, lineage, *part, 0, 0, where, reason, detail)


def _judge_part(part: Interval, released: Sequence[ReleasedSpan], lakes: Lakes) -> tuple[Place, str, str]:
    if lakes.unasked:
        return Place.UNKNOWN, "", lakes.unasked
    covering = [span for span in released if span.start_offset <= part[0] and part[1] <= span.end_offset]
    absent = judge_absent(covering, lakes.unnamed)
    if absent.where is Where.NOT_ARCHIVED:
        return Place.NOT_ARCHIVED, "", absent.detail
    return Place(absent.where.value.lower()), ACCEPTED if absent.is_accepted else MISSING, absent.detail


def _lineage_intervals(pieces: Iterable[OffsetRange], lineage: int) -> list[Interval]:
    return merge_intervals(piece for piece in pieces if piece.lineage == lineage)


def _condense(pieces: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield ranges sorted by lineage and offset. Neighbours with one place and reason are joined."""
    for run in split_runs(sorted(pieces, key=lambda piece: (piece.lineage, piece.start_offset)), _may_join):
        yield replace(
            run[0],
            end_offset=run[-1].end_offset,
            segments=sum(piece.segments for piece in run),
            size_bytes=sum(piece.size_bytes for piece in run),
        )


def _may_join(run: OffsetRange, piece: OffsetRange) -> bool:
    is_alike = (run.lineage, run.where, run.reason) == (piece.lineage, piece.where, piece.reason)
    # Each loss is listed by itself, expired ranges by their act, and unarchived ranges by their rule.
    same_detail = (
        run.where not in (Place.LOST, Place.UNKNOWN, Place.EXPIRED, Place.NOT_ARCHIVED)
        or run.reason == FAULTY
        or run.detail == piece.detail
    )
    in_part = (NOT_ARCHIVED in run.detail, NOT_ARCHIVED in piece.detail)
    return is_alike and same_detail and in_part[0] == in_part[1] and run.end_offset == piece.start_offset
