"""A run that does nothing for the reasons of the run before leaves next to nothing behind."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.generate import Shape, write_store
from storage_engine.lake.move.making import make_lake
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import FinishResult, finish
from storage_engine.retention.report.report import Outcome
from storage_engine.retention.store.managed_store import ManagedStore
from tests.rounds import rounds

pytestmark = pytest.mark.slow

KIB = 1024
SEGMENTS = 1000
IDLE_RUNS = rounds("STORAGE_ENGINE_IDLE_RUNS", 2, 8)


@pytest.fixture
def large(tmp_path: Path) -> ManagedStore:
    """A store of 1,000 segments, none of which has expired."""
    shape = Shape(segments=SEGMENTS, segment_bytes=16 * KIB, body_bytes=4 * KIB, topics=1)
    write_store(tmp_path / "store", shape, queue_file_bytes=6000 * 20)
    store = ManagedStore.local("large", str(tmp_path / "store"), tmp_path / "managed", time_zone="UTC")
    make_lake(store.lake)
    return store


def journal_bytes(store: ManagedStore) -> int:
    connection = sqlite3.connect(store.journal_url.removeprefix("sqlite:///"))
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    return int(pages * size)


def files(store: ManagedStore) -> set[Path]:
    return set(Path(store.report_dir).rglob("*"))


def run(store: ManagedStore, key: str, request: PlanRequest | None = None) -> FinishResult:
    """What storage_retention does of a store without a cause, but for archiving ahead."""
    steps.sense(store)
    assert not steps.make_plan(store, key, request).delete_offsets
    return finish(store, key)


@pytest.mark.again
def test_an_idle_run_of_1000_segments_adds_at_most_10_kib_and_no_report(large: ManagedStore) -> None:
    first = run(large, "first")
    assert (first.outcome, first.unchanged_since) == (Outcome.NOTHING_TO_DO, None)
    reports, before = files(large), journal_bytes(large)
    for number in range(IDLE_RUNS):
        idle = run(large, f"idle-{number}")
        assert (idle.outcome, idle.ok, idle.unchanged_since) == (Outcome.NOTHING_TO_DO, True, "first")
        assert idle.report_json == first.report_json
    assert journal_bytes(large) - before <= IDLE_RUNS * 10 * KIB
    assert files(large) == reports
    kept = steps.recorded_plan(large, f"idle-{IDLE_RUNS - 1}")
    assert len(kept.decisions) == SEGMENTS
    assert {decision.reason for decision in kept.decisions} <= {
        Reason.NO_CAUSE,
        Reason.ACTIVE,
        Reason.NOT_EXPIRED,
    }


@pytest.fixture
def quiet(managed: Callable[..., ManagedStore]) -> ManagedStore:
    """A store of which nothing has expired yet."""
    return managed(overrides={"fileReservedTime": "200"})


def test_finishing_an_idle_run_again_says_the_same(quiet: ManagedStore) -> None:
    run(quiet, "first")
    assert finish(quiet, "first").unchanged_since is None
    idle = run(quiet, "idle")
    assert finish(quiet, "idle") == idle
    assert idle.unchanged_since == "first"
    assert run(quiet, "next").unchanged_since == "first"


def test_a_run_reports_when_its_reasons_are_others(quiet: ManagedStore) -> None:
    run(quiet, "first")
    asked = PlanRequest(manual=True, reason="a person asks")
    by_hand = run(quiet, "by hand", asked)
    assert by_hand.unchanged_since is None
    assert Path(by_hand.report_json).is_file()
    assert run(quiet, "again", asked).unchanged_since == "by hand"
    assert run(quiet, "as at first").unchanged_since is None


def test_a_run_reports_when_the_report_that_answers_is_gone(quiet: ManagedStore) -> None:
    first = run(quiet, "first")
    shutil.rmtree(Path(first.report_json).parent)
    second = run(quiet, "second")
    assert second.unchanged_since is None
    assert Path(second.report_text).is_file()


def test_a_run_that_archives_or_deletes_reports(quiet: ManagedStore) -> None:
    run(quiet, "first")
    expired = replace(quiet, overrides={})
    steps.make_plan(expired, "deletes", PlanRequest(manual=True, max_segments=1))
    assert finish(expired, "deletes").outcome is Outcome.UNFINISHED
    steps.archive(expired, "deletes", steps.archive_jobs(expired, "deletes"))
    assert steps.release(expired, "deletes").deleted
    steps.clean_dependents(expired, "deletes")
    done = finish(expired, "deletes")
    assert (done.outcome, done.unchanged_since) == (Outcome.DONE, None)
    assert Path(done.report_json).is_file()
