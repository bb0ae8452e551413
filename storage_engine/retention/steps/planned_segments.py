"""The segments that a plan deletes, as they are when they are archived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from storage_engine.exceptions import GateRefusedError, StoreLayoutError
from storage_engine.journal.journal import Run
from storage_engine.model.broker_store import BrokerStore
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.store import FileFacts, Segment
from storage_engine.retention.history import release_by_any_run
from storage_engine.retention.proofs import Proofs
from storage_engine.retention.shielding import kept_text
from storage_engine.retention.steps.archivable import KeptOut, Listed, kept_out_segments, list_segments
from storage_engine.retention.steps.context import Context, approved_plan
from storage_engine.retention.steps.replicas import without_replicas_work


def planned_segments(context: Context, run: Run) -> tuple[tuple[Segment, ...], dict[str, GateRefusedError]]:
    """Return the planned segments that are still there, as they are now, and by log what is missing.

    :raises GateRefusedError: of each log a file is gone that no run deleted.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return (), {}
    plan = approved_plan(run)
    there = []
    missing: dict[str, GateRefusedError] = {}
    for segment in plan.to_delete:
        if Path(segment.facts.path).exists():
            try:
                there.append(_as_now(segment))
            except GateRefusedError as error:
                missing.setdefault(segment.log, error)
        elif release_by_any_run(context.journal, run.store_id, segment) is None:
            gone = GateRefusedError(
                f"{segment.facts.path}: expected the planned segment at offset {segment.base_offset}, found "
                "no file, and none of our runs deleted it. Nothing was archived."
                f"{kept_text(context.store.real_root, segment)} Run verify to see whether its bytes are in "
                "the lake, and plan again."
            )
            missing.setdefault(segment.log, gone)
    if missing and missing.keys() == plan.new_min_offsets.keys():
        raise next(iter(missing.values()))
    return tuple(there), missing


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


def _as_now(segment: Segment) -> Segment:
    """
    :raises GateRefusedError: a companion is gone.
    """
    try:
        own, *companions = (FileFacts.of(file.path) for file in segment.files)
    except FileNotFoundError as error:
        raise GateRefusedError(
            f"{error.filename}: expected it beside the planned segment {segment.facts.path}, found no file, "
            "and none of our runs deleted it. Nothing was archived. Find out who did, and plan again."
        ) from error
    return replace(segment, facts=own, companions=tuple(companions))
