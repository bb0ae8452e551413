"""When a cleanup is due: a cause holds, and a run would do or say something about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import StoreLayoutError
from storage_engine.journal.journal import Journal, Step
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.model.disk import DiskUsage
from storage_engine.model.lag import ArchiveLag
from storage_engine.model.plan import Cause, PlanQuestion, PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, ArchiveWhen, Policy
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import archive_lag_of_store
from storage_engine.retention.plan import cleanup_due
from storage_engine.retention.proof.approvals import record_question
from storage_engine.retention.report.report import archived_counts, deleted_counts
from storage_engine.retention.steps import look_for_due, monitor, segments_to_archive
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.managed_store import ManagedStore

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
MIB = 1 << 20
ALL_HOURS = {"deleteWhen": ";".join(str(hour) for hour in range(24)), "diskMaxUsedSpaceRatio": "95"}
AT_NO_HOUR = {"deleteWhen": "99", "diskMaxUsedSpaceRatio": "95"}
MANUAL = PlanRequest(manual=True)
HOUR_MS = 3_600_000


def runs_of(store: ManagedStore) -> int:
    (known,) = Journal(store.journal_url).all_stores()
    return len(JournalReader(store.journal_url).runs(known.store_id))


def test_a_cause_and_something_that_goes_make_it_due_and_leave_no_run(managed: Make) -> None:
    store = managed(overrides=ALL_HOURS)
    found = look_for_due(store)
    assert (found.deletes, found.delete_bytes, found.stays) == (7, 7 * MIB, "")
    assert found.why == ("7 segments, 7.0 MiB, would be deleted",)
    assert runs_of(store) == 0


def test_a_cause_without_anything_that_goes_is_not_due_and_says_why(managed: Make) -> None:
    store = managed(overrides=ALL_HOURS)
    for segment in (Path(store.root) / "commitlog").iterdir():
        os.utime(segment)
    found = look_for_due(store)
    assert (found.deletes, found.why) == (0, ())
    assert found.stays == "no segment would be deleted: 7 not-expired, 1 active"


def test_without_a_cause_nothing_is_due(managed: Make) -> None:
    found = look_for_due(managed(overrides=AT_NO_HOUR))
    assert (found.sensed.triggers, found.why, found.stays) == ((), (), "")


def test_a_store_that_its_broker_has_to_recover_is_due_so_that_a_run_says_so(managed: Make) -> None:
    store = managed(overrides=ALL_HOURS)
    (Path(store.root) / "abort").touch()
    found = look_for_due(store)
    assert found.deletes == 0
    assert [line.partition(":")[0] for line in found.why] == ["no segment may be deleted"]


def test_a_quarantine_whose_window_is_over_is_due_at_any_hour(managed: Make) -> None:
    store = managed(overrides=AT_NO_HOUR, policy=Policy(ArchiveMode.OFF, undo_window_hours=24))
    steps.make_plan(store, "r", MANUAL)
    steps.release(store, "r")
    steps.clean_dependents(store, "r")
    now_ms = clock_ms()
    assert look_for_due(store, now_ms).why == ()
    (line,) = look_for_due(store, now_ms + 25 * HOUR_MS).why
    assert line.startswith("the quarantine of run r would be emptied: its window was over at")


def test_a_quarantine_that_keeps_a_full_disk_full_is_due(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed(overrides={"deleteWhen": "99"}, policy=Policy(ArchiveMode.OFF, undo_window_hours=24))
    steps.make_plan(store, "r", replace(MANUAL, max_segments=7))
    steps.release(store, "r")
    steps.clean_dependents(store, "r")
    monkeypatch.setattr(DiskUsage, "of", lambda path: DiskUsage(str(path), 80))
    found = look_for_due(store)
    assert {trigger.cause for trigger in found.sensed.triggers} == {Cause.SPACE_FULL}
    assert (found.deletes, found.why) == (0, ("the quarantine of run r would be emptied: space is short",))


def test_what_cannot_be_planned_is_an_error(managed: Make) -> None:
    store = managed(overrides=ALL_HOURS)
    os.truncate(Path(store.root) / "commitlog" / f"{0:020d}", 20)
    with pytest.raises(StoreLayoutError, match=f"{0:020d}: expected"):
        look_for_due(store)


def test_only_what_is_archived_ahead_by_policy_waits_to_be(managed: Make) -> None:
    store = managed()
    assert segments_to_archive(store) == 0
    ahead = replace(store, policy=Policy(archive_when=ArchiveWhen.SEAL))
    assert segments_to_archive(ahead) == 7
    monitor(ahead, "m")
    assert segments_to_archive(ahead) == 7
    steps.archive_sealed(ahead, "a", lambda jobs: archive_all(open_lake(jobs[0].lake), jobs))
    assert segments_to_archive(ahead) == 0


def test_what_the_monitor_found_to_be_nothing_a_moment_ago_is_not_measured_again(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed(policy=Policy(archive_when=ArchiveWhen.SEAL))
    steps.archive_sealed(store, "a", lambda jobs: archive_all(open_lake(jobs[0].lake), jobs))
    monitor(store, "m")
    measured: list[object] = []

    def measure(context: Context) -> ArchiveLag:
        measured.append(context)
        return archive_lag_of_store(context)

    monkeypatch.setattr(cleanup_due, "archive_lag_of_store", measure)
    assert (segments_to_archive(store), measured) == (0, [])
    later_ms = clock_ms() + 16 * 60_000
    monkeypatch.setattr(cleanup_due, "clock_ms", lambda: later_ms)
    assert (segments_to_archive(store), len(measured)) == (0, 1)


def test_archived_segments_that_were_touched_wait_though_the_monitor_found_no_lag(managed: Make) -> None:
    store = managed(policy=Policy(archive_when=ArchiveWhen.SEAL))

    def archive(run_key: str) -> None:
        steps.archive_sealed(store, run_key, lambda jobs: archive_all(open_lake(jobs[0].lake), jobs))

    archive("a")
    os.utime(Path(store.root) / "commitlog" / f"{0:020d}")
    lag = monitor(store, "m").archive_lag
    assert lag is not None
    assert (lag.size_bytes, lag.touched) == (0, 1)
    assert segments_to_archive(store) == 1
    archive("b")
    monitor(store, "n")
    assert segments_to_archive(store) == 0


def test_monitor_measures_the_archive_lag_and_alarms_by_the_policy(managed: Make) -> None:
    store = managed(policy=Policy(archive_lag_alarm_bytes=MIB))
    found = monitor(store, "m")
    assert found.archive_lag is not None
    assert found.archive_lag.segments == 7
    assert [alarm[:31] for alarm in found.alarms] == ["archive lag: expected at most 1"]
    (known,) = Journal(store.journal_url).all_stores()
    sample = Journal(store.journal_url).last_sample(known.store_id)
    assert sample is not None
    assert sample.archive_lag == found.archive_lag
    assert runs_of(store) == 0


def test_a_lake_that_cannot_be_asked_is_said(managed: Make, lake_dir: Path) -> None:
    store = managed()
    monitor(store, "m")
    (lake_dir / "catalog.db").write_bytes(b"cut off" * 100)
    found = monitor(store, "m")
    assert found.archive_lag is not None
    assert [note[:27] for note in found.archive_lag.notes] == ["a lake could not be asked: "]


def test_figures_of_a_run_are_those_of_all_its_attempts(managed: Make) -> None:
    store = managed()
    steps.make_plan(store, "r", replace(MANUAL, max_segments=3))
    for _ in range(2):
        # The second attempt finds all of it archived.
        steps.archive_planned(store, "r", lambda jobs: archive_all(open_lake(jobs[0].lake), jobs))
        (archived,) = archived_counts(store, "r", Step.ARCHIVE)
        assert (archived.segments, archived.size_bytes) == (3, 3 * MIB)
    assert deleted_counts(store, "r") is None
    for _ in range(2):
        steps.release(store, "r")
        deleted = deleted_counts(store, "r")
        assert deleted is not None
        assert replace(deleted, size_bytes=archived.size_bytes) == archived
    steps.make_plan(store, "next", PlanRequest())
    assert archived_counts(store, "next", Step.ARCHIVE) == ()
    # Others are told of what went, also while no lake can say how many messages that was.
    Path(store.lake.properties["warehouse"].removeprefix("file://")).parent.joinpath("catalog.db").unlink()
    told = deleted_counts(store, "r")
    assert told == replace(deleted, messages=None, first_message_ms=None, last_message_ms=None)


def test_each_open_question_makes_the_next_one_wait_longer(managed: Make) -> None:
    """So that questions that nobody answers never take all runs that a DAG may have."""
    store = managed(overrides=ALL_HOURS)
    assert not look_for_due(store).is_asked
    journal = Journal(store.journal_url)
    (known,) = journal.all_stores()
    run = journal.begin_run(known.store_id, "dag/r", PlanRequest())
    now_ms = began_ms = clock_ms()
    moments = []
    while now_ms < began_ms + 12 * HOUR_MS:
        # The sensor looks every ten minutes, and each time more is due.
        if not look_for_due(store, now_ms).is_asked:
            moments.append(now_ms)
            asked = PlanQuestion(str(now_ms), "w", now_ms, now_ms + 12 * HOUR_MS)
            record_question(journal, run, asked)
        now_ms += HOUR_MS // 6
    assert moments[1] - moments[0] == HOUR_MS // 6
    assert 8 <= len(moments) <= 12
