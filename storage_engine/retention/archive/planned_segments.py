"""The segments that a plan deletes, as they are when they are archived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.exceptions import GateRefusedError, StoreLayoutError
from storage_engine.journal.journal import Run
from storage_engine.model.broker_store import BrokerStore
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.store import FileFacts, Segment, SegmentId
from storage_engine.retention.archive.archivable import KeptOut, Listed, kept_out_segments, list_segments
from storage_engine.retention.archive.gone import GoneResult, settle_gone
from storage_engine.retention.proof.history import release_by_any_run
from storage_engine.retention.proof.proofs import Proofs
from storage_engine.retention.proof.refusing import Refusal, refusal
from storage_engine.retention.replicas.replicas import without_replicas_work
from storage_engine.retention.store.context import Context, approved_plan


@dataclass(frozen=True, slots=True)
class Planned:
    """:param segments: planned ones that are still there, as they are now.
    :param gone: what became of the others.
    """

    segments: tuple[Segment, ...] = ()
    gone: GoneResult = field(default_factory=GoneResult)


def planned_segments(context: Context, run: Run) -> Planned:
    """Return the planned segments as they are now, and what became of those that are gone.

    :raises StorageEngineError: each log lost what should have stayed.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return Planned()
    plan = approved_plan(run)
    now: dict[SegmentId, Segment] = {}
    incomplete: set[SegmentId] = set()
    refusals: list[Refusal] = []
    for segment in plan.to_delete:
        try:
            if (as_now := _as_now(segment)) is not None:
                now[segment.id] = as_now
        except GateRefusedError as error:
            # It is there, and can't be archived.
            incomplete.add(segment.id)
            refusals.append(refusal(segment.log, error))
    gone = settle_gone(
        context,
        run,
        plan.logs,
        lambda segment: segment.id in now or segment.id in incomplete,
        lambda segment: release_by_any_run(context.journal, run.store_id, segment) is not None,
        "Nothing was archived.",
    )
    by_name = {one.log: one for one in reversed((*refusals, *gone.refusals))}
    if by_name and by_name.keys() == plan.new_min_offsets.keys():
        raise next(iter(by_name.values())).error
    return Planned(tuple(now.values()), replace(gone, refusals=tuple(by_name.values())))


def look_at_archivable(context: Context) -> Listed | None:
    """Return what may be archived by now; None: whatever is sealed, as the broker keeps nothing out."""
    if type(context.broker).archivable is BrokerStore.archivable:
        return None
    return list_segments(context)


def to_archive(
    context: Context, run: Run, listed: Listed | None, segments: Sequence[Segment], proofs: Proofs
) -> Sequence[Segment]:
    """Return which planned segments have to be archived, and may be.

    What another replica has archived isn't archived again, as in an archive run ahead: the release compares
    it once more.

    :raises StoreLayoutError: something is wrong with a log, or not known of it.
    :raises LakeConflictError: another replica archived other bytes of a log, or the same of other leaders.
    """
    unproven = proofs.unproven(segments)
    if listed is None:
        return unproven
    for segment in unproven:
        if why := listed.archivable.refused.get(segment.log):
            raise StoreLayoutError(f"{why}.")
    may = {segment.id for segment in listed.archivable.segments}
    wanted = [segment for segment in unproven if segment.id in may]
    return without_replicas_work(context, run, proofs, wanted, listed.archivable.segments)


def planned_kept_out(
    context: Context, listed: Listed | None, segments: Sequence[Segment]
) -> tuple[KeptOut, ...]:
    """Return what stays out of the lake of the logs of planned segments."""
    if listed is None:
        return ()
    logs = {segment.log for segment in segments}
    return tuple(one for one in kept_out_segments(context, listed) if one.log in logs)


def _as_now(segment: Segment) -> Segment | None:
    """Return a segment with its files as they are; None: it is gone.

    :raises GateRefusedError: a companion is gone.
    """
    try:
        own, *companions = (FileFacts.of(file.path) for file in segment.files)
    except FileNotFoundError as error:
        if not Path(segment.facts.path).exists():
            return None
        raise GateRefusedError(
            f"{error.filename}: expected it beside the planned segment {segment.facts.path}, found no file, "
            "and none of our runs deleted it. Nothing was archived. Find out who did, and plan again."
        ) from error
    return replace(segment, facts=own, companions=tuple(companions))
