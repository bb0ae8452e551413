"""Marks go forward only, and a commit that would go back behind one is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeIdentityError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import read_mark, write_mark
from storage_engine.lake.catalog.writing import mark_commits
from storage_engine.lake.soundness.receipts import receipts
from tests.lake.conftest import MakeJobs


def catalog_file(lake: Lake) -> Path:
    return Path(lake.location.removeprefix("file://")).parent / "catalog.db"


@pytest.mark.slow
def test_a_catalog_that_goes_back_under_an_open_lake_takes_no_commit(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake = filled(1)
    older = catalog_file(lake).with_name("older.db")
    shutil.copy(catalog_file(lake), older)
    archive_all(lake, make_jobs(lake, segments[1]))
    jobs = make_jobs(lake, segments[2])
    marks = [read_mark(table) for table in lake.tables()]

    newer = catalog_file(lake).rename(catalog_file(lake).with_name("newer.db"))
    shutil.copy(older, catalog_file(lake))
    with pytest.raises(LakeIdentityError, match="put back from an older copy"):
        archive_all(lake, jobs)
    with pytest.raises(LakeIdentityError, match="put back from an older copy"):
        mark_commits(lake)
    assert [read_mark(table) for table in lake.tables()] == marks

    newer.replace(catalog_file(lake))
    archive_all(open_lake(lake.config), jobs)
    assert len(receipts(lake, "store-1")) == 3


def test_who_loaded_a_table_first_and_marks_it_last_marks_what_it_is_by_then(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake = filled(1)
    stale = lake.messages()
    archive_all(lake, make_jobs(lake, segments[1]))
    newest = read_mark(stale)
    assert newest is not None
    write_mark(stale, newest.lake_id, lake.catalog_id)
    assert read_mark(lake.messages()) == newest
