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

_WHOSE = {True: "its broker may delete by its own rules", False: "nothing of it should go"}
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
    left to its own rules may delete what is in no lake, and isn't held.

    :param gone: segments without a proof that aren't on disk any more.
    """
    of_logs = by_log(gone)
    may_go = {log: _broker_may_delete(context, log) for log in of_logs}
    found = [
        Drift(
            DriftKind.SEGMENT_GONE,
            f"log {log}: records of offsets [{first}, {end}) went while they were to be archived, and no "
            f"lake proves them: {_WHOSE[may_go[log]]}.",
            log,
            first,
            end,
        )
        for log, segments in of_logs.items()
        for first, end in _ranges(segments)
    ]
    record_drift(context.journal, context.record, run, found)
    return GoneUnproven(
        tuple(one.detail.removesuffix(".") for one in found if may_go[one.log]),
        tuple(_lost(log, drift) for log, drift in by_log(found).items() if not may_go[log]),
    )


def _lost(log: str, found: Sequence[Drift]) -> Refusal:
    ranges = ", ".join(f"[{one.start_offset}, {one.end_offset})" for one in found)
    why = f"expected records of offsets {ranges} on disk or in a lake, found them in neither: LOST."
    return refusal(log, FileGoneError(why), remedy=_REMEDY)


def _broker_may_delete(context: Context, log: str) -> bool:
    """Return whether a running broker is left to its own rules with a log; unknown counts as no."""
    store, broker = context.store, context.broker
    if store.live is not None and store.live.deletes == WE_DELETE:
        return False
    if store.is_live and not store.cleans_up:
        return not ask(store.broker, "tell what it holds", lambda: broker.holds(log))
    if context.journal.hold_memory(context.record.store_id).load() is not None:
        return False
    return broker.is_live or ask(
        store.broker, "tell who uses its store", lambda: bool(broker.used_by) and not broker.is_used_by_us
    )


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
