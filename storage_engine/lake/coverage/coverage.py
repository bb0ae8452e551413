"""Coverage of a log: the ranges that the store, a lake, both or neither have. Pure; reads nothing.

The ranges on disk and the ranges in the lake must together be one interval: every gap between its ends is
LOST. If both have a segment, its SHA-256 must be the same. Ranges that the journal has as released
belong to the interval, so that a loss at its beginning is noticed. If one lake lacks a segment or its receipt
is broken, another lake may prove it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Protocol, TypeVar

from storage_engine.commands import Text, join_texts
from storage_engine.model.proof.receipt import (
    NOT_ARCHIVED,
    Receipt,
    SegmentIdentity,
    end_text,
    ended,
    select_whole,
)
from storage_engine.model.report.validation import RangeStatus, Status, Where, worst
from storage_engine.model.store import IdentifiedRange, LogNames, group_by_log


def merge_lakes(
    rows: Iterable[Receipt], broken: Mapping[SegmentIdentity, str], elsewhere: Iterable[Receipt]
) -> tuple[tuple[Receipt, ...], dict[SegmentIdentity, str]]:
    """Merge one lake's receipts with the sound receipts of another lake. Each segment's bytes count once.

    :param broken: for each of ``rows`` that proves nothing, the reason.
    :param elsewhere: the other lake's sound receipts.
    :return: the merged receipts, and for each of them that proves nothing, the reason.
    """
    proven_elsewhere = {row.identity: row for row in elsewhere}
    kept, identities = list(rows), frozenset[SegmentIdentity]()
    if broken or proven_elsewhere:
        kept = [row for row in kept if row.identity not in broken or row.identity not in proven_elsewhere]
        identities = frozenset(row.identity for row in kept)
    more = [row for identity, row in proven_elsewhere.items() if identity not in identities]
    merged = sorted((*kept, *more), key=attrgetter("log", "lineage", "base_offset"))
    return tuple(merged), {identity: why for identity, why in broken.items() if identity in identities}


T = TypeVar("T")
Interval = tuple[int, int]


class HasOffsets(Protocol):
    """A range of a log's offsets: [start_offset, end_offset)."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


_ARCHIVED_ONLY = "in the lake only, with a valid receipt"


@dataclass(frozen=True, slots=True)
class LocalSpan:
    """One segment file's range of the log: [start_offset, end_offset), up to the logical end.

    :param sha256: hash of the whole file; None if the file was not read.
    :param unchanged: the file's facts (device, inode, size, mtime, ctime) are still those of its proof. If
        ``sha256`` is None, this counts as an equal hash.
    :param pending: the segment is planned for deletion.
    :param path: path of the file; "" if nobody needs to read it.
    :param different_at: position of the first byte that differs from the archived segment.
    :param shielded: the segment is no longer in the log, but in the shield.
    :param companions_fault: how its companions differ from the archived ones; "" if they don't.
    :param lineage: present lineage of the log; 0 if not known. Older lineages had other bytes.
    :param unread: why the file can't be read, so that its bytes are unknown; "" if it can be read.
    """

    log: str
    start_offset: int
    end_offset: int
    name: str
    sha256: str | None = None
    unchanged: bool = False
    pending: bool = False
    path: str = ""
    different_at: int | None = None
    shielded: bool = False
    companions_fault: str = ""
    lineage: int = 0
    unread: str = ""


@dataclass(frozen=True, slots=True)
class ReleasedSpan:
    """A range that was deleted from a log, according to the journal: by a run, or by somebody else.

    :param excused: why no receipt was needed (policy ``archive: off``, a rule or a waiver), otherwise "".
    :param unasked: the lake that proved the range, if this lake can't be asked now; otherwise "".
    :param others: the known facts of a deletion by somebody else; "" if a run deleted it.
    :param lineage: lineage of the log then; 0 if not known. Older lineages had other bytes.
    :param unknown: it isn't known whether the range is deleted: it may be in a place that can't be read.
    :param log_id: identity of its log, as receipts have it; "" if not known.
    :param is_other: by now, another log has the name of this range's log.
    :param unproven: no lake had all of the range when it was found deleted, even if receipts cover it.
    """

    log: str
    start_offset: int
    end_offset: int
    excused: str = ""
    unasked: str = ""
    others: str = ""
    lineage: int = 0
    unknown: bool = False
    log_id: str = ""
    is_other: bool = False
    unproven: bool = False

    @property
    def is_loss(self) -> bool:
        """Return whether no lake proved the range, no rule permitted its deletion, and nobody accepted it."""
        return self.unproven and not self.excused


@dataclass(frozen=True, slots=True)
class ReplicaSpan:
    """A range that another store has archived. The two stores have replicas of one log.

    :param log: name of the log, or its label once another log has that name.
    :param ended: a clause on why the other store's copy isn't whole, such as its expiry; "" if it is whole.
    """

    log: str
    start_offset: int
    end_offset: int
    store_id: str
    ended: str = ""


ComparedReceipts = Callable[[], Collection[str | SegmentIdentity]]
"""Returns row hashes or identities of other stores' receipts whose bytes are known to equal this store's."""


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Further places that may have bytes which are neither on disk nor in the store's receipts.

    :param present: identity of each log on disk by the log's name, as receipts have it; "" if not known.
    :param replicas: ranges in sound receipts of other stores. They count where the store has no receipt.
    :param unasked: lakes that may have the bytes but were not asked, each as a clause that names it.
    :param compared: returns the receipts that were compared with this store's, according to the journal.
    :param expiries: for each act that expired rows, by its SHA-256, a clause with the policy and the time.
    """

    present: Mapping[str, str] = field(default_factory=dict)
    replicas: Sequence[ReplicaSpan] = ()
    unasked: Sequence[str] = ()
    compared: ComparedReceipts = frozenset
    expiries: Mapping[str, str] = field(default_factory=dict)


def names_of_logs(
    present: Mapping[str, str], archived: Iterable[IdentifiedRange], released: Iterable[ReleasedSpan]
) -> LogNames:
    """Return the names of the logs in lakes and journal.

    :param present: for each log's name, the identity of the log on disk.
    """
    spans = list(released)
    return LogNames.known(
        present,
        sorted(archived, key=attrgetter("lineage")),
        (span for span in spans if not span.is_other),
        (span for span in spans if span.is_other),
    )


def log_ranges(
    local: Iterable[LocalSpan],
    receipts: Iterable[Receipt],
    *,
    released: Iterable[ReleasedSpan] = (),
    broken: Mapping[SegmentIdentity, str] | None = None,
    witnesses: Witnesses | None = None,
) -> tuple[RangeStatus, ...]:
    """Divide every log into ranges that share a place and a verdict, in order of log and offset.

    A name may by now belong to a new log. Then the old log is judged separately, under its label.

    :param local: ranges on disk; spans without a byte (preallocated files) are ignored.
    :param receipts: receipts of one store, including those of expired segments. If several lineages cover an
        offset, the highest lineage counts, even if it is higher than the lineage of the log on disk. A person
        opened that lineage because the offset was written again. The older bytes stay in the lake as history.
    :param released: ranges that were deleted, according to the journal.
    :param broken: receipts that contradict their data file, each with the reason: they prove nothing.
    """
    witnesses = witnesses or Witnesses()
    rows, removed = list(receipts), [span for span in released if span.end_offset > span.start_offset]
    names = names_of_logs(witnesses.present, rows, removed)
    spans = group_by_log(span for span in local if span.end_offset > span.start_offset)
    proofs, removals = group_by_log(rows, names.name_of), group_by_log(removed, names.name_of)
    others = group_by_log(witnesses.replicas)
    return tuple(
        row
        for log in sorted({*spans, *proofs, *removals})
        for row in _one_log(
            log,
            _LogRanges(spans.get(log, ()), proofs.get(log, ()), removals.get(log, ()), others.get(log, ())),
            broken or {},
            witnesses,
        )
    )


def lost_ranges(ranges: Iterable[RangeStatus]) -> tuple[RangeStatus, ...]:
    """Return the ranges whose bytes are in no known place."""
    return tuple(row for row in ranges if row.where in (Where.LOST, Where.UNKNOWN))


@dataclass(frozen=True, slots=True)
class _LogRanges:
    """The known spans and receipts of a log, or of some of its offsets."""

    local: Sequence[LocalSpan]
    receipts: Sequence[Receipt]
    released: Sequence[ReleasedSpan]
    replicas: Sequence[ReplicaSpan]


def _one_log(
    log: str, of_log: _LogRanges, broken: Mapping[SegmentIdentity, str], witnesses: Witnesses
) -> list[RangeStatus]:
    edges = (
        {offset for s in of_log.local for offset in (s.start_offset, s.end_offset)}
        | {offset for r in of_log.receipts for offset in (r.base_offset, r.end)}
        | {offset for g in of_log.released for offset in (g.start_offset, g.end_offset)}
    )
    # Replicas' ranges count only between this store's first and last known offset.
    first, last = min(edges, default=0), max(edges, default=0)
    inside = [
        (max(replica.start_offset, first), min(replica.end_offset, last), replica)
        for replica in of_log.replicas
        if replica.start_offset < last and replica.end_offset > first
    ]
    cuts = sorted(edges | {offset for start, end, _ in inside for offset in (start, end)})
    here = _covering(cuts, [(s.start_offset, s.end_offset, s) for s in of_log.local])
    proven = _covering(cuts, [(r.base_offset, r.end, r) for r in of_log.receipts])
    removed = _covering(cuts, [(g.start_offset, g.end_offset, g) for g in of_log.released])
    elsewhere = _covering(cuts, inside)
    rows = [
        _judge(log, offsets, _LogRanges(*ranges), broken, witnesses)
        for offsets, ranges in zip(
            pairwise(cuts), zip(here, proven, removed, elsewhere, strict=True), strict=True
        )
    ]
    return [_joined(tuple(equal)) for _, equal in groupby(rows, attrgetter("where", "status", "detail"))]


def _covering(cuts: Sequence[int], spans: Sequence[tuple[int, int, T]]) -> list[list[T]]:
    """Return the spans that cover each elementary interval between neighbouring cuts."""
    position_of = {offset: position for position, offset in enumerate(cuts)}
    covering: list[list[T]] = [[] for _ in cuts[1:]]
    for start, end, item in spans:
        for position in range(position_of[start], position_of[end]):
            covering[position].append(item)
    return covering


def _judge(
    log: str,
    offsets: tuple[int, int],
    facts: _LogRanges,
    broken: Mapping[SegmentIdentity, str],
    witnesses: Witnesses,
) -> RangeStatus:
    local, receipts, released, replicas = facts.local, facts.receipts, facts.released, facts.replicas
    if len(receipts) == 1 and not (local or replicas):
        # A shortcut: most ranges of a lake with 1,000,000 receipts are like this.
        (row,) = receipts
        is_newest = all(span.lineage <= row.lineage for span in released)
        if is_newest and row.is_whole and not (broken and row.identity in broken):
            return RangeStatus(log, *offsets, Where.ARCHIVED, Status.OK, (_name(row),), _ARCHIVED_ONLY)
    faults: list[tuple[Status, str]] = []
    lineages = [*(r.lineage for r in receipts), *(s.lineage for s in released), *(s.lineage for s in local)]
    newest = max(lineages, default=0)
    shielded = [span for span in local if span.shielded]
    unread = [span for span in local if span.unread]
    local = [span for span in local if not (span.shielded or span.unread)]
    counting = [r for r in receipts if r.lineage == newest]
    current = select_whole(counting)
    expired = {end_text(r.state, r.act, witnesses.expiries) for r in ended(counting)}
    expired |= {span.ended for span in replicas if span.ended}
    replicas = [span for span in replicas if not span.ended]
    valid = [r for r in current if r.identity not in broken]
    faults += _list_broken(current, broken)
    if len(local) > 1:
        faults.append((Status.FAILURE, "on disk more than once: " + ", ".join(s.name for s in local)))
    if len(current) > 1:
        faults.append((Status.FAILURE, "in the lake more than once: " + ", ".join(map(_name, current))))
    faults += [fault for span in local for receipt in valid if (fault := _disagreement(span, receipt))]
    unread_text = "; ".join(f"{span.name} is on disk and can't be read: {span.unread}" for span in unread)
    if local and valid:
        where, place = Where.BOTH, "on disk and in the lake, SHA-256 equal"
    elif valid:
        where, place = Where.ARCHIVED, _ARCHIVED_ONLY
        faults += [(Status.WARNING, unread_text)] if unread else []
    elif local and any(span.pending for span in local):
        where, place = Where.PENDING, "on disk, planned for deletion, not in the lake yet"
    elif local:
        where, place = Where.LOCAL, "on disk"
    elif shielded:
        details = "".join(f" ({text})" for text in sorted({span.others for span in released if span.others}))
        where, place = Where.SHIELDED, f"gone from the log{details}, kept in the shield, not in the lake yet"
        faults.append((Status.WARNING, place))
    elif replicas:
        stores = " and ".join(sorted({span.store_id for span in replicas}))
        where, place = Where.ARCHIVED, f"in the lake only, by receipts of another replica: store {stores}"
    elif expired:
        where, place, lost = _judge_end(expired, released)
        faults += [*lost, *_list_broken(ended(counting), broken)]
        faults += [(Status.WARNING, unread_text)] if unread else []
    elif by_journal := sorted({span.unasked for span in released if span.unasked}):
        where, place = (
            Where.ARCHIVED,
            "by the journal in a lake that can't be asked now: " + ", ".join(by_journal),
        )
        faults.append((Status.WARNING, place))
    elif unread:
        where, place = Where.UNKNOWN, unread_text
        faults.append((Status.FAILURE, place))
    else:
        absent = judge_absent(released, witnesses.unasked, has_receipt=bool(current))
        where, place = absent.where, absent.detail
        if where is not Where.NOT_ARCHIVED:
            faults.insert(0, (Status.WARNING if absent.is_accepted else Status.FAILURE, place))
    status = worst(severity for severity, _ in faults)
    detail = join_texts("; ", (text for _, text in faults)) if faults else place
    if where in (Where.EXPIRED, Where.NOT_ARCHIVED) and faults:
        detail = Text(place, "; ", detail)
    names = dict.fromkeys([*(s.name for s in (*local, *shielded, *unread)), *(_name(r) for r in counting)])
    return RangeStatus(log, *offsets, where, status, tuple(names), detail)


def _list_broken(rows: Iterable[Receipt], broken: Mapping[SegmentIdentity, str]) -> list[tuple[Status, str]]:
    return [
        (Status.FAILURE, f"{_name(row)}: {broken[row.identity]}") for row in rows if row.identity in broken
    ]


def _judge_end(
    expired: Collection[str], released: Sequence[ReleasedSpan]
) -> tuple[Where, str, list[tuple[Status, str]]]:
    """Return the place of a range that expired or wasn't archived, the reason as text, and the faults.

    A range that rules keep out of the lake is lost if only other programs deleted it.
    """
    by_rules = all(text.startswith(NOT_ARCHIVED) for text in expired)
    place = "; ".join(sorted(expired))
    by_run = any(not span.others for span in released)
    lost = sorted({span.others for span in released if span.is_loss and not by_run})
    if by_rules and lost:
        return Where.LOST, place, [(Status.FAILURE, "; ".join((*lost, place)))]
    return Where.NOT_ARCHIVED if by_rules else Where.EXPIRED, place, []


@dataclass(frozen=True, slots=True)
class Absent:
    """State of bytes that were found in no place.

    :param where: NOT_ARCHIVED, LOST or UNKNOWN.
    :param is_accepted: a rule or a person permitted the deletion of all of these bytes without an archive.
    """

    where: Where
    is_accepted: bool
    detail: str


def judge_absent(
    released: Sequence[ReleasedSpan], unasked: Sequence[str], *, has_receipt: bool = False
) -> Absent:
    """Judge bytes that were found in no place.

    If all of their deletions are excused, the result is NOT_ARCHIVED or an accepted loss. All other bytes are
    LOST only if every lake that may have them was asked; otherwise they are UNKNOWN.

    :param released: their deletions, according to the journal.
    :param unasked: lakes that may have them but were not asked, each as a clause.
    :param has_receipt: a receipt covers them, but it proves nothing.
    """
    open_spans = [span for span in released if not span.excused]
    if released and not open_spans and not has_receipt:
        excuses = sorted({span.excused for span in released})
        if all(excuse.startswith(NOT_ARCHIVED) for excuse in excuses):
            return Absent(Where.NOT_ARCHIVED, True, "; ".join(excuses))
        return Absent(Where.LOST, True, "deleted without an archive: " + "; ".join(excuses))
    if others := sorted({span.others for span in released if span.others}):
        detail = "; ".join(others)
    elif released:
        detail = "deleted by a run, and no valid receipt covers it"
    else:
        detail = "neither on disk nor in a lake, and none of our runs deleted it"
    if unasked:
        return Absent(Where.UNKNOWN, False, Text(detail, "; a lake may have it: ", join_texts("; ", unasked)))
    is_unknown = bool(open_spans) and all(span.unknown for span in open_spans)
    return Absent(Where.UNKNOWN if is_unknown else Where.LOST, False, detail)


def _disagreement(span: LocalSpan, receipt: Receipt) -> tuple[Status, str] | None:
    """Return how a file on disk differs from the lake's bytes of the same offsets; None if it doesn't."""
    begin, end = receipt.base_offset, receipt.end
    if span.start_offset != begin:
        return Status.FAILURE, f"{span.name} begins at {span.start_offset}, the archived segment at {begin}"
    if span.end_offset != end:
        return Status.FAILURE, f"{span.name} ends at {span.end_offset}, the archived segment at {end}"
    if span.companions_fault:
        return Status.FAILURE, f"{span.name}: {span.companions_fault}"
    if span.sha256 is None:
        if span.unchanged:
            return None
        return Status.WARNING, f"{span.name} was touched since it was proven and its hash was not compared"
    if span.sha256 != receipt.sha256:
        where = "" if span.different_at is None else f", different from byte {span.different_at} on"
        return (
            Status.FAILURE,
            f"{span.name} has SHA-256 {span.sha256[:16]}… on disk, {receipt.sha256[:16]}… in the lake{where}",
        )
    return None


def _name(receipt: Receipt) -> str:
    return f"{receipt.base_offset:020d}"


def _joined(rows: Sequence[RangeStatus]) -> RangeStatus:
    """Return one range for adjacent ranges that have the same verdict."""
    segments = tuple(dict.fromkeys(name for row in rows for name in row.segments))
    return replace(rows[0], end_offset=rows[-1].end_offset, segments=segments)


def merge_intervals(pieces: Iterable[HasOffsets | Interval]) -> list[Interval]:
    """Return the union of ranges as separate intervals, by offset."""
    merged: list[Interval] = []
    ends = (piece if isinstance(piece, tuple) else (piece.start_offset, piece.end_offset) for piece in pieces)
    for start, end in sorted(ends):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def subtract_intervals(start: int, end: int, cover: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the parts of an interval that other intervals don't cover.

    :param cover: the other intervals, as :func:`merge_intervals` returns them.
    """
    for first, last in cover[max(0, bisect_right(cover, (start, end)) - 1) :]:
        if first >= end:
            break
        if start < first:
            yield start, first
        start = max(start, last)
    if start < end:
        yield start, end
