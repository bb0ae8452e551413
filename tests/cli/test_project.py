"""init: a project that is put in place, for a store that is there."""

from __future__ import annotations

from pathlib import Path


def test_init_puts_a_project_in_place_and_says_what_comes_next(cli, archived, tmp_path) -> None:
    made = cli("init", tmp_path / "project", "--store", archived.store, "--time-zone", "Asia/Shanghai")
    assert made.exit_code == 0
    for part in ("dags", "spark_jobs", "expectations"):
        assert list((tmp_path / "project" / part).iterdir())
    assert made.out.strip()


def test_init_refuses_a_store_that_is_not_there_and_an_unknown_zone(cli, archived, tmp_path) -> None:
    missing = cli("init", tmp_path / "project", "--store", tmp_path / "none")
    assert missing.exit_code == 2
    assert f"'{tmp_path}/none' does not exist" in missing.err
    zone = cli("init", tmp_path / "project", "--store", archived.store, "--time-zone", "Mars/Base")
    assert zone.exit_code == 2
    assert "Mars/Base" in zone.err
    assert not (tmp_path / "project").exists()


def test_constraints_are_those_of_this_release(cli) -> None:
    printed = cli("constraints")
    assert printed.out == (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert "index" not in printed.out
