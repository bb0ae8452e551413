"""Say which segments to archive. Copying, proving and committing is the lake's, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.exceptions import CorruptFrameError, GateRefusedError, LakeUnavailableError, ProofError
from storage_engine.lake.archive import Progress, SegmentJob, archive_all, segment_jobs
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.receipts import broken_receipts, receipts
from storage_engine.model.plan import PlanRequest
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.receipt import Receipt
from storage_engine.model.store import FileFacts, Segment
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.gate import proven_facts, same_file
from storage_engine.retention.history import release_by_any_run, segment_subject
from storage_engine.retention.journal import Phase, Run, Step, Waiver
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.steps.context import Context, approved_plan, open_context

ArchiveWith = Callable[[Sequence[SegmentJob]], Sequence[Receipt]]

_WAIVABLE = (CorruptFrameError, LakeUnavailableError, ProofError)
"""Why a segment can't be archived though nothing contradicts what is archived already."""


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """:param receipts: of what was archived and proven now.
    :param waiver: what lets the plan go without; None when everything that has to be is in the lake.
    :param error: why it is not, where a waiver does instead.
    """

    receipts: tuple[Receipt, ...]
    waiver: Waiver | None = None
    error: str = ""


def archive_jobs(
    store: ManagedStore, run_key: str, *, all_sealed: bool = False, accept_damage: bool = False
) -> tuple[SegmentJob, ...]:
    """What the run has to archive before its plan may be released: planned, and without a valid receipt.

    :param all_sealed: every sealed segment instead, planned or not; such a run needs no plan.
    :param accept_damage: archive bytes that don't decode as they are.
    :raises GateRefusedError: a planned segment is gone, and we did not delete it.
    :raises LakeUnavailableError: what is archived already can't be read.
    """
    context = open_context(store)
    if all_sealed:
        run = context.journal.find_run(context.record.store_id, run_key)
        run = run or context.journal.begin_run(context.record.store_id, run_key, PlanRequest())
    else:
        run = context.run(run_key)
    with context.errors(run, Step.ARCHIVE):
        segments = _sealed(context) if all_sealed else _planned(context, run)
        if not segments:
            return ()
        lake = open_lake(store.lake, create=True)
        unproven = _without_receipt(context, lake, segments)
        _record_once(context, run, segments)
        return segment_jobs(
            lake,
            unproven,
            store_id=context.record.store_id,
            lineage=context.record.lineage,
            broker=store.broker,
            store_root=store.real_root,
            accept_damage=accept_damage,
        )


def archive_planned(store: ManagedStore, run_key: str, archive_with: ArchiveWith) -> ArchiveResult:
    """Archive what the run's plan deletes; where that can't be done, a waiver of the plan does instead.

    Under the policy archive: off there is nothing to archive, and ``archive_with`` is not called.

    :param archive_with: copies, proves and commits, in this process or wherever else.
    :raises StorageEngineError: as :func:`archive_jobs` and ``archive_with`` do, unless a waiver does instead.
    """
    try:
        jobs = archive_jobs(store, run_key)
        if not jobs:
            return ArchiveResult(())
        context = open_context(store)
        with context.errors(context.run(run_key), Step.ARCHIVE):
            return ArchiveResult(tuple(archive_with(jobs)))
    except _WAIVABLE as error:
        context = open_context(store)
        waiver = context.journal.find_waiver(context.run(run_key).plan_digest or "")
        if waiver is None:
            raise
        return ArchiveResult((), waiver, str(error))


def archive(
    store: ManagedStore, run_key: str, jobs: Sequence[SegmentJob], progress: Progress | None = None
) -> tuple[Receipt, ...]:
    """Archive with proof in this process, without Spark.

    :param progress: called with the number of segment bytes done since the last call.
    """
    if not jobs:
        return ()
    context = open_context(store)
    with context.errors(context.run(run_key), Step.ARCHIVE):
        return archive_all(open_lake(store.lake, create=True), jobs, progress)


def _sealed(context: Context) -> tuple[Segment, ...]:
    snapshot = context.broker.snapshot(clock_ms())
    return tuple(segment for log in snapshot.logs for segment in log.sealed)


def _planned(context: Context, run: Run) -> tuple[Segment, ...]:
    """The planned segments that are still there, as they are now."""
    if context.store.policy.archive is ArchiveMode.OFF:
        return ()
    there = []
    for segment in approved_plan(run).to_delete:
        if Path(segment.facts.path).exists():
            facts = FileFacts.of(segment.facts.path)
            there.append(Segment(segment.log, segment.base_offset, facts, segment.state))
        elif release_by_any_run(context.journal, run.store_id, segment) is None:
            raise GateRefusedError(
                f"{segment.facts.path}: expected the planned segment at offset {segment.base_offset}, found "
                "no file, and no run of ours deleted it. Nothing was archived. Run verify to see whether "
                "its bytes are in the lake, and plan again."
            )
    return tuple(there)


def _without_receipt(context: Context, lake: Lake, segments: Sequence[Segment]) -> list[Segment]:
    """Those that no valid receipt of the very same file proves; one of a touched file is compared again."""
    rows = receipts(lake, context.record.store_id, lineage=context.record.lineage)
    wanted = {(segment.log, segment.base_offset) for segment in segments}
    rows = tuple(row for row in rows if (row.log, row.base_offset) in wanted)
    broken = broken_receipts(lake, rows)
    proven = {(row.log, row.base_offset): row for row in rows if row.identity not in broken}
    return [
        segment
        for segment in segments
        if (row := proven.get((segment.log, segment.base_offset))) is None
        or not same_file(segment.facts, proven_facts(row))
    ]


def _record_once(context: Context, run: Run, segments: Sequence[Segment]) -> None:
    known = {event.subject for event in context.journal.events(run, Step.ARCHIVE, Phase.INTENT)}
    subjects = {
        segment_subject(s.log, s.base_offset): {"log": s.log, "base_offset": s.base_offset} for s in segments
    }
    new = [(subject, payload) for subject, payload in subjects.items() if subject not in known]
    context.journal.record(run, Step.ARCHIVE, Phase.INTENT, new)
