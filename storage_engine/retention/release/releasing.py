"""Deletion of the approved plan's segments that pass the gate. Only here are segments released.

First the store is locked with its broker's means and our lease. Then a new snapshot and a new plan are made,
and every segment is judged before the first is deleted. Segments are deleted oldest first: intent, deletion,
flush of the directory, result. In a stopped broker's store segments are deleted one by one. A running broker
deletes them together by itself. A release may be killed at any instant and run again.

A kill between the deletions of a segment's files leaves companions of a deleted file. Intents of any run
name them. Before such a companion is deleted, its receipt has to be still valid, and nobody may have touched
the companion.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError, RunStateError, StorageEngineError
from storage_engine.journal.journal import Phase, Run, Step, StoreRecord
from storage_engine.journal.tables.leases import Lease
from storage_engine.model.broker.broker_store import Remove, flush_paths, process_of
from storage_engine.model.lag import Unread
from storage_engine.model.plan import Decision, DependentFile, Plan, Reason, of_only_log
from storage_engine.model.store import Segment, SegmentId, StoreSnapshot
from storage_engine.retention.archive.archiving import LISTINGS
from storage_engine.retention.archive.gone import Gone
from storage_engine.retention.hold.holding import keep_held
from storage_engine.retention.lag.consumer_lag import (
    find_losses,
    lag_notices,
    record_unread,
    released_unread,
    without_held_back,
)
from storage_engine.retention.plan.deciding import (
    cut_by_policy,
    find_dependents,
    pending_by,
    sealed_by,
    unread_dependents_notices,
)
from storage_engine.retention.proof.approvals import note_question, read_consent, require_consent
from storage_engine.retention.proof.deletion_checks import check_gone, check_kept, check_left
from storage_engine.retention.proof.gate import Passage, Verdict, request_again, still_eligible
from storage_engine.retention.proof.history import SegmentRelease, open_releases, releases, still_proves
from storage_engine.retention.proof.proofs import Proofs, unreachable_error, witness_release
from storage_engine.retention.proof.refusing import (
    Refusal,
    RefusedLog,
    account_for,
    refusal,
    refused_logs,
    require_one,
)
from storage_engine.retention.proof.unseen_writes import unseen_notices, unseen_writes
from storage_engine.retention.quarantine.records import quarantine_of
from storage_engine.retention.quarantine.set_aside import frees_nothing, refuse_undone, remover
from storage_engine.retention.ranges.missing_logs import present_logs
from storage_engine.retention.release.judging import (
    MAY_BE_GONE,
    Judged,
    Settled,
    check_clock,
    compared_last,
    judge_logs,
    make_reading,
    read_plan_proofs,
    read_proofs_to_delete,
    record_gone,
    settle,
)
from storage_engine.retention.replicas import has_archived_replicas, replicas_prove, with_replicas
from storage_engine.retention.shield import drop_released
from storage_engine.retention.store.broker_answers import MEND, package_errors, propose
from storage_engine.retention.store.context import (
    AnyStore,
    Context,
    Locked,
    approved_plan,
    open_context,
    refuse_dry_run,
)
from storage_engine.retention.store.known_heads import KnownHeads, known_heads
from storage_engine.same_bytes.removing import remove_rest


@dataclass(frozen=True, slots=True)
class Kept:
    """An approved segment that is kept after all."""

    log: str
    base_offset: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """Result of a release.

    :param deleted: segments that this run deleted, or set aside in its quarantine.
    :param deleted_by_others: approved segments that another of our runs deleted meanwhile.
    :param freed_bytes: size of the deleted files; 0 while they are in the run's quarantine. Files that the
        broker removes later don't count.
    :param new_min_offset: where the log begins now, or None if the plan has several logs.
    :param notices: notices for a person, such as on checks that could not be made.
    :param unread: consumers' losses by the release, as computed right before it.
    :param new_min_offsets: by name of each log of the plan, where it begins now.
    :param refused: logs that were refused while others were released. The run ends with an error on them.
    :param gone: approved segments of logs that were not refused, gone though none of our runs deleted them.
    """

    run_key: str
    digest: str
    deleted: tuple[SegmentRelease, ...]
    deleted_by_others: tuple[SegmentRelease, ...]
    kept: tuple[Kept, ...]
    freed_bytes: int
    new_min_offset: int | None
    notices: tuple[str, ...]
    unread: Unread = field(default_factory=Unread)
    new_min_offsets: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[RefusedLog, ...] = ()
    gone: tuple[Gone, ...] = ()

    @property
    def kept_text(self) -> str:
        """Return how many approved segments are kept after all, and why, or "" if no such segment is kept."""
        if not self.kept:
            return ""
        reasons = Counter(kept.reason.value for kept in self.kept)
        counted = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return f"{count_text(len(self.kept), 'planned segment')} stay: {counted}; {self.kept[0].detail}"


def finish_removals(context: Context, plan: Plan, held: Locked, now_ms: int) -> tuple[str, ...]:
    """Finish the removal of segments that a killed run left half done.

    Nothing is done beside a running broker: it deletes by itself.

    :return: sentences on files that stay, and why.
    """
    segments = [segment for log in held.snapshot.logs for segment in log.segments]
    if context.broker.is_live or not any(segment.companions for segment in chain(plan.to_delete, segments)):
        return ()
    half_gone = list(_half_gone(context, {segment.id for segment in segments}))
    if not half_gone:
        return ()
    return tuple(_finish(context, half_gone, held, now_ms))


def _half_gone(context: Context, present_ids: Collection[SegmentId]) -> Iterator[tuple[str, SegmentRelease]]:
    """Yield intended removals that weren't finished, with the key of their run."""
    for run_key, intended in open_releases(context.journal, context.record.store_id).items():
        for release in intended.values():
            is_gone = release.segment.id not in present_ids and not os.path.lexists(release.facts.path)
            if is_gone and any(os.path.lexists(companion.path) for companion in release.companions):
                yield run_key, release


def _finish(
    context: Context, half_gone: list[tuple[str, SegmentRelease]], held: Locked, now_ms: int
) -> Iterator[str]:
    proofs = _read_proofs(context, {release.segment.id: release for _, release in half_gone}, held)
    for run_key, release in half_gone:
        rows = (row for lake in proofs.asked for row in lake.valid(release.segment.id))
        is_proven = any(still_proves(row, release) for row in rows) or replicas_prove(
            proofs.asked, context.record.store_id, release, partial(context.journal.renew, held.lease)
        )
        if release.receipt_hash is not None and not is_proven:
            names = ", ".join(companion.path for companion in release.companions)
            yield f"{names}: a deleted segment left these files. No valid receipt proves them, so they stay"
            continue
        run = context.run(run_key)
        remove = remover(context, run, release.companions, held.lease, now_ms, begin=False)
        for path in remove_rest(release.segment, Path(context.record.real_path), remove):
            yield f"{path}: a deleted segment left this file. It was touched since, so it stays"


def _read_proofs(context: Context, by_segment: Mapping[SegmentId, SegmentRelease], held: Locked) -> Proofs:
    """Return the lakes' proofs of deleted segments whose companions are still on disk.

    :raises LakeUnavailableError: a lake can't be asked, so its proofs are unknown.
    """
    if all(release.receipt_hash is None for release in by_segment.values()):
        return Proofs(())
    heads = known_heads(context.journal, context.record)
    proofs = read_proofs_to_delete(context, by_segment.keys(), heads, held.lease)
    if proofs.unreachable:
        raise unreachable_error([reason for _, reason in proofs.unreachable])
    return proofs


def find_deleted(held: Locked, segments: Sequence[Segment]) -> frozenset[SegmentId]:
    """Return the segments that the broker reports as deleted. Without its answer, missing files decide.

    :raises BrokerError: a running broker has to answer, and can't be asked.
    """
    deleted = held.store.deleted(segments)
    if deleted is not None:
        return deleted
    return frozenset(segment.id for segment in segments if not os.path.lexists(segment.facts.path))


def find_remaining(held: Locked, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments of a deletion whose files have to be gone by now.

    Segments that the broker itself reports as deleted are left out: it may remove their files later.

    :raises BrokerError: a running broker has to answer, and can't be asked.
    """
    deleted = held.store.deleted(segments) or frozenset()
    return tuple(segment for segment in segments if segment.id not in deleted)


def deleted_from(context: Context, snapshot: StoreSnapshot, planned: Collection[SegmentId]) -> StoreSnapshot:
    """Return the part of a snapshot in which only we may delete.

    If a broker runs, this part has only the planned logs. In other logs the broker compacts, or deletes by
    its own rules without a hold.
    """
    if not context.broker.is_live:
        return snapshot
    names = {log for log, _ in planned}
    return replace(snapshot, logs=tuple(log for log in snapshot.logs if log.name in names))


def bytes_that_wait(deleted: Sequence[Segment]) -> int:
    """Return the size of files of deleted segments that still exist."""
    files = [file for segment in deleted for file in segment.files]
    return sum(file.size_bytes for file in files if os.path.lexists(file.path))


def waiting_notices(waiting_bytes: int) -> tuple[str, ...]:
    """Return a notice that space isn't free yet, or nothing if it is free."""
    if not waiting_bytes:
        return ()
    return (
        f"{bytes_text(waiting_bytes)} of deleted segments are still on the disk: the broker removes these "
        "files later",
    )


_MAY_GO = f"Its deletions aren't recorded. Run this again to find out what it deleted. {MEND}"


def release(
    store: AnyStore, run_key: str, now_ms: int | None = None, *, approved_digest: str | None = None
) -> ReleaseResult:
    """Delete the planned segments that pass the gate, log by log.

    A log is released as a whole or not at all. A refused log doesn't block the others. If some logs are
    released, the result has the refused ones, and the end of the run has to raise an error on them
    (:attr:`~storage_engine.retention.report.finishing.FinishResult.refused`). The errors below that name a
    segment are raised only if no log is left.

    :param now_ms: the present time, or None for this machine's clock.
    :param approved_digest: digest of the plan that the caller approved, or None for the recorded plan. Only
        the journal says whether a second person has to approve the plan, and whether one has.
    :raises BadInputError: the files can't be set aside, though the policy requires it; nothing was deleted.
    :raises RunStateError: there is no such run, it has no plan, it is a dry run, it was undone, or another
        plan was approved.
    :raises NotApprovedError: a second person has to approve the plan, and none has.
    :raises StoreBusyError: a broker or another run has the store.
    :raises StoreCrashedError: the broker has to recover the store first.
    :raises GateRefusedError: a segment has no valid receipt, or is gone; or the store of a running broker
        can't be held.
    :raises ChangedUnderUsError: a segment changes while it is read; older ones may already be deleted.
    :raises BrokerError: a running broker didn't delete all approved segments. The next call continues.
    :raises ReleasedTooMuchError: a running broker or another program deleted more than the approved segments.
    :raises LakeConflictError: a segment's bytes are not those that its receipt proves.
    :raises LakeUnavailableError: receipts can't be read.
    :raises CorruptFileError: files that point into the segments couldn't be cleaned up after them.
    """
    context = open_context(store)
    run = context.run(run_key)
    refuse_dry_run(run)
    plan = approved_plan(run)
    if approved_digest is not None and approved_digest != plan.digest:
        raise RunStateError(
            f"run {run_key!r}: expected approval of its plan {plan.digest}, found approval of "
            f"{approved_digest}. Nothing was deleted. Approve the plan that is recorded."
        )
    done = context.result(run, Step.RELEASE, ReleaseResult)
    if done is not None:
        return done
    refuse_undone(context, run)
    # No error is recorded here: a run that waits for a person hasn't failed.
    consent = read_consent(context, run, plan.decisions)
    note_question(context, run, consent)
    require_consent(context, run, consent)
    with context.errors(run, Step.RELEASE) as save:
        if plan.to_delete:
            result = _release(context, run, plan, clock_ms() if now_ms is None else now_ms)
        else:
            offsets = {log.log: log.new_min_offset for log in plan.logs}
            result = ReleaseResult(
                run_key, plan.digest, (), (), (), 0, of_only_log(offsets), (), new_min_offsets=offsets
            )
        save(result)
    return result


def _check_time(plan: Plan, now_ms: int) -> None:
    if now_ms < plan.decided_at_ms:
        raise GateRefusedError(
            f"{plan.store_root}: expected a time after the plan's, {plan.decided_at_ms} ms, found {now_ms} "
            "ms: the clock went back, so no age is certain. Nothing was deleted. Set it and plan again."
        )


def _release(context: Context, run: Run, plan: Plan, now_ms: int) -> ReleaseResult:
    _check_time(plan, now_ms)
    kept_held = keep_held(context, run, now_ms)
    with context.changing(now_ms) as held:
        left_over = finish_removals(context, plan, held, now_ms)
        heads = known_heads(context.journal, context.record)
        held, outcome = _judge_all(context, run, plan, held, heads, now_ms)
        settled, judged, proofs = outcome.settled, outcome.judged, outcome.proofs
        settled.require_one(judged)
        # A queue or index file that broke since the plan is found while every segment is still there.
        judged, dependents = _find_dependents(context, held.snapshot, judged)
        settled.require_one(judged)
        unread, blocked = find_losses(context, run, held.snapshot, judged.ends)
        if blocked:
            judged, dependents = _find_dependents(context, held.snapshot, judged.without(blocked))
            settled.require_one(judged)
        segments = [verdict.segment for verdict in judged.verdicts]
        unread_files = unread_dependents_notices(context.broker) if segments else ()
        unseen = _read_unseen(context, segments) if segments else {}
        if judged.verdicts:
            if context.broker.is_live:
                # Its broker deletes them as soon as the segments are gone: nobody could list them then.
                intend_dependents(context, run, dependents, held.lease)
            record_unread(context, run, unread, held.lease)
        unwitnessed = witness_release(context, run, proofs, heads) if judged.verdicts else ()
        facts = [
            *(file for segment in segments for file in segment.files),
            *(file.facts for file in dependents),
        ]
        remove = remover(context, run, facts, held.lease, now_ms, begin=bool(judged.verdicts))
        _flush_directories(context, held.snapshot)
        planned = {segment.id for segment in plan.to_delete}
        watched = deleted_from(context, held.snapshot, planned)
        log_ids = _read_ids(context, held.snapshot, judged.verdicts)
        try:
            stopped = _delete_all(context, run, judged.verdicts, unseen, proofs, log_ids, held, remove)
        finally:
            check_kept(watched, planned)
        deleted, _ = releases(context.journal.events(run, Step.RELEASE))
        refusals = (*stopped, *judged.refusals)
        require_one(refusals, {release.log for release in deleted.values()})
        # Dropping the links frees the space of the deleted segments.
        shielded = drop_released(context, run, proofs)
        remaining = context.snapshot(now_ms)
        done_now = {v.segment.id for v in judged.verdicts} & {r.segment.id for r in deleted.values()}
        check_left(watched, remaining, planned, done_now)
        aside = frees_nothing(quarantine_of(context.journal, run))
    names = {log.log for log in plan.logs}
    offsets = {log.name: log.min_offset for log in remaining.logs if log.name in names}
    gone_ids = {
        *(release.segment.id for release in (*deleted.values(), *settled.others)),
        *(SegmentId(segment.log, segment.base_offset) for segment in settled.gone.segments),
    }
    present_ids = {segment.id for log in remaining.logs for segment in log.segments}
    accounted = account_for(refusals, plan.to_delete, outcome.stay, there=present_ids, gone=gone_ids)
    unread = released_unread(context, run) or Unread()
    waiting_bytes = 0 if aside else bytes_that_wait([release.segment for release in deleted.values()])
    rewritten = unseen_notices(unseen, (v.segment for v in judged.verdicts if v.receipt is not None))
    notices = (
        *(kept_held, held.notices, proofs.outages, left_over, unwitnessed, rewritten, shielded),
        *(lag_notices(context, run), unread.notices, waiting_notices(waiting_bytes), unread_files),
        settled.gone.notices,
    )
    return ReleaseResult(
        run_key=run.run_key,
        digest=plan.digest,
        deleted=tuple(deleted.values()),
        deleted_by_others=settled.others,
        kept=tuple(Kept(*d.segment.id, d.reason, d.detail) for d in accounted.stay),
        freed_bytes=0 if aside else sum(r.segment.disk_bytes for r in deleted.values()) - waiting_bytes,
        new_min_offset=of_only_log(offsets),
        notices=tuple(dict.fromkeys(chain.from_iterable(notices))),
        unread=unread,
        new_min_offsets=offsets,
        refused=accounted.refused,
        gone=settled.gone.segments,
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A plan, compared with the present store.

    :param going: decisions on segments that may still be deleted, without logs that lack segments.
    :param stay: decisions on segments that may not be deleted.
    """

    settled: Settled
    going: tuple[Decision, ...]
    stay: tuple[Decision, ...]
    proofs: Proofs
    judged: Judged


def _judge(context: Context, run: Run, plan: Plan, held: Locked, heads: KnownHeads, now_ms: int) -> _Outcome:
    """Account for planned segments that are gone, and judge the others by a fresh plan and the lakes' proofs.

    :raises StorageEngineError: nothing may be deleted, because the clock isn't certain or no log is left.
    """
    settled = settle(context, run, plan, held.snapshot)
    policy = context.store.policy
    pending = pending_by(context.broker, held.snapshot, policy.pending_policy)
    fresh = propose(context.broker, held.snapshot, now_ms, request_again(plan, run.request))
    sealed_ms = sealed_by(context.broker, held.snapshot, policy)
    fresh = cut_by_policy(fresh, pending, policy, now_ms, sealed_ms)
    eligible = still_eligible(plan, without_held_back(context, run, fresh))
    refused = refused_logs(settled.refusals)
    going = tuple(decision for decision in eligible.go if decision.segment.log not in refused)
    require_one(settled.refusals, settled.went | {decision.segment.log for decision in going})
    if going:
        check_clock(context, fresh)
    proofs = with_replicas(
        context.broker,
        context.record,
        read_plan_proofs(context, plan, heads, held.lease),
        [decision.segment for decision in going],
        held.snapshot,
        make_reading(context, held.lease),
    )
    # Read again under the lease: since the plan, the cleanup may have become a forced one.
    consent = read_consent(context, run, (*plan.decisions, *going))
    if going:
        require_consent(context, run, consent)
    judged = judge_logs(context, plan, going, settled.refusals, proofs, held.lease, consent)
    return _Outcome(settled, going, eligible.stay, proofs, judged)


def _has_lost_files(going: Sequence[Decision], judged: Judged) -> bool:
    """Return whether files of newly refused logs vanished while they were hashed."""
    refused = refused_logs(judged.refusals)
    return any(
        decision.segment.log in refused
        and not all(Path(file.path).exists() for file in decision.segment.files)
        for decision in going
    )


def _read_unseen(context: Context, segments: Sequence[Segment]) -> dict[str, str]:
    pid = process_of(context.broker).running_pid()
    return unseen_writes(context.record.real_path, segments, pid)


def _flush_directories(context: Context, snapshot: StoreSnapshot) -> None:
    """Make the deletions of an earlier killed run durable.

    Otherwise a power loss could bring back a deleted segment in one directory, while a younger segment in
    another directory stays deleted.
    """
    for path in flush_paths(context.broker, snapshot):
        if path.is_dir():
            durable.fsync_path(path)


def _judge_all(
    context: Context, run: Run, plan: Plan, held: Locked, heads: KnownHeads, now_ms: int
) -> tuple[Locked, _Outcome]:
    """Judge a plan. If segments disappear while they are hashed, judge it again, a few times at most.

    Such segments count like segments that were gone before.

    :return: the locked store with the snapshot that was judged last, and the outcome.
    """
    outcome = _judge(context, run, plan, held, heads, now_ms)
    for _ in range(LISTINGS):
        if not _has_lost_files(outcome.going, outcome.judged):
            break
        held = replace(held, snapshot=context.snapshot(now_ms))
        outcome = _judge(context, run, plan, held, heads, now_ms)
    return held, outcome


def _find_dependents(
    context: Context, snapshot: StoreSnapshot, judged: Judged
) -> tuple[Judged, tuple[DependentFile, ...]]:
    """Find the files to delete after the segments. Refuse logs whose files can't be read."""
    dependents, unreadable = find_dependents(context.broker, snapshot, judged.ends)
    return judged.without([refusal(log, error) for log, error in unreadable.items()]), dependents


def _delete_all(
    context: Context,
    run: Run,
    verdicts: Sequence[Verdict],
    unseen: Collection[str],
    proofs: Proofs,
    log_ids: Mapping[str, str],
    held: Locked,
    remove: Remove,
) -> list[Refusal]:
    """Delete segments, in batches of the size that the broker takes.

    :param unseen: paths of files that may be written to unnoticed. They are compared with receipts again.
    :return: refusals of logs with a changed file: no further segment of them was deleted. The segments of the
        other logs are deleted.
    :raises ChangedUnderUsError: a file has changed, and the broker doesn't say which one.
    """
    stopped: list[Refusal] = []
    queue, size = deque(verdicts), held.store.max_delete_batch or len(verdicts)
    with report_work("Deleting segments", len(verdicts), "segments") as advance:
        while queue:
            batch = [queue.popleft() for _ in range(min(size, len(queue)))]
            compared = compared_last(context, batch, unseen, held.lease)
            refusals = list(compared.refusals)
            if not refusals:
                try:
                    _delete(context, run, compared.verdicts, proofs, log_ids, held, remove)
                    advance(len(batch))
                    continue
                except ChangedUnderUsError as error:
                    changed = [
                        verdict.segment.log
                        for verdict in batch
                        if any(file.path == error.path for file in verdict.segment.files)
                    ]
                    if not changed:
                        raise
                    refusals = [refusal(changed[0], error, MAY_BE_GONE)]
            stopped += refusals
            done, _ = releases(context.journal.events(run, Step.RELEASE))
            gone_ids = {release.segment.id for release in done.values()}
            logs = refused_logs(refusals)
            again = [
                v for v in (*batch, *queue) if v.segment.log not in logs and v.segment.id not in gone_ids
            ]
            queue = deque(again)
    return stopped


def intend_dependents(context: Context, run: Run, files: Sequence[DependentFile], lease: Lease) -> None:
    """Record, once for each file, the intent to delete it after the run's segments."""
    recorded = {event.subject for event in context.journal.events(run, Step.DEPENDENTS, Phase.INTENT)}
    entries = [(file.facts.path, to_jsonable(file)) for file in files if file.facts.path not in recorded]
    context.journal.record(run, Step.DEPENDENTS, Phase.INTENT, entries, lease=lease)


def _delete(
    context: Context,
    run: Run,
    verdicts: Sequence[Verdict],
    proofs: Proofs,
    log_ids: Mapping[str, str],
    held: Locked,
    remove: Remove,
) -> None:
    """Delete segments together: intents, deletion, results."""
    segments = [verdict.segment for verdict in verdicts]

    def is_replicated() -> bool:
        return has_archived_replicas(context.broker, context.record, proofs, segments)

    held.store.check()
    held.store.check_deletable(is_replicated)
    entries = [_make_entry(verdict, proofs, log_ids, context.record) for verdict in verdicts]
    rows = [(entry.subject, to_jsonable(entry)) for entry in entries]
    context.journal.record(run, Step.RELEASE, Phase.INTENT, rows, lease=held.lease)
    try:
        with package_errors(context.store.broker, "delete segments", _MAY_GO):
            context.broker.delete_segments(segments, lambda: context.journal.renew(held.lease), remove)
    except ChangedUnderUsError as error:
        deleted = find_deleted(held, segments) if error.path else frozenset()
        done = {
            entry.subject: entry
            for entry in entries
            if entry.facts.path != error.path and entry.segment.id in deleted
        }
        if done:
            record_gone(context, run, list(done.values()))
        # Withdraw the other intents: if their files go later, this run didn't delete them.
        withdrawn = [(entry.subject, {"error": str(error)}) for entry in entries if entry.subject not in done]
        context.journal.record(run, Step.RELEASE, Phase.ERROR, withdrawn)
        raise
    # A segment that isn't known to be gone keeps only its intent: a continued run looks at it again.
    check_gone(context.store.broker, find_remaining(held, segments))
    context.journal.record(run, Step.RELEASE, Phase.RESULT, rows)


def _read_ids(context: Context, snapshot: StoreSnapshot, verdicts: Sequence[Verdict]) -> Mapping[str, str]:
    """Return the known identities of logs whose segments are deleted by an archive rule."""
    logs = {verdict.segment.log for verdict in verdicts if verdict.passage is Passage.NOT_ARCHIVED}
    if logs and context.broker.identities is not None:
        with suppress(StorageEngineError, OSError):
            identities = present_logs(context.broker, snapshot)
            return {log: identities[log] for log in logs & identities.keys()}
    return {}


def _make_entry(
    verdict: Verdict, proofs: Proofs, log_ids: Mapping[str, str], record: StoreRecord
) -> SegmentRelease:
    segment, receipt = verdict.segment, verdict.receipt
    return SegmentRelease(
        log=segment.log,
        base_offset=segment.base_offset,
        facts=segment.facts,
        reason=verdict.decision.reason,
        reason_detail=verdict.decision.detail,
        original_mtime_ns=segment.original_mtime_ns,
        end=segment.end,
        companions=segment.companions,
        passage=verdict.passage,
        passage_detail=verdict.detail,
        sha256=receipt.sha256 if receipt and not verdict.covers else None,
        data_file=receipt.data_file if receipt else None,
        receipt_hash=receipt.row_hash if receipt else None,
        lake=proofs.lake_of(receipt) if receipt else None,
        lineage=record.lineage_of(segment.log),
        log_id=receipt.log_id if receipt else log_ids.get(segment.log) or None,
        replicas=tuple(row.identity for row in verdict.covers),
    )
