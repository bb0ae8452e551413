"""Go on from what the package wrote while a plan had one log: its plans, runs, waivers and quarantines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.writing import settle_broker
from storage_engine.lake.soundness.receipts import list_stores
from tests.rounds import again_but
from tests.services import released_state as old
from tests.services.command_line import run_command
from tests.services.released import Kill, Released
from tests.services.released_state import MIB, RUN, State

pytestmark = [pytest.mark.slow, pytest.mark.again]

StoreCopy = Callable[[str], Path]

MOMENTS = {
    "archived, not committed": Kill("archive_planned", "link", 1),
    "about to delete": Kill("release", "unlink"),
    "one deleted, one to go": Kill("release", "unlink", 1),
    "queues half cleaned": Kill("clean_dependents", "unlink", 1),
    "done, not reported": Kill("finish", "commit"),
}
"""Of a run that deletes two segments."""


@pytest.fixture(scope="module")
def released(before_the_seam: Released) -> Released:
    return before_the_seam


@pytest.fixture
def state(released: Released, store_copy: StoreCopy, tmp_path: Path) -> State:
    """Two sealed segments, an empty lake, and nothing done about them."""
    state = old.expired(store_copy("edge-frames"), tmp_path / "lake")
    released.cli("init-lake", "--lake", state.lake)
    return state


def report_of(state: State, max_segments: int | None = None) -> dict[str, object]:
    """Finish the run with today's code; returns its report."""
    outcome = run_command(*old.clean_words(state, max_segments=max_segments), "--json")
    assert outcome.exit_code == 0, outcome
    report: dict[str, object] = outcome.json["report"]
    return report


def restored(state: State, target: Path) -> dict[str, str]:
    outcome = run_command("restore", "--lake", state.lake, "--to", target)
    assert outcome.exit_code == 0, outcome
    return {path.name: old.sha256(path) for path in (target / "commitlog").iterdir()}


def test_a_plan_that_was_only_made_is_carried_out(released: Released, state: State) -> None:
    digest = released.make_plan(state.store, state.lake, RUN, max_segments=1)
    report = report_of(state, max_segments=1)
    assert (report["outcome"], report["plan_digest"]) == ("done", digest)
    assert state.there == [MIB, 2 * MIB]


@pytest.mark.parametrize("moment", again_but(MOMENTS, "archived, not committed", "one deleted, one to go"))
def test_a_killed_run_is_finished_by_its_key(
    released: Released, state: State, tmp_path: Path, moment: str
) -> None:
    digest = old.kill(released, state, MOMENTS[moment])
    assert state.lost(tmp_path / "after-the-kill") == []
    report = report_of(state)
    assert (report["outcome"], report["plan_digest"]) == ("done", digest)
    assert state.there == [2 * MIB]
    assert restored(state, tmp_path / "restored") == state.sealed


def test_plans_of_both_shapes_share_one_journal(released: Released, state: State) -> None:
    released.make_plan(state.store, state.lake, "before")
    assert run_command(*old.clean_words(state, "after", max_segments=1)).exit_code == 0
    # The older package can't read what was gone on with, and would take that for no plan.
    refused = released.cli(*old.clean_words(state, "before"), exit_code=2)
    assert "Use the release of storage-engine that" in refused.err
    assert state.there == [MIB, 2 * MIB]
    # The plan of the first run is of a log that begins later by now.
    assert run_command(*old.clean_words(state, "before")).exit_code == 0
    assert state.there == [2 * MIB]


def test_a_finished_run_stays_as_it_ended(released: Released, state: State) -> None:
    old.clean(released, state, RUN, 1)
    report = report_of(state, max_segments=1)
    segments = report["segments"]
    assert isinstance(segments, list)
    assert [row["base_offset"] for row in segments if row["fate"] == "deleted"] == [0]
    assert state.there == [MIB, 2 * MIB]


@pytest.mark.again
def test_a_waiver_counts(released: Released, state: State) -> None:
    old.waive(released, state)
    assert report_of(state, max_segments=1)["outcome"] == "done"
    assert state.there == [MIB, 2 * MIB]


def test_what_was_set_aside_is_brought_back(released: Released, state: State) -> None:
    words = (*old.clean_words(state), "--undo-window-hours", 24)
    released.cli(*words)
    assert state.there == [2 * MIB]
    outcome = run_command("undo", RUN, state.store, "--lake", state.lake)
    assert outcome.exit_code == 0, outcome
    assert {path.name: old.sha256(path) for path in sorted(state.segments.iterdir())[:2]} == state.sealed


def test_a_lake_with_deletions_is_used_and_collected_and_keeps_them(
    released: Released, state: State, store_copy: StoreCopy, tmp_path: Path
) -> None:
    """The older package has a journal of its own: it refuses one of a later version."""
    assert run_command(*old.clean_words(state)).exit_code == 0
    lake = open_lake(LakeConfig.local(state.lake))
    (store,) = list_stores(lake)
    rows = read_deletions(lake, store.store_id)
    assert [(row.start_offset, row.end_offset) for row in rows] == [(0, 2 * MIB)]
    for file in state.lake.glob("journal.db*"):
        file.rename(tmp_path / file.name)

    other = old.expired(store_copy("clean-stop"), state.lake)
    released.cli(*old.clean_words(other, max_segments=1))
    assert other.there[0] == MIB
    released.cli("gc", "--lake", state.lake, "--grace", 1, "--delete")
    released.cli("verify", "--lake", state.lake, "--level", "bytes")

    assert read_deletions(open_lake(lake.config), store.store_id) == rows
    for file in state.lake.glob("journal.db*"):
        file.unlink()
    for file in tmp_path.glob("journal.db*"):
        file.rename(state.lake / file.name)
    verified = run_command("verify", "--lake", state.lake, "--level", "bytes", "--json")
    assert [found["overall"] for found in verified.json["stores"]] == ["OK", "OK"]
    assert run_command("gc", "--lake", state.lake, "--json").json["garbage"] == []


def test_a_lake_that_takes_any_kind_is_taken_for_the_default_one(
    released: Released, before_trees: Released, store_copy: StoreCopy, tmp_path: Path
) -> None:
    state = old.expired(store_copy("edge-frames"), tmp_path / "lake")
    # A lake that today's package makes is of a version that the older one refuses.
    before_trees.cli("init-lake", "--lake", state.lake)
    old.archive(released, state)
    assert restored(state, tmp_path / "restored") == state.sealed
    with pytest.raises(BadInputError, match="found one for those of rocketmq"):
        settle_broker(open_lake(LakeConfig.local(state.lake)), "kafka")
