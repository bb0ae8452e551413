"""Losses that a person has seen and accepted: from then on validation warns of them, and doesn't fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from storage_engine.core.jsonable import filled, from_jsonable, to_jsonable
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord
from storage_engine.lake.coverage.coverage import ReleasedSpan
from storage_engine.model.store import may_be_one


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Bytes [start_offset, end_offset) of a log, in one lineage, that are nowhere, and who goes on.

    :param log_id: which log it is, as receipts have it, where that is known: another one may get its name.
    :param gap: the known facts of it, where only a gap between store and lake shows the loss.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    person: str
    reason: str
    gap: str = ""
    log_id: str = ""


def record_loss(journal: Journal, run: Run, loss: AcceptedLoss) -> None:
    """Record it durably."""
    subject = f"{loss.log} [{loss.start_offset}, {loss.end_offset})"
    journal.record(run, Step.ACCEPT_LOSS, Phase.RESULT, [(subject, {"loss": to_jsonable(loss)})])


def accepted_losses(journal: Journal, record: StoreRecord) -> tuple[AcceptedLoss, ...]:
    """Return the accepted losses of the present lineages of a store's logs, oldest decision first.

    :param record: of the store, with these lineages.
    """
    events = journal.store_events(record.store_id, Step.ACCEPT_LOSS, Phase.RESULT)
    losses = (from_jsonable(AcceptedLoss, event.payload["loss"]) for event in events)
    return tuple(loss for loss in losses if loss.lineage == record.lineage_of(loss.log))


def accepted_gaps(losses: Sequence[AcceptedLoss]) -> Iterator[ReleasedSpan]:
    """Yield accepted losses that only a gap shows: no journal has them among its deletions."""
    for loss in losses:
        if loss.gap:
            yield from excused_parts(filled(ReleasedSpan, loss, others=loss.gap), losses)


def excused_parts(span: ReleasedSpan, losses: Sequence[AcceptedLoss]) -> Iterator[ReleasedSpan]:
    """Cut deleted ranges where an accepted loss begins or ends; the first decision on a part counts."""
    mine = [
        loss
        for loss in losses
        if loss.log == span.log
        and may_be_one(loss.log_id, span.log_id)
        and loss.start_offset < span.end_offset
        and span.start_offset < loss.end_offset
    ]
    inside = {offset for loss in mine for offset in (loss.start_offset, loss.end_offset)}
    ends = {span.start_offset, span.end_offset}
    cuts = sorted(ends | {offset for offset in inside if span.start_offset < offset < span.end_offset})
    for start, end in pairwise(cuts):
        by = next((loss for loss in mine if loss.start_offset <= start and end <= loss.end_offset), None)
        excused = span.excused or (
            "" if by is None else f"accepted by {by.person} ({by.reason}): {span.others}"
        )
        yield replace(span, start_offset=start, end_offset=end, excused=excused)
