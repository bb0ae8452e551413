"""Choice of the segments to archive, and of the lake for each. The lake's package copies and proves them.

A second lake of the store takes segments that can't be archived into the first. After a commit with
an unknown outcome both lakes may have a segment. That does no harm: a receipt in either lake counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from storage_engine.commands import Text, join_texts
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import this_host
from storage_engine.core.jsonable import to_jsonable, to_recorded
from storage_engine.core.wording import count_text
from storage_engine.exceptions import (
    OF_ONE_LOG,
    CommitStateUnknownError,
    CorruptFrameError,
    FileGoneError,
    LakeUnavailableError,
    ProofError,
    StorageEngineError,
    StoreLayoutError,
)
from storage_engine.journal.journal import Event, Phase, Run, Step, Waiver
from storage_engine.lake.acts.unarchived import ArchivePermits
from storage_engine.lake.archive.archive import Progress, SegmentJob, archive_all, first_damage, segment_jobs
from storage_engine.lake.archive.threads import threads_for
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.soundness.segment_reader import read_topic_days, untouched_files
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.broker.broker_store import contexts_of, process_of
from storage_engine.model.proof.deleted_range import DELETION
from storage_engine.model.proof.receipt import ChainHead, Receipt
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.settings.policy import process_text
from storage_engine.model.store import WENT, FileFacts, Segment, SegmentContext, SegmentId, group_by_log
from storage_engine.retention.archive.archivable import (
    KeptOut,
    Listed,
    kept_out_segments,
    list_segments,
    refuse_other_logs,
)
from storage_engine.retention.archive.gone import GoneResult, find_moved, settle_gone
from storage_engine.retention.proof.gate import lacking_companions
from storage_engine.retention.proof.history import release_by_any_run, segment_subject
from storage_engine.retention.proof.proofs import (
    Proofs,
    lacking_notices,
    read_proofs,
    replaced_notices,
    stamp_store,
    unarchived_notices,
    unreachable_error,
)
from storage_engine.retention.proof.refusing import REFUSED, RefusedLog, refusal, refused_logs
from storage_engine.retention.replicas import without_replicas_work
from storage_engine.retention.store.broker_answers import answer_for_left
from storage_engine.retention.store.context import (
    RAN,
    AnyStore,
    Context,
    approved_plan,
    open_context,
    refuse_dry_run,
)
from storage_engine.retention.store.known_heads import head_of, known_heads
from storage_engine.retention.store.stamp import read_stamp
from storage_engine.same_bytes.trusted_times import settle

_BATCH = 50
"""Number of segments in one transaction."""


def record_topic_days(context: Context, lake: Lake, receipts: Sequence[Receipt]) -> str:
    """Record the bytes of the receipts' segments by topic and day, in place of earlier records.

    :return: why the bytes could not be recorded; "" if they were recorded.
    """
    try:
        messages = lake.messages()
        untouched = untouched_files(messages, receipts)
        for start in range(0, len(receipts), _BATCH):
            days = {
                (receipt.log, receipt.base_offset): read_topic_days(messages, receipt, untouched)
                for receipt in receipts[start : start + _BATCH]
            }
            context.journal.save_topic_days(context.record.store_id, days)
    except Exception as error:
        # The segments are already proven and recorded: an error here doesn't undo that.
        return Text("bytes by topic and day could not be recorded for the archived segments: ", error)
    return ""


TOOK = "took_ms"
"""Field in the event of a batch's first segment: how long it took to archive the whole batch."""
HASHED_AGAIN = "hashed_again"
"""Field in the event of a segment that the lake already had, and whose bytes were found unchanged."""
_FAULT = "replaced_fault"
"""Field in the event of a segment that was archived again: the fault of its earlier copy in a lake."""


def record_proven(
    context: Context,
    run: Run,
    step: Step,
    jobs: Sequence[SegmentJob],
    receipts: Sequence[Receipt],
    took_ms: int,
    faults: Mapping[str, str],
    known: Collection[str],
    ran: str,
) -> tuple[str, ...]:
    """Record in which lake each file was proven. The record counts while that lake can't be asked.

    :param faults: by segment's subject, the fault of an earlier copy in a lake.
    :param known: hashes of the valid receipts that lakes had before.
    :return: notices on a stamp that could not be written, on replaced disks, and on bytes by topic and day
        that could not be recorded.
    """
    lake = open_lake(jobs[0].lake)
    # The lake may have been set back meanwhile: it must still have the receipts known before the commit.
    known_heads(context.journal, context.record).check(lake, context.record.store_id)
    segments = lake.segments()
    proven: list[tuple[str, dict[str, object]]] = [
        (
            subject := segment_subject(job.log, job.base_offset),
            {
                "lineage": job.lineage,
                "facts": to_jsonable(job.facts),
                "lake": job.lake.location,
                "receipt_hash": receipt.row_hash,
                "receipt_sequence": receipt.sequence,
                "lake_id": lake_id_of(segments) or "",
                "place": segments.location(),
                **_optional_fields(job),
                **({HASHED_AGAIN: True} if receipt.row_hash in known else {}),
                **({_FAULT: faults[subject]} if subject in faults else {}),
            },
        )
        for job, receipt in zip(jobs, receipts, strict=True)
    ]
    proven[0][1].update({TOOK: took_ms, RAN: ran})
    context.journal.record(run, step, Phase.RESULT, proven)
    last = max(receipts, key=lambda receipt: receipt.sequence)
    replaced = replaced_notices(context.store.real_root)
    missing = stamp_store(context, run, [head_of(lake, segments, ChainHead(last.sequence, last.row_hash))])
    notice = f"{missing}: only the journal knows the lake's receipts of this store" if missing else ""
    return tuple(filter(None, (notice, *replaced, record_topic_days(context, lake, receipts))))


def again_notices(faults: Mapping[str, str]) -> Iterator[str]:
    """Yield a notice for each reason why segments were archived again: a lake has lost or damaged them.

    :param faults: by segment's subject, why it was archived again.
    """
    by_reason: dict[str, list[str]] = {}
    for subject, reason in faults.items():
        by_reason.setdefault(reason, []).append(subject)
    for reason, subjects in by_reason.items():
        yield f"archived again: {named_in_short(subjects)}, because a lake's copy isn't sound: {reason}"


def recorded_faults(events: Iterable[Event]) -> dict[str, str]:
    """Return, by subject, the fault of the earlier copy of each segment that a run archived again."""
    return {event.subject: str(event.payload[_FAULT]) for event in events if _FAULT in event.payload}


def _optional_fields(job: SegmentJob) -> dict[str, object]:
    fields = {"end_offset": job.end_offset, "companions": to_jsonable(job.companions)}
    return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Planned:
    """Planned segments that may be archived now, and the state of the other planned segments.

    :param segments: planned segments that are still on disk, as they are now.
    :param waiting: sentences on the segments that wait for a later plan, with the reasons.
    """

    segments: tuple[Segment, ...] = ()
    gone: GoneResult = field(default_factory=GoneResult)
    waiting: tuple[str, ...] = ()


def planned_segments(context: Context, run: Run) -> Planned:
    """Return the planned segments as they are now, and the results for those that are gone.

    A segment that was moved counts as if it were in its planned place. A segment whose files or bounds differ
    from the plan waits for a later plan.

    :raises StorageEngineError: every log of the plan lost segments that should have stayed, or has a hole.
    """
    if not context.store.archives:
        return Planned()
    plan = approved_plan(run)
    now: dict[SegmentId, Segment] = {}
    waiting: dict[SegmentId, str] = {}
    elsewhere: list[Segment] = []
    # Newest first: if another process deletes the oldest segments meanwhile, that leaves no hole.
    for segment in reversed(plan.to_delete):
        current = _check_in_place(segment)
        if current is None:
            elsewhere.append(segment)
        else:
            _settle(segment, current, now, waiting)
    if elsewhere:
        moved = find_moved(context, context.snapshot(clock_ms()), elsewhere)
        for segment in (segment for segment in elsewhere if segment.id in moved):
            _settle(segment, moved[segment.id], now, waiting)
    gone_result = settle_gone(
        context,
        run,
        plan.logs,
        lambda segment: segment.id in now or segment.id in waiting,
        lambda segment: release_by_any_run(context.journal, run.store_id, segment) is not None,
        "Nothing was archived.",
    )
    by_name = {refusal.log: refusal for refusal in reversed(gone_result.refusals)}
    if by_name and by_name.keys() == plan.new_min_offsets.keys():
        raise next(iter(by_name.values())).error
    present = tuple(now[segment.id] for segment in plan.to_delete if segment.id in now)
    waits = tuple(waiting[segment.id] for segment in plan.to_delete if segment.id in waiting)
    return Planned(present, replace(gone_result, refusals=tuple(by_name.values())), waits)


def look_at_archivable(context: Context) -> Listed | None:
    """Return the segments that may be archived by now, or None if all sealed segments may be archived."""
    listed = list_segments(context)
    return None if listed.archivable.is_all else listed


def to_archive(
    context: Context, run: Run, listed: Listed | None, segments: Sequence[Segment], proofs: Proofs
) -> Sequence[Segment]:
    """Return the planned segments that have to be archived and may be archived.

    Segments that another replica has archived are left out. Their data files are read here: if the release
    would refuse such a file, the segment is archived. The release compares the bytes again.

    :raises StoreLayoutError: a log has a fault, or something about it is unknown.
    :raises LakeConflictError: another replica archived other bytes of a log, or with other leaders.
    """
    unproven = proofs.unproven(segments)
    if listed is None:
        return unproven
    for segment in unproven:
        if why := listed.archivable.refused.get(segment.log):
            raise StoreLayoutError(f"{why}.")
    ids = {segment.id for segment in listed.archivable.segments}
    chosen = [segment for segment in unproven if segment.id in ids]
    return without_replicas_work(context, run, proofs, chosen, listed.archivable.segments, Depth.FILES)


def planned_kept_out(
    context: Context, listed: Listed | None, segments: Sequence[Segment]
) -> tuple[KeptOut, ...]:
    """Return the segments that stay out of the lake, in logs with planned segments."""
    if listed is None:
        return ()
    logs = {segment.log for segment in segments}
    return tuple(entry for entry in kept_out_segments(context, listed) if entry.log in logs)


def _check_in_place(segment: Segment) -> Segment | None:
    """Return a segment with its files that are still in place, or None if its own file was moved or touched.

    Path and inode aren't enough: a new file of another log may have both of a deleted file.
    """
    files: list[FileFacts] = []
    for file in segment.files:
        with suppress(FileNotFoundError):
            files.append(FileFacts.of(file.path))
    if not files or files[0] != segment.facts:
        return None
    return replace(segment, facts=files[0], companions=tuple(files[1:]))


def _settle(
    planned: Segment, now: Segment, to_archive: dict[SegmentId, Segment], waiting: dict[SegmentId, str]
) -> None:
    """Add a segment, as it is now, to ``to_archive``. If it has to wait, add why to ``waiting`` instead."""
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


ArchiveWith = Callable[[Sequence[SegmentJob]], Sequence[Receipt]]
WhereArchived = Callable[[Sequence[SegmentJob]], str]
"""Returns the place of archiving, as text for a person."""

_WAIVABLE = (CommitStateUnknownError, CorruptFrameError, LakeUnavailableError, ProofError)
"""Errors that a waiver can excuse: a segment can't be archived, but contradicts no archived segment."""
LISTINGS = 10
"""The most listings of a store while files vanish. Brokers delete files only every few minutes."""
FAILED_LOGS = 20
"""If more logs fail, the search for failed logs ends, because each costs an attempt or two."""


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """:param receipts: receipts of the segments that were archived and proven now.
    :param hashed_again: receipts of segments that the lake already had, and whose bytes were found unchanged.
    :param waiver: the waiver that permits the release; None if the lake has all required segments.
    :param error: why segments are not in the lake, if there is a waiver.
    :param lake: the lake that took the segments; "" if there was nothing to archive.
    :param notices: notices, such as on a lake that could not be used, or a stamp that could not be written.
    :param refused: logs that could not be archived or lack a file, while other logs were archived.
    :param kept_out: sealed segments that the broker's rules keep out, for now or for good.
    :param wrong_lakes: why lakes of the store can't be used as they are, each with the remedy.
    :param ran: where the segments were archived, such as in Spark at a master, or "" if none were.
    """

    receipts: tuple[Receipt, ...]
    waiver: Waiver | None = None
    error: str = ""
    lake: str = ""
    notices: tuple[str, ...] = ()
    refused: tuple[RefusedLog, ...] = ()
    kept_out: tuple[KeptOut, ...] = ()
    wrong_lakes: tuple[str, ...] = ()
    hashed_again: tuple[Receipt, ...] = ()
    ran: str = ""


def where_here(jobs: Sequence[SegmentJob]) -> str:
    """Return the place of work as text: this process, with its number of threads."""
    return process_text(threads_for(jobs))


def archive_jobs(
    store: AnyStore, run_key: str, *, all_sealed: bool = False, accept_damage: bool = False
) -> tuple[SegmentJob, ...]:
    """Return the planned segments without a valid receipt. The run has to archive them before its release.

    :param all_sealed: choose among all segments that may be archived, planned or not. Such a run needs no
        plan.
    :param accept_damage: archive bytes that don't decode, exactly as they are.
    :return: jobs for the first lake that can be reached.
    :raises GateRefusedError: in every log of the plan a segment is gone, and none of our runs deleted it.
    :raises LakeUnavailableError: the archived receipts can't be read from any lake.
    """
    context = open_context(store)
    run = begin_background_run(context, run_key) if all_sealed else context.run(run_key)
    refuse_dry_run(run)
    with context.errors(run, Step.ARCHIVE):
        segments = (
            list_segments(context).archivable.segments
            if all_sealed
            else planned_segments(context, run).segments
        )
        if not segments:
            return ()
        proofs = _read_proofs(context, segments, read_files=True)
        record_intents(context, run, Step.ARCHIVE, segments)
        if not proofs.asked:
            raise unreachable_error([reason for _, reason in proofs.unreachable])
        config, unproven = proofs.asked[0].lake.config, proofs.unproven(segments)
        return _make_jobs(context, config, unproven, accept_damage, proofs.permits)


def archive_planned(
    store: AnyStore,
    run_key: str,
    archive_with: ArchiveWith,
    *,
    accept_damage: bool = False,
    where: WhereArchived = where_here,
) -> ArchiveResult:
    """Archive the segments that the run's plan deletes. If that fails, a waiver can permit the release.

    ``archive_with`` is not called under the policy archive: off. It isn't called either if every planned
    segment already has a valid receipt. If segments of one log can't be archived or are missing, the other
    logs are archived all the same. A notice names that log, and the release judges it. Segments that the
    broker keeps out for now aren't archived.

    :param archive_with: copies, proves and commits, in this process or elsewhere.
    :param accept_damage: archive bytes that don't decode, exactly as they are.
    :raises StorageEngineError: an error of :func:`archive_jobs` or ``archive_with`` that no waiver excuses. A
        log's error is raised if every log of the plan fails or lacks a file, or if the plan has a waiver that
        can't excuse the error.
    """
    context = open_context(store)
    run = context.run(run_key)
    refuse_dry_run(run)

    def archive(segments: Sequence[Segment]) -> ArchiveResult:
        return archive_somewhere(
            context,
            run,
            Step.ARCHIVE,
            partial(to_archive, context, run, listed, segments),
            segments,
            archive_with,
            accept_damage=accept_damage,
            read_files=True,
            where=where,
        )

    try:
        with context.errors(run, Step.ARCHIVE):
            turns: list[ArchiveResult] = []
            for _ in range(LISTINGS):
                planned = planned_segments(context, run)
                listed = look_at_archivable(context) if planned.segments else None
                record_intents(context, run, Step.ARCHIVE, planned.segments)
                done, failed = archive_each_log(planned.segments, archive)
                turns.append(done)
                if not _has_lost_files(planned.segments, listed, failed):
                    break
            missing = refused_logs(planned.gone.refusals)
            refused = (
                *(refusal.said for refusal in planned.gone.refusals),
                *(refusal(log, why).said for log, why in failed.items() if log not in missing),
            )
            record_refused(context, run, Step.ARCHIVE, refused)
            _check_failed(context, run, failed, missing)
    except _WAIVABLE as error:
        waiver = context.journal.find_waiver(run.plan_digest or "")
        if waiver is None:
            raise
        return ArchiveResult((), waiver, Text(error))
    notices = (
        *planned.gone.notices,
        *(Text(refusal.error) for refusal in planned.gone.refusals),
        *planned.waiting,
        *(Text(f"log {log} was not archived: ", why) for log, why in failed.items()),
    )
    waivable = [Text(error) for error in failed.values() if isinstance(error, _WAIVABLE)]
    waiver = context.journal.find_waiver(run.plan_digest or "") if waivable else None
    done = joined_results(turns)
    return replace(
        done,
        waiver=waiver,
        error=join_texts("; ", waivable) if waiver else "",
        notices=(*done.notices, *notices),
        refused=refused,
        kept_out=planned_kept_out(context, listed, planned.segments),
    )


def _check_failed(
    context: Context, run: Run, failed: Mapping[str, StorageEngineError], missing: frozenset[str]
) -> None:
    """Raise a log's error if every log of the plan fails or lacks a file, or if a waiver can't excuse it.

    A waiver replaces a missing proof. It never overrules what the lake has.
    """
    if failed and not approved_plan(run).new_min_offsets.keys() - failed.keys() - missing:
        raise next(iter(failed.values()))
    contradicted = [why for why in failed.values() if not isinstance(why, _WAIVABLE)]
    if contradicted and context.journal.find_waiver(run.plan_digest or "") is not None:
        raise contradicted[0]


def _has_lost_files(
    segments: Sequence[Segment], listed: Listed | None, failed: Mapping[str, StorageEngineError]
) -> bool:
    """Return whether files of planned segments vanished while the segments were archived."""
    kept_out = {} if listed is None else listed.archivable.kept_out
    return any(isinstance(why, FileGoneError) for why in failed.values()) or any(
        kept_out.get(log) == WENT for log in group_by_log(segments)
    )


def record_refused(context: Context, run: Run, step: Step, refused: Sequence[RefusedLog]) -> None:
    """Record for the report why logs were not archived."""
    rows = [(log.log, {"type": log.error, "message": log.why, REFUSED: to_recorded(log)}) for log in refused]
    context.journal.record(run, step, Phase.ERROR, rows)


def archive_each_log(
    segments: Sequence[Segment], archive: Callable[[Sequence[Segment]], ArchiveResult]
) -> tuple[ArchiveResult, dict[str, StorageEngineError]]:
    """Archive segments together. If some logs can't be archived, archive the other logs without them.

    The set of logs is halved until the failing logs are found.

    :param archive: archives all given segments or none.
    :return: the archived segments, and the error of each failed log by its name.
    :raises StorageEngineError: more than ``FAILED_LOGS`` logs fail.
    """
    failed: dict[str, StorageEngineError] = {}

    def attempt(logs: Sequence[str]) -> list[ArchiveResult]:
        names = frozenset(logs)
        try:
            return [archive([segment for segment in segments if segment.log in names])]
        except OF_ONE_LOG as error:
            if len(logs) < 2:
                failed.update(dict.fromkeys(logs, error))
                if len(failed) > FAILED_LOGS:
                    raise
                return []
        half = len(logs) // 2
        return [*attempt(logs[:half]), *attempt(logs[half:])]

    return joined_results(attempt(list(dict.fromkeys(segment.log for segment in segments)))), failed


def joined_results(results: Sequence[ArchiveResult]) -> ArchiveResult:
    return ArchiveResult(
        tuple(receipt for result in results for receipt in result.receipts),
        hashed_again=tuple(receipt for result in results for receipt in result.hashed_again),
        lake=next((result.lake for result in results if result.lake), ""),
        notices=tuple(dict.fromkeys(notice for result in results for notice in result.notices)),
        wrong_lakes=tuple(dict.fromkeys(reason for result in results for reason in result.wrong_lakes)),
        ran="; ".join(dict.fromkeys(result.ran for result in results if result.ran)),
    )


def archive_somewhere(
    context: Context,
    run: Run,
    step: Step,
    choose: Callable[[Proofs], Sequence[Segment]],
    candidates: Sequence[Segment],
    archive_with: ArchiveWith,
    *,
    accept_damage: bool = False,
    read_files: bool = False,
    where: WhereArchived = where_here,
) -> ArchiveResult:
    """Archive into the first of the store's lakes that takes the segments, and record which lake proved them.

    :param choose: takes the lakes' proofs, and returns the candidates that are to be archived.
    :param read_files: read the data files of archived segments, and archive again if a file is damaged.
    :param where: returns the place at which ``archive_with`` archives, as text for the record.
    :raises LakeUnavailableError: none of the lakes can be used; the error has the reason of each.
    :raises CommitStateUnknownError: a commit's outcome is unknown, and the store has only one lake.
    """
    if not candidates:
        return ArchiveResult(())
    failures: list[LakeUnavailableError | CommitStateUnknownError] = []
    proofs: Proofs | None = None
    for config in context.store.lakes:
        if proofs is None:
            proofs = _read_proofs(context, candidates, read_files=read_files)
        if not proofs.asked:
            raise unreachable_error([reason for _, reason in proofs.unreachable])
        notices = (*(Text("a lake could not be used: ", failure) for failure in failures), *proofs.outages)
        notices = (*notices, *unarchived_notices(proofs.permits, proofs.left_out(candidates)))
        refuse_other_logs(context, proofs.asked, candidates)
        chosen = choose(proofs)
        if not chosen:
            return ArchiveResult((), notices=notices, wrong_lakes=proofs.wrong_lakes)
        if any(config == unreachable for unreachable, _ in proofs.unreachable):
            continue
        jobs = _make_jobs(context, config, chosen, accept_damage, proofs.permits)
        started_ns = time.monotonic_ns()
        try:
            # All chosen segments may be gone by now.
            with pace_at(jobs[0].bytes_per_second if jobs else None).following(partial(_put_p99_ms, context)):
                receipts = archive_with(jobs) if jobs else ()
        except (LakeUnavailableError, CommitStateUnknownError) as error:
            failures.append(error)
            proofs = None
            continue
        ran = where(jobs)
        archived = {(row.lineage, row.log, row.base_offset) for row in receipts}
        jobs = tuple(job for job in jobs if (job.lineage, job.log, job.base_offset) in archived)
        if not jobs:
            return ArchiveResult((), notices=notices)
        took_ms = (time.monotonic_ns() - started_ns) // 1_000_000
        faults = _find_faults(proofs, chosen)
        hashes = {row.row_hash for lake in proofs.asked for slot in lake.rows for row in lake.valid(slot)}
        recorded = record_proven(context, run, step, jobs, receipts, took_ms, faults, hashes, ran)
        notices = (*notices, *recorded, *again_notices(faults), *_damage_notices(jobs, receipts))
        notices = (*notices, *lacking_notices(proofs.permits, receipts))
        return ArchiveResult(
            tuple(row for row in receipts if row.row_hash not in hashes),
            hashed_again=tuple(row for row in receipts if row.row_hash in hashes),
            lake=config.location,
            notices=notices,
            wrong_lakes=proofs.wrong_lakes,
            ran=ran,
        )
    if len(context.store.lakes) == 1:
        raise failures[0]
    reasons: list[str] = [Text(failure) for failure in failures]
    if proofs is not None:
        reasons += [reason for _, reason in proofs.unreachable]
    raise unreachable_error(reasons) from failures[-1]


def _put_p99_ms(context: Context) -> float | None:
    """Return the 99th percentile of a running broker's put times, in ms, or None if it is unknown."""
    with suppress(StorageEngineError, OSError):
        progress = process_of(context.broker).progress(clock_ms())
        return None if progress is None else progress.put_p99_ms
    return None


def _find_faults(proofs: Proofs, segments: Sequence[Segment]) -> dict[str, str]:
    """Return, by subject, the fault of each segment that a lake has lost or damaged."""
    by_subject = {}
    for segment in segments:
        faults = (lake.faults.get(row.identity) for lake in proofs.asked for row in lake.of(segment.id))
        if reason := next(filter(None, faults), None):
            by_subject[segment_subject(*segment.id)] = reason
    return by_subject


def _damage_notices(jobs: Sequence[SegmentJob], receipts: Sequence[Receipt]) -> Iterator[str]:
    """Yield a notice for each segment that was archived with unreadable bytes, and why they can't be read."""
    by_segment = {(job.log, job.base_offset): job for job in jobs}
    for row in receipts:
        if row.damaged_bytes:
            job = by_segment[row.log, row.base_offset]
            damage = first_damage(job)
            why = (
                f" (at byte {damage.offset}: expected {damage.expected}, found {damage.found})"
                if damage
                else ""
            )
            consent = (
                "because that damage was accepted"
                if job.accept_damage
                else "because their checksum is right: no replica has better bytes"
            )
            yield (
                f"log {row.log}, segment {row.base_offset:020d}: "
                f"{count_text(row.damaged_bytes, 'damaged byte')}{why} archived as found, {consent}. No row "
                "has their data"
            )


def archive(
    store: AnyStore, run_key: str, jobs: Sequence[SegmentJob], progress: Progress | None = None
) -> tuple[Receipt, ...]:
    """Archive with proof in this process, without Spark.

    :param progress: called with the number of segment bytes that were done since its last call.
    """
    if not jobs:
        return ()
    context = open_context(store)
    with context.errors(context.run(run_key), Step.ARCHIVE):
        return archive_all(open_lake(jobs[0].lake), jobs, progress)


def begin_background_run(context: Context, run_key: str) -> Run:
    """Begin or return the run, which needs no plan."""
    return context.journal.run_without_plan(context.record.store_id, run_key)


def record_intents(context: Context, run: Run, step: Step, segments: Sequence[Segment]) -> None:
    """Record, once in a run, which segments the run is going to archive."""
    recorded = {event.subject for event in context.journal.events(run, step, Phase.INTENT)}
    subjects = {
        segment_subject(s.log, s.base_offset): {"log": s.log, "base_offset": s.base_offset} for s in segments
    }
    new = [(subject, payload) for subject, payload in subjects.items() if subject not in recorded]
    context.journal.record(run, step, Phase.INTENT, new)


def _read_proofs(context: Context, segments: Sequence[Segment], *, read_files: bool) -> Proofs:
    return read_proofs(
        context.store.lakes,
        context.record,
        {segment.id for segment in segments},
        known=known_heads(context.journal, context.record),
        read_files=read_files,
        whole_logs=context.broker.identities is not None,
    )


def _make_jobs(
    context: Context,
    config: LakeConfig,
    segments: Sequence[Segment],
    accept_damage: bool,
    permits: ArchivePermits,
) -> tuple[SegmentJob, ...]:
    if not segments:
        return ()
    lake, bytes_per_second = open_lake(config), context.bytes_per_second()
    segments, contexts = _ask_contexts(context, segments)
    stamp = read_stamp(context.store.real_root)
    deletion = {} if stamp is None or stamp.deletion is None else {DELETION: to_jsonable(stamp.deletion)}
    return tuple(
        replace(job, context=replace(job.context, evidence={**job.context.evidence, **deletion}))
        for lineage, of_lineage in context.record.lineages.grouped(segments).items()
        for job in segment_jobs(
            lake,
            [_settle_segment(segment) for segment in of_lineage],
            store_id=context.record.store_id,
            lineage=lineage,
            broker=context.store.broker,
            store_root=context.store.real_root,
            accept_damage=accept_damage,
            bytes_per_second=bytes_per_second,
            store_name=context.name,
            store_host=this_host(),
            contexts=contexts,
            permits=permits,
        )
    )


def _ask_contexts(
    context: Context, segments: Sequence[Segment]
) -> tuple[list[Segment], dict[SegmentId, SegmentContext]]:
    """Return the segments that are still on disk, and what their broker says about each.

    If a segment is gone, the older segments of its log are left out as well.

    :raises FileGoneError: a file is gone, although the own file of each segment is in place.
    """
    present: list[Segment] = []
    contexts: dict[SegmentId, SegmentContext] = {}
    for of_log in group_by_log(segments).values():
        remaining, answered = answer_for_left(of_log, partial(contexts_of, context.broker))
        present += remaining
        contexts |= answered
    return present, contexts


def _settle_segment(segment: Segment) -> Segment:
    """Flush a segment's files, and return it with their facts. Any later write to the files changes them.

    If a file was replaced or can't be flushed, its recorded facts stay, and archiving reports the fault.
    """
    facts, *companions = map(_settle_file, segment.files)
    return replace(segment, facts=facts, companions=tuple(companions))


def _settle_file(recorded: FileFacts) -> FileFacts:
    with suppress(OSError):
        facts = settle(recorded.path)
        if (facts.inode, facts.size_bytes) == (recorded.inode, recorded.size_bytes):
            return facts
    return recorded
