"""What of a store may be archived: sealed, not kept out by its broker, of the logs that the lakes know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import count_text
from storage_engine.exceptions import LakeConflictError
from storage_engine.journal.journal import Step
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store.store import Archivable, Segment, StoreSnapshot, by_log
from storage_engine.retention.proof.history import segment_subject
from storage_engine.retention.proof.proofs import LakeProofs
from storage_engine.retention.replicas import NOTHING
from storage_engine.retention.store.broker_answers import ask, take_archivable
from storage_engine.retention.store.context import Context


@dataclass(frozen=True, slots=True)
class KeptOut:
    """Sealed segments of a log that stay out of the lake, and were never archived.

    :param why: and until when.
    """

    log: str
    segments: int
    first_offset: int
    end_offset: int
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Listed:
    """What of a store may be archived by now.

    :param others: sealed segments that may not, but for empty ones, of which there is nothing to prove.
    """

    archivable: Archivable
    others: tuple[Segment, ...]
    snapshot: StoreSnapshot


def list_segments(context: Context) -> Listed:
    """Return what may be archived by now, oldest first in each log, and what else is sealed."""
    snapshot = context.snapshot(clock_ms())
    found = take_archivable(context.broker, snapshot)
    may = {segment.id for segment in found.segments}
    others = (segment for log in snapshot.logs for segment in log.sealed if segment.id not in may)
    return Listed(found, tuple(segment for segment in others if segment.facts.size_bytes), snapshot)


def archivable_segments(context: Context) -> Archivable:
    """Return what may be archived by now, oldest first in each log."""
    return list_segments(context).archivable


def kept_out_segments(context: Context, listed: Listed) -> tuple[KeptOut, ...]:
    """Return which sealed segments stay out of the lake that, by the journal, were never archived."""
    reasons = listed.archivable.kept_out
    out = {segment_subject(*one.id): one for one in listed.others if one.log in reasons}
    for step in (Step.ARCHIVE, Step.SEALED, Step.REPLICA):
        for event in context.journal.results_of(context.record.store_id, step, list(out)):
            out.pop(event.subject, None)
    return tuple(
        KeptOut(
            log,
            len(segments),
            segments[0].base_offset,
            segments[-1].end_offset,
            sum(segment.facts.size_bytes for segment in segments),
            reasons[log],
        )
        for log, segments in by_log(out.values()).items()
    )


def kept_out_notices(kept_out: Sequence[KeptOut]) -> tuple[str, ...]:
    """Say which logs stay out of the lake, wholly or in part, and why."""
    logs: dict[str, list[KeptOut]] = {}
    for one in kept_out:
        logs.setdefault(one.why, []).append(one)
    return tuple(
        f"not archived by now: {count_text(sum(one.segments for one in found), 'segment')} of "
        f"{named_in_short([one.log for one in found])}: {why}"
        for why, found in logs.items()
    )


def refuse_other_logs(context: Context, asked: Sequence[LakeProofs], segments: Sequence[Segment]) -> None:
    """Make sure that logs are still those of which the lakes have receipts.

    :param asked: with all receipts of the logs, where these can be told apart.
    :raises LakeConflictError: one has the name of a log that is archived, and is another.
    """
    if not context.broker.tells_logs_apart:
        return
    for log in dict.fromkeys(segment.log for segment in segments):
        rows = [row for proofs in asked for row in proofs.of_logs.get(log, ())]
        why = ask(
            context.store.broker,
            "tell whether a log is the archived one",
            partial(context.broker.contradiction, log, rows),
        )
        if why:
            raise LakeConflictError(
                f"{context.store.root}: log {log}: expected the log that is archived, found another: {why}. "
                f"{NOTHING} Find out what became of it; then storage-engine adopt STORE --log {log} --reason "
                "WHY opens a new lineage of it, and what is archived stays under the old one."
            )
