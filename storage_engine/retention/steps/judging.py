"""Judge a plan's segments before the first one is deleted: all of them pass, or none goes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from storage_engine import durable
from storage_engine.exceptions import GateRefusedError
from storage_engine.lake.pace import pace_at
from storage_engine.model.jsonable import to_jsonable
from storage_engine.model.plan import Decision, Plan, Urgency
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.clock import jumped_forward_ms, read_clock
from storage_engine.retention.gate import Passage, Verdict
from storage_engine.retention.history import SegmentRelease, release_by_any_run, releases, segment_subject
from storage_engine.retention.journal import Phase, Run, Step
from storage_engine.retention.known_heads import KnownHeads
from storage_engine.retention.lease import Lease
from storage_engine.retention.proofs import Proofs, none_reachable, read_proofs
from storage_engine.retention.shielding import kept_text
from storage_engine.retention.steps.context import Context
from storage_engine.retention.unseen_writes import Reading, check_bytes
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.wording import duration_text


def settle(context: Context, run: Run, plan: Plan, snapshot: StoreSnapshot) -> tuple[SegmentRelease, ...]:
    """Account for planned segments that are gone: this run's doing, from before a kill, or somebody else's.

    :return: those that other runs of ours deleted.
    :raises GateRefusedError: one is gone that none of our runs meant to delete.
    """
    others = []
    there = {segment.id for log in snapshot.logs for segment in log.segments}
    done, meant = releases(context.journal.events(run, Step.RELEASE))
    for segment in plan.to_delete:
        subject = segment_subject(segment.log, segment.base_offset)
        if segment.id in there or subject in done:
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


def read_plan_proofs(context: Context, plan: Plan, known: KnownHeads, lease: Lease) -> Proofs:
    """Read what the store's lakes prove of the plan's segments, whose data files are read once more.

    :param lease: renewed as often as a data file was read, which may take longer than a lease lasts.
    :raises LakeUnavailableError: none of them can be asked, and nobody waived the plan.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return Proofs((), acts=read_own_acts(context.record.real_path))
    wanted = {segment.id for segment in plan.to_delete}
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


def judge_all(
    context: Context, plan: Plan, decisions: Sequence[Decision], proofs: Proofs, lease: Lease
) -> list[Verdict]:
    """Judge every segment of every log before the first one goes.

    :param lease: renewed while files are hashed, which may take longer than a lease lasts.
    :raises GateRefusedError: one doesn't pass; names all that don't.
    :raises LakeConflictError: one has other bytes than its receipt.
    """
    waiver = context.journal.find_waiver(plan.digest)
    planned = {segment.id: segment for segment in plan.to_delete}
    verdicts = [
        proofs.judge(decision, planned[decision.segment.id], context.store.policy, waiver)
        for decision in decisions
    ]
    refused = [f"{v.segment.facts.path}: {v.detail}" for v in verdicts if v.passage is Passage.REFUSED]
    if refused:
        raise GateRefusedError(
            "Expected every segment to be proven in the lake before one is deleted; nothing was deleted. "
            + "; ".join(refused)
            + f". {_what_now(proofs)}, or let a person waive plan {plan.digest}."
        )
    reading = None
    for i, verdict in enumerate(verdicts):
        if verdict.passage is Passage.HASH_AGAIN:
            reading = reading or _reading(context, lease)
            verdicts[i] = _hash_again(context, verdict, reading)
    return verdicts


def _what_now(proofs: Proofs) -> str:
    if not any(lake.faults for lake in proofs.asked):
        return "Archive them"
    return (
        "Archive them again, which puts a new data file in the place of one that is lost or damaged; where "
        "another engine has put rows into other files, run storage-engine verify --level bytes --renew, "
        "which proves them there"
    )


def _reading(context: Context, lease: Lease) -> Reading:
    """Return how to read segments again: as gently to a broker as archiving is."""
    return Reading(pace_at(context.bytes_per_second()).spend, lambda: context.journal.renew(lease))


def _hash_again(context: Context, verdict: Verdict, reading: Reading) -> Verdict:
    """Compare a touched file with its receipt.

    :raises LakeConflictError: it has other bytes.
    """
    assert verdict.receipt is not None
    check_bytes(verdict.segment, verdict.receipt, context.record.real_path, "Nothing was deleted.", reading)
    detail = f"{verdict.detail}, and its SHA-256 is still {verdict.receipt.sha256}"
    return replace(verdict, passage=Passage.PROVEN, detail=detail)


def compared_last(
    context: Context, verdicts: Sequence[Verdict], unseen: Collection[str], lease: Lease
) -> list[Verdict]:
    """Compare with their receipts the files that may have been written to without a trace.

    :param unseen: their paths.
    :param lease: renewed while files are hashed.
    :raises LakeConflictError: one has other bytes.
    """
    compared, reading = [], None
    for verdict in verdicts:
        if any(file.path in unseen for file in verdict.segment.files) and verdict.receipt is not None:
            reading = reading or _reading(context, lease)
            said = "It was not deleted, older ones of the plan may be."
            check_bytes(verdict.segment, verdict.receipt, context.record.real_path, said, reading)
            verdict = replace(verdict, detail=f"{verdict.detail}; hashed again right before")
        compared.append(verdict)
    return compared


def check_clock(context: Context, plan: Plan) -> None:
    """Make sure that the age of segments is certain.

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
