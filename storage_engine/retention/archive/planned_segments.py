"""The segments that a plan deletes, as they are when they are archived."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import StoreLayoutError
from storage_engine.journal.journal import Run
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.store import FileFacts, Segment, SegmentId
from storage_engine.retention.archive.archivable import KeptOut, Listed, kept_out_segments, list_segments
from storage_engine.retention.archive.gone import (
    GoneResult,
    present_segments,
    remembered_log_ids,
    settle_gone,
)
from storage_engine.retention.proof.gate import lacking_companions
from storage_engine.retention.proof.history import release_by_any_run
from storage_engine.retention.proof.proofs import Proofs
from storage_engine.retention.replicas.replicas import without_replicas_work
from storage_engine.retention.store.context import Context, approved_plan


@dataclass(frozen=True, slots=True)
class Planned:
    """:param segments: planned ones that are still there, as they are now.
    :param gone: what became of the others.
    :param waiting: which of them stay for a later plan, and why, as sentences.
    """

    segments: tuple[Segment, ...] = ()
    gone: GoneResult = field(default_factory=GoneResult)
    waiting: tuple[str, ...] = ()


def planned_segments(context: Context, run: Run) -> Planned:
    """Return the planned segments as they are now, and what became of those that are gone.

    One that lies elsewhere by now is as good as where it was planned; what has other files or other bounds
    than the plan knew waits for a later plan.

    :raises StorageEngineError: each log lost what should have stayed.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return Planned()
    plan = approved_plan(run)
    now: dict[SegmentId, Segment] = {}
    waiting: dict[SegmentId, str] = {}
    elsewhere: list[Segment] = []
    # Newest first: who deletes the oldest ones meanwhile leaves no hole then.
    for segment in reversed(plan.to_delete):
        found = _in_place(segment)
        if found is None:
            elsewhere.append(segment)
        else:
            _settle(segment, found, now, waiting)
    if elsewhere:
        present, log_ids = (
            present_segments(context, context.snapshot(clock_ms())),
            remembered_log_ids(context),
        )
        for segment in elsewhere:
            if found := present.find(segment, log_ids.get(segment.log, ())):
                _settle(segment, found, now, waiting)
    gone = settle_gone(
        context,
        run,
        plan.logs,
        lambda segment: segment.id in now or segment.id in waiting,
        lambda segment: release_by_any_run(context.journal, run.store_id, segment) is not None,
        "Nothing was archived.",
    )
    by_name = {one.log: one for one in reversed(gone.refusals)}
    if by_name and by_name.keys() == plan.new_min_offsets.keys():
        raise next(iter(by_name.values())).error
    there = tuple(now[segment.id] for segment in plan.to_delete if segment.id in now)
    waits = tuple(waiting[segment.id] for segment in plan.to_delete if segment.id in waiting)
    return Planned(there, replace(gone, refusals=tuple(by_name.values())), waits)


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
    it once more. Its files are read here, so that what the release would refuse is archived.

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
    return without_replicas_work(context, run, proofs, wanted, listed.archivable.segments, Depth.FILES)


def planned_kept_out(
    context: Context, listed: Listed | None, segments: Sequence[Segment]
) -> tuple[KeptOut, ...]:
    """Return what stays out of the lake of the logs of planned segments."""
    if listed is None:
        return ()
    logs = {segment.log for segment in segments}
    return tuple(one for one in kept_out_segments(context, listed) if one.log in logs)


def _in_place(segment: Segment) -> Segment | None:
    """Return a segment with those of its files that are where they were; None: its own isn't, or was touched.

    A new file of another log may have the path and the inode of one that went.
    """
    found: list[FileFacts] = []
    for file in segment.files:
        with suppress(FileNotFoundError):
            found.append(FileFacts.of(file.path))
    if not found or found[0] != segment.facts:
        return None
    return replace(segment, facts=found[0], companions=tuple(found[1:]))


def _settle(
    planned: Segment, now: Segment, to_archive: dict[SegmentId, Segment], waiting: dict[SegmentId, str]
) -> None:
    """Put a planned segment among those to archive as they are now, or among those that wait, and why."""
    why = lacking_companions(planned, now)
    if (now.id, now.end_offset, now.state) != (planned.id, planned.end_offset, planned.state):
        why = (
            f"expected its records [{planned.base_offset}, {planned.end_offset}) in a file of their own, "
            f"found them in {now.facts.path}"
        )
    if why:
        waiting[planned.id] = f"{planned.facts.path} was not archived and waits for a later plan: {why}"
    else:
        to_archive[planned.id] = now
