"""The gate: only here is it decided that a segment may be deleted.

The decisions are pure; nothing here reads or deletes.

A segment and its companions may be deleted under three conditions. (1) The approved plan and a fresh plan
both delete it, together with every older segment of its log. (2) A valid receipt proves that its bytes and
its companions' bytes are in the lake, for exactly the planned files. Without a receipt, the store's policy,
an archive rule or a person's waiver must permit the deletion. (3) A second person has approved the plan, if
the store's policy requires that. Unknown counts as no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from storage_engine.brokers import has_companions
from storage_engine.core.wording import duration_text
from storage_engine.exceptions import ReceiptError
from storage_engine.journal.journal import Waiver
from storage_engine.model.plan import (
    Cause,
    Decision,
    LogPlan,
    Plan,
    PlanRequest,
    Reason,
    RecordedPolicy,
    Reply,
    Starter,
)
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity
from storage_engine.model.settings.policy import ApprovalPolicy, ArchiveMode, Policy
from storage_engine.model.store import FileFacts, Segment, SegmentId
from storage_engine.same_bytes.own_acts import OwnActs

NO_ACTS = OwnActs()


class Passage(StrEnum):
    """The ground on which a segment passes the gate, or its refusal."""

    PROVEN = "proven"
    """There is a valid receipt, and the file is unchanged since it was proven."""
    HASH_AGAIN = "hash-again"
    """There is a valid receipt, but a write is possible. The file passes if its SHA-256 is the receipt's."""
    ARCHIVE_OFF = "archive-off"
    WAIVED = "waived"
    NOT_ARCHIVED = "not-archived"
    """An archive rule permits the deletion without a copy (:mod:`storage_engine.lake.acts.unarchived`)."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """:param receipt: the proof of the segment, or None if it passes without a receipt or is refused.
    :param covers: receipts of other nodes that together prove the segment; ``receipt`` is the first of them.
    :param sha256: SHA-256 of the segment's file when compared with ``covers``, or "" if it wasn't hashed.
    """

    decision: Decision
    passage: Passage
    receipt: Receipt | None
    detail: str
    covers: tuple[Receipt, ...] = ()
    sha256: str = ""

    @property
    def segment(self) -> Segment:
        return self.decision.segment


@dataclass(frozen=True, slots=True)
class Eligible:
    """Segments that the approved and the fresh plan delete, by log, oldest first, and why the others stay."""

    go: tuple[Decision, ...]
    stay: tuple[Decision, ...]


def request_again(approved: Plan, request: PlanRequest) -> PlanRequest:
    """Return the request for the fresh plan that is made when ``approved`` is released.

    Archiving may last beyond the deleteWhen hour, so a cleanup that the clock began may end as a manual one.
    A cleanup that a full disk began still needs a full disk.
    """
    by_clock = any(trigger.cause is Cause.TIME_UP for trigger in approved.triggers)
    return replace(request, manual=request.manual or by_clock)


def still_eligible(approved: Plan, fresh: Plan) -> Eligible:
    """Cut the approved plan to the prefix of each log that may still be deleted.

    :param fresh: a plan that was decided just now, under the store's lock, and cut by the lag policy.
    """
    planned = {segment.id: segment for segment in approved.to_delete}
    eligible = [_still_eligible(planned, log) for log in fresh.logs]
    missing = [
        replace(decision, reason=Reason.NO_CAUSE, detail="its log is not in the plan that was made just now")
        for decision in approved.decisions
        if decision.deletes and decision.segment.log not in fresh.log_names
    ]
    return Eligible(
        go=tuple(decision for log in eligible for decision in log.go),
        stay=(*(decision for log in eligible for decision in log.stay), *missing),
    )


def lacking_companions(planned: Segment, now: Segment) -> str:
    """Return a clause on companions that a segment lost while it kept its own file, or ""."""
    names = {Path(file.path).name for file in now.companions}
    missing = [file.path for file in planned.companions if Path(file.path).name not in names]
    return (
        f"expected its companion {', '.join(missing)}, found no file, and none of our runs deleted it"
        if missing
        else ""
    )


def _still_eligible(planned: Mapping[SegmentId, Segment], fresh: LogPlan) -> Eligible:
    go: list[Decision] = []
    stay: list[Decision] = []
    blocked: Decision | None = None
    for decision in fresh.decisions:
        segment = decision.segment
        if blocked is None:
            if segment.id not in planned:
                blocked = replace(decision, detail="not in the approved plan")
            elif not decision.deletes:
                blocked = decision
            elif lacking := lacking_companions(planned[segment.id], segment):
                blocked = replace(decision, detail=f"{lacking}: it waits for a later plan")
            else:
                go.append(decision)
                continue
        if segment.id in planned:
            stay.append(blocked if blocked.segment == segment else _keep_behind(decision, blocked))
    return Eligible(tuple(go), tuple(stay))


def _keep_behind(decision: Decision, blocked: Decision) -> Decision:
    if not decision.deletes:
        return decision
    detail = f"behind {blocked.segment.name}, which stays: {blocked.detail}"
    return Decision(decision.segment, Reason.BEHIND_KEPT, detail)


@dataclass(frozen=True, slots=True)
class Consent:
    """The decision of persons on a plan.

    :param why: why a second person has to approve the plan, as a clause, or "" if nobody has to.
    :param approval: the approval that counts, or None.
    :param lacks: why no approval counts, as a clause, or "" if one counts or none is needed.
    :param waiver: the plan's waiver that was judged. A later waiver isn't used: persons have to see it first.
    """

    why: str
    approval: Reply | None
    lacks: str
    waiver: Waiver | None = None

    @property
    def refuses(self) -> bool:
        return bool(self.why) and self.approval is None


def judge_consent(
    digest: str,
    asked_because: str,
    starters: Sequence[Starter],
    answers: Sequence[Reply],
    waiver: Waiver | None,
) -> Consent:
    """Decide whether persons' decisions permit a plan.

    :param asked_because: the result of :func:`asks_for_approval`.
    :param starters: starters of the run. If they are unknown, nobody is certainly a second person.
    :param answers: answers about this plan or others, the oldest first.
    :param waiver: waiver of the plan. An approval from before the waiver doesn't count.
    """
    if not asked_because:
        return Consent("", None, "", waiver)
    lacks = "nobody has approved it"
    if not starters:
        unknown = "the journal has no record of who began the run, so nobody is certainly a second person"
        return Consent(asked_because, None, unknown, waiver)
    for answer in answers:
        person = answer.approver
        if answer.digest != digest or person is None:
            continue
        began = [s for s in starters if s.realm is not person.realm or s.person is not None]
        same = [s for s in began if s.person is None or not person.is_another(s.person)]
        if same:
            same_person = same[0].person
            named = same_person.text if same_person is not None else f"a run of {same[0].realm.value}"
            lacks = f"{person.text} approved it, but isn't certainly another person than its starter, {named}"
        elif waiver is not None and answer.at_ms < waiver.at_ms:
            lacks = f"{person.text} approved it before {waiver.person} waived its receipts"
        else:
            return Consent(asked_because, answer, "", waiver)
    return Consent(asked_because, None, lacks, waiver)


def shorter_retention(recorded: RecordedPolicy, kept_ms: int | None) -> str:
    """Return a clause on settings that keep segments for less time than before, or "".

    :param kept_ms: for how long the settings keep segments now, in milliseconds, or None if unknown.
    """
    if kept_ms is None:
        return "it is unknown for how long its settings keep segments"
    if recorded.kept_ms is None or kept_ms >= recorded.kept_ms:
        return ""
    before, now = duration_text(recorded.kept_ms), duration_text(kept_ms)
    return f"its settings kept segments for {before}, and now for {now}"


def asks_for_approval(
    decisions: Sequence[Decision],
    request: PlanRequest,
    recorded: RecordedPolicy,
    policy: Policy,
    waiver: Waiver | None,
    shorter: str,
) -> str:
    """Return why a second person has to approve a deletion, as a clause, or "" if nobody has to.

    :param recorded: the policy in the journal. Settings may ask for more, never for less.
    :param shorter: the result of :func:`shorter_retention`.
    """
    approval = recorded.raised_by(policy.approval, policy.minimum_retention_hours).approval
    if approval is ApprovalPolicy.NONE or not decisions:
        return ""
    prefix = f"the store's policy is approval: {approval.value}"
    if approval is ApprovalPolicy.ALWAYS:
        return prefix
    least, hours = recorded.minimum_retention_hours, policy.minimum_retention_hours
    if request.forced:
        return f"{prefix}, and a person asked to ignore age"
    if waiver is not None:
        return f"{prefix}, and {waiver.person} waived its receipts"
    if recorded.archived and policy.archive is ArchiveMode.OFF:
        return f"{prefix}, and archive was required, and is off"
    if any(decision.reason is Reason.FORCED for decision in decisions):
        return f"{prefix}, and segments that have not expired would be deleted"
    if least is not None and (hours is None or hours < least):
        return f"{prefix}, and minimum_retention_hours was {least}, and is {hours or 'none'}"
    return f"{prefix}, and {shorter}" if shorter else ""


def judge(
    decision: Decision,
    planned: Segment,
    receipts: Sequence[Receipt],
    faults: Mapping[SegmentIdentity, str],
    policy: Policy,
    waiver: Waiver | None,
    acts: OwnActs = NO_ACTS,
    unarchived: str = "",
    lacking: str = "",
    *,
    consent: Consent,
) -> Verdict:
    """Decide whether an eligible segment passes.

    :param decision: the fresh plan's decision, with the file as it is now.
    :param planned: the same segment in the approved plan.
    :param receipts: receipts of this store and lineage for this log and base offset.
    :param faults: the receipts that aren't valid, and why.
    :param unarchived: a clause of ``ArchivePermits`` on the rule that needs no copy of the log, or "".
    :param lacking: a clause of ``ArchivePermits`` on topics that the only receipt lacks by a rule, or "".
    :param consent: persons' decision on the approved plan, from :func:`judge_consent`.
    """
    segment = decision.segment
    if consent.refuses:
        return Verdict(decision, Passage.REFUSED, None, f"{consent.why}: {consent.lacks}")
    as_planned = is_as_planned(segment, planned, acts)
    if policy.archive is ArchiveMode.OFF:
        if as_planned:
            return Verdict(decision, Passage.ARCHIVE_OFF, None, "the store's policy is archive: off")
        return Verdict(decision, Passage.REFUSED, None, _touched_text(planned))
    receipt, doubt = _find_valid(receipts, faults, lacking)
    if receipt is None and unarchived:
        if as_planned:
            return Verdict(decision, Passage.NOT_ARCHIVED, None, unarchived)
        return Verdict(decision, Passage.REFUSED, None, _touched_text(planned))
    if receipt is None and waiver is not None:
        if as_planned:
            detail = f"waived by {waiver.person}: {waiver.reason} ({doubt})"
            return Verdict(decision, Passage.WAIVED, None, detail)
        return Verdict(decision, Passage.REFUSED, None, _touched_text(planned))
    if receipt is None:
        return Verdict(decision, Passage.REFUSED, None, doubt)
    if fault := files_fault_of(segment, receipt):
        return Verdict(decision, Passage.REFUSED, None, fault)
    but = "" if receipt.is_whole else f", but for {lacking}"
    if not is_proven_file(segment, receipt, acts):
        return Verdict(decision, Passage.HASH_AGAIN, receipt, f"touched since its copy was proven{but}")
    if not receipt.was_settled:
        return Verdict(
            decision, Passage.HASH_AGAIN, receipt, f"proven when a later write might not show{but}"
        )
    return Verdict(decision, Passage.PROVEN, receipt, f"as it was when its copy was proven{but}")


def is_proven_file(segment: Segment, receipt: Receipt, acts: OwnActs) -> bool:
    """Return whether a segment's files are unchanged, or only we have touched them, since their proof."""
    if files_fault_of(segment, receipt):
        return False
    # A receipt that was made under a hold has the mtime from before the hold, but the hold's ctime.
    before_hold = replace(segment.facts, mtime_ns=segment.mtime_ns)
    recorded, proven = receipt.source_facts, {companion.name: companion for companion in receipt.companions}
    return (acts.same_file(segment.facts, recorded) or NO_ACTS.same_file(before_hold, recorded)) and all(
        acts.same_file(facts, proven[Path(facts.path).name].facts_in(Path(facts.path).parent))
        for facts in segment.companions
    )


def files_fault_of(segment: Segment, receipt: Receipt) -> str:
    """Return why a receipt differs from a segment in end offset or companions' names, or "" if it doesn't.

    If the segment is one file whose offsets count bytes, nothing is compared: size and hash prove its end.
    """
    if (segment.end, segment.companions, receipt.end_offset, receipt.files) == (None, (), None, None):
        return ""
    try:
        proven = [companion.name for companion in receipt.companions]
    except ReceiptError as error:
        return f"its receipt is not valid: {error}"
    names = [Path(facts.path).name for facts in segment.companions]
    if not has_companions(receipt.broker, proven, names):
        return (
            f"its receipt has the companions {', '.join(proven) or 'none'}, the store has "
            f"{', '.join(names) or 'none'}"
        )
    if segment.end_offset != receipt.end:
        return f"its receipt ends at offset {receipt.end}, the segment at {segment.end_offset}"
    return ""


def is_as_planned(segment: Segment, planned: Segment, acts: OwnActs = NO_ACTS) -> bool:
    """Return whether a segment is unchanged, or only we have touched its files since the plan.

    A hold sets a segment's mtime, so its mtime and age don't show a write. Each write moves the ctime.
    """
    return segment.end == planned.end and same_files(segment.files, planned.files, acts)


def same_files(found: Sequence[FileFacts], known: Sequence[FileFacts], acts: OwnActs) -> bool:
    """Return whether a segment's files are unchanged, or only we have touched them.

    :param found: the segment's own file first, then its companions by name. ``known`` has the same order.
    """
    names = [[Path(file.path).name for file in files[1:]] for files in (found, known)]
    return names[0] == names[1] and all(
        acts.same_file(now, then) for now, then in zip(found, known, strict=True)
    )


def same_content(left: Segment, right: Segment) -> bool:
    """Return whether a segment has the same files in two snapshots, without a write between them."""
    return _content_of(left) == _content_of(right)


def _content_of(segment: Segment) -> tuple[int | tuple[int, int, int, int] | None, ...]:
    facts = replace(segment.facts, mtime_ns=segment.mtime_ns)
    files = (facts, *segment.companions)
    return (segment.end, *((file.device, file.inode, file.size_bytes, file.mtime_ns) for file in files))


def _find_valid(
    receipts: Sequence[Receipt], faults: Mapping[SegmentIdentity, str], lacking: str
) -> tuple[Receipt | None, str]:
    """Return the one valid receipt, or None and the reason.

    If a receipt is partial for another reason than an archive rule, it proves nothing, whatever rules permit.
    """
    if not receipts:
        return None, "no receipt in the lake"
    if len(receipts) > 1:
        hashes = ", ".join(receipt.sha256 for receipt in receipts)
        return None, f"the segment has several receipts, with SHA-256 {hashes}"
    (receipt,) = receipts
    if not (receipt.is_whole or (receipt.lacks_by_rules and lacking)):
        return None, f"its receipt proves no bytes: {receipt.end_text}"
    if receipt.identity in faults:
        return None, f"its receipt is not valid: {faults[receipt.identity]}"
    return receipt, ""


def _touched_text(planned: Segment) -> str:
    return f"{planned.facts.path} changed after the plan, and no receipt proves its bytes: plan again"
