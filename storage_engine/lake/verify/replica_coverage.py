"""Segments that another replica of a log has archived, and the segments of this store that they prove.

Stores of one cluster may share a lake. Their receipts of one log have the same ``log_id``, but their segments
begin and end at different offsets. A receipt counts here only if the log's own bytes at the receipt's offsets
have its SHA-256.

Functions raise LakeUnavailableError if the lake can't be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from pyiceberg.expressions import And, BooleanExpression, In, NotEqualTo

from storage_engine.brokers import find_broker
from storage_engine.lake.acts.act_files import read_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.coverage import ComparedReceipts, HasOffsets, ReplicaSpan
from storage_engine.lake.file.scan import EVERY_OFFSET, between
from storage_engine.lake.soundness.receipts import current, read_receipts, receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, end_text, select_whole
from storage_engine.model.store import LogNames, Segment, is_unique


class LostRange(HasOffsets, Protocol):
    """A range [start_offset, end_offset) of a log, with the log's name."""

    @property
    def log(self) -> str: ...


HashRange = Callable[[int, int], "str | None"]
"""Returns the SHA-256 of a log's bytes at the offsets [first, end), in hex; None if it has no such bytes."""

EVERY_RECORD = (0, EVERY_OFFSET[1])
"""The offsets of a whole log."""

_MOST_NAMED = 200
"""Maximum of logs that a query of the table names. For more logs, the receipts of all logs are read."""


@dataclass(frozen=True, slots=True)
class ReplicaCover:
    """A segment that other replicas' receipts cover.

    :param receipts: receipts with the same bytes as this log at their offsets, by offset.
    """

    segment: Segment
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A range of a log that another replica has archived with other bytes.

    :param sha256: hash of this log's bytes at the same offsets; None if no batches begin and end there.
    """

    receipt: Receipt
    sha256: str | None


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """Result of a comparison with other replicas' receipts.

    :param same: receipts of exactly the bytes that this log has.
    :param differences: sound receipts of other bytes, at offsets that no receipt in ``same`` covers.
    """

    covers: tuple[ReplicaCover, ...]
    same: tuple[Receipt, ...]
    differences: tuple[Difference, ...]


def replica_receipts(
    lake: Lake, store_id: str, logs: Mapping[str, tuple[int, int]], *, with_ended: bool = False
) -> dict[str, tuple[Receipt, ...]]:
    """Return other stores' receipts within given ranges of logs, by log, store and offset.

    One receipt is returned for each segment that another store has whole. Any lineage counts, because only
    the bytes matter. The table is read once, without files whose bounds exclude such receipts.

    :param store_id: this store.
    :param logs: for each ``Receipt.log_id``, the first offset and the offset after the last.
    :param with_ended: also return receipts of expired segments, which prove nothing.
    """
    table = lake.segments()
    if not logs or "log_id" not in table.schema().column_names:
        return {}
    first, end = min(span[0] for span in logs.values()), max(span[1] for span in logs.values())
    if first >= end:
        return {}
    # PyIceberg's constructors take (term, literal); their pydantic models declare something else.
    where: BooleanExpression = And(
        NotEqualTo("store_id", store_id),  # type: ignore[call-arg,arg-type]
        between("base_offset", first, end - 1),
    )
    if len(logs) <= _MOST_NAMED:
        where = And(where, In("log_id", set(logs)))  # type: ignore[call-arg,arg-type]
    inside: dict[tuple[str, str], list[Receipt]] = {}
    for row in read_receipts(table, where, (first, end - 1)):
        log_first, log_end = logs.get(row.log_id or "", (0, 0))
        if log_first <= row.base_offset and row.end <= log_end:
            inside.setdefault((str(row.log_id), row.store_id), []).append(row)
    replicas: dict[str, tuple[Receipt, ...]] = {}
    for log_id, store in sorted(inside):
        rows = current(inside[log_id, store])
        if chosen := rows if with_ended else select_whole(rows):
            replicas[log_id] = (*replicas.get(log_id, ()), *chosen)
    return replicas


def receipts_of_replicas(lake: Lake, rows: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """Return all other stores' receipts of a store's logs, including those of expired segments.

    A segment that a replica had archived wasn't archived again. It has a receipt only of the replica's store.

    :param rows: the store's own receipts.
    """
    logs = {row.log_id: EVERY_RECORD for row in rows if row.log_id is not None}
    replicas = replica_receipts(lake, rows[0].store_id, logs, with_ended=True) if logs else {}
    return tuple(row for of_log in replicas.values() for row in of_log)


def replica_spans(
    lake: Lake, store_id: str, names: LogNames, lost: Iterable[LostRange], compared: ComparedReceipts
) -> tuple[ReplicaSpan, ...]:
    """Return ranges lost in this store that other stores have archived, even if these ranges expired later.

    If a log's identity is unique, equal identities mean the same log. Otherwise a receipt counts only if its
    bytes were compared, or if its segment leads without a gap to compared bytes or the store's own.

    :param names: names and identities of the store's logs. A missing identity is looked up in the store's own
        receipts and in compared receipts.
    :param lost: ranges that neither the disk nor the store's receipts have.
    :param compared: returns the compared receipts, and is called only if an identity isn't sure.
    """
    ranges = [(lost_range.log, lost_range.start_offset, lost_range.end_offset) for lost_range in lost]
    ids = {log: names.ids.get(log, "") for log, _, _ in ranges}
    if not all(ids.values()):
        log_ids = _read_log_ids(lake, store_id, compared())
        ids = {log: log_id or log_ids.get(log, "") for log, log_id in ids.items()}
    called = {log_id: log for log, log_id in ids.items() if log_id}
    if not called:
        return ()
    replicas = replica_receipts(lake, store_id, dict.fromkeys(called, EVERY_RECORD), with_ended=True)
    inside = [
        (called[log_id], row)
        for log_id, of_log in replicas.items()
        for row in of_log
        if any(
            log == called[log_id] and row.base_offset < end and row.end > start for log, start, end in ranges
        )
    ]
    if not all(map(is_unique, called)):
        credited = _credit_rows(lake, store_id, replicas, compared())
        inside = [(log, row) for log, row in inside if is_unique(str(row.log_id)) or row.row_hash in credited]
    broken = broken_receipts(lake, select_whole(row for _, row in inside), Depth.SIZES)
    expiries = read_expiries(lake, (row.act_sha256 for _, row in inside if not row.is_whole))
    return tuple(
        ReplicaSpan(log, row.base_offset, row.end, row.store_id, end_text(row.state, row.act, expiries))
        for log, row in inside
        if row.identity not in broken
    )


def _read_log_ids(lake: Lake, store_id: str, compared: Collection[str | SegmentIdentity]) -> dict[str, str]:
    """Return identities of a store's logs by name, from its own receipts and from compared ones."""
    rows = list(receipts(lake, store_id, with_ended=True))
    if compared:
        others = read_receipts(lake.segments(), NotEqualTo("store_id", store_id), EVERY_OFFSET)  # type: ignore[call-arg,arg-type]
        rows = [*(row for row in others if _is_compared(row, compared)), *rows]
    return {row.log: row.log_id for row in rows if row.log_id}


def _credit_rows(
    lake: Lake,
    store_id: str,
    replicas: Mapping[str, Sequence[Receipt]],
    compared: Collection[str | SegmentIdentity],
) -> set[str]:
    """Return row hashes of compared receipts, of own receipts, and of receipts that lead to one of these.

    A receipt leads to all receipts that continue its segment without a gap. Receipts after the last compared
    or own receipt aren't returned: after that receipt the other store's log may differ.
    """
    own_rows = receipts(lake, store_id, with_ended=True)
    compared = _with_renewed(lake, [row for of_log in replicas.values() for row in of_log], compared)
    credited: set[str] = set()
    for log_id, others in replicas.items():
        of_log = [row for row in own_rows if row.log_id == log_id]
        newest = max((row.lineage for row in of_log), default=0)
        after: dict[int, list[Receipt]] = {}
        for row in sorted((*of_log, *others), key=attrgetter("base_offset"), reverse=True):
            is_own = row.store_id == store_id and row.lineage == newest
            if (
                is_own
                or _is_compared(row, compared)
                or any(
                    find_broker(row.broker).receipts.continues(row, right) for right in after.get(row.end, ())
                )
            ):
                after.setdefault(row.base_offset, []).append(row)
                credited.add(row.row_hash)
    return credited


def is_replica(lake: Lake, store_id: str, rows: Sequence[Receipt], compared: ComparedReceipts) -> bool:
    """Return whether other stores' receipts belong to a replica of a store's log, at least up to some offset.

    They do if one of them was compared, or directly follows a segment that the store has archived.

    :param rows: other stores' receipts of one log.
    """
    renewed = _with_renewed(lake, rows, compared())
    by_end = {row.end: row for row in receipts(lake, store_id)}
    return any(
        _is_compared(row, renewed)
        or ((left := by_end.get(row.base_offset)) and find_broker(row.broker).receipts.continues(left, row))
        for row in rows
    )


def _with_renewed(
    lake: Lake, rows: Sequence[Receipt], compared: Collection[str | SegmentIdentity]
) -> Collection[str | SegmentIdentity]:
    """Return the compared receipts, together with later receipts that prove the same bytes again."""
    if not compared:
        return compared
    stores = {row.store_id for row in rows if not _is_compared(row, compared)}
    history = [row for store_id in stores for row in receipt_history(lake, store_id)]
    same = {(row.identity, row.sha256) for row in history if row.row_hash in compared}
    return {*compared, *(row.row_hash for row in rows if (row.identity, row.sha256) in same)}


def _is_compared(row: Receipt, compared: Collection[str | SegmentIdentity]) -> bool:
    return row.row_hash in compared or row.identity in compared


def compare_with_replicas(
    lake: Lake,
    segments: Sequence[Segment],
    rows: Sequence[Receipt],
    hash_range: HashRange,
    depth: Depth = Depth.SIZES,
) -> ReplicaComparison:
    """Compare segments of a log, byte for byte, with the segments that other replicas have archived.

    A receipt counts if its files are sound. The chain of its store isn't checked. Only ranges that overlap
    one of the segments are hashed.

    :param segments: segments of one log, the oldest first.
    :param rows: result of :func:`replica_receipts` for this log.
    :param hash_range: hashes ranges of this log's files.
    :param depth: depth to which the receipts' files are read.
    """
    ends = [segment.end_offset for segment in segments]

    def meets_one(row: Receipt) -> bool:
        place = bisect_right(ends, row.base_offset)
        return place < len(ends) and segments[place].base_offset < row.end

    by_identity = {row.identity: row for row in rows if meets_one(row)}
    broken = broken_receipts(lake, list(by_identity.values()), depth)
    same: list[Receipt] = []
    others: list[tuple[Receipt, str | None]] = []
    for row in by_identity.values():
        if row.identity in broken or _run_end(same, row.base_offset) >= row.end:
            # Several replicas may have archived the same offsets: once is enough.
            continue
        sha256 = hash_range(row.base_offset, row.end)
        if sha256 == row.sha256:
            same.append(row)
        else:
            others.append((row, sha256))
    return ReplicaComparison(
        tuple(_covers(segments, same)),
        tuple(same),
        tuple(Difference(row, sha256) for row, sha256 in others if _run_end(same, row.base_offset) < row.end),
    )


def _covers(segments: Iterable[Segment], rows: Iterable[Receipt]) -> Iterable[ReplicaCover]:
    """Yield the segments whose offsets are all covered by receipts, of any stores."""
    ordered = sorted(rows, key=attrgetter("base_offset", "end"))
    for segment in segments:
        first, end = segment.base_offset, segment.end_offset
        if _run_end(ordered, first) >= end:
            inside = (row for row in ordered if row.end > first and row.base_offset < end)
            yield ReplicaCover(segment, tuple(inside))


def _run_end(rows: Iterable[Receipt], first: int) -> int:
    """Return the end offset up to which receipts are contiguous from ``first`` on."""
    reached = first
    for row in sorted(rows, key=attrgetter("base_offset")):
        if row.base_offset > reached:
            break
        reached = max(reached, row.end)
    return reached
