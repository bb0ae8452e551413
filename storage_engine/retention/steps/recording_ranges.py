"""Tell where the bytes of a store's logs are, from what the monitor has measured already."""

from __future__ import annotations

from collections.abc import Iterator

from storage_engine.clock import clock_ms
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.queries import JournalReader
from storage_engine.journal.records import Step
from storage_engine.lake.archived_spans import ArchivedSpan, archived_spans
from storage_engine.lake.coverage import ReleasedSpan
from storage_engine.lake.verify_turns import by_receipt, standing_fault
from storage_engine.model.plan import PlanRequest
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.store import SegmentId, StoreSnapshot
from storage_engine.retention.broker_answers import propose, take_archivable
from storage_engine.retention.drift import gone_spans
from storage_engine.retention.history import segment_subject, spans_of_results
from storage_engine.retention.known_heads import known_heads
from storage_engine.retention.offset_ranges import Lakes, OffsetRange, offset_ranges
from storage_engine.retention.shielding import shielded_spans
from storage_engine.retention.steps.context import Context
from storage_engine.retention.steps.sealed import MeasuredLag
from storage_engine.retention.verification_memory import checks_of_faulty

_MOST_RELEASED = 20_000
"""The newest segments that runs deleted are looked for in the lakes; older ones were, at earlier looks."""
_MOST_EXPLAINED = 500


def store_ranges(
    context: Context, snapshot: StoreSnapshot, measured: MeasuredLag | None
) -> tuple[OffsetRange, ...]:
    """Return where each byte is, between the first that is known of and the end of each log.

    :param measured: None: the lakes were not asked, or none could be.
    :raises StorageEngineError: the store, its shield or the journal can't be read.
    :raises OSError: a file can't be read.
    """
    plan = propose(context.broker, snapshot, clock_ms(), PlanRequest())
    lakes = _lakes(context, snapshot, measured)
    return offset_ranges(
        plan.decisions,
        {log.name: log.max_offset for log in snapshot.logs},
        lakes,
        context.record.lineages,
        shielded=shielded_spans(context.store.real_root, context.record.lineages),
        gone=(*gone_spans(context.journal, context.record), *_released(context, snapshot, lakes)),
    )


def _lakes(context: Context, snapshot: StoreSnapshot, measured: MeasuredLag | None) -> Lakes:
    if context.store.policy.archive is ArchiveMode.OFF:
        return Lakes()
    if measured is None:
        return Lakes(unasked="no lake could be asked")
    proofs = measured.proofs
    sealed = take_archivable(context.broker, snapshot).segments
    unasked = [reason for _, reason in proofs.unreachable]
    heads, store_id = known_heads(context.journal, context.record), context.record.store_id
    spans: set[ArchivedSpan] = set()
    sound: set[SegmentId] = set()
    doubted: set[SegmentId] = set()
    for proven in proofs.asked:
        try:
            # Which receipts of a broken chain are true, nobody can tell here.
            heads.check(proven.lake, store_id)
            lake_id = str(proven.lake.segments().metadata.table_uuid)
            history = by_receipt(checks_of_faulty(context.store.journal_url, lake_id))
            found = archived_spans(proven.lake, store_id, history)
        except StorageEngineError as error:
            unasked.append(str(error))
            continue
        faulty = {(one.log, one.lineage, one.base_offset) for one in proven.faults}
        spans.update(span for span in found if (span.log, span.lineage, span.start_offset) not in faulty)
        for slot in proven.rows:
            stands = [standing_fault(history, row) is None for row in proven.valid(slot)]
            if stands:
                (sound if any(stands) else doubted).add(SegmentId(*slot))
    # By the journal's word alone nothing is in a lake that can't be asked.
    unproven = {one.id for one in proofs.unproven(sealed)} if unasked else measured.unproven
    known = frozenset(segment.id for segment in sealed) - unproven
    at_fault = known & (doubted - sound)
    return Lakes(tuple(spans), known - at_fault, "; ".join(unasked), at_fault)


def _released(context: Context, snapshot: StoreSnapshot, lakes: Lakes) -> Iterator[ReleasedSpan]:
    """Yield what runs deleted and no lake is known to have."""
    if context.store.policy.archive is ArchiveMode.OFF:
        return
    store_id = context.record.store_id
    there = {(span.log, span.start_offset) for span in lakes.spans}
    there |= {(one.log, one.base_offset) for log in snapshot.logs for one in log.segments}
    deleted = JournalReader(context.store.journal_url).segments(store_id, limit=_MOST_RELEASED)
    lacking = [
        SegmentId(one.log, one.base_offset)
        for one in deleted
        if one.state == "deleted" and (one.log, one.base_offset) not in there
    ]
    subjects = [segment_subject(*one) for one in lacking[:_MOST_EXPLAINED]]
    results = context.journal.results_of(store_id, Step.RELEASE, subjects)
    yield from spans_of_results(context.journal, store_id, results)
