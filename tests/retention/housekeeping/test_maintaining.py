"""What has expired goes, whatever happens on the way; what deletions are decided from never does."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generate import Shape, write_store
from storage_engine.core.clock import DAY_MS, clock_ms, read_clock
from storage_engine.exceptions import RunStateError
from storage_engine.journal.journal import Journal, Phase, RunState, Step
from storage_engine.lake.move.making import make_lake
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import TopicDay
from storage_engine.retention import steps
from storage_engine.retention.housekeeping.maintaining import (
    MaintainResult,
    maintain_directory,
    maintain_store,
)
from storage_engine.retention.proof.history import released_spans
from storage_engine.retention.ranges.deleted_ranges import AcceptedLoss, accepted_losses, record_loss
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore, run_directory
from tests.rounds import rounds

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).parents[1] / "maintain_kill_runner.py"
LATER_MS = 100 * DAY_MS
STRIDE = rounds("STORAGE_ENGINE_MAINTAIN_KILL_STRIDE", 5, 1)
"""Maintenance is killed at every operation of so many."""
DELETES = PlanRequest(manual=True, max_segments=1)
KEPT = (Step.RELEASE, Step.DRIFT, Step.ACCEPT_LOSS)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ManagedStore:
    """A store with every kind of history: runs that deleted, were idle, were left, and had no plan."""
    directory = tmp_path_factory.mktemp("history")
    paths = write_store(directory / "store", Shape(6, 64 << 10, 4 << 10, 1), queue_file_bytes=6000 * 20)
    for path in paths[:-1]:
        os.utime(path, (1_700_000_000, 1_700_000_000))
    own = {"overrides": {"deleteWhen": "99"}, "time_zone": "UTC"}
    store = ManagedStore.local("s", str(directory / "store"), directory / "managed", **own)
    make_lake(store.lake)
    _delete(store, "deleted")
    for key in ("quiet", "idle-1", "idle-2"):
        steps.make_plan(store, key)
        finish(store, key)
    steps.record_archive_lag(store, "measured")
    steps.make_plan(store, "left", DELETES)
    steps.archive(store, "left", steps.archive_jobs(store, "left"))
    finish(store, "left")
    journal = Journal(store.journal_url)
    run = journal.begin_run(_store_id(store), "losses", PlanRequest())
    record_loss(journal, run, AcceptedLoss("commitlog", 1, 0, 1, "ann", "seen"))
    held = [TopicDay("orders", day, 1, 1) for day in (7, 8, 1 << 20)]
    journal.save_topic_days(_store_id(store), {("commitlog", 0): held})
    journal.record(run, Step.HOLD, Phase.RESULT, [("", {"n": 1})])
    journal.record(run, Step.HOLD, Phase.RESULT, [("", {"n": 2})])
    journal.record(run, Step.DRIFT, Phase.RESULT, [("gone", {"n": 1})])
    steps.make_plan(store, "last")
    finish(store, "last")
    return store


@pytest.fixture
def store(original: ManagedStore, tmp_path: Path) -> ManagedStore:
    """That store with a journal and reports of its own."""
    shutil.copytree(Path(original.report_dir).parent, tmp_path / "own", ignore=lambda *_: {"lake"})
    journal_url = f"sqlite:///{tmp_path / 'own' / 'journal.db'}"
    return replace(original, journal_url=journal_url, report_dir=str(tmp_path / "own" / "reports"))


def _delete(store: ManagedStore, key: str) -> None:
    steps.make_plan(store, key, DELETES)
    steps.archive(store, key, steps.archive_jobs(store, key))
    assert steps.release(store, key).deleted
    steps.clean_dependents(store, key)
    assert finish(store, key).finished


def _store_id(store: ManagedStore) -> str:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    return record.store_id


def _later(store: ManagedStore, **how: Any) -> MaintainResult:
    return maintain_store(store, clock_ms() + LATER_MS, **how)


def _decided_from(store: ManagedStore) -> list[Any]:
    """All that a deletion, or an answer to where bytes are, is taken from."""
    journal, store_id = Journal(store.journal_url), _store_id(store)
    record = journal.find_store(store.real_root)
    assert record is not None
    return [
        record,
        released_spans(journal, store_id),
        known_heads(journal, record),
        journal.store_events(store_id, Step.STAMP),
        accepted_losses(journal, record),
        [event for step in KEPT for event in journal.store_events(store_id, step) if event.subject],
        [
            event
            for step in (Step.ARCHIVE, Step.SEALED)
            for event in journal.store_events(store_id, step, Phase.RESULT)
            if event.subject
        ],
        journal.store_events(store_id, Step.HOLD)[-1],
        journal.clock_readings(store_id),
    ]


def test_what_has_expired_goes_and_what_decisions_rest_on_stays(store: ManagedStore) -> None:
    journal, before = Journal(store.journal_url), _decided_from(store)
    done = _later(store)
    assert _decided_from(store) == before

    reports = {run_directory(store, key): key for key in ("deleted", "quiet", "left", "last")}
    # That of "quiet" answers for "last", too.
    assert {key for path, key in reports.items() if path.exists()} == {"left", "quiet"}
    assert {reports[Path(path)] for path in done.report_directories} == {"deleted"}
    assert done.rows.runs == 4
    for key in ("idle-1", "idle-2", "measured"):
        assert journal.find_run(_store_id(store), key) is None
    assert journal.run(_store_id(store), "left").state is RunState.PLANNED
    assert steps.recorded_plan(store, "left").to_delete
    assert steps.recorded_plan(store, "last").decisions
    assert len(journal.store_events(_store_id(store), Step.HOLD)) == 1

    again = _later(store)
    assert (again.report_directories, again.rows.runs, again.rows.events) == ((), 0, 0)


def test_an_expired_run_is_not_begun_again(store: ManagedStore) -> None:
    _later(store)
    with pytest.raises(RunStateError, match="ended long ago"):
        steps.make_plan(store, "deleted", DELETES)


def test_the_store_is_cleaned_on_after_maintenance(store: ManagedStore) -> None:
    _later(store)
    record_loss(
        Journal(store.journal_url),
        Journal(store.journal_url).begin_run(_store_id(store), "losses", PlanRequest()),
        AcceptedLoss("commitlog", 1, 1, 2, "ann", "seen"),
    )
    _delete(store, "after")


def test_nothing_expires_before_its_time(store: ManagedStore) -> None:
    done = maintain_store(store, clock_ms() + 29 * DAY_MS)
    assert (done.report_directories, done.rows.runs, done.rows.samples) == ((), 0, 0)
    done = maintain_store(store, clock_ms() + 31 * DAY_MS)
    # The two runs that wrote no report, and the one without a plan.
    assert (done.report_directories, done.rows.runs) == ((), 3)


def test_of_old_samples_the_last_of_a_day_stays(store: ManagedStore) -> None:
    journal, store_id = Journal(store.journal_url), _store_id(store)
    day_ms = clock_ms() // DAY_MS * DAY_MS - 5 * DAY_MS
    for minute in range(4):
        journal.add_sample(store_id, [], day_ms + minute)
    path = store.journal_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE storage_engine_samples SET clock = NULL WHERE at_ms < {day_ms + 4}")
    assert _later(store).rows.samples == 3
    with sqlite3.connect(path) as connection:
        left = connection.execute(f"SELECT at_ms FROM storage_engine_samples WHERE at_ms < {day_ms + 4}")
        assert left.fetchall() == [(day_ms + 3,)]
    connection.close()
    assert _later(store).rows.samples == 0


def test_a_dry_run_says_the_same_and_changes_nothing(store: ManagedStore, fingerprint: Any) -> None:
    directory = Path(store.report_dir).parent
    before = fingerprint(directory)
    said = _later(store, dry_run=True)
    assert fingerprint(directory) == before
    done = _later(store)
    assert (said.report_directories, said.rows) == (done.report_directories, done.rows)
    assert (said.dry_run, done.dry_run) == (True, False)


def test_only_our_own_files_are_removed(store: ManagedStore, tmp_path: Path) -> None:
    theirs = run_directory(store, "deleted") / "notes.txt"
    theirs.write_text("mine")
    other = run_directory(store, "other")
    other.mkdir()
    (other / "report.json").write_text('{"finished_at_ms": 1}')
    linked = tmp_path / "elsewhere"
    shutil.copytree(run_directory(store, "deleted"), linked)
    run_directory(store, "linked").symlink_to(linked)
    done = _later(store)
    assert list(theirs.parent.iterdir()) == [theirs]
    assert (other / "report.json").exists()
    assert (linked / "report.json").exists()
    assert done.report_directories == (str(theirs.parent),)


def test_nothing_expires_by_a_clock_that_was_set_forward(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the whole machine can't be set for a test: what it would say then stands for it."""
    now = read_clock()
    assert now is not None
    jumped = type(now)(now.boot_id, now.boottime_ms, now.started_at_ms + LATER_MS)
    monkeypatch.setattr("storage_engine.retention.housekeeping.maintaining.read_clock", lambda: jumped)
    done = _later(store)
    assert (done.report_directories, done.rows.runs) == ((), 0)
    assert "nothing expires, as the clock was set forward" in done.notices[0]


def test_without_a_journal_none_is_made(tmp_path: Path) -> None:
    done = maintain_directory(f"sqlite:///{tmp_path / 'journal.db'}", tmp_path / "reports")
    assert done.rows.runs == 0
    assert not list(tmp_path.iterdir())


def test_maintenance_that_is_killed_anywhere_is_finished_by_the_next(
    store: ManagedStore, tmp_path: Path
) -> None:
    data_docs = run_directory(store, "deleted") / "great_expectations" / "gx"
    data_docs.mkdir(parents=True)
    (data_docs / "index.html").write_text("docs")
    work = tmp_path / "work"
    work.mkdir()
    directory = Path(store.report_dir).parent
    command = [
        sys.executable,
        str(RUNNER),
        str(directory),
        str(work),
        str(clock_ms() + LATER_MS),
        str(STRIDE),
    ]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    kills = [json.loads(line) for line in lines]
    assert len(kills) > 12 // STRIDE
    expected = kills[-1][1]
    for killed, after in kills:
        assert set(expected["runs"]) - set(killed["runs"]) <= {
            row for row in expected["runs"] if "expired" in row
        }
        assert set(expected["events"]) <= set(killed["events"])
        assert set(expected["files"]) <= set(killed["files"])
        assert set(expected["topic_days"]) <= set(killed["topic_days"])
        assert after == expected
    assert len(expected["topic_days"]) == 1
