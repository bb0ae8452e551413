"""The steps around the release: planning, archiving, cleaning up behind it, flushing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    BadInputError,
    FileGoneError,
    LakeUnavailableError,
    RunStateError,
    StoreNotFoundError,
)
from storage_engine.journal.journal import Journal
from storage_engine.model.plan import Cause, PlanRequest, Reason
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import Outcome, build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.whole_runs import MANUAL, do_everything

Make = Callable[..., ManagedStore]
FingerprintOf = Callable[[str | Path], dict[str, str]]
MIB = 1 << 20


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

    @pytest.mark.parametrize("kind", ["index", "consumequeue"])
    def test_a_broken_file_beside_the_log_stays_and_the_plan_names_it(self, managed: Make, kind: str) -> None:
        store = managed()
        files = [file.facts.path for file in open_store(store).dependents.find({"commitlog": 7 * MIB})]
        broken = min(path for path in files if f"/{kind}/" in path)
        os.truncate(broken, 20)
        plan = steps.make_plan(store, "r", MANUAL)
        assert plan.delete_offsets == tuple(n * MIB for n in range(7))
        assert any(broken in notice for notice in plan.notices)

    def test_a_checkpoint_that_cannot_be_read_is_a_notice(self, managed: Make) -> None:
        store = managed()
        path = Path(store.root) / "checkpoint"
        path.unlink()
        path.mkdir()
        plan = steps.make_plan(store, "r", MANUAL)
        assert plan.delete_offsets == tuple(n * MIB for n in range(7))
        assert any(str(path) in notice for notice in plan.notices)

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
        with pytest.raises(FileGoneError, match=re.escape("offsets [0, 1048576)") + ".*LOST"):
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
