"""Results of the last look into lakes and journal, so that the next look reads only new rows.

A range that only lakes have can't change any more: rows are only added to a chain of receipts, and a run's
deletion is final. Such ranges are joined if they adjoin. Ranges that may still change are kept as they were
read: segments that are also on disk, and segments with a fault. If a fact contradicts the memory, everything
is read again. So the result is always the same as if everything were read.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.coverage import ReleasedSpan, merge_intervals
from storage_engine.lake.coverage.spans import (
    ArchivedSpan,
    ReceiptSpan,
    archived_spans,
    has_those_before,
    in_order,
    receipt_spans,
)
from storage_engine.lake.coverage.verify_turns import History, standing_fault
from storage_engine.model.store import Lineages, split_runs
from storage_engine.retention.proof.verification_memory import KeptRows

_KEPT_LAKES = 3
"""Number of kept memories: for two lakes together, and for each lake while the other can't be asked."""

LogLineage = tuple[str, int]
Slot = tuple[str, int, int]
"""Log, lineage and base offset of a segment."""


@dataclass(frozen=True, slots=True)
class LakeMark:
    """The receipt up to which a lake's chain of receipts was read.

    :param sequence: sequence number of that receipt, or -1 if the chain was empty.
    :param open: receipts of segments whose place may still change.
    :param faulty: receipts in which verify found a fault that still counts.
    """

    lake_id: str
    sequence: int = -1
    row_hash: str = ""
    open: tuple[ReceiptSpan, ...] = ()
    faulty: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivedMemory:
    """Ranges that some lakes together had.

    :param settled: ranges that only these lakes have. Adjoining ranges are joined.
    """

    marks: tuple[LakeMark, ...]
    settled: tuple[ArchivedSpan, ...] = ()

    @property
    def lake_ids(self) -> tuple[str, ...]:
        return tuple(mark.lake_id for mark in self.marks)


@dataclass(frozen=True, slots=True)
class DeletedMemory:
    """Ranges that runs had deleted.

    :param last_undo: the newest event of an undo.
    :param known_id: ``spans`` has the deletions of all events up to this number, and may have later ones.
    """

    last_undo: int = 0
    known_id: int = 0
    spans: tuple[ReleasedSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeMemory:
    """:param archived: one memory for each set of lakes that could be asked, the last set first."""

    archived: tuple[ArchivedMemory, ...] = ()
    deleted: DeletedMemory = DeletedMemory()

    def of(self, lake_ids: Sequence[str]) -> ArchivedMemory:
        """Return the memory of exactly these lakes, or an empty one."""
        memories = (memory for memory in self.archived if memory.lake_ids == tuple(lake_ids))
        return next(memories, ArchivedMemory(tuple(map(LakeMark, lake_ids))))

    def with_archived(self, newest: ArchivedMemory) -> RangeMemory:
        others = (memory for memory in self.archived if memory.lake_ids != newest.lake_ids)
        return replace(self, archived=(newest, *others)[:_KEPT_LAKES])


_VERSION = 2
"""Version of the memory's fields. A memory of another version counts as none."""

_MEMORIES = KeptRows("storage_engine_range_memories", "memory")


def kept_ranges(journal_url: str, store_id: str) -> RangeMemory:
    """Return the memory that the last look at a store kept, or an empty one. Nothing is changed.

    :raises StorageEngineError: the journal can't be read.
    """
    stored = _MEMORIES.read(journal_url, store_id)
    if stored is None or stored[0] != _VERSION:
        return RangeMemory()
    try:
        return from_jsonable(RangeMemory, json.loads(zlib.decompress(stored[1])))
    except (zlib.error, BadInputError, *MALFORMED):
        return RangeMemory()


def keep_ranges(journal_url: str, store_id: str, memory: RangeMemory) -> None:
    """Keep a look's memory for the next look. It replaces the earlier one.

    :raises StorageEngineError: the journal can't be written.
    """
    _MEMORIES.write(journal_url, store_id, _VERSION, json.dumps(to_jsonable(memory)), reserve=False)


@dataclass(frozen=True, slots=True)
class LakeLook:
    """Result of a look into a lake.

    :param rows: the lake's receipts from the last known one on, in their order.
    :param history: remembered checks of the lake's receipts of this store.
    :param hidden: segments on disk whose receipts aren't sound now.
    :param has_those_before: whether the lake still has every receipt before ``rows``, by their number.
    """

    rows: Sequence[ReceiptSpan]
    history: History
    hidden: frozenset[Slot]
    has_those_before: bool


def look_at_receipts(
    lake: Lake, store_id: str, first_sequence: int, history: History, hidden: Iterable[Slot] = ()
) -> LakeLook:
    """Read a store's receipts in a lake, from a sequence number on, and count those before it.

    :param history: as in :class:`LakeLook`, like ``hidden``.
    :raises LakeUnavailableError: the lake can't be read.
    """
    rows = receipt_spans(lake, store_id, first_sequence)
    return LakeLook(rows, history, frozenset(hidden), has_those_before(lake, store_id, rows))


def known_spans(
    memories: RangeMemory, lake_ids: Sequence[str], read: Callable[[str, int], LakeLook]
) -> tuple[ReceiptSpan | ArchivedSpan, ...] | None:
    """Return the ranges for which lakes have receipts, from the memory and the rows that were added after it.

    Every offset in them has a receipt. Of a segment that was archived twice, one range may be left out.

    :param read: looks at a lake's receipts, from a sequence number on.
    :return: None if the memory contradicts a lake's chain of receipts, or there is no memory.
    """
    memory = memories.of(lake_ids)
    if all(mark.sequence < 0 for mark in memory.marks):
        return None
    rows: list[ReceiptSpan | ArchivedSpan] = [*memory.settled]
    for mark in memory.marks:
        look = read(mark.lake_id, max(0, mark.sequence))
        if not _is_continued(mark, look):
            return None
        rows += (*mark.open, *look.rows)
    return tuple(rows)


def look_at_lakes(
    memories: RangeMemory,
    lake_ids: Sequence[str],
    read: Callable[[str, int], LakeLook],
    first_offsets: Mapping[str, int],
    lineages: Lineages,
) -> tuple[RangeMemory, tuple[ArchivedSpan, ...]]:
    """Return the memory to keep, and the ranges of all lakes together.

    :param read: looks at a lake's receipts from the last known one on, which shows whether the chain changed.
    :param first_offsets: name of a log → where it begins on disk.
    """
    memory = memories.of(lake_ids)
    looks = [read(mark.lake_id, max(0, mark.sequence)) for mark in memory.marks]
    if _is_contradicted(memory, looks, first_offsets, lineages):
        memory = RangeMemory().of(lake_ids)
        looks = [read(mark.lake_id, 0) for mark in memory.marks]
    archived, spans = _advance(memory, looks, first_offsets, lineages)
    return memories.with_archived(archived), spans


def _advance(
    memory: ArchivedMemory, looks: Sequence[LakeLook], first_offsets: Mapping[str, int], lineages: Lineages
) -> tuple[ArchivedMemory, tuple[ArchivedSpan, ...]]:
    new = [_new_rows(mark, look) for mark, look in zip(memory.marks, looks, strict=True)]
    all_rows = [(*mark.open, *rows) for mark, rows in zip(memory.marks, new, strict=True)]
    spans: set[ArchivedSpan] = set()
    doubted: set[Slot] = set()
    for rows, look in zip(all_rows, looks, strict=True):
        added = archived_spans(rows, look.history)
        spans.update(span for span in added if (span.log, span.lineage, span.start_offset) not in look.hidden)
        # A later check may find such a receipt sound again, which changes the segment's span.
        at_fault = (row for row in rows if standing_fault(look.history, row) is not None)
        doubted.update((row.log, row.lineage, row.start_offset) for row in at_fault)
    settled = tuple(
        span
        for span in _find_settled(spans, first_offsets, lineages)
        if (span.log, span.lineage, span.start_offset) not in doubted
    )
    slots = {(span.log, span.lineage, span.start_offset) for span in settled}
    marks = tuple(
        replace(
            mark,
            sequence=look.rows[-1].sequence if look.rows else mark.sequence,
            row_hash=look.rows[-1].row_hash if look.rows else mark.row_hash,
            open=tuple(row for row in rows if (row.log, row.lineage, row.start_offset) not in slots),
            faulty=tuple(sorted(_faulty(look.history))),
        )
        for mark, rows, look in zip(memory.marks, all_rows, looks, strict=True)
    )
    kept = ArchivedMemory(marks, tuple(_join_adjoining((*memory.settled, *settled))))
    return kept, tuple(in_order({*spans.difference(settled), *kept.settled}))


def _new_rows(mark: LakeMark, look: LakeLook) -> list[ReceiptSpan]:
    return [row for row in look.rows if row.sequence > mark.sequence and row.start_offset < row.end_offset]


def _is_contradicted(
    memory: ArchivedMemory, looks: Sequence[LakeLook], first_offsets: Mapping[str, int], lineages: Lineages
) -> bool:
    if all(mark.sequence < 0 for mark in memory.marks):
        return False
    new = [_new_rows(mark, look) for mark, look in zip(memory.marks, looks, strict=True)]
    for mark, look, rows in zip(memory.marks, looks, new, strict=True):
        if not _is_continued(mark, look):
            return True
        hashes = {*mark.faulty, *(row.row_hash for row in (*mark.open, *rows))}
        if not _faulty(look.history) <= hashes:
            return True
    runs: dict[LogLineage, list[ArchivedSpan]] = defaultdict(list)
    for run in memory.settled:
        runs[run.log, run.lineage].append(run)
    if any(_overlaps(runs[row.log, row.lineage], row) for rows in new for row in rows):
        return True
    # A log contradicts the memory if it begins before the end of its settled ranges: segments came back.
    return any(
        runs[log, lineages.of(log)] and first < runs[log, lineages.of(log)][-1].end_offset
        for log, first in first_offsets.items()
    )


def _is_continued(mark: LakeMark, look: LakeLook) -> bool:
    """Return whether a lake's chain of receipts still begins with the known part."""
    last = next((row for row in look.rows if row.sequence == mark.sequence), None)
    is_same = last is not None and last.row_hash == mark.row_hash and look.has_those_before
    return mark.sequence < 0 or is_same


def _overlaps(runs: Sequence[ArchivedSpan], row: ReceiptSpan) -> bool:
    """Return whether a receipt overlaps one of the ranges ``runs``, which are sorted and don't overlap."""
    index = bisect_left(runs, row.end_offset, key=lambda run: run.start_offset)
    return index > 0 and runs[index - 1].end_offset > row.start_offset


def _faulty(history: History) -> set[str]:
    return {row_hash for row_hash in history if standing_fault(history, _Hash(row_hash)) is not None}


@dataclass(frozen=True, slots=True)
class _Hash:
    row_hash: str


def _find_settled(
    spans: Iterable[ArchivedSpan], first_offsets: Mapping[str, int], lineages: Lineages
) -> Iterator[ArchivedSpan]:
    """Yield the sound spans that end before the log's start on disk and overlap no other span."""
    for (log, lineage), group in groupby(in_order(spans), key=lambda span: (span.log, span.lineage)):
        members = [*group]
        first = first_offsets.get(log) if lineage == lineages.of(log) else None
        starts = [span.start_offset for span in members]
        reached = members[0].start_offset
        for at, span in enumerate(members):
            is_alone = reached <= span.start_offset and bisect_left(starts, span.end_offset) == at + 1
            reached = max(reached, span.end_offset)
            if is_alone and not span.fault and (first is None or span.end_offset <= first):
                yield span


def _join_adjoining(spans: Iterable[ArchivedSpan]) -> Iterator[ArchivedSpan]:
    for run in split_runs(in_order(spans), _follows):
        yield replace(
            run[0],
            end_offset=run[-1].end_offset,
            size_bytes=sum(span.size_bytes for span in run),
            segments=sum(span.segments for span in run),
        )


def _follows(span: ArchivedSpan, following: ArchivedSpan) -> bool:
    return (span.end_offset, span.log, span.lineage, span.log_id, span.ended) == (
        following.start_offset,
        following.log,
        following.lineage,
        following.log_id,
        following.ended,
    )


def join_spans(spans: Iterable[ReleasedSpan]) -> Iterator[ReleasedSpan]:
    """Yield deleted ranges joined by their reason. No two of them overlap, so each offset counts once."""
    kind = attrgetter("log", "lineage", "log_id", "excused")
    for (log, lineage, log_id, excused), group in groupby(sorted(spans, key=kind), key=kind):
        for start, end in merge_intervals(group):
            yield ReleasedSpan(log, start, end, excused, lineage=lineage, log_id=log_id)
