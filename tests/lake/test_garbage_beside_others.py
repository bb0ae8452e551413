"""Garbage is collected while others collect, commit and archive: nothing that was committed is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core.turns import waiting_at_most
from storage_engine.exceptions import LakeUnavailableError, StorageEngineError
from storage_engine.lake.archive.archive import archive_all, archive_segment
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.writing import committing
from storage_engine.lake.gc.garbage import Collection, undo
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.proof.receipt import Receipt
from tests.lake.conftest import MakeJobs
from tests.lake.garbage_helpers import collected, second_copy

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    """The first segment is archived."""
    return filled(1)


@pytest.fixture
def rows(lake: Lake) -> tuple[Receipt, ...]:
    return receipts(lake, "store-1")


def test_two_collections_at_once_take_each_file_once(lake: Lake, rows: tuple[Receipt, ...]) -> None:
    copies = {second_copy(lake, rows[0], f"{number:08x}").name for number in range(20)}
    found: list[Collection] = []
    collectors = [
        threading.Thread(target=lambda: found.append(collected(lake, delete=True))) for _ in range(2)
    ]
    for collector in collectors:
        collector.start()
    for collector in collectors:
        collector.join()
    taken = [Path(file.path).name for collection in found for file in collection.taken]
    assert (len(taken), set(taken)) == (len(copies), copies)
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    assert len(undo(lake.config).paths) == len(copies)


def test_nothing_is_removed_while_somebody_commits(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    proven = archive_segment(make_jobs(lake, segments[1])[0])
    who = rf"\(process {os.getpid()}, since .*\) commits to it.*--wait"
    with committing(lake), waiting_at_most(0), pytest.raises(LakeUnavailableError, match=who):
        collected(lake, delete=True)
    assert Path(proven.staged_file.removeprefix("file://")).exists()


def test_a_commit_waits_for_whoever_removes_files_and_a_killed_one_holds_nobody_up(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    code = (
        "import sys, time; from storage_engine.lake.catalog.writing import nobody_commits;"
        "from storage_engine.lake.catalog.catalog import open_lake;"
        "from storage_engine.lake.catalog.config import LakeConfig\n"
        "with nobody_commits(open_lake(LakeConfig.from_json(sys.argv[1]))):"
        " print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, lake.config.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = threading.Event()

        def archive() -> None:
            archive_all(lake, make_jobs(lake, segments[1]))
            done.set()

        archiver = threading.Thread(target=archive)
        archiver.start()
        assert not done.wait(2)
        holder.kill()
        archiver.join(60)
    assert done.is_set()


@pytest.mark.again
def test_collecting_without_a_grace_beside_archivers_loses_nothing_that_was_committed(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    """An archiver whose staged file was taken fails cleanly; every receipt that exists holds."""
    jobs = [make_jobs(lake, path, store_id=f"store-{n}") for n in range(2) for path in segments]
    failures: list[Exception] = []

    def archive() -> None:
        for job in jobs:
            try:
                archive_all(lake, job)
            except StorageEngineError as error:
                failures.append(error)

    archiver = threading.Thread(target=archive)
    archiver.start()
    while archiver.is_alive():
        collected(lake, delete=True)
    assert all(isinstance(failure, LakeUnavailableError) for failure in failures), failures
    for number in range(2):
        assert broken_receipts(lake, receipts(lake, f"store-{number}")) == {}
    for job in jobs:
        archive_all(lake, job)
    assert sum(len(receipts(lake, f"store-{n}")) for n in range(2)) == len(jobs)
    assert collected(lake).garbage == ()
