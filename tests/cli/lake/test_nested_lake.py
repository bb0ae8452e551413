"""A lake below a store's root: the commands that read it or take it elsewhere work, and no other one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.mark.again
def test_it_is_read_copied_and_moved_and_nothing_is_released_on_its_proof(
    cli, store_copy, tmp_path: Path
) -> None:
    store, lake = store_copy("clean-stop"), tmp_path / "lake"
    for path in (store / "commitlog").iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    log = sorted(path.name for path in (store / "commitlog").iterdir())
    assert cli("init-lake", "--lake", lake).exit_code == 0
    assert cli("archive", store, "--lake", lake).exit_code == 0
    nested = store / "backup"
    lake.rename(nested)
    for words in (
        ("lake", "relocate"),
        ("verify",),
        ("lake", "info"),
        ("lake", "copy", "--to", tmp_path / "copy"),
        ("restore", "--to", tmp_path / "restored"),
    ):
        done = cli(*words, "--lake", nested)
        assert done.exit_code == 0, (words, done.err)
    refused = cli("clean", store, "--lake", nested, "--manual")
    assert refused.exit_code != 0
    assert f"inside the store {store}, which proves nothing for a release" in refused.err + refused.out
    assert sorted(path.name for path in (store / "commitlog").iterdir()) == log
    told = cli("doctor", store, "--lake", nested, "--json").json
    assert "lake-nested" in {finding["kind"] for finding in told["findings"]}
    nested.rename(lake)
    assert cli("lake", "relocate", "--lake", lake).exit_code == 0
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    assert sorted(path.name for path in (store / "commitlog").iterdir()) != log


def test_the_error_for_a_lake_that_is_not_there_proposes_no_such_place(
    cli, store_copy, tmp_path: Path
) -> None:
    store = store_copy("clean-stop")
    refused = cli("archive", store, "--lake", store / "backup")
    assert refused.exit_code == 2
    assert (
        f"elsewhere, as this is inside the store {store}: storage-engine init-lake --lake DIR" in refused.err
    )
    told = cli("doctor", store, "--lake", store / "backup", "--json").json
    assert told["next"]["command"] == "storage-engine init-lake --lake DIRECTORY"
    assert (
        f"there: storage-engine init-lake --lake {tmp_path / 'lake'}"
        in cli("archive", store, "--lake", tmp_path / "lake").err
    )
