"""A lake that isn't there, as below a mount point, is said to be missing and never made by a step."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeMissingError, LakeUnavailableError
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention import steps
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
FingerprintOf = Callable[[str | Path], dict[str, str]]
MIB = 1 << 20
MISSING = r"found no such file\. Nothing was created\. Mount its disk.*storage-engine init-lake --lake "


def never(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    raise AssertionError(f"nothing can be archived, found {jobs}")


def archive(store: ManagedStore, run_key: str) -> steps.ArchiveResult:
    return steps.archive_planned(store, run_key, lambda jobs: steps.archive(store, run_key, jobs))


def plan(store: ManagedStore, run_key: str, segments: int) -> None:
    steps.make_plan(store, run_key, PlanRequest(manual=True, max_segments=segments))


def test_a_lake_whose_disk_is_not_mounted_is_missing_and_not_made(
    managed: Make, lake_dir: Path, fingerprint: FingerprintOf
) -> None:
    store = managed()
    plan(store, "r", 1)
    archive(store, "r")
    plan(store, "s", 2)
    before = fingerprint(store.root)
    away = lake_dir.rename(lake_dir.with_name("away"))
    for again in (
        lambda: steps.archive_planned(store, "s", never),
        lambda: steps.archive_jobs(store, "s"),
        lambda: steps.archive_sealed(store, "t", never),
        lambda: steps.make_plan(store, "u", PlanRequest(manual=True)),
        lambda: steps.release(store, "s"),
    ):
        with pytest.raises(LakeUnavailableError, match=MISSING):
            again()
    assert not lake_dir.exists()
    assert fingerprint(store.root) == before
    away.rename(lake_dir)
    assert [receipt.base_offset for receipt in archive(store, "s").receipts] == [MIB]


@pytest.mark.again
def test_the_second_lake_takes_over_meanwhile(managed: Make, lake_dir: Path, tmp_path: Path) -> None:
    store = managed(second_lake=LakeConfig.local(tmp_path / "second"))
    plan(store, "r", 1)
    assert archive(store, "r").lake == store.lake.location
    plan(store, "s", 2)
    away = lake_dir.rename(lake_dir.with_name("away"))
    done = archive(store, "s")
    assert store.second_lake is not None
    assert done.lake == store.second_lake.location
    assert [re.search(MISSING, notice) is not None for notice in done.notices] == [True]
    assert not lake_dir.exists()
    away.rename(lake_dir)
    plan(store, "t", 3)
    assert archive(store, "t").lake == store.lake.location


def test_a_store_that_nobody_knows_gets_no_identity_from_it(managed: Make, lake_dir: Path) -> None:
    store, other = managed(), managed("multipath")
    assert store.journal_url == other.journal_url
    plan(store, "r", 1)
    archive(store, "r")
    away = lake_dir.rename(lake_dir.with_name("away"))
    journal = Journal(other.journal_url)
    with pytest.raises(LakeMissingError, match=MISSING):
        identify(other, journal)
    assert not lake_dir.exists()
    away.rename(lake_dir)
    assert identify(other, journal).store_id
