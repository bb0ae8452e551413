"""What of a store may be archived: sealed, not kept out by its broker, of the logs that the lakes know."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from storage_engine.clock import clock_ms
from storage_engine.exceptions import LakeConflictError
from storage_engine.lake.catalog import Lake
from storage_engine.model.broker_store import BrokerStore
from storage_engine.model.by_log import by_log
from storage_engine.model.diagnosis import named_in_short
from storage_engine.model.store import Archivable, Segment
from storage_engine.retention.broker_answers import ask, take_archivable
from storage_engine.retention.current_receipts import current_receipts
from storage_engine.retention.steps.context import Context

NOTHING = "Nothing of it was archived."
"""Stands between what is wrong with a log and what to do about it."""


def archivable_segments(context: Context) -> Archivable:
    """Return what may be archived by now, oldest first in each log."""
    return take_archivable(context.broker, context.snapshot(clock_ms()))


def kept_out_notices(archivable: Archivable) -> tuple[str, ...]:
    """Say which logs stay out of the lake, wholly or in part, and why."""
    logs: dict[str, list[str]] = {}
    for log, reason in archivable.kept_out.items():
        logs.setdefault(reason, []).append(log)
    return tuple(f"not archived by now: {named_in_short(names)}: {why}" for why, names in logs.items())


def refuse_other_logs(context: Context, lakes: Sequence[Lake], segments: Sequence[Segment]) -> None:
    """Make sure that logs are still those of which the lakes have receipts.

    :raises LakeConflictError: one has the name of a log that is archived, and is another.
    """
    if type(context.broker).contradiction is BrokerStore.contradiction:
        return
    known = by_log(row for lake in lakes for row in current_receipts(lake, context.record))
    for log in dict.fromkeys(segment.log for segment in segments):
        rows = known.get(log, [])
        why = ask(
            context.store.broker,
            "tell whether a log is the archived one",
            partial(context.broker.contradiction, log, rows),
        )
        if why:
            raise LakeConflictError(
                f"{context.store.root}: log {log}: expected the log that is archived, found another: {why}. "
                f"{NOTHING} Find out what became of it; then storage-engine adopt --log {log} opens a new "
                "lineage of it, and what is archived stays under the old one."
            )
