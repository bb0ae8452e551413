"""Archiving as a step of a run: what it does without a lake, and what a person's waiver changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    CorruptFrameError,
    LakeConflictError,
    LakeMissingError,
    LakeUnavailableError,
    ProofError,
)
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.storage import pace
from storage_engine.model.hold import BrokerProgress
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.store.broker import FileProcess
from tests.lakes import damage, path_of
from tests.rounds import later

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]


def never(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    raise AssertionError(f"nothing had to be archived, found {jobs}")


def waive(store: ManagedStore) -> None:
    Journal(store.journal_url).waive(steps.recorded_plan(store, "r").digest, "ann", "lake burnt down")


def take_away(lake_dir: Path) -> None:
    lake_dir.rename(lake_dir.with_name("burnt"))
    lake_dir.write_text("a file where the lake should be")


def archive_here(store: ManagedStore) -> Callable[[Sequence[SegmentJob]], tuple[Receipt, ...]]:
    return lambda jobs: steps.archive(store, "r", jobs)


def test_what_the_plan_deletes_is_archived_once(planned: Make) -> None:
    store = planned(max_segments=2)
    done = steps.archive_planned(store, "r", archive_here(store))
    assert [receipt.base_offset for receipt in done.receipts] == [0, 1 << 20]
    assert steps.archive_planned(store, "r", never) == steps.ArchiveResult(())


@pytest.mark.parametrize("answers", [lambda: 1, lambda: 500, lambda: [][0]])
def test_a_running_broker_is_asked_how_long_its_puts_take(
    planned: Make, monkeypatch: pytest.MonkeyPatch, answers: Callable[[], float]
) -> None:
    asked: list[float] = []

    def progress(_store: object, now_ms: int) -> BrokerProgress:
        asked.append(now_ms)
        return BrokerProgress(now_ms, 0, 0, None, None, None, {}, None, put_p99_ms=answers())

    monkeypatch.setattr(FileProcess, "progress", progress)
    monkeypatch.setattr(pace, "_LOOK_SECONDS", 0.0)
    store = planned(max_segments=1, policy=Policy(archive_bytes_per_second=1 << 30))
    done = steps.archive_planned(store, "r", archive_here(store))
    assert len(done.receipts) == 1
    assert len(asked) > 1


@pytest.mark.parametrize("fault", ["lost", *later("damaged")])
def test_what_a_lake_lost_is_archived_again_and_told(planned: Make, fault: str) -> None:
    store = planned(max_segments=2)
    done = steps.archive_planned(store, "r", archive_here(store))
    path = path_of(open_lake(store.lake), done.receipts[1])
    if fault == "lost":
        path.unlink()
    else:
        damage(path)
    again = steps.archive_planned(store, "r", archive_here(store))
    assert [receipt.base_offset for receipt in again.receipts] == [1 << 20]
    (notice,) = again.notices
    assert notice.startswith(f"archived again: commitlog/{1 << 20:020d}, because a lake's copy isn't sound: ")
    assert path.name in notice
    assert notice in build_report(store, "r").notices


def test_policy_archive_off_archives_nothing(planned: Make, lake_dir: Path) -> None:
    store = planned(policy=Policy(archive=ArchiveMode.OFF))
    assert steps.archive_planned(store, "r", never) == steps.ArchiveResult(())
    assert not lake_dir.exists()


def test_an_unreachable_lake_is_an_error_until_a_person_waives_the_plan(
    planned: Make, lake_dir: Path
) -> None:
    store = planned(max_segments=1)
    take_away(lake_dir)
    with pytest.raises(LakeUnavailableError):
        steps.archive_planned(store, "r", never)
    waive(store)
    done = steps.archive_planned(store, "r", never)
    assert done.receipts == ()
    assert done.waiver is not None
    assert (done.waiver.person, done.waiver.reason) == ("ann", "lake burnt down")
    assert str(lake_dir) in done.error
    (release,) = steps.release(store, "r").deleted
    assert release.passage is Passage.WAIVED
    (step,) = (step for step in build_report(store, "r").steps if step.step == "archive")
    assert step.error.startswith("LakeUnavailableError")


@pytest.mark.parametrize(
    ("error", "excused"), [(CorruptFrameError, True), (ProofError, True), (LakeConflictError, False)]
)
def test_a_waiver_excuses_what_cannot_be_archived_but_no_contradiction(
    planned: Make, error: type[Exception], excused: bool
) -> None:
    store = planned(max_segments=1)

    def fail(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        raise error("it fails")

    with pytest.raises(error, match="it fails"):
        steps.archive_planned(store, "r", fail)
    waive(store)
    if excused:
        assert steps.archive_planned(store, "r", fail).error == "it fails"
    else:
        with pytest.raises(error, match="it fails"):
            steps.archive_planned(store, "r", fail)


def test_a_plan_whose_lake_is_not_there_is_refused_with_the_command_that_makes_one(
    managed: Make, lake_dir: Path
) -> None:
    store = managed()
    lake_dir.rename(lake_dir.with_name("away"))
    with pytest.raises(LakeMissingError, match=rf"storage-engine init-lake --lake {lake_dir}\."):
        steps.make_plan(store, "r", PlanRequest(manual=True))
    assert not lake_dir.exists()
