"""What the report of a run says, and how often it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.commands import Command, Text, commands_in
from storage_engine.core.wording import bytes_text
from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Journal, RunState, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.hold import HoldStatus
from storage_engine.model.lag import LagSummary, QueueLag
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.report.validation import CheckResult, RangeStatus, Status, ValidationResult, Where
from storage_engine.model.settings.policy import ArchiveMode, LagPolicy, Policy
from storage_engine.retention import steps
from storage_engine.retention.archive.archiving import record_refused
from storage_engine.retention.plan import planning
from storage_engine.retention.proof.history import released_spans
from storage_engine.retention.proof.refusing import RefusedLog
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import Fate, Outcome, build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.whole_runs import do_everything
from tests.rounds import later

Make = Callable[..., ManagedStore]
FingerprintOf = Callable[[str | Path], dict[str, str]]
MIB = 1 << 20


def run_state(store: ManagedStore, run_key: str = "r") -> RunState:
    journal = Journal(store.journal_url)
    return journal.run(identify(store, journal).store_id, run_key).state


def validation(status: Status) -> ValidationResult:
    ranges = (RangeStatus("commitlog", 0, 5, Where.ARCHIVED, status, ("0",), "detail"),)
    checks = (CheckResult("store", "ExpectNothing", "nothing is wrong", status, 1, 1, ("file x",)),)
    return ValidationResult("/s", "id", "r", "boundaries", 1, 2, ranges, checks)


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
        text = Path(finished.report_text).read_text()
        assert "release: failed: " in text
        assert "GateRefusedError" not in text
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

    @pytest.mark.again
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
        assert f"groups that still have to read segments of the plan, in 1 queue: {shown}\n" in text
        assert f"{shown} {'t' * 30}…{'t' * 29}/3: 9 messages behind" in text
        assert f"lag-blocked: group {shown} has read queue 3 of topic {'t' * 30}…" in text
        assert group not in text
        assert report.plan_digest is not None
        assert report.plan_digest in text


@pytest.mark.slow
def test_what_comes_back_from_the_journal_names_its_commands(
    managed: Callable[..., ManagedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Text("it lies aside: run ", Command("doctor"))
    monkeypatch.setattr(planning, "unknown_notices", lambda *_: (said,))
    store = managed()
    told = [steps.make_plan(store, "r", PlanRequest(manual=True)).notices for _ in range(2)]
    context = open_context(store)
    run = context.run("r")
    context.save(run, Step.HOLD, HoldStatus(held=True, described=said, notices=(said,)), 0)
    record_refused(context, run, Step.ARCHIVE, [RefusedLog("commitlog", "LagError", said, "wait")])
    held = context.result(run, Step.HOLD, HoldStatus)
    assert held is not None
    report = build_report(store, "r")
    for notices in (*told, held.notices, (held.described,), report.notices, (report.refused[0].why,)):
        assert [commands_in(one) for one in notices if one == said] == [(Command("doctor"),)]
