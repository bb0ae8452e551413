"""The gate: here, and nowhere else, it is decided that a segment may be deleted. Pure decisions; nothing here
reads or deletes.

A segment goes, with its companions, when (1) the approved plan and a fresh one both let it go, together with
every older segment of its log, (2) a valid receipt proves that its bytes and theirs are in the lake, or
the store's policy, an archive rule or a person's waiver does without, for exactly the files that were
planned, and (3) a second person has approved the plan, where the store's policy asks for one. What is not
known counts as no.
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
    """The ground on which a segment passes, or that it doesn't pass."""

    PROVEN = "proven"
    """A valid receipt, and the file is as it was when it was proven."""
    HASH_AGAIN = "hash-again"
    """A valid receipt, but the file was touched: it passes if its SHA-256 is still the receipt's."""
    ARCHIVE_OFF = "archive-off"
    WAIVED = "waived"
    NOT_ARCHIVED = "not-archived"
    """An archive rule lets its topic go without a copy; :mod:`unarchived` says when."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """:param receipt: the proof of the segment; None where it passes without one, or is refused.
    :param covers: where other nodes' receipts prove it: all of them, ``receipt`` being the first.
    :param sha256: of the segment's own file when it was compared with these, where it was hashed.
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
    """Segments that both plans delete, log by log and oldest first; each other one with why it stays."""

    go: tuple[Decision, ...]
    stay: tuple[Decision, ...]


def request_again(approved: Plan, request: PlanRequest) -> PlanRequest:
    """The request to decide by again when ``approved`` is released.

    Archiving may take longer than the deleteWhen hour: a pass that the clock began may end after it, as a
    manual one. A full disk has to be full still.
    """
    by_clock = any(trigger.cause is Cause.TIME_UP for trigger in approved.triggers)
    return replace(request, manual=request.manual or by_clock)


def still_eligible(approved: Plan, fresh: Plan) -> Eligible:
    """Cut the approved plan down to the prefix of each log that may still go.

    :param fresh: decided just now, while the store is held, and cut by the lag policy.
    """
    wanted = {segment.id: segment for segment in approved.to_delete}
    eligible = [_still_eligible(wanted, log) for log in fresh.logs]
    gone = [
        replace(decision, reason=Reason.NO_CAUSE, detail="its log is not in the plan that was made just now")
        for decision in approved.decisions
        if decision.deletes and decision.segment.log not in fresh.log_names
    ]
    return Eligible(
        go=tuple(decision for log in eligible for decision in log.go),
        stay=(*(decision for log in eligible for decision in log.stay), *gone),
    )


def lacking_companions(planned: Segment, now: Segment) -> str:
    """Name companions that a segment lost, though its own file stays, as a clause; "": none."""
    left = {Path(file.path).name for file in now.companions}
    gone = [file.path for file in planned.companions if Path(file.path).name not in left]
    return (
        f"expected {', '.join(gone)} beside it, found no file, and none of our runs deleted it"
        if gone
        else ""
    )


def _still_eligible(wanted: Mapping[SegmentId, Segment], fresh: LogPlan) -> Eligible:
    go: list[Decision] = []
    stay: list[Decision] = []
    blocked: Decision | None = None
    for decision in fresh.decisions:
        segment = decision.segment
        if blocked is None:
            if segment.id not in wanted:
                blocked = replace(decision, detail="not in the approved plan")
            elif not decision.deletes:
                blocked = decision
            elif lacking := lacking_companions(wanted[segment.id], segment):
                blocked = replace(decision, detail=f"{lacking}: it waits for a later plan")
            else:
                go.append(decision)
                continue
        if segment.id in wanted:
            stay.append(blocked if blocked.segment == segment else _behind(decision, blocked))
    return Eligible(tuple(go), tuple(stay))


def _behind(decision: Decision, blocked: Decision) -> Decision:
    if not decision.deletes:
        return decision
    detail = f"behind {blocked.segment.name}, which stays: {blocked.detail}"
    return Decision(decision.segment, Reason.BEHIND_KEPT, detail)


@dataclass(frozen=True, slots=True)
class Consent:
    """Persons' decisions on a plan.

    :param why: a second person has to approve it, as a clause; "": nobody has to.
    :param approval: by which it may go; None: none counts.
    :param lacks: why none does, as a clause; "": one counts, or nobody has to.
    :param waiver: the plan's that was known then: a later one is for persons to see first.
    """

    why: str
    approval: Reply | None
    lacks: str
    waiver: Waiver | None = None

    @property
    def refuses(self) -> bool:
        """Return whether no deletion is permitted yet."""
        return bool(self.why) and self.approval is None


def consent_to(
    digest: str,
    asked_because: str,
    starters: Sequence[Starter],
    answers: Sequence[Reply],
    waiver: Waiver | None,
) -> Consent:
    """Decide whether persons' decisions permit a plan.

    :param digest: of the plan, as a run recorded it.
    :param asked_because: as of :func:`asks_for_approval`.
    :param starters: of the run; empty: it isn't known who began it, so no person is certainly a second one.
    :param answers: of this plan or others, the oldest first.
    :param waiver: of the plan: who approved it before didn't know that proof would be lacking.
    """
    if not asked_because:
        return Consent("", None, "", waiver)
    lacks = "nobody has approved it"
    if not starters:
        unknown = "who began the run isn't recorded, so no person is certainly a second one"
        return Consent(asked_because, None, unknown, waiver)
    for answer in answers:
        person = answer.approver
        if answer.digest != digest or person is None:
            continue
        began = [one for one in starters if one.realm is not person.realm or one.person is not None]
        same = [one for one in began if one.person is None or not person.is_another(one.person)]
        if same:
            who = same[0].person
            named = who.text if who is not None else f"a run of {same[0].realm.value}"
            lacks = f"{person.text} approved it, who isn't certainly another person than its starter, {named}"
        elif waiver is not None and answer.at_ms < waiver.at_ms:
            lacks = f"{person.text} approved it before {waiver.person} waived its receipts"
        else:
            return Consent(asked_because, answer, "", waiver)
    return Consent(asked_because, None, lacks, waiver)


def shorter_retention(recorded: RecordedPolicy, kept_ms: int | None) -> str:
    """Return a clause on settings that keep segments for less time than before; "": there are none.

    :param kept_ms: for how long they keep them now; None: it isn't known.
    """
    if kept_ms is None:
        return "for how long its settings keep segments isn't known"
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
    """Return why a second person has to approve what is to be deleted, as a clause; "": nobody has to.

    :param decisions: of the segments that go.
    :param recorded: by the journal; settings may ask for more, never for less.
    :param shorter: as of :func:`shorter_retention`.
    """
    approval = recorded.raised_by(policy.approval, policy.minimum_retention_hours).approval
    if approval is ApprovalPolicy.NONE or not decisions:
        return ""
    said = f"the store's policy is approval: {approval.value}"
    if approval is ApprovalPolicy.ALWAYS:
        return said
    least, hours = recorded.minimum_retention_hours, policy.minimum_retention_hours
    if request.forced:
        return f"{said}, and a person asked to ignore age"
    if waiver is not None:
        return f"{said}, and {waiver.person} waived its receipts"
    if recorded.archived and policy.archive is ArchiveMode.OFF:
        return f"{said}, and archive was required, and is off"
    if any(decision.reason is Reason.FORCED for decision in decisions):
        return f"{said}, and segments would be deleted that have not expired"
    if least is not None and (hours is None or hours < least):
        return f"{said}, and minimum_retention_hours was {least}, and is {hours or 'none'}"
    return f"{said}, and {shorter}" if shorter else ""


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

    :param decision: the fresh plan's, with the file as it is now.
    :param planned: the same segment as the approved plan knew it.
    :param receipts: those of this store and lineage for this log and base offset.
    :param faults: receipts that are not valid, and why.
    :param waiver: of the approved plan.
    :param acts: our own changes to the store's files.
    :param unarchived: by which rule its log may go without a copy, as a clause of ``ArchivePermits``; "": it
        may not.
    :param lacking: which topics the only receipt lacks, and by which rules it may, likewise.
    :param consent: persons' decision on the approved plan, by :func:`consent_to`.
    """
    segment = decision.segment
    if consent.refuses:
        return Verdict(decision, Passage.REFUSED, None, f"{consent.why}: {consent.lacks}")
    as_planned = is_as_planned(segment, planned, acts)
    if policy.archive is ArchiveMode.OFF:
        if as_planned:
            return Verdict(decision, Passage.ARCHIVE_OFF, None, "the store's policy is archive: off")
        return Verdict(decision, Passage.REFUSED, None, _touched(planned))
    receipt, doubt = _valid(receipts, faults, lacking)
    if receipt is None and unarchived:
        if as_planned:
            return Verdict(decision, Passage.NOT_ARCHIVED, None, unarchived)
        return Verdict(decision, Passage.REFUSED, None, _touched(planned))
    if receipt is None and waiver is not None:
        if as_planned:
            said = f"waived by {waiver.person}: {waiver.reason} ({doubt})"
            return Verdict(decision, Passage.WAIVED, None, said)
        return Verdict(decision, Passage.REFUSED, None, _touched(planned))
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
    """Return whether only we have touched a segment's files since they were proven.

    :param acts: our own changes to the store's files.
    """
    if files_fault_of(segment, receipt):
        return False
    # A receipt has the mtime from before a hold set another one, with the ctime that came of that.
    before_hold = replace(segment.facts, mtime_ns=segment.mtime_ns)
    known, proven = receipt.source_facts, {one.name: one for one in receipt.companions}
    return (acts.same_file(segment.facts, known) or NO_ACTS.same_file(before_hold, known)) and all(
        acts.same_file(facts, proven[Path(facts.path).name].facts_in(Path(facts.path).parent))
        for facts in segment.companions
    )


def files_fault_of(segment: Segment, receipt: Receipt) -> str:
    """Return why a receipt is of another end, or of other companions by name; "" where it isn't.

    Of one file whose offsets count bytes, its size and hash tell all of that.
    """
    if (segment.end, segment.companions, receipt.end_offset, receipt.files) == (None, (), None, None):
        return ""
    try:
        proven = [companion.name for companion in receipt.companions]
    except ReceiptError as error:
        return f"its receipt is not valid: {error}"
    there = [Path(facts.path).name for facts in segment.companions]
    if not has_companions(receipt.broker, proven, there):
        return (
            f"its receipt has the companions {', '.join(proven) or 'none'}, the store has "
            f"{', '.join(there) or 'none'}"
        )
    if segment.end_offset != receipt.end:
        return f"its receipt ends at offset {receipt.end}, the segment at {segment.end_offset}"
    return ""


def is_as_planned(segment: Segment, planned: Segment, acts: OwnActs = NO_ACTS) -> bool:
    """Return whether a segment is unchanged, or only we have touched its files since.

    Of a held one neither its age tells that, nor an mtime that a hold explains: a write moves the ctime too.
    """
    return segment.end == planned.end and same_files(segment.files, planned.files, acts)


def same_files(found: Sequence[FileFacts], known: Sequence[FileFacts], acts: OwnActs) -> bool:
    """Return whether a segment's files are unchanged, or only we have touched them.

    :param found: its own first, then its companions by name; ``known`` likewise.
    """
    names = [[Path(file.path).name for file in files[1:]] for files in (found, known)]
    return names[0] == names[1] and all(
        acts.same_file(now, then) for now, then in zip(found, known, strict=True)
    )


def same_content(left: Segment, right: Segment) -> bool:
    """Return whether two looks saw the same files, unwritten in between, whatever else was done to them."""
    return _content(left) == _content(right)


def _content(segment: Segment) -> tuple[int | tuple[int, int, int, int] | None, ...]:
    facts = replace(segment.facts, mtime_ns=segment.mtime_ns)
    files = (facts, *segment.companions)
    return (segment.end, *((file.device, file.inode, file.size_bytes, file.mtime_ns) for file in files))


def _valid(
    receipts: Sequence[Receipt], faults: Mapping[SegmentIdentity, str], lacking: str
) -> tuple[Receipt | None, str]:
    """Return the one valid receipt, or None and the reason.

    One that is partial by any act but archive rules proves nothing, whatever rules permit.
    """
    if not receipts:
        return None, "no receipt in the lake"
    if len(receipts) > 1:
        hashes = ", ".join(receipt.sha256 for receipt in receipts)
        return None, f"several receipts for one segment, with SHA-256 {hashes}"
    (receipt,) = receipts
    if not (receipt.is_whole or (receipt.lacks_by_rules and lacking)):
        return None, f"its receipt proves no bytes: {receipt.end_text}"
    if receipt.identity in faults:
        return None, f"its receipt is not valid: {faults[receipt.identity]}"
    return receipt, ""


def _touched(planned: Segment) -> str:
    return f"{planned.facts.path} changed since it was planned, and nothing proves its bytes: plan again"
