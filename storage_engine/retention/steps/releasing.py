"""Delete what the approved plan says, as far as the gate lets it pass. The only place that lets segments go.

Holding the store, by its broker's means and our lease: a new snapshot, a new plan, every segment judged
before the first one goes; then, oldest first: intent, the deed, directory flushed, result. Of a stopped
broker's store one by one; beside a running broker together, since it deletes them itself. Killed at any
instant and run again, it goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine import durable
from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError, RunStateError
from storage_engine.model.broker import Remove
from storage_engine.model.jsonable import to_jsonable
from storage_engine.model.lag import Unread
from storage_engine.model.plan import Decision, DependentFile, Plan, Reason, Urgency
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.clock import clock_ms, jumped_forward_ms, read_clock
from storage_engine.retention.deciding import cut_by_policy, owed_by
from storage_engine.retention.gate import Passage, Verdict, request_again, still_eligible
from storage_engine.retention.history import (
    SegmentRelease,
    release_by_any_run,
    releases,
    segment_subject,
)
from storage_engine.retention.journal import Phase, Run, Step
from storage_engine.retention.known_heads import KnownHeads, known_heads
from storage_engine.retention.lease import Lease
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.proofs import Proofs, none_reachable, read_proofs
from storage_engine.retention.quarantine.records import quarantine_of
from storage_engine.retention.quarantine.set_aside import frees_nothing, refuse_undone, remover
from storage_engine.retention.shielding import kept_text
from storage_engine.retention.steps.consumer_lag import (
    lag_notices,
    record_unread,
    released_unread,
    without_held_back,
)
from storage_engine.retention.steps.context import Context, approved_plan, open_context
from storage_engine.retention.steps.holding import keep_held
from storage_engine.retention.steps.shield import drop_released
from storage_engine.retention.steps.stamping import witness_release
from storage_engine.retention.unseen_writes import check_bytes, unseen_writes
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.wording import duration_text


@dataclass(frozen=True, slots=True)
class Kept:
    """An approved segment that stays after all."""

    log: str
    base_offset: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """:param deleted: by this run, or set aside in its quarantine.
    :param deleted_by_others: approved segments that another run of ours deleted meanwhile.
    :param freed_bytes: 0 while what went lies in the run's quarantine.
    :param new_min_offset: where the log begins now.
    :param notices: what could not be checked while the store was taken.
    :param unread: what consumers lose by it, as it was right before.
    """

    run_key: str
    digest: str
    deleted: tuple[SegmentRelease, ...]
    deleted_by_others: tuple[SegmentRelease, ...]
    kept: tuple[Kept, ...]
    freed_bytes: int
    new_min_offset: int
    notices: tuple[str, ...]
    unread: Unread = field(default_factory=Unread)


def release(
    store: ManagedStore, run_key: str, now_ms: int | None = None, *, approved_digest: str | None = None
) -> ReleaseResult:
    """Delete the planned segments that pass the gate.

    :param now_ms: the moment to decide for; None: this machine's clock.
    :param approved_digest: of the plan that a person approved, where one had to; None: nobody had to.
    :raises BadInputError: what goes can't be set aside, though the policy wants it; nothing was deleted.
    :raises RunStateError: no such run, it has no plan, it was undone, or another plan was approved.
    :raises StoreBusyError: a broker or another run has the store.
    :raises StoreCrashedError: the broker has to recover the store first.
    :raises GateRefusedError: a segment has no valid receipt, or is gone; or beside a running broker the store
        can't be held.
    :raises ChangedUnderUsError: a segment changes under our eyes; older ones may be gone.
    :raises BrokerError: a running broker didn't delete all that was let go; run again, it goes on.
    :raises ReleasedTooMuchError: a running broker, or somebody beside it, deleted more than was let go.
    :raises LakeConflictError: a segment's bytes are not those that its receipt proves.
    :raises LakeUnavailableError: receipts can't be read.
    :raises CorruptFileError: what points into the segments couldn't be cleaned up behind them.
    """
    context = open_context(store)
    run = context.run(run_key)
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
    started_ns = time.monotonic_ns()
    with context.errors(run, Step.RELEASE):
        if plan.to_delete:
            result = _release(context, run, plan, clock_ms() if now_ms is None else now_ms)
        else:
            result = ReleaseResult(run_key, plan.digest, (), (), (), 0, plan.new_min_offset, ())
        context.save(run, Step.RELEASE, result, started_ns)
    return result


def _release(context: Context, run: Run, plan: Plan, now_ms: int) -> ReleaseResult:
    if now_ms < plan.decided_at_ms:
        raise GateRefusedError(
            f"{plan.store_root}: expected a time after the plan's, {plan.decided_at_ms} ms, found {now_ms} "
            "ms: the clock went back, so no age is certain. Nothing was deleted. Set it and plan again."
        )
    kept_held = keep_held(context, run, now_ms)
    with context.changing(now_ms) as held:
        others = _settle(context, run, plan, held.snapshot)
        policy = context.store.policy
        owed = owed_by(context.broker, held.snapshot, policy.pending_policy)
        fresh = context.broker.plan(held.snapshot, now_ms, request_again(plan, run.request))
        fresh = cut_by_policy(fresh, owed, policy, now_ms)
        eligible = still_eligible(plan, without_held_back(context, run, fresh))
        if eligible.go:
            _check_clock(context, fresh)
        known = known_heads(context.journal, context.record)
        proofs = _proofs(context, plan, known, held.lease)
        verdicts = _judge_all(context, plan, eligible.go, proofs, held.lease)
        going = [verdict.segment for verdict in verdicts]
        unseen = unseen_writes(context.record.real_path, going, context.broker.running_pid()) if going else {}
        dependents: tuple[DependentFile, ...] = ()
        if verdicts:
            # A queue or index file that broke since the plan is found while every segment is still there.
            dependents = context.broker.dependents(verdicts[-1].segment.end_offset)
            if context.store.live is not None:
                # Its broker deletes them as soon as the segments are gone: nobody could list them then.
                intend_dependents(context, run, dependents, held.lease)
            end_offset = verdicts[-1].segment.end_offset
            record_unread(context, run, held.snapshot, end_offset, held.lease)
        unwitnessed = witness_release(context, run, proofs, known) if verdicts else ()
        facts = [*(segment.facts for segment in going), *(file.facts for file in dependents)]
        remove = remover(context, run, facts, held.lease, now_ms, begin=bool(verdicts))
        _flush_directories(context, held.snapshot)
        for batch in _batches(verdicts, context.broker.lets_go_at_once):
            compared = _compared_last(context, batch, unseen, held.lease)
            _delete(context, run, compared, proofs, held.lease, remove)
        # Only then is their space free.
        shielded = drop_released(context, run, proofs)
        deleted, _ = releases(context.journal.events(run, Step.RELEASE))
        left = context.broker.snapshot(now_ms)
        aside = frees_nothing(quarantine_of(context.journal, run))
    unread = released_unread(context, run) or Unread()
    return ReleaseResult(
        run_key=run.run_key,
        digest=plan.digest,
        deleted=tuple(deleted.values()),
        deleted_by_others=others,
        kept=tuple(Kept(d.segment.log, d.segment.base_offset, d.reason, d.detail) for d in eligible.stay),
        freed_bytes=0 if aside else sum(release.facts.size_bytes for release in deleted.values()),
        new_min_offset=next(log.min_offset for log in left.logs if log.name == plan.log),
        notices=tuple(
            dict.fromkeys(
                (
                    *kept_held,
                    *held.notices,
                    *proofs.notices,
                    *unwitnessed,
                    *shielded,
                    *lag_notices(context, run),
                    *unread.notices,
                )
            )
        ),
        unread=unread,
    )


def _check_clock(context: Context, plan: Plan) -> None:
    """
    :raises GateRefusedError: segments would go for their age, and the clock was set forward.
    """
    forced = any(trigger.urgency is Urgency.FORCED for trigger in plan.triggers)
    if forced and context.store.policy.minimum_retention_hours is None:
        return
    jumped_ms = jumped_forward_ms(read_clock(), context.journal.clock_readings(context.record.store_id))
    if jumped_ms:
        raise GateRefusedError(
            f"{plan.store_root}: expected the clock to go on as the time since the machine's start does, "
            f"found it set forward by {duration_text(jumped_ms)} within the last day, so no age is certain. "
            "Nothing was deleted. Set it right; if it is right now, it is believed a day after it was set. "
            "What goes whatever its age, as by a forced cleanup where no minimum_retention_hours is set, "
            "still may."
        )


def _flush_directories(context: Context, snapshot: StoreSnapshot) -> None:
    """Make durable what an earlier run unlinked before it was killed: after a power loss its segment could
    come back in one directory, while a younger one, in another, is gone for good."""
    for path in context.broker.flush_paths(snapshot):
        if path.is_dir():
            durable.fsync_path(path)


def _settle(context: Context, run: Run, plan: Plan, snapshot: StoreSnapshot) -> tuple[SegmentRelease, ...]:
    """Account for planned segments that are gone: this run's doing, from before a kill, or somebody else's.

    :return: those that other runs of ours deleted.
    :raises GateRefusedError: one is gone that none of our runs meant to delete.
    """
    others = []
    there = {s.base_offset for log in snapshot.logs if log.name == plan.log for s in log.segments}
    done, meant = releases(context.journal.events(run, Step.RELEASE))
    for segment in plan.to_delete:
        subject = segment_subject(segment.log, segment.base_offset)
        if segment.base_offset in there or subject in done:
            continue
        if subject in meant:
            durable.fsync_path(Path(meant[subject].facts.path).parent)
            said = [(subject, to_jsonable(meant[subject]))]
            context.journal.record(run, Step.RELEASE, Phase.RESULT, said)
            continue
        other = release_by_any_run(context.journal, run.store_id, segment)
        if other is None:
            raise GateRefusedError(
                f"{segment.facts.path}: expected the planned segment at offset {segment.base_offset}, found "
                "no file, and no run of ours deleted it. Nothing was deleted by this call."
                f"{kept_text(context.store.real_root, segment)} Run verify to see whether its bytes are in "
                "the lake or lost, and plan again."
            )
        others.append(other)
    return tuple(others)


def _proofs(context: Context, plan: Plan, known: KnownHeads, lease: Lease) -> Proofs:
    """What the store's lakes prove of the plan's segments, whose data files are read once more.

    :param lease: renewed as often as a data file was read, which may take longer than a lease lasts.
    :raises LakeUnavailableError: none of them can be asked, and nobody waived the plan.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return Proofs((), acts=read_own_acts(context.record.real_path))
    wanted = {(segment.log, segment.base_offset) for segment in plan.to_delete}
    proofs = read_proofs(
        context.store.lakes,
        context.record,
        wanted,
        known=known,
        to_delete=True,
        read_files=True,
        looked=lambda: context.journal.renew(lease),
    )
    if not proofs.asked and context.journal.find_waiver(plan.digest) is None:
        raise none_reachable([reason for _, reason in proofs.unreachable])
    return proofs


def _judge_all(
    context: Context, plan: Plan, decisions: Sequence[Decision], proofs: Proofs, lease: Lease
) -> list[Verdict]:
    """Judge every segment before the first one goes.

    :param lease: renewed as often as a file was hashed, which may take longer than a lease lasts.
    :raises GateRefusedError: one doesn't pass; names all that don't.
    """
    waiver = context.journal.find_waiver(plan.digest)
    planned = {segment.base_offset: segment for segment in plan.to_delete}
    verdicts = [
        proofs.judge(decision, planned[decision.segment.base_offset], context.store.policy, waiver)
        for decision in decisions
    ]
    refused = [f"{v.segment.facts.path}: {v.detail}" for v in verdicts if v.passage is Passage.REFUSED]
    if refused:
        raise GateRefusedError(
            "Expected every segment to be proven in the lake before one is deleted; nothing was deleted. "
            + "; ".join(refused)
            + f". {_what_now(proofs)}, or let a person waive plan {plan.digest}."
        )
    for i, verdict in enumerate(verdicts):
        if verdict.passage is Passage.HASH_AGAIN:
            verdicts[i] = _hash_again(context, verdict)
            context.journal.renew(lease)
    return verdicts


def _what_now(proofs: Proofs) -> str:
    if not any(lake.faults for lake in proofs.asked):
        return "Archive them"
    return (
        "Archive them again, which puts a new data file in the place of one that is lost or damaged; where "
        "another engine has put rows into other files, run storage-engine verify --level bytes --renew, "
        "which proves them there"
    )


def _hash_again(context: Context, verdict: Verdict) -> Verdict:
    """Compare a touched file with its receipt.

    :raises LakeConflictError: it has other bytes.
    """
    assert verdict.receipt is not None
    check_bytes(verdict.segment, verdict.receipt, context.record.real_path, "Nothing was deleted.")
    detail = f"{verdict.detail}, and its SHA-256 is still {verdict.receipt.sha256}"
    return replace(verdict, passage=Passage.PROVEN, detail=detail)


def _compared_last(
    context: Context, verdicts: Sequence[Verdict], unseen: Mapping[str, str], lease: Lease
) -> list[Verdict]:
    """Compare with their receipts the files that may have been written to without a trace.

    :param unseen: why, by path.
    :param lease: renewed as often as a file was hashed.
    :raises LakeConflictError: one has other bytes.
    """
    compared = []
    for verdict in verdicts:
        why = unseen.get(verdict.segment.facts.path)
        if why is not None and verdict.receipt is not None:
            said = "It was not deleted, older ones of the plan may be."
            check_bytes(verdict.segment, verdict.receipt, context.record.real_path, said)
            context.journal.renew(lease)
            verdict = replace(verdict, detail=f"{verdict.detail}; hashed again right before, as {why}")
        compared.append(verdict)
    return compared


def _batches(verdicts: Sequence[Verdict], size: int | None) -> Iterator[Sequence[Verdict]]:
    size = size or max(len(verdicts), 1)
    return (verdicts[start : start + size] for start in range(0, len(verdicts), size))


def intend_dependents(context: Context, run: Run, files: Sequence[DependentFile], lease: Lease) -> None:
    """Say once of each file that it goes after the run's segments."""
    known = {event.subject for event in context.journal.events(run, Step.DEPENDENTS, Phase.INTENT)}
    said = [(file.facts.path, to_jsonable(file)) for file in files if file.facts.path not in known]
    context.journal.record(run, Step.DEPENDENTS, Phase.INTENT, said, lease=lease)


def _delete(
    context: Context,
    run: Run,
    verdicts: Sequence[Verdict],
    proofs: Proofs,
    lease: Lease,
    remove: Remove,
) -> None:
    """Have segments go together: intents, the deed, results."""
    entries = [_entry(verdict, proofs) for verdict in verdicts]
    said = [(entry.subject, to_jsonable(entry)) for entry in entries]
    context.journal.record(run, Step.RELEASE, Phase.INTENT, said, lease=lease)
    try:
        segments = [verdict.segment for verdict in verdicts]
        context.broker.let_go(segments, lambda: context.journal.renew(lease), remove)
    except ChangedUnderUsError as error:
        # Withdraws the intents: whatever becomes of the files now is not our doing.
        withdrawn = [(entry.subject, {"error": str(error)}) for entry in entries]
        context.journal.record(run, Step.RELEASE, Phase.ERROR, withdrawn)
        raise
    context.journal.record(run, Step.RELEASE, Phase.RESULT, said)


def _entry(verdict: Verdict, proofs: Proofs) -> SegmentRelease:
    segment, receipt = verdict.segment, verdict.receipt
    return SegmentRelease(
        log=segment.log,
        base_offset=segment.base_offset,
        facts=segment.facts,
        reason=verdict.decision.reason,
        reason_detail=verdict.decision.detail,
        original_mtime_ns=segment.original_mtime_ns,
        passage=verdict.passage,
        passage_detail=verdict.detail,
        sha256=receipt.sha256 if receipt else None,
        data_file=receipt.data_file if receipt else None,
        receipt_hash=receipt.row_hash if receipt else None,
        lake=proofs.lake_of(receipt) if receipt else None,
    )
