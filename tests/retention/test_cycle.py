"""The steps around the release: planning, archiving, cleaning up behind it, flushing, reporting."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    BadInputError,
    CorruptFileError,
    GateRefusedError,
    LakeUnavailableError,
    RunStateError,
    StoreNotFoundError,
)
from storage_engine.journal.journal import Journal, RunState
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.receipts import receipts
from storage_engine.model.lag import LagSummary, QueueLag
from storage_engine.model.plan import Cause, PlanRequest, Reason
from storage_engine.model.policy import ArchiveMode, LagPolicy, Policy
from storage_engine.model.validation import (
    CheckResult,
    RangeStatus,
    Status,
    ValidationResult,
    Where,
)
from storage_engine.retention import steps
from storage_engine.retention.adopting import adopt
from storage_engine.retention.brokers import open_store
from storage_engine.retention.finishing import finish
from storage_engine.retention.history import released_spans
from storage_engine.retention.identity import identify
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.report import Outcome, build_report
from storage_engine.retention.report_segments import Fate
from storage_engine.retention.report_text import report_text
from storage_engine.wording import bytes_text
from tests.rounds import later

Make = Callable[..., ManagedStore]
FingerprintOf = Callable[[str | Path], dict[str, str]]
MANUAL = PlanRequest(manual=True)
MIB = 1 << 20


def run_state(store: ManagedStore, run_key: str = "r") -> RunState:
    journal = Journal(store.journal_url)
    return journal.run(identify(store, journal).store_id, run_key).state


def do_everything(store: ManagedStore, run_key: str = "r", request: PlanRequest = MANUAL) -> None:
    steps.make_plan(store, run_key, request)
    steps.archive(store, run_key, steps.archive_jobs(store, run_key))
    steps.release(store, run_key)
    steps.clean_dependents(store, run_key)
    steps.flush_checkpoint(store, run_key)


def validation(status: Status) -> ValidationResult:
    ranges = (RangeStatus("commitlog", 0, 5, Where.ARCHIVED, status, ("0",), "detail"),)
    checks = (CheckResult("store", "ExpectNothing", "nothing is wrong", status, 1, 1, ("file x",)),)
    return ValidationResult("/s", "id", "r", "boundaries", 1, 2, ranges, checks)


class TestSense:
    def test_it_finds_the_triggers_and_keeps_a_sample(self, managed: Make) -> None:
        store = managed(overrides={"deleteWhen": "05"})
        at_five = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 5 * 3_600_000
        sensed = steps.sense(store, at_five)
        assert [trigger.cause for trigger in sensed.triggers] == [Cause.TIME_UP]
        journal = Journal(store.journal_url)
        sample = journal.last_sample(identify(store, journal).store_id)
        assert sample is not None
        assert (sample.at_ms, sample.levels) == (at_five, sensed.levels)

    def test_a_missing_store_gets_no_identity(self, managed: Make) -> None:
        store = replace(managed(), root="/nowhere")
        with pytest.raises(StoreNotFoundError, match="/nowhere"):
            steps.sense(store)
        assert Journal(store.journal_url).find_store("/nowhere") is None


class TestPlan:
    @pytest.mark.slow
    def test_the_recorded_plan_stands_whatever_happens_to_the_store(self, managed: Make) -> None:
        store = managed()
        first = steps.make_plan(store, "r", MANUAL)
        assert first.delete_offsets == tuple(n * MIB for n in range(7))
        os.utime(Path(store.root) / "commitlog" / f"{0:020d}")
        assert steps.make_plan(store, "r", MANUAL) == first
        assert steps.make_plan(store, "other", MANUAL).delete_offsets == ()

    @pytest.mark.parametrize("kind", ["index", "consumequeue", "checkpoint"])
    def test_a_broken_file_that_the_cleanup_needs_stops_the_plan_and_is_on_record(
        self, managed: Make, kind: str
    ) -> None:
        store = managed()
        files = [file.facts.path for file in open_store(store).dependents({"commitlog": 7 * MIB})]
        broken = min([path for path in files if f"/{kind}/" in path], default=f"{store.root}/{kind}")
        os.truncate(broken, 20)
        with pytest.raises(CorruptFileError, match=broken):
            steps.make_plan(store, "r", MANUAL)
        report = build_report(store, "r")
        assert (report.outcome, report.plan_digest) == (Outcome.FAILED, None)
        assert [(step.step, broken in step.error) for step in report.steps] == [("plan", True)]

    @pytest.mark.slow
    def test_a_run_key_serves_one_request(self, managed: Make) -> None:
        store = managed()
        steps.make_plan(store, "r", MANUAL)
        with pytest.raises(RunStateError, match="expected the request it was begun with"):
            steps.make_plan(store, "r", PlanRequest())

    def test_a_dry_run_says_so_and_nothing_of_it_can_be_carried_out(
        self, managed: Make, fingerprint: FingerprintOf
    ) -> None:
        store = managed()
        before = fingerprint(store.root)
        steps.make_plan(store, "r", replace(MANUAL, dry_run=True))
        for carry_out in (
            lambda: steps.archive_jobs(store, "r"),
            lambda: steps.archive_planned(store, "r", lambda jobs: pytest.fail("archived")),
            lambda: steps.release(store, "r"),
        ):
            with pytest.raises(RunStateError, match="found a dry run"):
                carry_out()
        done = finish(store, "r")
        assert (done.outcome, done.ok, done.finished) == (Outcome.DRY_RUN, True, True)
        text = report_text(build_report(store, "r"))
        assert "Run r: dry run: nothing was archived or deleted" in text
        assert "Would be deleted" in text
        assert fingerprint(store.root) == before

    @pytest.mark.slow
    def test_two_stores_may_use_one_run_key(self, managed: Make) -> None:
        first, second = managed(), managed()
        assert first.journal_url == second.journal_url
        assert steps.make_plan(first, "r", MANUAL).store_id != steps.make_plan(second, "r", MANUAL).store_id

    def test_an_unknown_broker_is_refused_by_name(self, managed: Make) -> None:
        with pytest.raises(BadInputError, match="found 'pulsar'"):
            steps.make_plan(replace(managed(), broker="pulsar"), "r")


class TestIdentity:
    @pytest.mark.slow
    def test_a_lost_journal_is_made_up_for_by_the_lake(self, archived: Make) -> None:
        store = archived(max_segments=1)
        adopt(store, "ann", "test", force=True)
        steps.archive(store, "r", steps.archive_jobs(store, "r"))
        known = identify(store, Journal(store.journal_url))
        Path(store.journal_url.removeprefix("sqlite:///")).unlink()
        again = identify(store, Journal(store.journal_url))
        assert (again.store_id, again.lineage) == (known.store_id, known.lineage) == (known.store_id, 2)

    def test_without_the_lake_nobody_guesses(self, managed: Make, lake_dir: Path) -> None:
        store = managed()
        lake_dir.rename(lake_dir.with_name("away"))
        lake_dir.write_bytes(b"not a directory")
        with pytest.raises(LakeUnavailableError):
            steps.make_plan(store, "r", MANUAL)

    @pytest.mark.parametrize(("person", "reason"), [("", "why"), ("ann", " ")])
    def test_a_lineage_is_opened_by_somebody_for_a_reason(
        self, managed: Make, person: str, reason: str
    ) -> None:
        with pytest.raises(BadInputError, match="expected a person and a reason"):
            adopt(managed(), person, reason)


class TestArchive:
    @pytest.mark.slow
    def test_what_is_archived_is_not_archived_again(self, archived: Make) -> None:
        store = archived(max_segments=2)
        assert steps.archive_jobs(store, "r") == ()
        steps.make_plan(store, "r2", PlanRequest(manual=True, max_segments=3))
        assert [job.base_offset for job in steps.archive_jobs(store, "r2")] == [2 * MIB]

    @pytest.mark.slow
    def test_everything_sealed_needs_no_plan(self, managed: Make) -> None:
        jobs = steps.archive_jobs(managed(), "by-hand", all_sealed=True)
        assert [job.base_offset for job in jobs] == [n * MIB for n in range(7)]

    @pytest.mark.slow
    def test_a_crashed_store_is_archived_but_not_cleaned(
        self, managed: Make, fingerprint: FingerprintOf
    ) -> None:
        store = managed("kill9")
        before = fingerprint(store.root)
        jobs = steps.archive_jobs(store, "sealed", all_sealed=True)
        assert len(steps.archive(store, "sealed", jobs)) == len(jobs) > 0
        assert finish(store, "sealed").outcome is Outcome.DONE
        do_everything(store)
        finished = finish(store, "r")
        assert (finished.outcome, finished.ok, finished.finished) == (Outcome.BLOCKED, False, True)
        segments = build_report(store, "r").segments
        assert {s.reason for s in segments if s.reason is not Reason.ACTIVE} == {Reason.STORE_CRASHED}
        assert fingerprint(store.root) == before

    @pytest.mark.slow
    def test_a_planned_segment_that_is_gone_is_not_passed_over(self, planned: Make) -> None:
        store = planned(max_segments=2)
        (Path(store.root) / "commitlog" / f"{0:020d}").unlink()
        with pytest.raises(GateRefusedError, match="expected the planned segment at offset 0, found no file"):
            steps.archive_jobs(store, "r")

    @pytest.mark.slow
    def test_a_failure_is_on_record(self, planned: Make) -> None:
        store = planned(max_segments=1)
        jobs = steps.archive_jobs(store, "r")
        (Path(store.root) / "commitlog" / f"{0:020d}").write_bytes(b"short")
        with pytest.raises(Exception, match=f"{0:020d}"):
            steps.archive(store, "r", jobs)
        report = build_report(store, "r")
        assert report.outcome is Outcome.FAILED
        assert [step.step for step in report.steps if step.error] == ["archive"]
        assert report.unproven == (0,)


class TestCleanUp:
    @pytest.mark.slow
    def test_nothing_is_cleaned_before_the_release(self, archived: Make) -> None:
        with pytest.raises(RunStateError, match="expected its release to be done"):
            steps.clean_dependents(archived(max_segments=1), "r")

    @pytest.mark.slow
    def test_what_points_only_below_the_log_goes(self, archived: Make, fingerprint: FingerprintOf) -> None:
        store = archived()
        released = steps.release(store, "r")
        before = fingerprint(store.root)
        cleaned = steps.clean_dependents(store, "r")
        gone = before.keys() - fingerprint(store.root).keys()
        assert cleaned.min_offset == released.new_min_offset == 7 * MIB
        assert sum(cleaned.deleted.values()) == len(gone) > 0
        assert all(name.startswith(("consumequeue/", "index/")) for name in gone)
        listed = {os.path.relpath(f.facts.path, store.root) for f in build_report(store, "r").dependents}
        assert listed == gone
        assert steps.clean_dependents(store, "r") == cleaned

    @pytest.mark.slow
    def test_a_run_that_released_nothing_touches_nothing(
        self, managed: Make, fingerprint: FingerprintOf
    ) -> None:
        store = managed()
        before = fingerprint(store.root)
        do_everything(store, request=PlanRequest(manual=True, max_segments=0))
        assert fingerprint(store.root) == before

    @pytest.mark.slow
    def test_the_checkpoint_is_read_and_never_written(
        self, archived: Make, fingerprint: FingerprintOf, ground_truth: Callable[[str, str], dict[str, int]]
    ) -> None:
        store = archived(max_segments=1)
        before = fingerprint(store.root)["checkpoint"]
        steps.release(store, "r")
        steps.clean_dependents(store, "r")
        flushed = steps.flush_checkpoint(store, "r")
        truth = ground_truth("clean-stop", "checkpoint")
        assert flushed.checkpoint["physic_msg_timestamp_ms"] == truth["physicMsgTimestamp"]
        assert flushed.checkpoint["index_msg_timestamp_ms"] == truth["indexMsgTimestamp"]
        assert (flushed.notices, fingerprint(store.root)["checkpoint"]) == ((), before)

    @pytest.mark.slow
    def test_a_checkpoint_from_the_future_is_told(self, archived: Make) -> None:
        store = archived(max_segments=1)
        checkpoint = Path(store.root) / "checkpoint"
        checkpoint.write_bytes((1 << 60).to_bytes(8, "big") + checkpoint.read_bytes()[8:])
        notices = steps.flush_checkpoint(store, "r").notices
        assert [notice.partition(" to ")[0] for notice in notices] == [
            "checkpoint: expected physic_msg_timestamp_ms",
            "checkpoint: physic_msg_timestamp_ms rose from 1795180620134",
        ]


class TestReport:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["multipath", *later("cqext-batchcq", "clean-stop", "edge-frames")])
    def test_a_whole_run_is_told_whole(self, managed: Make, name: str, fingerprint: FingerprintOf) -> None:
        store = managed(name)
        before = fingerprint(store.root)
        do_everything(store)
        steps.record_lag(store, "r", LagSummary(1, 2, 3, 4, 0, (), 0), [])
        steps.record_validation(store, "r", validation(Status.OK))
        finished = finish(store, "r")
        assert (finished.outcome, finished.ok, run_state(store)) == (Outcome.DONE, True, RunState.FINISHED)
        report = build_report(store, "r")
        assert report.lag == LagSummary(1, 2, 3, 4, 0, (), 0)
        assert report.validation == validation(Status.OK)
        assert [step.step for step in report.steps if not step.done or step.error] == []
        deleted = [row for row in report.segments if row.fate is Fate.DELETED]
        assert [row.sha256 for row in deleted] == [
            before[os.path.relpath(row.path, store.root)] for row in deleted
        ]
        assert {row.reason for row in deleted} == {Reason.EXPIRED}
        assert [row.base_offset for row in deleted] == [row.base_offset for row in report.archived]
        assert all(row.by_this_run for row in report.archived)
        assert sum(row.message_count for row in report.archived) > 0
        assert {row.reason for row in report.segments if row.fate is Fate.KEPT} == {Reason.ACTIVE}
        spans = released_spans(Journal(store.journal_url), report.store_id)
        assert [(span.start_offset, span.excused) for span in spans] == [(r.base_offset, "") for r in deleted]
        text = Path(finished.report_text).read_text()
        written = json.loads(Path(finished.report_json).read_text())
        hashes = [row.sha256 or "" for row in deleted]
        assert [row["sha256"] for row in written["segments"] if row["fate"] == "deleted"] == hashes
        assert all(f"SHA-256 {sha256[:16]}…" in text and sha256 not in text for sha256 in hashes)
        assert all(row.detail in text for row in report.segments)
        assert f"{bytes_text(report.freed_bytes)} ({report.freed_bytes} bytes) freed" in text
        assert (written["outcome"], written["ok"]) == ("done", True)

    @pytest.mark.slow
    def test_a_run_that_finds_nothing_to_do_ends_with_a_report(self, managed: Make) -> None:
        store = managed(overrides={"fileReservedTime": "200"})
        do_everything(store)
        finished = finish(store, "r")
        assert (finished.outcome, finished.ok, finished.finished) == (Outcome.NOTHING_TO_DO, True, True)
        assert "not-expired" in Path(finished.report_text).read_text()

    @pytest.mark.slow
    def test_a_run_that_stopped_half_way_is_reported_and_goes_on(self, archived: Make) -> None:
        store = archived(max_segments=1)
        finished = finish(store, "r")
        assert (finished.outcome, finished.finished, run_state(store)) == (
            Outcome.UNFINISHED,
            False,
            RunState.PLANNED,
        )
        assert build_report(store, "r").segments[0].fate is Fate.PENDING
        steps.release(store, "r")
        steps.clean_dependents(store, "r")
        assert finish(store, "r").outcome is Outcome.DONE

    @pytest.mark.slow
    def test_a_refusal_is_told_with_its_reason(self, planned: Make) -> None:
        store = planned(max_segments=1)
        assert steps.archive_jobs(store, "r")
        with pytest.raises(GateRefusedError):
            steps.release(store, "r")
        finished = finish(store, "r")
        assert (finished.outcome, run_state(store)) == (Outcome.FAILED, RunState.PLANNED)
        assert "release: failed: GateRefusedError" in Path(finished.report_text).read_text()
        steps.archive(store, "r", steps.archive_jobs(store, "r"))
        steps.release(store, "r")
        steps.clean_dependents(store, "r")
        assert finish(store, "r").outcome is Outcome.DONE

    @pytest.mark.slow
    def test_a_broken_validation_fails_the_run(self, archived: Make) -> None:
        store = archived(max_segments=1)
        steps.release(store, "r")
        steps.clean_dependents(store, "r")
        steps.record_validation(store, "r", validation(Status.FAILURE))
        finished = finish(store, "r")
        assert (finished.outcome, finished.finished) == (Outcome.FAILED, False)
        assert "ExpectNothing: nothing is wrong: file x" in Path(finished.report_text).read_text()
        steps.record_validation(store, "r", validation(Status.OK))
        assert finish(store, "r").outcome is Outcome.DONE

    @pytest.mark.slow
    def test_a_waiver_is_told_with_who_and_why(self, planned: Make) -> None:
        store = planned(max_segments=1)
        digest = steps.recorded_plan(store, "r").digest
        Journal(store.journal_url).waive(digest, "ann", "lake burnt down")
        steps.release(store, "r")
        report = build_report(store, "r")
        assert report.waiver is not None
        assert report.segments[0].proof_detail.startswith("waived by ann: lake burnt down")
        assert "Receipts waived by ann" in report_text(report)
        spans = released_spans(Journal(store.journal_url), report.store_id)
        assert [span.excused[:13] for span in spans] == ["waived by ann"]

    @pytest.mark.slow
    def test_policy_archive_off_is_told(self, planned: Make) -> None:
        store = planned(max_segments=1, policy=Policy(archive=ArchiveMode.OFF))
        steps.release(store, "r")
        assert "archive-off: the store's policy is archive: off" in report_text(build_report(store, "r"))

    @pytest.mark.slow
    def test_the_lake_holds_each_segment_once_over_several_runs(self, managed: Make) -> None:
        store = managed()
        for key in ("a", "b", "c"):
            do_everything(store, key, PlanRequest(manual=True, max_segments=2))
        lake = open_lake(store.lake)
        rows = receipts(lake, identify(store, Journal(store.journal_url)).store_id)
        assert [row.base_offset for row in rows] == [n * MIB for n in range(6)]
        assert sorted(p.name for p in (Path(store.root) / "commitlog").iterdir()) == [
            f"{n * MIB:020d}" for n in (6, 7)
        ]

    @pytest.mark.slow
    def test_very_long_names_keep_both_their_ends_in_the_text(self, archived: Make) -> None:
        store = archived(max_segments=1, policy=Policy(lag_policy=LagPolicy.BLOCK))
        group, topic = "%RETRY%" + "g" * 240 + "-end", "t" * 127
        behind = QueueLag(group, topic, 3, 0, 0, 9, 9, 90_000, 0, 0, True, 0, 0)
        steps.record_lag(store, "r", LagSummary(1, 1, 9, 90_000, 0, (group,), 1), [behind])
        steps.release(store, "r")
        report = build_report(store, "r")
        assert group in report.segments[0].detail
        text = report_text(report)
        shown = f"{group[:30]}…{group[-29:]}"
        assert f"in 1 queue these still have to read what goes: {shown}\n" in text
        assert f"{shown} {'t' * 30}…{'t' * 29}/3: 9 messages behind" in text
        assert f"lag-blocked: group {shown} has read queue 3 of topic {'t' * 30}…" in text
        assert group not in text
        assert report.plan_digest is not None
        assert report.plan_digest in text
