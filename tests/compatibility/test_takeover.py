"""A lake that the released package made gets its identity where it is written first, if it is sound."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import lake_id_of, read_mark
from storage_engine.lake.catalog.writing import ready_to_write
from tests.rounds import rounds
from tests.services import released_state as old
from tests.services.command_line import run_command
from tests.services.released import Released
from tests.services.released_state import State

pytestmark = [pytest.mark.slow, pytest.mark.again]

StoreCopy = Callable[[str], Path]

RUNNER = Path(__file__).parents[1] / "lake" / "making_kill_runner.py"
KILLS = rounds("STORAGE_ENGINE_MAKING_KILLS", 3, 1_000)
"""At most so many; more than there are operations means every one of them."""


@pytest.fixture
def state(store_copy: StoreCopy, tmp_path: Path) -> State:
    """Two sealed segments, and nothing done about them."""
    return old.expired(store_copy("edge-frames"), tmp_path / "lake")


def check_writing_is_refused(state: State, lake: Path, store: Path, reason: str) -> None:
    """Each command that would write says so; what gc may take is nothing.

    :param store: one that has something to archive.
    """
    before = state.files()
    for words in (("archive", store), ("clean", store, "--manual")):
        refused = run_command(*words, "--lake", lake)
        assert (refused.exit_code, reason in refused.err + refused.out) == (1, True), refused
    run_command("gc", "--lake", lake, "--delete", "--grace", 1)
    assert state.files().items() >= before.items()


@pytest.mark.timeout(600 if KILLS < 100 else 3600)
def test_a_takeover_that_was_killed_is_finished_by_whoever_writes_next(
    released: Released, state: State, tmp_path: Path
) -> None:
    old.archive(released, state)
    done = subprocess.run(
        [sys.executable, str(RUNNER), "take-over", str(state.lake), str(tmp_path / "work"), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["problems"] == [], done.stderr[-4000:]
    assert seen["kills"] >= min(KILLS, len(seen["operations"]))
    end = seen["end"]
    assert (list(end["proven"].values()), end["versions"]) == ([[0, 1 << 20]], ["2.0", "2.0"])
    assert (end["one identity"], end["marked"]) == (True, [True, True])


def test_processes_that_take_a_lake_over_at_one_moment_give_it_one_identity(
    released: Released, state: State, tmp_path: Path
) -> None:
    old.archive(released, state)
    shutil.copytree(state.lake, tmp_path / "pristine")
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    with context.Pool(2, _share, (barrier,)) as pool:
        for _ in range(rounds("STORAGE_ENGINE_TAKEOVERS", 1, 3)):
            shutil.rmtree(state.lake)
            shutil.copytree(tmp_path / "pristine", state.lake)
            given = pool.map_async(_take_over, [str(state.lake)] * 2, chunksize=1).get(120)
            lake = open_lake(LakeConfig.local(state.lake))
            marked = {read_mark(table).lake_id for table in lake.tables()}
            assert {lake_id_of(table) for table in lake.tables()} == marked == set(given)
            assert len(marked) == 1


def _share(barrier: object) -> None:
    global _barrier
    _barrier = barrier


def _take_over(directory: str) -> str | None:
    lake = open_lake(LakeConfig.local(directory))
    _barrier.wait(60)
    ready_to_write(lake)
    return lake_id_of(lake.segments())


def test_a_lake_whose_catalog_was_put_back_is_not_taken_over(
    released: Released, state: State, tmp_path: Path
) -> None:
    words = ("archive", state.store, "--lake", state.lake)
    released.cli(*words, "--budget", 1)
    shutil.copy2(state.lake / "catalog.db", tmp_path / "backup.db")
    released.cli(*words)
    shutil.copy2(state.lake / "catalog.db", tmp_path / "newest.db")
    shutil.copy2(tmp_path / "backup.db", state.lake / "catalog.db")
    check_writing_is_refused(state, state.lake, state.store, "storage-engine lake rebuild")
    for path in state.lake.glob("journal.db*"):
        path.unlink()
    reason = "the catalog was put back from an older copy"
    check_writing_is_refused(state, state.lake, state.store, reason)
    shutil.copy2(tmp_path / "newest.db", state.lake / "catalog.db")
    assert run_command(*words).exit_code == 0
    assert run_command("verify", "--lake", state.lake, "--level", "bytes").exit_code == 0


def test_a_lake_that_shares_its_warehouse_is_not_taken_over(
    released: Released, state: State, store_copy: StoreCopy, tmp_path: Path
) -> None:
    """The released package made both without a word."""
    staging = tmp_path / "staging"
    for lake in (state.lake, staging):
        lake.mkdir()
        uri = f"sqlite:///{lake}/catalog.db"
        described = {"type": "sql", "uri": uri, "warehouse": f"file://{state.lake}/warehouse"}
        (lake / "lake.json").write_text(json.dumps(described))
    old.archive(released, state)
    released.cli("archive", store_copy("cqext-batchcq"), "--lake", staging)
    for lake in (state.lake, staging):
        other = old.expired(store_copy("edge-frames"), lake)
        check_writing_is_refused(state, lake, other.store, "two catalogs share this place")


def test_a_plain_copy_is_not_taken_over(released: Released, state: State, tmp_path: Path) -> None:
    released.cli("archive", state.store, "--lake", state.lake, "--budget", 1)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", state.lake, copy], check=True)
    reason = "this is a plain copy of the lake there, or the lake was moved"
    check_writing_is_refused(state, copy, state.store, reason)
    assert run_command("archive", state.store, "--lake", state.lake).exit_code == 0
    check_writing_is_refused(state, copy, state.store, reason)
