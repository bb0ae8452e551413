"""Approval by a second person, from the plan to the release, on real stores."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine import cycle
from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError, GateRefusedError, NotApprovedError
from storage_engine.journal.journal import Journal, Phase, Step, StoreRecord
from storage_engine.journal.tables import rows
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import (
    NOTHING_RECORDED,
    Cause,
    Person,
    PlanQuestion,
    PlanRequest,
    Realm,
    Reply,
    Said,
    Starter,
    Trigger,
    Urgency,
)
from storage_engine.model.settings.policy import ApprovalPolicy, ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.decisions import stamp
from storage_engine.retention.proof import approvals
from storage_engine.retention.proof.approvals import (
    OpenQuestion,
    answers_about,
    approve_plan,
    lower_policy,
    open_questions,
    question_alarms,
    record_answer,
    record_policy,
    record_question,
    record_reply,
    recorded_policy,
    starters_of,
)
from storage_engine.retention.release import releasing
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import Outcome, build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.context import Context, open_context
from storage_engine.retention.store.managed_store import PAGE, ManagedStore
from storage_engine.retention.store.stamp import stamp_path
from storage_engine.rocketmq.store.broker import FileCourse

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
NONE, FORCED, ALWAYS = ApprovalPolicy
ASKS = Policy(approval=ALWAYS)
ANN, BOB = (Person(Realm.SHELL, name, uid, host="h") for name, uid in (("ann", 1001), ("bob", 1002)))


@pytest.fixture(autouse=True)
def _ann_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "this_account", lambda: ANN)


def known(store: ManagedStore) -> tuple[Journal, StoreRecord]:
    journal = Journal(store.journal_url)
    (record,) = journal.all_stores()
    return journal, record


def digest_of(store: ManagedStore, run_key: str = "r") -> str:
    return steps.recorded_plan(store, run_key).digest


def stamp_of(store: ManagedStore) -> Any:
    return json.loads(stamp_path(store.real_root).read_bytes())


def approve(store: ManagedStore, digest: str, person: Person = BOB) -> None:
    approve_plan(*known(store), digest, person)


def with_policy(store: ManagedStore, **policy: Any) -> ManagedStore:
    return replace(store, policy=replace(store.policy, **policy))


def add_run(store: ManagedStore, run_key: str, max_segments: int, **asked: Any) -> str:
    steps.make_plan(store, run_key, PlanRequest(manual=True, max_segments=max_segments, **asked))
    steps.archive(store, run_key, steps.archive_jobs(store, run_key))
    return digest_of(store, run_key)


def test_nothing_is_recorded_of_a_store_that_asks_nobody(archived: Make) -> None:
    store = archived(max_segments=1)
    assert steps.release(store, "r").deleted
    journal, record = known(store)
    assert journal.store_events(record.store_id, Step.APPROVAL) == ()


@pytest.mark.parametrize("archive", [ArchiveMode.REQUIRED, ArchiveMode.OFF])
def test_a_release_waits_for_a_second_person_and_then_goes(
    archive: ArchiveMode, planned: Make, refuses: Callable[..., str]
) -> None:
    store = planned(max_segments=2, policy=replace(ASKS, archive=archive))
    if archive is ArchiveMode.REQUIRED:
        steps.archive(store, "r", steps.archive_jobs(store, "r"))
    digest = digest_of(store)
    for given in (None, digest):
        said = refuses(store, NotApprovedError, approved_digest=given)
        assert f"storage-engine approve STORE --digest {digest}" in said
        assert "--run-key r" in said
    journal, record = known(store)
    (asked,) = open_questions(journal, record.store_id, 1)
    assert asked.question.link == f"storage-engine approve STORE --digest {digest}"
    # To wait is no failure, and the run is not over.
    finished = finish(store, "r")
    assert (finished.outcome, finished.errors) == (Outcome.UNFINISHED, ())
    approve(store, digest)
    assert len(steps.release(store, "r").deleted) == 2
    assert build_report(store, "r").approval.startswith("Approved by bob (uid 1002) at ")


def test_who_began_the_run_may_not_approve_it_and_nor_may_root(
    archived: Make, refuses: Callable[..., str]
) -> None:
    store = archived(max_segments=1, policy=ASKS)
    for person, error, why in (
        (ANN, NotApprovedError, "isn't certainly another person"),
        (replace(BOB, uid=ANN.uid), NotApprovedError, "isn't certainly another person"),
        (replace(BOB, uid=0), BadInputError, "root doesn't count as a second person"),
    ):
        with pytest.raises(error, match=why):
            approve(store, digest_of(store), person)
    with pytest.raises(BadInputError, match="expected a run with plan 000"):
        approve(store, "0" * 64)
    journal, record = known(store)
    assert answers_about(journal, record.store_id, digest_of(store)) == ()
    # Even where the journal has it, by whatever means, the gate refuses it.
    record_answer(journal, journal.run(record.store_id, "r"), Reply(digest_of(store), Said.APPROVED, ANN, 1))
    assert "isn't certainly another person" in refuses(store, NotApprovedError)


def test_approved_twice_is_approved_once(archived: Make) -> None:
    store = archived(max_segments=1, policy=ASKS)
    approve(store, digest_of(store))
    approve(store, digest_of(store))
    journal, record = known(store)
    (answer,) = answers_about(journal, record.store_id, digest_of(store))
    assert (answer.person, answer.said) == (BOB, Said.APPROVED)
    assert steps.release(store, "r").deleted


def test_a_plan_that_grew_or_shrank_needs_an_approval_of_its_own(
    archived: Make, refuses: Callable[..., str]
) -> None:
    store = archived(max_segments=2, policy=ASKS)
    approve(store, digest_of(store))
    for run_key, count in (("smaller", 1), ("larger", 3)):
        add_run(store, run_key, count)
        with pytest.raises(NotApprovedError, match="nobody has approved it"):
            steps.release(store, run_key)
    # The same plan again is the same segments, as they were: one word is enough for both.
    assert add_run(store, "same", 2) == digest_of(store)
    assert len(steps.release(store, "same").deleted) == 2


def test_what_falls_due_while_a_question_is_open_is_archived_by_the_next_run(
    archived: Make, refuses: Callable[..., str]
) -> None:
    store = archived(max_segments=2, policy=ASKS)
    journal, record = known(store)
    run = journal.run(record.store_id, "r")
    record_question(
        journal, run, PlanQuestion(digest_of(store), "why", asked_at_ms=1, until_ms=100, link="here")
    )
    refuses(store, NotApprovedError)
    (asked,) = open_questions(journal, record.store_id, 99)
    assert (asked.run_key, asked.question.link) == ("r", "here")
    assert open_questions(journal, record.store_id, 100) == ()
    steps.make_plan(store, "next", PlanRequest(manual=True, max_segments=4))
    assert len(steps.archive(store, "next", steps.archive_jobs(store, "next"))) == 2
    with pytest.raises(NotApprovedError):
        steps.release(store, "next")
    # The older question is answered after all: its run takes what it asked for, the next one the rest.
    approve(store, digest_of(store))
    assert [one.run_key for one in open_questions(journal, record.store_id, 99)] == ["next"]
    assert len(steps.release(store, "r").deleted) == 2
    approve(store, digest_of(store, "next"))
    result = steps.release(store, "next")
    assert (len(result.deleted), len(result.deleted_by_others)) == (2, 2)


def test_a_policy_that_is_raised_after_the_plan_asks_too(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=1)
    raised = with_policy(store, approval=ALWAYS)
    assert "no record of who began the run" in refuses(raised, NotApprovedError)
    # And by now it's on record, whatever the settings say.
    refuses(store, NotApprovedError)


def test_a_lower_policy_needs_two_persons(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=1, policy=replace(ASKS, minimum_retention_hours=2))
    lowered = with_policy(store, approval=NONE, minimum_retention_hours=None)
    assert "approval: always" in refuses(lowered, NotApprovedError)
    journal, record = known(store)
    assert lower_policy(journal, record, NONE, None, ANN) is None
    with pytest.raises(NotApprovedError, match="expected another person to approve"):
        lower_policy(journal, record, NONE, None, ANN)
    with pytest.raises(BadInputError, match="root doesn't count as a second person"):
        lower_policy(journal, record, NONE, None, replace(BOB, uid=0))
    refuses(lowered, NotApprovedError)
    # Another wish is another question.
    assert lower_policy(journal, record, FORCED, None, BOB) is None
    found = lower_policy(journal, record, FORCED, None, ANN)
    assert found is not None
    assert found.persons == (BOB, ANN)
    assert recorded_policy(journal, record.store_id).approval is FORCED
    assert steps.release(lowered, "r").deleted


def test_a_renamed_store_with_a_new_identity_asks_for_no_less(planned: Make) -> None:
    store = planned(max_segments=1, policy=ASKS)
    cycle.archive(cycle.Cleanup(store, "r"))
    moved = Path(store.root).with_name("renamed")
    Path(store.root).rename(moved)
    renamed = replace(store, root=str(moved), name="renamed", policy=Policy())
    stamp(renamed, "ann", "a store of its own", new=True)
    add_run(renamed, "again", 1)
    with pytest.raises(NotApprovedError):
        steps.release(renamed, "again")


def test_another_journal_asks_for_no_less_and_two_persons_lower_it_there(
    planned: Make, tmp_path: Path
) -> None:
    store = planned(max_segments=1, policy=ASKS)
    cycle.archive(cycle.Cleanup(store, "r"))
    # A release that knows no approvals refuses a stamp that says more than it knows.
    assert "policy" in stamp_of(store)
    other = replace(store, journal_url=f"sqlite:///{tmp_path}/other.db", policy=Policy())
    add_run(other, "r", 1)
    with pytest.raises(NotApprovedError):
        steps.release(other, "r")
    for person in (ANN, BOB):
        lower_policy(*known(other), NONE, None, person)
    assert len(steps.release(other, "r").deleted) == 1
    assert "policy" not in stamp_of(store)


def test_where_the_stamp_can_not_be_written_the_journal_asks(
    planned: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(approvals, "update_stamp", fails)
    store = planned(max_segments=1, policy=ASKS)
    cycle.archive(cycle.Cleanup(store, "r"))
    with pytest.raises(NotApprovedError):
        steps.release(with_policy(store, approval=NONE), "r")


def test_an_old_wish_for_a_lower_policy_is_none(archived: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = archived(max_segments=1, policy=ASKS)
    journal, record = known(store)
    lower_policy(journal, record, NONE, None, ANN)
    later = approvals.clock_ms() + 73 * 3_600_000
    monkeypatch.setattr(approvals, "clock_ms", lambda: later)
    assert lower_policy(journal, record, NONE, None, BOB) is None
    assert recorded_policy(journal, record.store_id).approval is ALWAYS


def test_what_is_no_lower_policy_is_refused(archived: Make) -> None:
    store = archived(max_segments=1, policy=Policy(approval=FORCED, minimum_retention_hours=2))
    journal, record = known(store)
    # The retention that is on record falls to the minimum that two persons leave it.
    for person in (ANN, BOB):
        lowered = lower_policy(journal, record, FORCED, 2, person)
    assert lowered is not None
    assert lowered.kept_ms == 2 * HOUR_MS
    for approval, hours in ((FORCED, 2), (ALWAYS, 2), (NONE, 3)):
        with pytest.raises(BadInputError, match="expected less than approval: forced"):
            lower_policy(journal, record, approval, hours, ANN)


def test_two_persons_put_a_minimum_in_the_place_of_a_longer_retention(archived: Make) -> None:
    store = archived(max_segments=1, policy=Policy(approval=FORCED))
    journal, record = known(store)
    for approval, hours in ((ALWAYS, 24), (FORCED, 73)):
        with pytest.raises(BadInputError, match="expected less than approval: forced"):
            lower_policy(journal, record, approval, hours, ANN)
    for person in (ANN, BOB):
        lowered = lower_policy(journal, record, FORCED, 24, person)
    assert lowered is not None
    assert (lowered.minimum_retention_hours, lowered.kept_ms) == (24, 24 * HOUR_MS)
    day = {**store.overrides, "fileReservedTime": "24"}
    shorter = with_policy(replace(store, overrides=day), minimum_retention_hours=24)
    add_run(shorter, "day", 1)
    assert steps.release(shorter, "day").deleted


def test_forced_asks_for_what_goes_below_the_minimum_or_on_a_waiver(
    archived: Make, refuses: Callable[..., str]
) -> None:
    store = archived(max_segments=1, policy=Policy(approval=FORCED, minimum_retention_hours=2))
    shorter = with_policy(store, minimum_retention_hours=1)
    assert "minimum_retention_hours was 2, and is 1" in refuses(shorter, NotApprovedError)
    Journal(store.journal_url).waive(digest_of(store), "ann", "a test")
    assert "ann waived its receipts" in refuses(store, NotApprovedError)
    approve(store, digest_of(store))
    assert steps.release(store, "r").deleted


def test_forced_asks_for_what_goes_by_a_shorter_retention_than_before(
    archived: Make, refuses: Callable[..., str]
) -> None:
    """By RocketMQ's default a run keeps segments for three days; who asks for less can't be alone."""
    store = archived(max_segments=1, policy=Policy(approval=FORCED))
    shorter = replace(store, overrides={**store.overrides, "fileReservedTime": "0"})
    add_run(shorter, "other", 2)
    said = "its settings kept segments for 3 d, and now for 0 s"
    for _ in range(2):
        with pytest.raises(NotApprovedError, match=said):
            steps.release(shorter, "other")
    # The journal may be another one: the stamp says so.
    beside = replace(shorter, journal_url=f"{store.journal_url}.other", policy=Policy())
    add_run(beside, "r", 2)
    with pytest.raises(NotApprovedError, match=said):
        steps.release(beside, "r")
    # As long as before, or longer, it goes; and so it does once another person has approved the plan.
    assert steps.release(store, "r").deleted
    approve(shorter, digest_of(shorter, "other"))
    assert steps.release(shorter, "other").deleted
    # That was of one plan: two persons have to say so of those that follow.
    add_run(shorter, "next", 1)
    with pytest.raises(NotApprovedError, match=said):
        steps.release(shorter, "next")
    for person in (ANN, BOB):
        lower_policy(*known(store), FORCED, None, person)
    assert steps.release(shorter, "next").deleted


def test_forced_asks_for_what_goes_without_the_proof_that_was_required(
    archived: Make, refuses: Callable[..., str]
) -> None:
    store = archived(max_segments=1, policy=Policy(approval=FORCED))
    unproven = with_policy(store, archive=ArchiveMode.OFF)
    assert "archive was required, and is off" in refuses(unproven, NotApprovedError)
    for person in (ANN, BOB):
        lower_policy(*known(store), FORCED, None, person)
    assert steps.release(unproven, "r").deleted
    # Of a store that nobody archives nobody is asked.
    add_run(unproven, "next", 2)
    assert steps.release(unproven, "next").deleted
    assert steps.make_plan(store, "later", PlanRequest(manual=True, max_segments=3)).delete_offsets
    add_run(unproven, "last", 3)
    with pytest.raises(NotApprovedError, match="archive was required"):
        steps.release(unproven, "last")


def test_a_shorter_retention_of_the_running_broker_itself_counts_after_three_days(
    archived: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived(max_segments=1, policy=Policy(approval=FORCED))
    journal, record = known(store)
    run = journal.run(record.store_id, "r")
    shorter = open_context(store)
    running = replace(shorter, store=replace(store, live=LiveBroker("127.0.0.1:1")))
    began = approvals.clock_ms()

    def kept_hours(days: float, context: Context) -> int:
        for module in (approvals, rows):
            monkeypatch.setattr(module, "clock_ms", lambda: began + int(days * 24 * HOUR_MS))
        kept_ms = record_policy(context, run).kept_ms
        assert kept_ms is not None
        return kept_ms // HOUR_MS

    monkeypatch.setattr(FileCourse, "kept_ms", lambda _: 24 * HOUR_MS)
    beside = replace(running, store=replace(running.store, overrides={"fileReservedTime": "24"}))
    assert kept_hours(0, running) == kept_hours(2.9, running) == 72
    # What a run is given beside it never counts, however long.
    assert kept_hours(9, beside) == kept_hours(9, shorter) == 72
    monkeypatch.setattr(FileCourse, "kept_ms", lambda _: 48 * HOUR_MS)
    assert kept_hours(2.95, running) == 72
    monkeypatch.setattr(FileCourse, "kept_ms", lambda _: 24 * HOUR_MS)
    assert kept_hours(3.1, running) == kept_hours(6, running) == 72
    assert kept_hours(6.2, running) == 24
    assert kept_hours(6.3, beside) == 24
    assert open_questions(journal, record.store_id, 0) == ()


def test_an_approval_from_before_a_waiver_does_not_count(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=1, policy=ASKS)
    journal, record = known(store)
    record_answer(journal, journal.run(record.store_id, "r"), Reply(digest_of(store), Said.APPROVED, BOB, 1))
    journal.waive(digest_of(store), "ann", "a test")
    assert "before ann waived its receipts" in refuses(store, NotApprovedError)
    approve(store, digest_of(store))
    assert steps.release(store, "r").deleted


def test_a_waiver_that_comes_after_persons_were_asked_does_not_count(
    planned: Make, refuses: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = planned(max_segments=1, policy=Policy(approval=FORCED))
    judge_logs = releasing.judge_logs

    def waived_now(*arguments: Any) -> Any:
        Journal(store.journal_url).waive(digest_of(store), "ann", "damaged")
        return judge_logs(*arguments)

    monkeypatch.setattr(releasing, "judge_logs", waived_now)
    assert "no receipt in the lake" in refuses(store, GateRefusedError)
    assert "waived its receipts" in refuses(store, NotApprovedError)


def test_a_run_begun_twice_before_its_plan_was_recorded_has_both_starters(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two, whoever begins it again is no second person either."""
    store = managed(policy=ASKS)
    request = PlanRequest(manual=True, max_segments=1)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "record_plan", killed)
        with pytest.raises(KeyboardInterrupt):
            steps.make_plan(store, "r", request)
    steps.make_plan(store, "r", request, starter=Starter(Realm.SHELL, BOB))
    journal, record = known(store)
    run = journal.run(record.store_id, "r")
    assert [one.person for one in starters_of(journal, run)] == [ANN, BOB]
    for person in (ANN, BOB):
        with pytest.raises(NotApprovedError):
            approve(store, digest_of(store), person)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Reply("", Said.REJECTED, BOB, 0), "REJECTED by bob (uid 1002) at 1970-01-01"),
        (Reply("", Said.TIMED_OUT, None, 0), "TIMED OUT at 1970-01-01"),
        (Reply("", Said.REFUSED, ANN, 0, "the starter"), "REFUSED by ann (uid 1001) at 1970-01-01"),
    ],
)
def test_a_run_whose_plan_was_refused_is_over_and_its_report_says_so(
    archived: Make, refuses: Callable[..., str], answer: Reply, said: str
) -> None:
    store = archived(max_segments=1, policy=ASKS)
    journal, record = known(store)
    record_answer(journal, journal.run(record.store_id, "r"), replace(answer, digest=digest_of(store)))
    finished = finish(store, "r")
    assert (finished.outcome, finished.finished) == (Outcome.BLOCKED, True)
    assert finished.not_approved.startswith(said)
    report = build_report(store, "r")
    assert finished.not_approved in report_text(report)
    assert finished.not_approved in Path(finished.report_json).with_name(PAGE).read_text()
    refuses(store, NotApprovedError)
    # Asked once more, and approved then, the same run goes on.
    approve(store, digest_of(store))
    assert steps.release(store, "r").deleted
    assert finish(store, "r").not_approved == ""


def test_a_run_whose_segments_went_by_another_one_alarms_nobody(archived: Make) -> None:
    store = archived(max_segments=1, policy=ASKS)
    approve(store, add_run(store, "larger", 3))
    journal, record = known(store)
    run = journal.run(record.store_id, "r")
    record_question(journal, run, PlanQuestion(digest_of(store), "w", 1, 2, "l"))
    record_reply(journal, run, None, approves=False, at_ms=3, fault="")
    assert finish(store, "r").not_approved.startswith("TIMED OUT")
    assert len(steps.release(store, "larger").deleted) == 3
    finished = finish(store, "r")
    assert (finished.finished, finished.not_approved) == (True, "")
    assert "its segments were deleted by other runs" in build_report(store, "r").approval


def test_above_the_level_of_force_what_waits_is_an_alarm_with_its_link_and_the_hour() -> None:
    def question(run_key: str, until_ms: int | None) -> OpenQuestion:
        return OpenQuestion(run_key, PlanQuestion("d", "why", 0, until_ms, f"at {run_key}"))

    asked = [question("old", None), question("new", None), question("dag", 9)]
    ordinary = Trigger(Cause.SPACE_FULL, Urgency.ORDINARY, "80 % used")
    assert question_alarms(asked, [ordinary], "never") == ()
    for full in (replace(ordinary, urgency=Urgency.FORCED), replace(ordinary, at_once=True)):
        alarms = question_alarms(asked, [ordinary, full], "the broker deletes by itself from 10:00")
        assert [alarm.split()[1] for alarm in alarms] == ["new", "dag"]
        for told in ("since 1970-01-01", "80 % used", "answer at at dag", "by itself from 10:00"):
            assert told in alarms[1]


def test_a_dry_run_records_no_policy(managed: Make) -> None:
    store = managed(policy=ASKS)
    steps.make_plan(store, "r", PlanRequest(manual=True, dry_run=True))
    journal, record = known(store)
    assert recorded_policy(journal, record.store_id) == NOTHING_RECORDED
    assert journal.store_events(record.store_id, Step.APPROVAL, Phase.INTENT) == ()


def test_an_answer_that_the_journal_can_not_tell_permits_nothing(archived: Make, fingerprint: Any) -> None:
    store = archived(max_segments=1, policy=ASKS)
    journal, record = known(store)
    run = journal.run(record.store_id, "r")
    journal.record(run, Step.APPROVAL, Phase.RESULT, [(digest_of(store), {"said": "approved", "newer": 1})])
    before = fingerprint(Path(store.root))
    with pytest.raises(BadInputError, match="Reply"):
        steps.release(store, "r")
    assert fingerprint(Path(store.root)) == before
