"""The ranges of a store's logs, and where their bytes are, from the monitor's measurements.

A table of the journal remembers facts from lakes and journal. Without it both are read from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from storage_engine.commands import Text, join_texts
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import filled
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import deletions_after, journal_ends
from storage_engine.lake.coverage.coverage import ReleasedSpan, names_of_logs
from storage_engine.lake.coverage.spans import ArchivedSpan
from storage_engine.lake.coverage.verify_turns import History, by_receipt, standing_fault
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.model.plan import Decision, PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import LogNames, SegmentId, StoreSnapshot
from storage_engine.retention.archive.sealed import MeasuredLag
from storage_engine.retention.proof.history import compared_receipts
from storage_engine.retention.proof.proofs import LakeProofs
from storage_engine.retention.proof.shielding import shielded_spans
from storage_engine.retention.proof.verification_memory import checks_of_faulty
from storage_engine.retention.ranges.deleted_ranges import accepted_losses, excused_parts
from storage_engine.retention.ranges.drift import gone_spans
from storage_engine.retention.ranges.missing_logs import missing_logs, missing_spans, present_logs
from storage_engine.retention.ranges.offset_ranges import (
    Lakes,
    OffsetRange,
    Place,
    offset_ranges,
    own_ends,
    proven_ends,
)
from storage_engine.retention.ranges.range_memory import (
    DeletedMemory,
    LakeLook,
    RangeMemory,
    join_spans,
    keep_ranges,
    kept_ranges,
    look_at_lakes,
    look_at_receipts,
)
from storage_engine.retention.store.broker_answers import propose, take_archivable
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.unnamed_lakes import lakes_unasked


def ends_of_segments(
    context: Context, snapshot: StoreSnapshot, measured: MeasuredLag | None
) -> Mapping[SegmentId, int]:
    """Return the ends of sealed segments that end before the next segment begins.

    :param measured: the lakes' proofs, or None if they are unknown. Proven segments aren't read.
    :raises StorageEngineError: the broker's package can't find the ends.
    :raises OSError: a file can't be read.
    """
    proven: dict[SegmentId, int] = {}
    if measured is not None and context.broker.identities is not None:
        proofs = measured.proofs

        def rows_of(segment_id: SegmentId) -> Iterator[Receipt]:
            return (row for lake in proofs.asked for row in lake.valid(segment_id))

        proven = proven_ends(snapshot, rows_of, proofs.acts)
    return own_ends(context.broker, snapshot, proven)


def hole_spans(
    context: Context, snapshot: StoreSnapshot, ends: Mapping[SegmentId, int], present: Mapping[str, str]
) -> Iterator[ReleasedSpan]:
    """Yield the holes between segments. Parts that a person has accepted as lost are marked as excused.

    :param ends: the result of :func:`ends_of_segments`.
    """
    accepted = accepted_losses(context.journal, context.record) if ends else ()
    for segment in (segment for log in snapshot.logs for segment in log.sealed if segment.id in ends):
        log, start, end = segment.log, ends[segment.id], segment.end_offset
        reason = f"{segment.facts.path} ends at offset {start}, and the next segment begins at {end}"
        lineage, log_id = context.record.lineage_of(log), present.get(log, "")
        span = ReleasedSpan(log, start, end, others=reason, lineage=lineage, log_id=log_id)
        yield from excused_parts(span, accepted)


def look_for_ranges(
    context: Context, snapshot: StoreSnapshot, measured: MeasuredLag | None
) -> tuple[tuple[OffsetRange, ...], str]:
    """Return where each byte of each log is, from its first known offset on, and why a lake can't be asked.

    The reason is "" if all lakes could be asked. Only rows that are new in lakes and journal since the last
    look are read, unless a fact contradicts the memory.

    :param measured: the lakes' proofs, or None if no lake was asked or answered.
    :raises StorageEngineError: the store, its shield or the journal can't be read.
    :raises OSError: a file can't be read.
    """
    plan = propose(context.broker, snapshot, clock_ms(), PlanRequest())
    lakes, deleted = Lakes(), tuple[ReleasedSpan, ...]()
    if context.store.archives:
        journal_url, store_id = context.store.journal_url, context.record.store_id
        memory = kept_ranges(journal_url, store_id)
        lakes, updated = _read_lakes(context, snapshot, measured, memory)
        updated = _with_deleted(context, updated)
        if updated != memory:
            keep_ranges(journal_url, store_id, updated)
        deleted = updated.deleted.spans
    shielded = shielded_spans(context.store.real_root, context.record.lineages)
    present = present_logs(context.broker, snapshot)
    missing = missing_logs(context.store, context.journal, context.record, context.broker, snapshot)
    missing_parts = missing_spans(context.journal, context.record, missing)
    segment_ends = ends_of_segments(context, snapshot, measured)
    holes = hole_spans(context, snapshot, segment_ends, present)
    gone = (*gone_spans(context.journal, context.record), *deleted, *missing_parts, *holes)
    decisions = [_with_end(decision, segment_ends.get(decision.segment.id)) for decision in plan.decisions]

    def ranges(lakes: Lakes) -> tuple[OffsetRange, ...]:
        ends = {log.name: log.max_offset for log in snapshot.logs}
        lineages = context.record.lineages
        return offset_ranges(decisions, ends, lakes, lineages, shielded=shielded, gone=gone, present=present)

    own_ranges = ranges(lakes)
    names = names_of_logs(present, lakes.spans, gone)
    if measured is not None and (more := _replica_ranges(context, measured, names, own_ranges)):
        return ranges(replace(lakes, spans=(*lakes.spans, *more))), lakes.unasked
    return own_ranges, lakes.unasked


def _with_end(decision: Decision, end: int | None) -> Decision:
    return decision if end is None else replace(decision, segment=replace(decision.segment, end=end))


def _replica_ranges(
    context: Context, measured: MeasuredLag, names: LogNames, ranges: Sequence[OffsetRange]
) -> tuple[ArchivedSpan, ...]:
    """Return the missing ranges that other replicas have archived.

    :raises LakeUnavailableError: a lake can no longer be read.
    """
    lost = [piece for piece in ranges if piece.where is Place.LOST or piece.is_missing]
    if not lost or context.broker.replicas is None:
        return ()
    lineages = {piece.log: piece.lineage for piece in lost}
    store_id = context.record.store_id
    compared = partial(compared_receipts, context.journal, store_id)
    return tuple(
        ArchivedSpan(
            span.log, lineages[span.log], span.start_offset, span.end_offset, size_bytes=0, ended=span.ended
        )
        for lake_proofs in measured.proofs.asked
        for span in replica_spans(lake_proofs.lake, store_id, names, lost, compared)
    )


def _read_lakes(
    context: Context, snapshot: StoreSnapshot, measured: MeasuredLag | None, memory: RangeMemory
) -> tuple[Lakes, RangeMemory]:
    if measured is None:
        return Lakes(unasked="no lake could be asked"), memory
    proofs = measured.proofs
    sealed = take_archivable(context.broker, snapshot).segments
    unasked = [reason for _, reason in proofs.unreachable]
    heads, store_id = known_heads(context.journal, context.record), context.record.store_id
    unreachable = {config.location: reason for config, reason in proofs.unreachable}
    unnamed = lakes_unasked(heads.heads, [lake_proofs.lake for lake_proofs in proofs.asked], unreachable)
    readable: list[tuple[LakeProofs, str, History]] = []
    sound: set[SegmentId] = set()
    doubted: set[SegmentId] = set()
    for proven in proofs.asked:
        try:
            # If its chain of receipts is broken, the lake counts as one that can't be asked.
            heads.check(proven.lake, store_id)
            lake_id = str(proven.lake.segments().metadata.table_uuid)
            checks = checks_of_faulty(context.store.journal_url, lake_id)
        except StorageEngineError as error:
            unasked.append(Text(error))
            continue
        history = by_receipt(check for check in checks if check.store_id == store_id)
        readable.append((proven, lake_id, history))
        for slot in proven.rows:
            if stands := [standing_fault(history, row) is None for row in proven.valid(slot)]:
                (sound if any(stands) else doubted).add(SegmentId(*slot))
    spans, updated = _archived_spans(context, snapshot, readable, memory)
    # If a lake can't be asked, the journal alone doesn't prove that it has a segment.
    unproven, touched = measured.unproven, measured.touched
    if unasked:
        missing = proofs.unproven(sealed)
        unproven, touched = (frozenset(s.id for s in group) for group in (missing, proofs.touched(missing)))
    unproven |= {segment.id for segment in proofs.left_out(sealed)}
    proven_ids = frozenset(segment.id for segment in sealed) - (unproven - touched)
    at_fault = proven_ids & (doubted - sound)
    return Lakes(spans, proven_ids - at_fault, join_texts("; ", unasked), at_fault, unnamed), updated


def _archived_spans(
    context: Context,
    snapshot: StoreSnapshot,
    readable: Sequence[tuple[LakeProofs, str, History]],
    memory: RangeMemory,
) -> tuple[Sequence[ArchivedSpan], RangeMemory]:
    """Return the lakes' ranges, and the memory for the next look.

    The ranges come from the last look's memory, and from receipts that were added after that look.

    :param readable: lakes' proofs, each with the lake's id and the remembered checks of its receipts.
    :raises LakeUnavailableError: a lake can no longer be read.
    """
    if not readable:
        return (), memory
    by_id = {lake_id: (proven, history) for proven, lake_id, history in readable}

    def read(lake_id: str, first_sequence: int) -> LakeLook:
        proven, history = by_id[lake_id]
        # Segments with a faulty receipt count as not archived at this moment.
        hidden = ((identity.log, identity.lineage, identity.base_offset) for identity in proven.faults)
        return look_at_receipts(proven.lake, context.record.store_id, first_sequence, history, hidden)

    first_offsets = {log.name: log.min_offset for log in snapshot.logs if log.segments}
    updated, spans = look_at_lakes(memory, sorted(by_id), read, first_offsets, context.record.lineages)
    return spans, updated


def _with_deleted(context: Context, kept: RangeMemory) -> RangeMemory:
    reader, store_id = JournalReader(context.store.journal_url), context.record.store_id
    ends = reader.read(lambda connection: journal_ends(connection, store_id, clock_ms()))
    # An undo has brought ranges back since, so all deletions are read again.
    memory = kept.deleted if kept.deleted.last_undo == ends.last_undo else DeletedMemory()
    rows = reader.read(lambda connection: deletions_after(connection, store_id, memory.known_id))
    new = (filled(ReleasedSpan, row, excused=row.excuse) for row in rows)
    spans = tuple(join_spans((*memory.spans, *new)))
    return replace(kept, deleted=DeletedMemory(ends.last_undo, ends.known_id, spans))
