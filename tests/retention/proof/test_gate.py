from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.journal.journal import Waiver
from storage_engine.lake.soundness.chain import row_fault, row_hash
from storage_engine.model.plan import (
    DELETING,
    NOTHING_RECORDED,
    Cause,
    Decision,
    LogPlan,
    Person,
    Plan,
    PlanRequest,
    Realm,
    Reason,
    RecordedPolicy,
    Reply,
    Said,
    Starter,
    Trigger,
    Urgency,
)
from storage_engine.model.proof.receipt import (
    EXPIRED,
    PARTIAL,
    PROOF_VERSION,
    SETTLED,
    Companion,
    Receipt,
    act_text,
    companions_text,
)
from storage_engine.model.settings.policy import ApprovalPolicy, ArchiveMode, Policy
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.proof import gate
from storage_engine.retention.proof.gate import (
    NO_ACTS,
    Consent,
    Passage,
    asks_for_approval,
    judge_consent,
    request_again,
    same_content,
    shorter_retention,
    still_eligible,
)
from storage_engine.same_bytes.own_acts import KnownFile, OwnActs

SIZE = 1000
REQUIRED, OFF = Policy(), Policy(archive=ArchiveMode.OFF)
WAIVER = Waiver("digest", "ann", "lake burnt down", 1)
REFUSED = Passage.REFUSED
judge = partial(gate.judge, consent=Consent("", None, ""))
"""Where nobody has to approve."""
CHANGES = ["device", "inode", "size_bytes", "mtime_ns", "ctime_ns"]


def segment(index: int) -> Segment:
    facts = FileFacts(f"/s/commitlog/{index * SIZE:020d}", 1, 100 + index, SIZE, 7, 8)
    return Segment("commitlog", index * SIZE, facts, SegmentState.SEALED)


def decision(index: int, reason: Reason = Reason.EXPIRED) -> Decision:
    return Decision(segment(index), reason, f"because {reason.value}")


def plan(*decisions: Decision, causes: tuple[Cause, ...] = (Cause.TIME_UP,)) -> Plan:
    triggers = tuple(Trigger(cause, Urgency.ORDINARY, "") for cause in causes)
    return Plan("/s", 0, triggers, (LogPlan("commitlog", decisions),))


def receipt(index: int) -> Receipt:
    facts = segment(index).facts
    return Receipt(
        store_id="id",
        lineage=1,
        log="commitlog",
        base_offset=index * SIZE,
        size_bytes=facts.size_bytes,
        sha256="a" * 64,
        broker="rocketmq",
        store_root="/s",
        message_count=1,
        row_count=1,
        damaged_bytes=0,
        first_store_timestamp_ms=1,
        last_store_timestamp_ms=1,
        source_path=facts.path,
        source_device=facts.device,
        source_inode=facts.inode,
        source_mtime_ns=facts.mtime_ns,
        source_ctime_ns=facts.ctime_ns,
        data_file="file:///lake/x.parquet",
        data_file_bytes=1,
        data_file_sha256="b" * 64,
        proof_version=PROOF_VERSION,
        proven_at_ms=1,
        moved_to=None,
        sequence=0,
        previous_hash="0" * 64,
        row_hash="c" * 64,
        evidence=SETTLED,
    )


@st.composite
def two_plans(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """An approved plan and a fresh one of a log whose oldest segments may be gone by now."""
    count = draw(st.integers(0, 6))
    approved = draw(st.integers(0, count))
    gone = draw(st.integers(0, count))
    reasons = draw(st.lists(st.sampled_from(Reason), min_size=count, max_size=count))
    return (
        plan(*(decision(i, Reason.EXPIRED if i < approved else Reason.NOT_EXPIRED) for i in range(count))),
        plan(*(decision(i, reasons[i]) for i in range(gone, count))),
    )


@given(two_plans())
def test_what_goes_is_the_oldest_that_both_plans_let_go(plans: tuple[Plan, Plan]) -> None:
    approved, fresh = plans
    eligible = still_eligible(approved, fresh)
    assert eligible.go == fresh.decisions[: len(eligible.go)]
    assert {d.segment for d in eligible.go} <= set(approved.to_delete)
    assert all(d.reason in DELETING for d in eligible.go)


@given(two_plans())
def test_every_approved_segment_that_is_there_goes_or_stays_for_a_reason(plans: tuple[Plan, Plan]) -> None:
    approved, fresh = plans
    eligible = still_eligible(approved, fresh)
    there = [d.segment for d in fresh.decisions if d.segment in approved.to_delete]
    assert [d.segment for d in (*eligible.go, *eligible.stay)] == there
    assert all(d.reason not in DELETING and d.detail for d in eligible.stay)


def test_an_older_segment_that_nobody_approved_holds_back_what_is_behind_it() -> None:
    approved = plan(decision(1), decision(2))
    eligible = still_eligible(approved, plan(decision(0), decision(1), decision(2)))
    assert eligible.go == ()
    assert [d.reason for d in eligible.stay] == [Reason.BEHIND_KEPT, Reason.BEHIND_KEPT]


def test_a_pass_that_the_clock_began_may_end_after_its_hour() -> None:
    assert request_again(plan(causes=(Cause.TIME_UP,)), PlanRequest()).manual


def test_a_pass_that_a_full_disk_began_needs_it_full_still() -> None:
    assert request_again(plan(causes=(Cause.SPACE_FULL,)), PlanRequest()) == PlanRequest()


def test_a_receipt_of_the_same_file_proves_it() -> None:
    verdict = judge(decision(1), segment(1), [receipt(1)], {}, REQUIRED, None)
    assert (verdict.passage, verdict.receipt) == (Passage.PROVEN, receipt(1))


@pytest.mark.parametrize("field", CHANGES)
def test_a_touched_file_is_hashed_again(field: str) -> None:
    facts = replace(segment(1).facts, **{field: 999})
    touched = replace(decision(1), segment=replace(segment(1), facts=facts))
    verdict = judge(touched, segment(1), [receipt(1)], {}, REQUIRED, None)
    assert verdict.passage is Passage.HASH_AGAIN


def test_no_receipt_no_deletion() -> None:
    verdict = judge(decision(1), segment(1), [], {}, REQUIRED, None)
    assert (verdict.passage, verdict.detail) == (Passage.REFUSED, "no receipt in the lake")


def test_a_receipt_that_does_not_hold_proves_nothing() -> None:
    faults = {receipt(1).identity: "data file is missing"}
    verdict = judge(decision(1), segment(1), [receipt(1)], faults, REQUIRED, None)
    assert verdict.passage is Passage.REFUSED
    assert "data file is missing" in verdict.detail


@given(
    st.sampled_from(["expired", "partial", "of a later release", ""]),
    st.sampled_from([None, "", "{", "null", '{"id": "1", "kind": "expire", "sha256": "3f2a"}']),
    st.booleans(),
    st.sampled_from([REQUIRED, Policy(archive=ArchiveMode.REQUIRED)]),
)
def test_only_a_receipt_of_a_whole_segment_permits_its_deletion(
    state: str, act: str | None, touched: bool, policy: Policy
) -> None:
    proof = replace(receipt(0), state=state, act=act)
    now = decision(0)
    if touched:
        now = replace(now, segment=replace(now.segment, facts=replace(now.segment.facts, ctime_ns=99)))
    verdict = judge(now, segment(0), [proof], {}, policy, None)
    assert (verdict.passage, verdict.receipt) == (REFUSED, None)
    assert "proves no bytes" in verdict.detail
    whole = judge(now, segment(0), [replace(proof, state=None)], {}, policy, None)
    assert whole.passage is (Passage.HASH_AGAIN if touched else Passage.PROVEN)


def test_a_receipt_by_a_later_version_proves_nothing() -> None:
    later = replace(receipt(1), proof_version=PROOF_VERSION + 1)
    faults = {later.identity: row_fault(later)}
    verdict = judge(decision(1), segment(1), [later], faults, REQUIRED, None)
    assert verdict.passage is Passage.REFUSED
    assert f"proof version {PROOF_VERSION + 1}" in verdict.detail


@pytest.mark.parametrize("row_groups", ["", "1", "1-0", "0-1,3-4", "0-1 of 7"])
def test_a_receipt_of_row_groups_as_this_release_does_not_write_them_proves_nothing(row_groups: str) -> None:
    later = replace(receipt(1), row_groups=row_groups)
    later = replace(later, row_hash=row_hash(asdict(later)))
    faults = {later.identity: row_fault(later)}
    verdict = judge(decision(1), segment(1), [later], faults, REQUIRED, None)
    assert verdict.passage is Passage.REFUSED
    assert verdict.detail != "its receipt is not valid: "


def test_two_receipts_for_one_segment_prove_nothing() -> None:
    other = replace(receipt(1), sha256="d" * 64)
    verdict = judge(decision(1), segment(1), [receipt(1), other], {}, REQUIRED, None)
    assert verdict.passage is Passage.REFUSED
    assert "a" * 64 in verdict.detail
    assert "d" * 64 in verdict.detail


@pytest.mark.parametrize(
    ("policy", "waiver", "passage"),
    [(OFF, None, Passage.ARCHIVE_OFF), (REQUIRED, WAIVER, Passage.WAIVED)],
)
def test_policy_or_waiver_let_the_planned_file_go_and_no_other(
    policy: Policy, waiver: Waiver | None, passage: Passage
) -> None:
    assert judge(decision(1), segment(1), [], {}, policy, waiver).passage is passage
    for field in CHANGES:
        planned = replace(segment(1), facts=replace(segment(1).facts, **{field: 999}))
        assert judge(decision(1), planned, [], {}, policy, waiver).passage is Passage.REFUSED


@pytest.mark.parametrize(("policy", "waiver"), [(OFF, None), (REQUIRED, WAIVER)])
def test_of_a_held_store_too_only_our_own_acts_are_no_change(policy: Policy, waiver: Waiver | None) -> None:
    facts = segment(1).facts
    held = replace(segment(1), facts=replace(facts, mtime_ns=900, ctime_ns=9), original_mtime_ns=7)
    acts = OwnActs(
        (KnownFile(facts.device, facts.inode, facts.size_bytes, (facts.path,), ((7, 8), (900, 9))),)
    )
    assert judge(Decision(held, Reason.EXPIRED, ""), held, [], {}, policy, waiver).passage is not REFUSED
    by_us = Decision(held, Reason.EXPIRED, "")
    assert judge(by_us, segment(1), [], {}, policy, waiver, acts).passage is not REFUSED
    # Somebody wrote to it and set back the mtime that the hold had given it: only the ctime tells.
    written = Decision(replace(held, facts=replace(held.facts, ctime_ns=10)), Reason.EXPIRED, "")
    for planned in (segment(1), held):
        assert judge(written, planned, [], {}, policy, waiver, acts).passage is REFUSED


def test_a_waiver_says_who_and_why() -> None:
    verdict = judge(decision(1), segment(1), [], {}, REQUIRED, WAIVER)
    assert verdict.detail == "waived by ann: lake burnt down (no receipt in the lake)"


def test_proof_is_preferred_to_a_waiver() -> None:
    verdict = judge(decision(1), segment(1), [receipt(1)], {}, REQUIRED, WAIVER)
    assert verdict.passage is Passage.PROVEN


BESIDE = FileFacts("/s/commitlog/0.count", 1, 50, 4, 7, 8)


def with_companions(*companions: FileFacts, end: int | None = 300) -> Segment:
    return replace(segment(0), end=end, companions=companions)


def its_receipt(*companions: FileFacts, end: int | None = 300) -> Receipt:
    files = companions_text(Companion.of(facts, b"300\n") for facts in companions)
    return replace(receipt(0), end_offset=end, files=files)


def passage(now: Segment, proof: Receipt, acts: OwnActs = NO_ACTS) -> str:
    found = judge(Decision(now, Reason.EXPIRED, ""), now, [proof], {}, REQUIRED, None, acts)
    return f"{found.passage.value}: {found.detail}"


def test_a_segment_with_companions_goes_by_a_receipt_of_all_of_its_files() -> None:
    assert passage(with_companions(BESIDE), its_receipt(BESIDE)).startswith("proven")
    other = replace(BESIDE, path="/s/commitlog/0.index", inode=51)
    assert passage(with_companions(other, BESIDE), its_receipt(BESIDE, other)).startswith("proven")
    # A segment that states the end that its size comes to says nothing new.
    assert passage(with_companions(end=SIZE), replace(receipt(0), end_offset=None)).startswith("proven")


@pytest.mark.parametrize("change", ["device", "inode", "mtime_ns", "ctime_ns"])
def test_a_companion_that_was_touched_is_hashed_again(change: str) -> None:
    touched = replace(BESIDE, **{change: getattr(BESIDE, change) + 1})
    assert passage(with_companions(touched), its_receipt(BESIDE)).startswith("hash-again")
    if change == "ctime_ns":
        known = KnownFile(1, 50, 4, ("/s/commitlog/0.count",), ((7, 8), (7, 9)))
        assert passage(with_companions(touched), its_receipt(BESIDE), OwnActs((known,))).startswith("proven")


@pytest.mark.parametrize(
    ("now", "proof", "said"),
    [
        (with_companions(), its_receipt(BESIDE), "has the companions 0.count, the store has none"),
        (with_companions(BESIDE), its_receipt(), "has the companions none, the store has 0.count"),
        (
            with_companions(replace(BESIDE, path="/s/commitlog/0.index")),
            its_receipt(BESIDE),
            "has the companions 0.count, the store has 0.index",
        ),
        (with_companions(BESIDE, end=299), its_receipt(BESIDE), "ends at offset 300, the segment at 299"),
        (with_companions(BESIDE, end=None), its_receipt(BESIDE), "ends at offset 300, the segment at 1000"),
        (with_companions(BESIDE), its_receipt(BESIDE, end=None), "ends at offset 1000, the segment at 300"),
        (
            with_companions(BESIDE),
            replace(its_receipt(BESIDE), files="[]"),
            "is not valid: its files are not sound: expected a list",
        ),
    ],
)
def test_other_companions_or_another_end_are_refused(now: Segment, proof: Receipt, said: str) -> None:
    assert passage(now, proof).startswith(f"refused: its receipt {said}")


def test_without_a_receipt_every_file_has_to_be_as_it_was_planned() -> None:
    then = with_companions(BESIDE)
    for now in (
        then,
        with_companions(replace(BESIDE, mtime_ns=9)),
        with_companions(),
        with_companions(BESIDE, end=299),
        with_companions(BESIDE, replace(BESIDE, path="/s/commitlog/0.index")),
    ):
        found = judge(Decision(now, Reason.EXPIRED, ""), then, [], {}, OFF, None)
        assert found.passage is (Passage.ARCHIVE_OFF if now == then else REFUSED)
        assert same_content(now, then) is (now == then)


@given(
    st.booleans(),
    st.sampled_from([None, *CHANGES]),
    st.sampled_from([None, WAIVER]),
    st.sampled_from(["none", "valid", "faulty", "two"]),
)
def test_a_rule_does_without_a_receipt_and_nothing_else(
    is_permitted: bool, change: str | None, waiver: Waiver | None, having: str
) -> None:
    """What passes without the rule passes alike with it; it adds what no receipt proves, as planned."""
    now = decision(0)
    if change is not None:
        facts = replace(now.segment.facts, **{change: getattr(now.segment.facts, change) + 1})
        now = replace(now, segment=replace(now.segment, facts=facts))
    rows = {"none": [], "two": [receipt(0), replace(receipt(0), sha256="c" * 64)]}.get(having, [receipt(0)])
    faults = {rows[0].identity: "damaged"} if having == "faulty" else {}
    clause = "not archived, by rule 0123456789ab of topic a" if is_permitted else ""
    without = judge(now, segment(0), rows, faults, REQUIRED, waiver)
    found = judge(now, segment(0), rows, faults, REQUIRED, waiver, NO_ACTS, clause)
    if not is_permitted or having == "valid":
        assert found == without
    else:
        assert found.passage is (REFUSED if change else Passage.NOT_ARCHIVED)
        assert found.receipt is None
        assert change or found.detail == clause


ANN, BOB = (Person(Realm.SHELL, name, uid, host="h") for name, uid in (("ann", 1001), ("bob", 1002)))
EVE, IDA = (Person(Realm.AIRFLOW, name, user_id=name) for name in ("eve", "ida"))
BY_ANN = (Starter(Realm.SHELL, ANN),)


def said(person: Person | None, digest: str = "digest", said: Said = Said.APPROVED, at_ms: int = 9) -> Reply:
    return Reply(digest, said, person, at_ms)


@pytest.mark.parametrize(
    ("starters", "answer"),
    [
        (BY_ANN, said(BOB)),
        ((Starter(Realm.AIRFLOW, EVE),), said(IDA)),
        ((Starter(Realm.AIRFLOW, None),), said(IDA)),
        ((Starter(Realm.SHELL, replace(ANN, uid=0, name="root", behind="ann")),), said(BOB)),
    ],
)
def test_another_person_than_the_starter_approves(starters: tuple[Starter, ...], answer: Reply) -> None:
    found = judge_consent("digest", "always", starters, [said(None, said=Said.TIMED_OUT), answer], WAIVER)
    assert (found.approval, found.refuses, found.lacks) == (answer, False, "")
    assert gate.judge(decision(1), segment(1), [receipt(1)], {}, REQUIRED, None, consent=found).passage in (
        Passage.PROVEN,
        Passage.HASH_AGAIN,
    )


@pytest.mark.parametrize(
    ("starters", "answers", "why"),
    [
        (BY_ANN, [], "nobody has approved it"),
        (BY_ANN, [said(BOB, digest="another plan's")], "nobody has approved it"),
        (BY_ANN, [said(BOB, said=Said.REJECTED)], "nobody has approved it"),
        (BY_ANN, [said(BOB, said=Said.REFUSED)], "nobody has approved it"),
        (BY_ANN, [said(None)], "nobody has approved it"),
        ((), [said(BOB)], "no record of who began the run"),
        (BY_ANN, [said(ANN)], "isn't certainly another person"),
        (BY_ANN, [said(replace(BOB, uid=ANN.uid))], "isn't certainly another person"),
        (BY_ANN, [said(replace(ANN, uid=7, host="other"))], "isn't certainly another person"),
        (BY_ANN, [said(replace(BOB, name="Ann"))], "isn't certainly another person"),
        (BY_ANN, [said(replace(BOB, name=""))], "isn't certainly another person"),
        (
            (Starter(Realm.SHELL, replace(BOB, uid=0, behind="ann")),),
            [said(ANN)],
            "isn't certainly another",
        ),
        ((*BY_ANN, Starter(Realm.SHELL, BOB)), [said(BOB)], "isn't certainly another person"),
        (BY_ANN, [said(EVE)], "isn't certainly another person"),
        ((Starter(Realm.AIRFLOW, EVE),), [said(EVE)], "isn't certainly another person"),
        ((Starter(Realm.AIRFLOW, None),), [said(BOB)], "isn't certainly another person"),
        (BY_ANN, [said(BOB, at_ms=0)], "before ann waived its receipts"),
    ],
)
def test_nothing_goes_that_no_second_person_has_certainly_approved(
    starters: tuple[Starter, ...], answers: list[Reply], why: str
) -> None:
    found = judge_consent("digest", "always", starters, answers, WAIVER)
    assert found.refuses
    assert why in found.lacks
    for policy, waiver in ((REQUIRED, None), (OFF, None), (REQUIRED, WAIVER)):
        verdict = gate.judge(decision(1), segment(1), [receipt(1)], {}, policy, waiver, consent=found)
        assert (verdict.passage, verdict.receipt) == (REFUSED, None)
        assert why in verdict.detail


NONE, FORCED, ALWAYS = ApprovalPolicy


@pytest.mark.parametrize(
    ("stated", "recorded", "hours", "reason", "request_", "waiver", "why"),
    [
        (NONE, NOTHING_RECORDED, None, Reason.FORCED, PlanRequest(forced=True), WAIVER, ""),
        (ALWAYS, NOTHING_RECORDED, None, Reason.EXPIRED, PlanRequest(), None, "approval: always"),
        (NONE, RecordedPolicy(ALWAYS), None, Reason.EXPIRED, PlanRequest(), None, "approval: always"),
        (FORCED, RecordedPolicy(ALWAYS), None, Reason.EXPIRED, PlanRequest(), None, "approval: always"),
        (FORCED, NOTHING_RECORDED, None, Reason.EXPIRED, PlanRequest(), None, ""),
        (FORCED, NOTHING_RECORDED, None, Reason.FORCED, PlanRequest(), None, "have not expired"),
        (FORCED, NOTHING_RECORDED, None, Reason.EXPIRED, PlanRequest(forced=True), None, "to ignore age"),
        (FORCED, NOTHING_RECORDED, None, Reason.EXPIRED, PlanRequest(), WAIVER, "ann waived"),
        (FORCED, RecordedPolicy(FORCED, 24), 12, Reason.EXPIRED, PlanRequest(), None, "was 24, and is 12"),
        (NONE, RecordedPolicy(FORCED, 24), None, Reason.EXPIRED, PlanRequest(), None, "was 24, and is none"),
        (FORCED, RecordedPolicy(FORCED, 24), 24, Reason.EXPIRED, PlanRequest(), None, ""),
        (FORCED, RecordedPolicy(FORCED, archived=True), None, Reason.EXPIRED, PlanRequest(), None, ""),
        (
            FORCED,
            RecordedPolicy(FORCED, kept_ms=2),
            None,
            Reason.EXPIRED,
            PlanRequest(),
            None,
            "kept less",
        ),
    ],
)
def test_settings_and_record_say_together_whether_somebody_is_asked(
    stated: ApprovalPolicy,
    recorded: RecordedPolicy,
    hours: int | None,
    reason: Reason,
    request_: PlanRequest,
    waiver: Waiver | None,
    why: str,
) -> None:
    policy = Policy(approval=stated, minimum_retention_hours=hours)
    shorter = "kept less" if recorded.kept_ms else ""
    found = asks_for_approval([decision(0, reason)], request_, recorded, policy, waiver, shorter)
    assert why in found
    assert bool(found) is bool(why)


@pytest.mark.parametrize(
    ("recorded_ms", "now_ms", "said"),
    [
        (None, 0, ""),
        (3_600_000, 3_600_000, ""),
        (3_600_000, 7_200_000, ""),
        (3_600_000, 0, "its settings kept segments for 1 h, and now for 0 s"),
        (None, None, "it is unknown"),
        (3_600_000, None, "it is unknown"),
    ],
)
def test_settings_that_keep_segments_for_less_time_than_before_are_told(
    recorded_ms: int | None, now_ms: int | None, said: str
) -> None:
    found = shorter_retention(RecordedPolicy(FORCED, kept_ms=recorded_ms), now_ms)
    assert said in found
    assert bool(found) is bool(said)


@pytest.mark.parametrize("kind", ["archive", "expire", "undo"])
@pytest.mark.parametrize("state", [PARTIAL, EXPIRED])
@pytest.mark.parametrize("lacking", ["", "debug not archived, by rule 0123456789ab of topic debug"])
def test_a_receipt_that_lacks_topics_proves_only_what_rules_permit(
    kind: str, state: str, lacking: str
) -> None:
    row = replace(receipt(0), state=state, act=act_text("0" * 64, kind))
    found = judge(decision(0), segment(0), [row], {}, REQUIRED, None, lacking=lacking)
    if (kind, state) == ("archive", PARTIAL) and lacking:
        assert (found.passage, found.receipt) == (Passage.PROVEN, row)
        assert found.detail == f"as it was when its copy was proven, but for {lacking}"
        faulty = judge(
            decision(0), segment(0), [row], {row.identity: "lost"}, REQUIRED, None, lacking=lacking
        )
        assert faulty.passage is REFUSED
    else:
        assert found.passage is REFUSED
        assert found.detail.startswith("its receipt proves no bytes: ")
