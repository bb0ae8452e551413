"""maintain: what has expired is named, and goes."""

from __future__ import annotations

import sqlite3

import pytest

MONTH_MS = 31 * 24 * 3600 * 1000


def _runs(lake) -> int:
    with sqlite3.connect(lake / "journal.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM storage_engine_runs").fetchone()
    connection.close()
    return count


def _a_month_passes(lake) -> None:
    with sqlite3.connect(lake / "journal.db") as connection:
        for column in ("runs SET created_at_ms = created_at_ms", "events SET at_ms = at_ms"):
            connection.execute(f"UPDATE storage_engine_{column} - {MONTH_MS}")
    connection.close()


@pytest.mark.slow
def test_a_dry_run_says_what_would_go_and_the_real_one_removes_it(cli, store_copy, lake) -> None:
    store = store_copy("clean-stop")
    for _ in range(2):
        assert cli("archive", store, "--lake", lake).exit_code == 0
    dead = lake / "reports" / ".spark-job-dead"
    dead.mkdir(parents=True)
    assert cli("maintain", "--lake", lake, "--dry-run").out.endswith(
        "Would remove of the journal: nothing.\n"
    )
    _a_month_passes(lake)

    said = cli("maintain", "--lake", lake, "--dry-run")
    assert f"Would remove files of a dead job: {dead}" in said.out
    assert "Would remove of the journal: 1 run," in said.out
    assert _runs(lake) == 2
    assert dead.exists()

    done = cli("maintain", "--lake", lake, "--json").json["history"]
    assert (done["rows"]["runs"], done["job_directories"], done["notices"]) == (1, [str(dead)], [])
    # The run that archived stays, with what it archived.
    assert _runs(lake) == 1
    assert not dead.exists()
    assert "nothing" in cli("maintain", "--lake", lake).out
    assert cli("verify", store, "--lake", lake).exit_code == 0


def test_without_a_journal_there_is_nothing_to_do(cli, lake) -> None:
    before = sorted(lake.iterdir())
    assert cli("maintain", "--lake", lake).exit_code == 0
    assert sorted(lake.iterdir()) == before
