"""Where a sealed segment ends before the next one begins: what was between them is gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from storage_engine.lake.coverage.coverage import ReleasedSpan
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store.store import SegmentId, StoreSnapshot
from storage_engine.retention.archive.sealed import MeasuredLag
from storage_engine.retention.ranges.losses import accepted_losses, excused_parts
from storage_engine.retention.ranges.segment_ends import own_ends, proven_ends
from storage_engine.retention.store.context import Context


def ends_of_segments(
    context: Context, snapshot: StoreSnapshot, measured: MeasuredLag | None
) -> Mapping[SegmentId, int]:
    """Return the ends of sealed segments that end before the next one begins.

    :param measured: what lakes prove: of that nothing is read; None: it isn't known.
    :raises StorageEngineError: the broker's package can't tell.
    :raises OSError: a file can't be read.
    """
    proven: dict[SegmentId, int] = {}
    if measured is not None and context.broker.tells_absences:
        proofs = measured.proofs

        def rows_of(segment_id: SegmentId) -> Iterator[Receipt]:
            return (row for asked in proofs.asked for row in asked.valid(segment_id))

        proven = proven_ends(snapshot, rows_of, proofs.acts)
    return own_ends(context.broker, snapshot, proven)


def hole_spans(
    context: Context, snapshot: StoreSnapshot, ends: Mapping[SegmentId, int], present: Mapping[str, str]
) -> Iterator[ReleasedSpan]:
    """Yield what is gone between segments; what a person has accepted as lost is excused.

    :param ends: of :func:`ends_of_segments`.
    :param present: identities of the logs, by name.
    """
    accepted = accepted_losses(context.journal, context.record) if ends else ()
    for segment in (one for log in snapshot.logs for one in log.sealed if one.id in ends):
        end = ends[segment.id]
        why = (
            f"{segment.facts.path} ends at offset {end}, and the next segment begins at {segment.end_offset}"
        )
        lineage = context.record.lineage_of(segment.log)
        span = ReleasedSpan(
            segment.log,
            end,
            segment.end_offset,
            others=why,
            lineage=lineage,
            log_id=present.get(segment.log, ""),
        )
        yield from excused_parts(span, accepted)
