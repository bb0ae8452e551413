"""Go on from a lake of the package whose receipts had no root: as it is, and upgraded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.tables import SCHEMA_VERSION_PROPERTY
from storage_engine.lake.soundness.receipts import list_stores, receipt_history
from tests.rounds import rounds
from tests.services import released_state as old
from tests.services.command_line import Outcome, run_command
from tests.services.released import Released
from tests.services.released_state import MIB, State

pytestmark = pytest.mark.slow

StoreCopy = Callable[[str], Path]

RUNNER = Path(__file__).parents[1] / "lake" / "making_kill_runner.py"
KILLS = rounds("STORAGE_ENGINE_MAKING_KILLS", 3, 1_000)


@pytest.fixture
def state(before_trees: Released, store_copy: StoreCopy, tmp_path: Path) -> State:
    """Two sealed segments, the first of which the older package has archived."""
    state = old.expired(store_copy("edge-frames"), tmp_path / "lake")
    before_trees.cli("init-lake", "--lake", state.lake)
    before_trees.cli("archive", state.store, "--lake", state.lake, "--budget", 1)
    return state


def done(*words: object) -> Outcome:
    outcome = run_command(*words)
    assert outcome.exit_code == 0, outcome
    return outcome


def lake_of(state: State) -> Lake:
    return open_lake(LakeConfig.local(state.lake))


def versions(state: State) -> list[str]:
    return [table.properties[SCHEMA_VERSION_PROPERTY] for table in lake_of(state).tables()]


def proofs(state: State) -> list[tuple[int, bool]]:
    """The version of each receipt's proof, and whether it has a root."""
    lake = lake_of(state)
    (store,) = list_stores(lake)
    return [(row.proof_version, row.root is not None) for row in receipt_history(lake, store.store_id)]


def columns(state: State) -> list[list[str]]:
    return [table.schema().column_names for table in lake_of(state).tables()]


def check_whole(state: State, work: Path) -> None:
    """Every byte verifies and comes back."""
    (found,) = done("verify", "--lake", state.lake, "--level", "bytes", "--json").json["stores"]
    assert (found["overall"], found["findings"]) == ("OK", [])
    done("restore", "--lake", state.lake, "--to", work)
    assert {path.name: old.sha256(path) for path in (work / "commitlog").iterdir()} == state.sealed


def test_a_lake_without_trees_is_used_as_it_is_by_both(
    before_trees: Released, state: State, tmp_path: Path
) -> None:
    before = columns(state)
    done("archive", state.store, "--lake", state.lake)
    assert (versions(state), proofs(state)) == (["2.0", "2.0"], [(2, False), (2, False)])
    assert columns(state) == before
    check_whole(state, tmp_path / "by-today")
    # The older package reads what was added, and goes on.
    before_trees.cli("verify", "--lake", state.lake, "--level", "bytes")
    before_trees.cli("gc", "--lake", state.lake)
    report = done(*old.clean_words(state), "--json").json["report"]
    assert (report["outcome"], state.there) == ("done", [2 * MIB])
    check_whole(state, tmp_path / "cleaned")


def test_an_upgraded_lake_has_roots_from_then_on_and_the_older_package_refuses_it(
    before_trees: Released, state: State, tmp_path: Path
) -> None:
    done("export", "--lake", state.lake, "--to", tmp_path / "before.parquet")
    before_rows = pq.read_table(tmp_path / "before.parquet")
    files = state.files()
    answer = done("lake", "upgrade", "--lake", state.lake, "--json").json
    assert (answer["before"], answer["now"]) == ("2.0", "3.0")
    assert (versions(state), proofs(state)) == (["3.0", "3.0"], [(2, False)])
    # No data file was changed, and nothing by doing it again.
    assert {path: facts for path, facts in state.files().items() if path.endswith(".parquet")} == {
        path: facts for path, facts in files.items() if path.endswith(".parquet")
    }
    upgraded = lake_of(state).segments().metadata_location
    assert "Nothing was changed" in done("lake", "upgrade", "--lake", state.lake).out
    assert lake_of(state).segments().metadata_location == upgraded
    before = state.files()
    for words in (("archive", state.store), ("verify",), ("gc",), ("restore", "--to", tmp_path / "refused")):
        refused = before_trees.cli(words[0], *words[1:], "--lake", state.lake, exit_code=2)
        assert "expected schema version 1.x or 2.x, found 3.0" in refused.err
    assert state.files() == before
    done("archive", state.store, "--lake", state.lake)
    assert proofs(state) == [(2, False), (3, True)]
    check_whole(state, tmp_path / "all")
    # Files of before lack the columns that came since: what those have is read as the others have it.
    done("export", "--lake", state.lake, "--to", tmp_path / "after.parquet")
    exported = pq.read_table(tmp_path / "after.parquet")
    assert exported.num_rows > before_rows.num_rows > 0
    assert exported.slice(0, before_rows.num_rows).equals(before_rows)
    report = done(*old.clean_words(state), "--json").json["report"]
    assert (report["outcome"], state.there) == ("done", [2 * MIB])
    # A new lake has the same columns, with the same ids.
    done("init-lake", "--lake", tmp_path / "new")
    new = open_lake(LakeConfig.local(tmp_path / "new"))
    for here, there in zip(lake_of(state).tables(), new.tables(), strict=True):
        assert here.schema().as_struct() == there.schema().as_struct()


def test_the_older_package_refuses_a_new_lake(before_trees: Released, tmp_path: Path) -> None:
    done("init-lake", "--lake", tmp_path / "lake")
    refused = before_trees.cli("verify", "--lake", tmp_path / "lake", exit_code=2)
    assert "expected schema version 1.x or 2.x, found 3.0" in refused.err


def test_a_copy_and_a_rebuilt_lake_are_of_their_lakes_version(state: State, tmp_path: Path) -> None:
    done("archive", state.store, "--lake", state.lake)
    copy = State(state.store, tmp_path / "copy", state.sealed)
    done("lake", "copy", "--lake", state.lake, "--to", copy.lake)
    assert versions(copy) == ["2.0", "2.0"]
    done("lake", "upgrade", "--lake", state.lake)
    refused = run_command("lake", "upgrade", "--lake", copy.lake)
    assert (refused.exit_code, "found a copy of" in refused.err) == (1, True)
    (state.lake / "catalog.db").unlink()
    done("lake", "rebuild", "--lake", state.lake)
    assert versions(state) == ["3.0", "3.0"]
    check_whole(state, tmp_path / "rebuilt")


@pytest.mark.again
@pytest.mark.timeout(600 if KILLS < 100 else 3600)
def test_an_upgrade_that_was_killed_leaves_a_lake_and_is_finished_by_the_next(
    state: State, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, str(RUNNER), "upgrade", str(state.lake), str(tmp_path / "work"), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["problems"] == [], ran.stderr[-4000:]
    assert seen["kills"] >= min(KILLS, len(seen["operations"])) > 0
    assert (seen["end"]["versions"], list(seen["end"]["proven"].values())) == (["3.0", "3.0"], [[0]])
    assert seen["end"]["marked"] == [True, True]
