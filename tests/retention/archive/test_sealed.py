"""Archiving ahead of deletion: what is sealed goes into the lake, so that no deletion waits for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage_engine import task_log
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import LakeUnavailableError, ProofError
from storage_engine.journal.journal import Journal
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.diagnosis import Severity
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.archive import archiving
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.steps import archive_sealed, record_archive_lag
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore
from tests.rounds import later

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
MIB = 1 << 20
SEALED = 7
"""Segments of clean-stop that are sealed; the eighth is active."""


def here(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    return archive_all(open_lake(jobs[0].lake), jobs)


def never(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    raise AssertionError(f"nothing had to be archived, found {jobs}")


def offsets(receipts: Sequence[Receipt]) -> list[int]:
    return [receipt.base_offset for receipt in receipts]


def test_each_run_archives_the_oldest_that_fit_its_budget(managed: Make) -> None:
    store = managed()
    assert offsets(archive_sealed(store, "a", here, budget_bytes=3 * MIB).receipts) == [0, MIB, 2 * MIB]
    assert offsets(archive_sealed(store, "b", here, budget_bytes=1).receipts) == [3 * MIB]
    assert len(archive_sealed(store, "c", here).receipts) == SEALED - 4
    assert archive_sealed(store, "d", never).receipts == ()
    lag = record_archive_lag(store, "d")
    assert lag is not None
    assert (lag.segments, lag.size_bytes, lag.oldest_base_offset, lag.oldest_age_seconds) == (0, 0, None, 0)


@pytest.mark.parametrize("forced", [False, True], ids=["ordinary", "forced"])
def test_what_was_archived_ahead_is_deleted_without_archiving_again(managed: Make, forced: bool) -> None:
    store = managed(overrides={"cleanFileForciblyEnable": "true"})
    archive_sealed(store, "ahead", here, budget_bytes=3 * MIB)
    request = PlanRequest(manual=True, forced=forced, max_segments=3)
    steps.make_plan(store, "r", request)
    assert steps.archive_planned(store, "r", never).receipts == ()
    released = steps.release(store, "r")
    assert [release.passage for release in released.deleted] == [Passage.PROVEN] * 3
    assert {release.lake for release in released.deleted} == {store.lake.location}


def test_a_segment_that_was_only_touched_is_compared_once_and_not_at_every_run(managed: Make) -> None:
    store = managed()
    archive_sealed(store, "a", here, budget_bytes=2 * MIB)
    os.utime(Path(store.root) / "commitlog" / f"{MIB:020d}")
    assert offsets(archive_sealed(store, "b", here, budget_bytes=1).hashed_again) == [MIB]
    assert offsets(archive_sealed(store, "c", here, budget_bytes=1).receipts) == [2 * MIB]
    lag = record_archive_lag(store, "c")
    assert lag is not None
    assert lag.segments == SEALED - 3


def test_a_segment_that_is_deleted_meanwhile_does_not_hold_up_the_others(managed: Make) -> None:
    store = managed()
    steps.make_plan(store, "urgent", PlanRequest(manual=True, max_segments=2))
    seen: list[list[int]] = []

    def overtaken(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        seen.append([job.base_offset for job in jobs])
        if len(seen) == 1:
            steps.archive_planned(store, "urgent", here)
            steps.release(store, "urgent")
        return here(jobs)

    done = archive_sealed(store, "background", overtaken, budget_bytes=3 * MIB)
    assert seen == [[0, MIB, 2 * MIB], [3 * MIB, 4 * MIB]]
    assert offsets(done.receipts) == [2 * MIB, 3 * MIB, 4 * MIB]
    # What went was proven, by the other run.
    assert done.refused == ()
    assert recorded_gone(Journal(store.journal_url), identify(store, Journal(store.journal_url))) == ()


@pytest.mark.parametrize("is_brokers", [True, False], ids=["left to its broker", "held by us"])
def test_what_went_unproven_is_named_and_recorded(
    managed: Make, monkeypatch: pytest.MonkeyPatch, is_brokers: bool
) -> None:
    store = managed()
    who = "a broker has it" if is_brokers else ""
    monkeypatch.setattr("storage_engine.rocketmq.store.broker.FileProcess.user", lambda _: who)
    seen: list[list[int]] = []

    def overtaken(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        seen.append(offsets_of(jobs))
        if len(seen) == 1:
            for job in jobs[:2]:
                Path(job.path).unlink()
        return here(jobs)

    done = archive_sealed(store, "r", overtaken)
    # What is left goes into the lake at the first attempt, and nothing is copied twice.
    assert offsets(done.receipts) == [at * MIB for at in range(2, SEALED)]
    assert len(seen) == 1
    gone = f"[0, {2 * MIB})"
    journal = Journal(store.journal_url)
    ((drift, _),) = recorded_gone(journal, identify(store, journal))
    assert (drift.log, drift.start_offset, drift.end_offset) == ("commitlog", 0, 2 * MIB)
    if is_brokers:
        assert done.refused == ()
        assert [gone in one and "by its own rules" in one for one in done.notices].count(True) == 1
    else:
        (refused,) = done.refused
        assert (refused.log, refused.why) == (
            "commitlog",
            f"expected records of offsets {gone} on disk or in a lake, found them in neither: LOST.",
        )


def offsets_of(jobs: Sequence[SegmentJob]) -> list[int]:
    return [job.base_offset for job in jobs]


def test_a_segment_that_another_takes_the_place_of_is_an_error(managed: Make) -> None:
    store = managed()

    def replaced(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        path = Path(jobs[0].path)
        other = path.with_name("other")
        other.write_bytes(path.read_bytes())
        other.replace(path)
        return here(jobs)

    with pytest.raises(ProofError):
        archive_sealed(store, "r", replaced, budget_bytes=1)


class TestArchiveLag:
    def test_it_counts_what_is_sealed_and_not_proven_and_is_kept_with_the_samples(
        self, managed: Make
    ) -> None:
        store = managed()
        archive_sealed(store, "r", here, budget_bytes=2 * MIB)
        lag = record_archive_lag(store, "r")
        assert lag is not None
        assert (lag.segments, lag.size_bytes, lag.oldest_base_offset) == (5, 5 * MIB, 2 * MIB)
        assert abs(lag.oldest_age_seconds - 100 * 3600) < 600
        journal = Journal(store.journal_url)
        sample = journal.last_sample(identify(store, journal).store_id)
        assert sample is not None
        assert (sample.archive_lag, len(sample.levels)) == (lag, 2)

    def test_a_receipt_whose_data_file_is_gone_proves_nothing(self, managed: Make, lake_dir: Path) -> None:
        store = managed()
        archive_sealed(store, "r", here, budget_bytes=3 * MIB)
        next((lake_dir / "warehouse").rglob(f"*{MIB:020d}*.parquet")).unlink()
        lag = record_archive_lag(store, "r")
        assert lag is not None
        assert lag.oldest_base_offset == MIB

    def test_without_the_lake_the_journal_says_what_was_archived(self, managed: Make, lake_dir: Path) -> None:
        store = managed()
        archive_sealed(store, "r", here, budget_bytes=2 * MIB)
        lake_dir.rename(lake_dir.with_name("away"))
        lag = record_archive_lag(store, "r")
        assert lag is not None
        assert lag.segments == SEALED - 2
        assert len(lag.notes) == 1
        assert str(lake_dir) in lag.notes[0]

    def test_exceeded_thresholds_are_told_in_the_report(self, managed: Make) -> None:
        policy = Policy(archive_lag_alarm_bytes=4 * MIB, archive_lag_alarm_seconds=99 * 3600)
        store = managed(policy=policy)
        archive_sealed(store, "r", here, budget_bytes=2 * MIB)
        steps.make_plan(store, "r", PlanRequest())
        lag = record_archive_lag(store, "r")
        assert lag is not None
        assert [alarm.partition(",")[0] for alarm in lag.alarms(policy)] == [
            "archive lag: expected at most 4.0 MiB sealed and not proven in the lake",
            "archive lag: expected every segment in the lake 4 d 3 h after its last write",
        ]
        finish(store, "r")
        report = build_report(store, "r")
        assert (report.archived_ahead, report.archive_lag, len(report.alarms)) == (2, lag, 2)
        text = report_text(report)
        assert text.count("WARNING archive lag: ") == 2
        assert "2 segments archived and proven ahead of deletion" in text
        assert lag.alarms(Policy()) == ()

    @pytest.mark.parametrize("touch", ["times", *later("chmod", "link")])
    def test_an_archived_segment_that_was_touched_is_hashed_again_and_no_lag(
        self, managed: Make, tmp_path: Path, touch: str
    ) -> None:
        policy = Policy(archive_lag_alarm_bytes=0, archive_lag_alarm_seconds=1)
        store = managed(policy=policy)
        archive_sealed(store, "r", here)
        path = next(Path(store.root).rglob(f"commitlog/{0:020d}"))
        if touch == "chmod":
            path.chmod(0o600)
        elif touch == "link":
            (tmp_path / "backup").hardlink_to(path)
        else:
            os.utime(path)
        lag = record_archive_lag(store, "s")
        assert lag is not None
        assert (lag.segments, lag.touched, lag.alarms(policy)) == (0, 1, ())
        assert lag.text == (
            "all sealed segments are archived; 1 archived segment was touched since, to be hashed again"
        )
        found = diagnose(store, clock_ms(), has_lake=True)
        assert found.unproven == ()
        (said,) = (one for one in found.findings if one.kind in ("touched", "unproven"))
        assert (said.severity, said.what) == (Severity.NOTE, lag.text.partition("; ")[2])
        again = archive_sealed(store, "s", here)
        assert (again.receipts, [row.base_offset for row in again.hashed_again]) == ((), [0])
        assert [*task_log.archive_lines(again)] == ["1 segment hashed again, unchanged"]
        finish(store, "s")
        report = build_report(store, "s")
        assert (report.archived_ahead, report.hashed_again) == (0, 1)
        assert "1 segment hashed again, unchanged" in report_text(report)
        lag = record_archive_lag(store, "t")
        assert lag is not None
        assert (lag.touched, lag.text) == (0, "all sealed segments are proven in the lake")

    def test_policy_archive_off_has_no_lag(self, managed: Make, lake_dir: Path) -> None:
        store = managed(policy=Policy(archive=ArchiveMode.OFF))
        assert record_archive_lag(store, "r") is None
        assert archive_sealed(store, "r", never).receipts == ()
        assert not lake_dir.exists()


def test_a_lake_that_vanishes_while_archiving_is_told_and_gone_on_with(managed: Make, lake_dir: Path) -> None:
    store = managed()

    def lose(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        shutil.move(lake_dir, lake_dir.with_name("away"))
        lake_dir.write_text("a file where the lake should be")
        return here(jobs)

    with pytest.raises(LakeUnavailableError, match=str(lake_dir)):
        archive_sealed(store, "r", lose, budget_bytes=1)
    lake_dir.unlink()
    shutil.move(lake_dir.with_name("away"), lake_dir)
    assert offsets(archive_sealed(store, "r", here, budget_bytes=1).receipts) == [0]


def test_where_all_of_a_turn_went_away_meanwhile_nobody_is_asked_to_archive(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_ask_contexts", lambda _context, _segments: ([], {}))
    asked: list[int] = []

    def archive(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        asked.append(len(jobs))
        return ()

    done = archive_sealed(managed(), "sealed", archive)
    assert (done.receipts, asked) == ((), [])
