"""undo, and what clean and inspect say of a quarantine."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("plainly"), pytest.mark.slow]

MIB = 1 << 20
UNDOABLE = ("--manual", "--undo-window-hours", 24)


def _there(store: Path) -> list[int]:
    return sorted(int(path.name) for path in (store / "commitlog").iterdir())


def test_a_clean_store_is_brought_back_by_the_key_that_its_run_prints(cli, store, lake, files) -> None:
    before = files(store)
    cleaned = cli("clean", store, "--lake", lake, *UNDOABLE)
    assert cleaned.exit_code == 0
    assert _there(store) == [2 * MIB]
    run = next(word for word in cleaned.out.split() if word.startswith("clean-")).rstrip(":")
    assert f"storage-engine undo {run} brings them back" in cleaned.err
    assert f"storage-engine undo {run} brings all of it back" in cleaned.out
    assert "Validation\n  OK" in cleaned.out
    verified = cli("verify", store, "--lake", lake)
    assert verified.exit_code == 0, verified.out

    seen = cli("inspect", store)
    assert f"{run}  " in seen.out
    (quarantine,) = cli("inspect", store, "--json").json["quarantines"]
    assert (quarantine["run_key"], quarantine["error"]) == (run, "")
    assert quarantine["size_bytes"] >= 2 * MIB

    undone = cli("undo", run, store, "--lake", lake)
    assert undone.exit_code == 0, undone.err
    assert undone.out.startswith("2 segments and ")
    assert "the log begins at 0." in undone.out
    assert files(store) == before
    assert cli("inspect", store, "--json").json["quarantines"] == []
    assert cli("undo", run, store, "--lake", lake, "--json").json["segments"] == 2
    verified = cli("verify", store, "--lake", lake)
    assert verified.exit_code == 0, verified.out


@pytest.mark.again
def test_an_undo_that_is_done_says_so_and_not_that_all_is_back(cli, store, lake) -> None:
    for run in ("first", "second"):
        cli("clean", store, "--lake", lake, *UNDOABLE, "--run-key", run)
        if run == "first":
            cli("undo", run, store, "--lake", lake)
    again = cli("undo", "first", store, "--lake", lake)
    assert again.exit_code == 0
    assert "Run first was undone before, and nothing was done now. Then 2 segments and " in again.out
    assert "are back" not in again.out
    assert "log begins" not in again.out
    assert _there(store) == [2 * MIB]

    # Going on with a run that was undone is no deletion either.
    undone = cli("undo", "second", store, "--lake", lake)
    assert undone.exit_code == 0
    gone_on = cli("clean", store, "--lake", lake, *UNDOABLE, "--run-key", "second")
    assert gone_on.exit_code == 0
    assert "run second was undone by " in gone_on.err
    assert "deleted, " not in gone_on.err
    assert "brings them back" not in gone_on.err
    assert "Run second: undone" in gone_on.out
    assert _there(store) == [0, MIB, 2 * MIB]


def test_undo_of_an_unknown_run_is_refused(cli, store, lake) -> None:
    cli("clean", store, "--lake", lake, "--manual", "--max-segments", 1)
    refused = cli("undo", "never", store, "--lake", lake)
    assert refused.exit_code == 1
    assert "run 'never'" in refused.err


def test_maintenance_says_what_becomes_of_quarantines(cli, store, lake) -> None:
    cli("clean", store, "--lake", lake, *UNDOABLE, "--max-segments", 1)
    kept = cli("maintain", "--lake", lake)
    assert kept.exit_code == 0
    assert "uarantine" not in kept.out
    assert cli("maintain", "--lake", lake, "--json").json["history"]["quarantines"] == []


def test_a_plan_with_a_minimum_says_what_it_keeps(cli, store) -> None:
    plan = cli("plan", store, "--manual", "--minimum-retention-hours", 24 * 40, "--json").json
    assert plan["delete_offsets"] == []
    assert plan["decisions"][0]["reason"] == "minimum-retention"
    assert cli("plan", store, "--manual", "--minimum-retention-hours", 24, "--json").json["delete_offsets"]
