"""Segments that went away while a run was at work, and no lake proves: whose doing that was, on record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage_engine.exceptions import FileGoneError
from storage_engine.journal.drift import record_drift
from storage_engine.journal.journal import Run
from storage_engine.model.by_log import by_log
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.store import Segment
from storage_engine.model.store_settings import WE_DELETE
from storage_engine.retention.broker_answers import ask
from storage_engine.retention.refusing import Refusal, refusal
from storage_engine.retention.steps.context import Context

_REMEDY = "Find out who deleted it; storage-engine verify names all that is lost."


@dataclass(frozen=True, slots=True)
class GoneUnproven:
    """:param notices: what was the broker's to delete.
    :param lost: logs that lost what should have stayed.
    """

    notices: tuple[str, ...] = ()
    lost: tuple[Refusal, ...] = ()


def record_gone_unproven(context: Context, run: Run, gone: Sequence[Segment]) -> GoneUnproven:
    """Record what went though no lake proves it, and say what of it should have stayed.

    Nothing should go of a store that is held, that we delete from, or that no broker has. A broker that is
    left to its own rules may delete what is in no lake.

    :param gone: segments without a proof that aren't on disk any more.
    """
    if not gone:
        return GoneUnproven()
    may_go = _broker_may_delete(context)
    whose = "its broker may delete by its own rules" if may_go else "nothing of it should go"
    found = [
        Drift(
            DriftKind.SEGMENT_GONE,
            f"log {log}: records of offsets [{first}, {end}) went while they were to be archived, and no "
            f"lake proves them: {whose}.",
            log,
            first,
            end,
        )
        for log, segments in by_log(gone).items()
        for first, end in _ranges(segments)
    ]
    record_drift(context.journal, context.record, run, found)
    if may_go:
        return GoneUnproven(tuple(one.detail.removesuffix(".") for one in found))
    return GoneUnproven(lost=tuple(_lost(log, drift) for log, drift in by_log(found).items()))


def _lost(log: str, found: Sequence[Drift]) -> Refusal:
    ranges = ", ".join(f"[{one.start_offset}, {one.end_offset})" for one in found)
    why = f"expected records of offsets {ranges} on disk or in a lake, found them in neither: LOST."
    return refusal(log, FileGoneError(why), remedy=_REMEDY)


def _broker_may_delete(context: Context) -> bool:
    live = context.store.live
    if live is not None and live.deletes == WE_DELETE:
        return False
    if not context.store.cleans_up:
        return True
    if context.journal.hold_memory(context.record.store_id).load() is not None:
        return False
    runs = context.broker.is_live or ask(
        context.store.broker, "tell who uses its store", lambda: context.broker.used_by
    )
    return bool(runs)


def _ranges(segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield the offsets of segments; those that touch are one range."""
    first = end = -1
    for segment in sorted(segments, key=lambda one: one.base_offset):
        if segment.base_offset != end:
            if end >= 0:
                yield first, end
            first = segment.base_offset
        end = segment.end_offset
    yield first, end
