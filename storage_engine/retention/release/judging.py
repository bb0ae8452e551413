"""Judgement of a plan's segments before the first one is deleted.

In each log all segments pass, or none is deleted. A fault of the whole store refuses every log. A fault of
one log doesn't affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage_engine.commands import Command, Text, join_texts
from storage_engine.core import durable
from storage_engine.core.clock import jumped_forward_ms, read_clock
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import duration_text
from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError, LakeConflictError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.journal.tables.leases import Lease
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.plan import Decision, Plan, Urgency
from storage_engine.model.store import Segment, SegmentId, StoreSnapshot
from storage_engine.retention.archive.gone import GoneResult, find_moved, settle_gone
from storage_engine.retention.proof.gate import Consent, Passage, Verdict
from storage_engine.retention.proof.history import (
    SegmentRelease,
    release_by_any_run,
    releases,
    segment_subject,
)
from storage_engine.retention.proof.proofs import Proofs, read_proofs, read_store_permits, unreachable_error
from storage_engine.retention.proof.refusing import Refusal, RefusedLog, refusal, refused_logs, require_one
from storage_engine.retention.proof.unseen_writes import Reading, check_bytes, digest
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.known_heads import KnownHeads
from storage_engine.same_bytes.own_acts import read_own_acts

MAY_BE_GONE = "It was not deleted; older segments of the plan may be."
"""Last sentence of errors while segments are deleted."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Results for planned segments that are gone.

    :param others: segments that our other runs deleted.
    :param gone: results for segments that none of our runs deleted.
    :param went: names of logs that lost segments and that the release continues with.
    """

    others: tuple[SegmentRelease, ...]
    gone: GoneResult
    went: frozenset[str]

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Return the refusals of logs that the release doesn't continue with."""
        return self.gone.refusals

    def require_one(self, judged: Judged) -> None:
        """Make sure that at least one log is left: it may lose segments, or already has.

        :raises StorageEngineError: all logs are refused. It is the error of the first refusal.
        """
        require_one(judged.refusals, {*self.went, *judged.ends})


def settle(context: Context, run: Run, plan: Plan, snapshot: StoreSnapshot) -> Settled:
    """Account for planned segments that are gone: this run deleted them before a kill, or others did.

    :raises StorageEngineError: no log is left, because each one lost segments that should have stayed.
    """
    others: list[SegmentRelease] = []
    present = {segment.id for log in snapshot.logs for segment in log.segments}
    moved = [segment for segment in plan.to_delete if segment.id not in present]
    present |= find_moved(context, snapshot, moved).keys()
    done, intended = releases(context.journal.events(run, Step.RELEASE))
    logs = {release.log for release in done.values()}

    def is_ours(segment: Segment) -> bool:
        subject = segment_subject(segment.log, segment.base_offset)
        if subject in intended:
            record_gone(context, run, [intended[subject]])
            logs.add(segment.log)
        elif subject not in done:
            if (release := release_by_any_run(context.journal, run.store_id, segment)) is None:
                return False
            others.append(release)
        return True

    result = settle_gone(
        context,
        run,
        plan.logs,
        lambda segment: segment.id in present,
        is_ours,
        "Nothing was deleted by this call.",
    )
    logs |= {segment.log for segment in result.segments}
    require_one(result.refusals, logs | {segment.log for segment in plan.to_delete if segment.id in present})
    return Settled(tuple(others), result, frozenset(logs))


def record_gone(context: Context, run: Run, gone: Sequence[SegmentRelease]) -> None:
    """Make the deletion of segments durable, and record it as this run's result."""
    for directory in sorted({Path(release.facts.path).parent for release in gone}):
        durable.fsync_path(directory)
    entries = [(release.subject, to_jsonable(release)) for release in gone]
    context.journal.record(run, Step.RELEASE, Phase.RESULT, entries)


def read_proofs_to_delete(
    context: Context, wanted: Collection[SegmentId], known: KnownHeads, lease: Lease
) -> Proofs:
    """Read the lakes' proofs of segments that are about to be deleted. Their data files are read once more.

    :param lease: renewed after each data file: reading may take longer than a lease lasts.
    """
    return read_proofs(
        context.store.lakes,
        context.record,
        wanted,
        known=known,
        to_delete=True,
        read_files=True,
        looked=lambda: context.journal.renew(lease),
    )


def read_plan_proofs(context: Context, plan: Plan, known: KnownHeads, lease: Lease) -> Proofs:
    """Read the lakes' proofs of the plan's segments.

    :param lease: renewed meanwhile.
    :raises LakeUnavailableError: no lake can be asked, and the plan has no waiver.
    """
    if not context.store.archives:
        return Proofs((), acts=read_own_acts(context.record.real_path))
    proofs = read_proofs_to_delete(context, {segment.id for segment in plan.to_delete}, known, lease)
    if not proofs.asked and context.journal.find_waiver(plan.digest) is None:
        raise unreachable_error([reason for _, reason in proofs.unreachable])
    return proofs


@dataclass(frozen=True, slots=True)
class Judged:
    """The gate's decisions on all logs of a plan.

    :param verdicts: verdicts of the logs that pass, oldest segment first in each.
    :param refusals: refusals of the other logs.
    """

    verdicts: tuple[Verdict, ...]
    refusals: tuple[Refusal, ...]

    @property
    def ends(self) -> dict[str, int]:
        """Return, by name of each log that passes, where it will begin."""
        return {verdict.segment.log: verdict.segment.end_offset for verdict in self.verdicts}

    def without(self, refusals: Sequence[Refusal]) -> Judged:
        """Return these decisions with further logs refused."""
        logs = refused_logs(refusals)
        verdicts = tuple(verdict for verdict in self.verdicts if verdict.segment.log not in logs)
        return Judged(verdicts, (*self.refusals, *refusals))


def judge_logs(
    context: Context,
    plan: Plan,
    decisions: Sequence[Decision],
    refusals: tuple[Refusal, ...],
    proofs: Proofs,
    lease: Lease,
    consent: Consent,
) -> Judged:
    """Judge every segment of every log before the first is deleted.

    A log is released as a whole or not at all. It is refused if one of its segments doesn't pass, has other
    bytes than its receipt, or can't be read.

    :param decisions: decisions on logs that aren't refused yet.
    :param refusals: refusals of the other logs.
    :param lease: renewed while files are hashed: hashing may take longer than a lease lasts.
    :param consent: persons' decision on the plan, with the waiver by which it may be released.
    """
    planned = {segment.id: segment for segment in plan.to_delete}
    verdicts = [
        proofs.judge(decision, planned[decision.segment.id], context.store.policy, consent.waiver, consent)
        for decision in decisions
    ]
    judged = Judged(tuple(verdicts), refusals).without(_refuse_unproven(plan, verdicts, proofs))
    again = {verdict.segment.id for verdict in judged.verdicts if verdict.passage is Passage.HASH_AGAIN}
    return _hash_again(context, judged, again, lease, _kept_sentence(plan), _mark_proven)


def _refuse_unproven(plan: Plan, verdicts: Sequence[Verdict], proofs: Proofs) -> list[Refusal]:
    """Refuse the logs of segments that don't pass. All have the same error, which names each such segment."""
    refused = [verdict for verdict in verdicts if verdict.passage is Passage.REFUSED]
    texts = {v.segment.id: Text(f"{v.segment.facts.path}: ", v.detail) for v in refused}
    what_now = _advice_text(proofs)
    error = GateRefusedError(
        "Expected every segment to be proven in the lake before one is deleted; nothing was deleted. ",
        join_texts("; ", texts.values()),
        ". ",
        what_now,
        f", or have a person waive plan {plan.digest}.",
    )
    by_log: dict[str, list[Verdict]] = {}
    for verdict in refused:
        by_log.setdefault(verdict.segment.log, []).append(verdict)
    return [
        Refusal(
            RefusedLog(
                log,
                type(error).__name__,
                Text(
                    "Expected every segment to be proven in the lake before one is deleted. ",
                    join_texts("; ", (texts[verdict.segment.id] for verdict in log_verdicts)),
                    ".",
                ),
                Text(what_now, ", or have a person waive the plan of the next run."),
            ),
            error,
            {verdict.segment.base_offset: verdict.detail for verdict in log_verdicts},
        )
        for log, log_verdicts in by_log.items()
    ]


def _mark_proven(verdict: Verdict) -> Verdict:
    assert verdict.receipt is not None
    detail = f"{verdict.detail}, and its SHA-256 is still {verdict.receipt.sha256}"
    return replace(verdict, passage=Passage.PROVEN, detail=detail)


def _kept_sentence(plan: Plan) -> Callable[[str], str]:
    """Return a function that takes a log and returns the sentence that nothing of the log was deleted."""
    if len(plan.new_min_offsets) > 1:
        return lambda log: f"Nothing of log {log} was deleted."
    return lambda _: "Nothing was deleted."


def _advice_text(proofs: Proofs) -> str:
    if not any(lake.faults for lake in proofs.asked):
        return "Archive them"
    return Text(
        "Archive them again, which replaces a lost or damaged data file. If another engine has moved rows "
        "to other files, run ",
        Command("verify --level bytes --renew"),
        " to prove the rows there",
    )


def make_reading(context: Context, lease: Lease) -> Reading:
    """Return how to read segments again: at the pace of archiving while a broker runs."""
    return Reading(pace_at(context.bytes_per_second()).spend, lambda: context.journal.renew(lease))


def compared_last(
    context: Context, verdicts: Sequence[Verdict], unseen: Collection[str], lease: Lease
) -> Judged:
    """Right before the deletion, compare files with their receipts if a write to them may not show.

    If an archive rule permits the deletion, the rule is checked once more: it may have been lifted meanwhile.

    :param unseen: paths of these files.
    :param lease: renewed while files are hashed.
    """
    judged = Judged(tuple(verdicts), ())
    again = {
        verdict.segment.id
        for verdict in judged.verdicts
        if any(file.path in unseen for file in verdict.segment.files) and verdict.receipt is not None
    }
    compared = _hash_again(
        context,
        judged,
        again,
        lease,
        lambda _: MAY_BE_GONE,
        lambda verdict: replace(verdict, detail=f"{verdict.detail}; hashed again right before"),
    )
    # The rules are checked last, as hashing takes long.
    return compared.without(_refuse_lifted(context, compared.verdicts))


def _refuse_lifted(context: Context, verdicts: Sequence[Verdict]) -> list[Refusal]:
    by_rule = [
        verdict
        for verdict in verdicts
        if verdict.passage is Passage.NOT_ARCHIVED
        or (verdict.receipt is not None and verdict.receipt.lacks_by_rules)
    ]
    if not by_rule:
        return []
    permits = read_store_permits(context.store, context.journal, context.record)
    refused = {
        verdict.segment.log
        for verdict in by_rule
        if not (
            permits.clause_of_log(verdict.segment.log)
            if verdict.receipt is None
            else permits.clause_of_receipt(verdict.receipt)
        )
    }
    return [
        refusal(
            log,
            GateRefusedError(
                f"log {log}: expected an archive rule by which the log, or some of its topics, may be "
                f"deleted without a copy, found that no such rule is in force now. {MAY_BE_GONE} Archive the "
                "log, and run this again."
            ),
            MAY_BE_GONE,
        )
        for log in sorted(refused)
    ]


def _hash_again(
    context: Context,
    judged: Judged,
    again: Collection[SegmentId],
    lease: Lease,
    nothing: Callable[[str], str],
    passed: Callable[[Verdict], Verdict],
) -> Judged:
    """Compare files with their receipts. Refuse the logs of files that have other bytes or can't be read.

    :param again: ids of the segments to compare.
    :param nothing: takes a log's name, and returns the sentence on its deletions for errors.
    :param passed: returns the verdict of a segment whose bytes were compared.
    """
    compared: list[Verdict] = []
    refusals: dict[str, Refusal] = {}
    reading = make_reading(context, lease) if again else None
    sizes = [verdict.segment.disk_bytes for verdict in judged.verdicts if verdict.segment.id in again]
    with report_work("Hashing segments again", sum(sizes)) as advance:
        for verdict in judged.verdicts:
            segment, receipt = verdict.segment, verdict.receipt
            if segment.log in refusals:
                continue
            if reading is not None and receipt is not None and segment.id in again:
                note = nothing(segment.log)
                try:
                    if verdict.covers:
                        _check_compared(verdict, note, reading)
                    else:
                        check_bytes(segment, receipt, context.record.real_path, note, reading)
                except (LakeConflictError, ChangedUnderUsError, OSError) as error:
                    refusals[segment.log] = refusal(segment.log, error, note)
                    continue
                advance(segment.disk_bytes)
                verdict = passed(verdict)
            compared.append(verdict)
    return Judged(tuple(compared), judged.refusals).without(tuple(refusals.values()))


def _check_compared(verdict: Verdict, note: str, reading: Reading) -> None:
    """Make sure that a segment hasn't changed since it was compared with other nodes' receipts.

    :raises ChangedUnderUsError: the segment has changed, or it is unknown whether it has.
    """
    path = verdict.segment.facts.path
    sha256 = digest(path, reading) if verdict.sha256 else "none"
    if sha256 != verdict.sha256:
        raise ChangedUnderUsError(
            f"{path}: expected SHA-256 {verdict.sha256 or 'taken'} from the comparison with other nodes' "
            f"archived bytes, found {sha256}: another program writes to the file, or may do so. {note} Find "
            "out who does, and run again.",
            path=path,
        )


def check_clock(context: Context, plan: Plan) -> None:
    """Make sure that the age of segments is certain.

    :raises GateRefusedError: segments would be deleted because of their age, and the clock was set forward.
    """
    forced = any(trigger.urgency is Urgency.FORCED for trigger in plan.triggers)
    if forced and context.store.policy.minimum_retention_hours is None:
        return
    jumped_ms = jumped_forward_ms(read_clock(), context.journal.clock_readings(context.record.store_id))
    if jumped_ms:
        raise GateRefusedError(
            f"{plan.store_root}: expected the clock to advance like the time since the machine's start, "
            f"found it set forward by {duration_text(jumped_ms)} within the last day, so no age is certain. "
            "Nothing was deleted. Set the clock right. If it is right now, it is trusted a day after it was "
            "set. A cleanup that ignores age still works, such as a forced one without "
            "minimum_retention_hours."
        )
