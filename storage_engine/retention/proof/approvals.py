"""The journal's record of approvals by a second person: policies, starters of runs, questions and answers.

:mod:`storage_engine.retention.proof.gate` decides from this record. No event of an approval ever expires.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import NoneType

from storage_engine.commands import Command
from storage_engine.core.clock import HOUR_MS, clock_ms
from storage_engine.core.host import this_host, user_name
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError, NotApprovedError, RunStateError
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord
from storage_engine.model.broker.broker_store import course_of
from storage_engine.model.plan import (
    NOTHING_RECORDED,
    Decision,
    Person,
    PlanQuestion,
    Realm,
    RecordedPolicy,
    Reply,
    Said,
    Starter,
    Trigger,
    Urgency,
)
from storage_engine.model.settings.policy import ApprovalPolicy, ArchiveMode
from storage_engine.retention.proof.gate import Consent, asks_for_approval, judge_consent, shorter_retention
from storage_engine.retention.proof.history import segment_subject
from storage_engine.retention.store.broker_answers import refuse
from storage_engine.retention.store.brokers import may_set_age, sets_age
from storage_engine.retention.store.context import Context, approved_plan
from storage_engine.retention.store.stamp import read_stamp, update_stamp

_POLICY = "policy"
_STARTER = "starter"
_OWN_RETENTION = "retention"
_POLICY_RUN = "approval-policy"
"""Key of the run under which two persons lower a store's policy."""
LOWERING_HOURS = 72
"""Time in which another person may approve a requested lower policy.

A running broker's own shorter retention also counts only after this time.
"""


def this_account() -> Person:
    """Return the account of this process by its real user id, and the account behind sudo if it is known.

    An account may claim any name: another name never permits more.
    """
    uid = os.getuid()
    name, behind = user_name(uid), os.environ.get("SUDO_USER", "")
    return Person(Realm.SHELL, name, uid, behind if behind != name else "", this_host())


def recorded_policy(journal: Journal, store_id: str) -> RecordedPolicy:
    """Return the strictest recorded approval policy of a store since two persons last lowered it."""
    events = journal.results_of(store_id, Step.APPROVAL, [_POLICY])
    return from_jsonable(RecordedPolicy, events[-1].payload) if events else NOTHING_RECORDED


def record_policy(context: Context, run: Run) -> RecordedPolicy:
    """Record the approval that a store's settings require, if it is stricter than before.

    It is recorded in the journal, and in the store's own stamp as far as that can be written.
    """
    root, record, policy = context.store.real_root, context.record, context.store.policy
    recorded = recorded_policy(context.journal, run.store_id)
    stamp = read_stamp(root)
    stamped = stamp.policy if stamp is not None else None
    standing = max((recorded, stamped or NOTHING_RECORDED), key=lambda policy: policy.at_ms)
    kept_ms = _kept_ms(context)
    archived = policy.archive is not ArchiveMode.OFF
    raised = standing.raised_by(policy.approval, policy.minimum_retention_hours, kept_ms, archived=archived)
    if raised.approval is not ApprovalPolicy.NONE and _has_stood(context, run, kept_ms):
        raised = replace(raised, kept_ms=kept_ms)
    if raised != standing:
        raised = replace(raised, at_ms=max(clock_ms(), standing.at_ms + 1))
    if raised != recorded:
        context.journal.record(run, Step.APPROVAL, Phase.RESULT, [(_POLICY, to_jsonable(raised))])
    if stamped != (None if raised.approval is ApprovalPolicy.NONE else raised):
        with suppress(OSError):
            update_stamp(root, record.store_id, record.lineages, (), policy=raised)
    return raised


def _kept_ms(context: Context) -> int | None:
    """Return for how many ms settings keep segments. None if unknown, or if only a store's files say so."""
    if not may_set_age(context.store):
        return None
    kept_ms = course_of(context.broker).kept_ms()
    if type(kept_ms) not in (int, NoneType):
        refuse(f"broker {context.store.broker}: course.kept_ms", "type int, or None", f"{kept_ms!r:.400}")
    return kept_ms


def _has_stood(context: Context, run: Run, kept_ms: int | None) -> bool:
    """Return whether a running broker has had its present retention for :data:`LOWERING_HOURS`.

    A retention that differs from the recorded one is recorded, and its time begins. A retention that is given
    to a run doesn't count: it is one person's decision.
    """
    if kept_ms is None or not context.store.is_live or sets_age(context.store):
        return False
    last = context.journal.results_of(run.store_id, Step.APPROVAL, [_OWN_RETENTION])[-1:]
    if not last or last[0].payload["kept_ms"] != kept_ms:
        context.journal.record(run, Step.APPROVAL, Phase.RESULT, [(_OWN_RETENTION, {"kept_ms": kept_ms})])
        return False
    return clock_ms() - last[0].at_ms >= LOWERING_HOURS * HOUR_MS


def record_starter(context: Context, run: Run, starter: Starter | None) -> None:
    """Record the starter of a run, before its plan. If the store requires no approval, nothing is recorded.

    :param starter: the starter, or None for the account of this process.
    """
    if run.request.dry_run or record_policy(context, run).approval is ApprovalPolicy.NONE:
        return
    starter = starter or Starter(Realm.SHELL, this_account())
    context.journal.record(run, Step.APPROVAL, Phase.INTENT, [(_STARTER, to_jsonable(starter))])


def starters_of(journal: Journal, run: Run) -> tuple[Starter, ...]:
    """Return the starters of a run: several if it was killed before its plan was recorded."""
    intents = journal.events(run, Step.APPROVAL, Phase.INTENT)
    return tuple(from_jsonable(Starter, event.payload) for event in intents if event.subject == _STARTER)


def answers_about(journal: Journal, store_id: str, digest: str) -> tuple[Reply, ...]:
    """Return the answers about a plan in all runs of a store, the oldest first."""
    events = journal.results_of(store_id, Step.APPROVAL, [digest])
    return tuple(from_jsonable(Reply, event.payload) for event in events)


def record_answer(journal: Journal, run: Run, answer: Reply) -> None:
    """Record the answer about a run's plan, durably."""
    journal.record(run, Step.APPROVAL, Phase.RESULT, [(answer.digest, to_jsonable(answer))])


def record_question(journal: Journal, run: Run, question: PlanQuestion) -> None:
    journal.record(run, Step.APPROVAL, Phase.INTENT, [(question.digest, to_jsonable(question))])


def record_reply(
    journal: Journal, run: Run, person: Person | None, *, approves: bool, at_ms: int, fault: str
) -> Reply:
    """Record the answer to the last question about a run's plan, and whether it counts.

    :param person: who answered, or None if nobody answered in time.
    :param fault: why an approval by this person can't count, as a clause, or "" if it can.
    :raises RunStateError: there is no question about this plan.
    """
    digest = approved_plan(run).digest
    events = [event for event in journal.events(run, Step.APPROVAL, Phase.INTENT) if event.subject == digest]
    if not events:
        raise RunStateError(
            f"run {run.run_key!r}: expected a question about its plan {digest}, found none. Nothing was "
            "recorded. Clear the task that asks."
        )
    question = from_jsonable(PlanQuestion, events[-1].payload)
    starters, waiver = starters_of(journal, run), journal.find_waiver(digest)
    answer = Said.APPROVED if approves else Said.REJECTED
    consent = judge_consent(digest, question.why, starters, [Reply(digest, answer, person, at_ms)], waiver)
    detail = ""
    if person is None:
        answer, detail = Said.TIMED_OUT, "nobody answered"
    elif question.until_ms is not None and at_ms >= question.until_ms:
        answer, detail = Said.TIMED_OUT, f"{person.text} answered after {time_text(question.until_ms)}"
    elif approves and (fault or consent.refuses):
        answer, detail = Said.REFUSED, fault or consent.lacks
    reply = Reply(digest, answer, person, at_ms, detail)
    record_answer(journal, run, reply)
    return reply


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question that nobody has answered yet, with the key of its run."""

    run_key: str
    question: PlanQuestion


def open_questions(journal: Journal, store_id: str, now_ms: int) -> tuple[OpenQuestion, ...]:
    """Return questions about a store's plans that are open and may still be answered."""
    newest: dict[tuple[str, str], OpenQuestion | None] = {}
    for event in journal.store_events(store_id, Step.APPROVAL):
        if event.subject in (_POLICY, _STARTER, _OWN_RETENTION):
            continue
        question = None
        if event.phase is Phase.INTENT:
            question = OpenQuestion(event.run_key, from_jsonable(PlanQuestion, event.payload))
        newest[event.run_key, event.subject] = question
    return tuple(
        entry
        for entry in newest.values()
        if entry is not None and (entry.question.until_ms is None or now_ms < entry.question.until_ms)
    )


def was_refused(journal: Journal, store_id: str, digest: str, since_ms: int) -> bool:
    """Return whether the last answer about a plan came at ``since_ms`` or later, and wasn't an approval."""
    last = answers_about(journal, store_id, digest)[-1:]
    return any(reply.said is not Said.APPROVED and reply.at_ms >= since_ms for reply in last)


def read_consent(context: Context, run: Run, decisions: Sequence[Decision]) -> Consent:
    """Return whether the decisions of persons in the journal permit a run's plan now.

    :param decisions: decisions on the segments to delete: those of the plan, and those made just now.
    """
    journal, digest = context.journal, approved_plan(run).digest
    recorded = record_policy(context, run)
    waiver = journal.find_waiver(digest)
    going = [decision for decision in decisions if decision.deletes]
    shorter = shorter_retention(recorded, _kept_ms(context)) if may_set_age(context.store) else ""
    why = asks_for_approval(going, run.request, recorded, context.store.policy, waiver, shorter)
    if not why:
        return judge_consent(digest, why, (), (), waiver)
    answers = answers_about(journal, run.store_id, digest)
    return judge_consent(digest, why, starters_of(journal, run), answers, waiver)


@dataclass(frozen=True, slots=True)
class Told:
    """What a report says about approval.

    :param text: a sentence, or "" if no question is on record.
    :param is_refused: the last question about the run was answered, and no approval counts.
    :param is_moot: other runs have deleted all planned segments meanwhile, so nobody has to be told.
    """

    text: str = ""
    is_refused: bool = False
    is_moot: bool = False


def read_approval(journal: Journal, run: Run) -> Told:
    """Return the record of a run's approval, whatever the policy is now."""
    if run.plan_digest is None:
        return Told()
    digest, waiver = run.plan_digest, journal.find_waiver(run.plan_digest)
    answers = answers_about(journal, run.store_id, digest)
    consent = judge_consent(digest, _POLICY, starters_of(journal, run), answers, waiver)
    if consent.approval is not None and consent.approval.person is not None:
        return Told(f"Approved by {consent.approval.person.text} at {time_text(consent.approval.at_ms)}")
    events = [event for event in journal.events(run, Step.APPROVAL) if event.subject == digest]
    if not events:
        return Told()
    if events[-1].phase is Phase.INTENT:
        question = from_jsonable(PlanQuestion, events[-1].payload)
        return Told(f"Waits for a second person since {time_text(question.asked_at_ms)}: {question.link}")
    answer = from_jsonable(Reply, events[-1].payload)
    word = answer.said.value.upper().replace("-", " ")
    by = f" by {answer.person.text}" if answer.person is not None else ""
    summary = f"{word}{by} at {time_text(answer.at_ms)}"
    if _is_moot(journal, run):
        return Told(f"{summary}: its segments were deleted by other runs", is_refused=True, is_moot=True)
    return Told(f"{summary}: nothing was deleted; {answer.detail or consent.lacks}", is_refused=True)


def _is_moot(journal: Journal, run: Run) -> bool:
    """Return whether other runs have deleted all segments of a run's plan since the plan was made."""
    if run.plan is None:
        return False
    planned = {segment_subject(segment.log, segment.base_offset) for segment in run.plan.to_delete}
    events = journal.results_of(run.store_id, Step.RELEASE, sorted(planned))
    return planned <= {event.subject for event in events if event.at_ms >= run.plan.decided_at_ms}


def note_question(context: Context, run: Run, consent: Consent) -> None:
    """Record, once in a run, that a run at a shell waits for a second person. Airflow asks by itself."""
    journal, digest = context.journal, approved_plan(run).digest
    subjects = {event.subject for event in journal.events(run, Step.APPROVAL)}
    at_shell = any(starter.realm is Realm.SHELL for starter in starters_of(journal, run))
    if consent.refuses and at_shell and digest not in subjects:
        link = str(Command("approve", f"STORE --digest {digest}"))
        record_question(journal, run, PlanQuestion(digest, consent.why, clock_ms(), None, link))


def question_alarms(
    asked: Sequence[OpenQuestion], triggers: Sequence[Trigger], by_itself: str
) -> tuple[str, ...]:
    """Return alarms on plans that wait for a second person while a disk is so full that age is ignored.

    :param by_itself: when the broker deletes by itself, as a clause.
    """
    full = next((cause for cause in triggers if cause.at_once or cause.urgency is Urgency.FORCED), None)
    # At a shell each run leaves a question: the last one counts.
    at_shell = [entry for entry in asked if entry.question.until_ms is None][-1:]
    return tuple(
        f"run {entry.run_key} waits for a second person since {time_text(entry.question.asked_at_ms)}, while "
        f"{full.detail}: answer at {entry.question.link}; {by_itself}"
        for entry in (*at_shell, *(entry for entry in asked if entry.question.until_ms is not None))
        if full is not None
    )


def require_consent(context: Context, run: Run, consent: Consent) -> None:
    """Make sure that a plan has the approvals that it needs.

    :raises NotApprovedError: a second person has to approve the run's plan, and none has.
    """
    if not consent.refuses:
        return
    digest = approved_plan(run).digest
    raise NotApprovedError(
        f"{context.store.real_root}: expected that a second person has approved plan {digest}, as "
        f"{consent.why}; found that {consent.lacks}. Nothing was deleted; archived segments stay archived. "
        "If the run is at a shell, another account has to run ",
        Command("approve", f"STORE --digest {digest}"),
        f". Then repeat this command with --run-key {run.run_key}. If the run is in Airflow, another user "
        "has to answer its task approve. A DAG has this task if its store names approvers in the option "
        "stores.",
    )


def approve_plan(journal: Journal, store: StoreRecord, digest: str, person: Person) -> tuple[Run, Reply]:
    """Record that a person approves a plan. Several approvals count as one.

    :raises BadInputError: no run has this plan; or the person is root, which may be anybody.
    :raises NotApprovedError: the approver may be the person who began the run.
    """
    _refuse_root(person)
    store_id = store.store_id
    runs = journal.runs_with_plan(store_id, digest)
    if not runs:
        raise BadInputError(
            f"{store.real_path}: expected a run with plan {digest}, found none. Nothing was recorded. "
            "Give the digest that the run printed when it stopped."
        )
    answer = Reply(digest, Said.APPROVED, person, clock_ms())
    waiver = journal.find_waiver(digest)
    lacks = ""
    for run in runs:
        starters = starters_of(journal, run)
        standing = judge_consent(digest, _POLICY, starters, answers_about(journal, store_id, digest), waiver)
        if standing.approval is not None and standing.approval.person == person:
            return run, standing.approval
        consent = judge_consent(digest, _POLICY, starters, [answer], waiver)
        if not consent.refuses:
            record_answer(journal, run, answer)
            return run, answer
        lacks = lacks or consent.lacks
    raise NotApprovedError(
        f"{store.real_path}: expected another person to approve plan {digest}, found that {lacks}. "
        "Nothing was recorded. Have another account run this command."
    )


def lower_policy(
    journal: Journal, store: StoreRecord, approval: ApprovalPolicy, minimum_hours: int | None, person: Person
) -> RecordedPolicy | None:
    """Ask for a lower policy, or approve one that another person has asked for.

    The store's settings have to be lowered as well: otherwise they raise the policy again. A shorter minimum
    retention also replaces the broker's recorded retention. Without a minimum, the next run records the
    retention that the broker has then. The next run also records whether proof is required.

    :return: the recorded policy from now on, or None if another person has to ask for the same.
    :raises BadInputError: the wanted policy isn't lower; or the person is root, which may be anybody.
    :raises NotApprovedError: the same person asks again.
    """
    _refuse_root(person)
    store_id, now_ms = store.store_id, clock_ms()
    policy = recorded_policy(journal, store_id)
    kept_ms = policy.kept_ms
    if kept_ms is not None:
        kept_ms = None if minimum_hours is None else min(kept_ms, minimum_hours * HOUR_MS)
    # A minimum that shortens the recorded retention replaces it, so it isn't a stricter policy.
    asks_more = policy.raised_by(approval, minimum_hours if kept_ms == policy.kept_ms else None) != policy
    wanted = RecordedPolicy(approval, minimum_hours, policy.persons, policy.at_ms, kept_ms)
    if asks_more or wanted == policy:
        raise BadInputError(
            f"{store.real_path}: expected less than approval: {policy.approval.value} with "
            f"minimum_retention_hours {policy.minimum_retention_hours or 'none'}, as the journal records, "
            f"found {approval.value} with {minimum_hours or 'none'}. Nothing was recorded. To require more, "
            "change the store's settings: they count from the next run on."
        )
    run = journal.run_without_plan(store_id, _POLICY_RUN)
    events = [event for event in journal.store_events(store_id, Step.APPROVAL) if event.subject == _POLICY]
    if events and events[-1].phase is Phase.INTENT and now_ms - events[-1].at_ms < LOWERING_HOURS * HOUR_MS:
        intended = from_jsonable(RecordedPolicy, events[-1].payload)
        if (intended.approval, intended.minimum_retention_hours) == (approval, minimum_hours):
            (first,) = intended.persons
            if not person.is_another(first):
                raise NotApprovedError(
                    f"{store.real_path}: expected another person to approve what {first.text} asked "
                    f"for at {time_text(events[-1].at_ms)}, found {person.text}. Nothing was recorded. Have "
                    "another account run this command."
                )
            lowered_ms = max(now_ms, policy.at_ms + 1)
            lowered = RecordedPolicy(approval, minimum_hours, (first, person), lowered_ms, kept_ms)
            journal.record(run, Step.APPROVAL, Phase.RESULT, [(_POLICY, to_jsonable(lowered))])
            return lowered
    lower = RecordedPolicy(approval, minimum_hours, (person,))
    journal.record(run, Step.APPROVAL, Phase.INTENT, [(_POLICY, to_jsonable(lower))])
    return None


def _refuse_root(person: Person) -> None:
    if person.uid == 0:
        raise BadInputError(
            f"expected the account of a second person, found {person.text}: root may be anybody, so root "
            "doesn't count as a second person. Nothing was recorded. Run this as the person's own account."
        )
