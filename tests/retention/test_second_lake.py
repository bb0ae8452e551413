"""Two lakes: one takes over while the other can't be reached, and a receipt in either counts."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    CommitStateUnknownError,
    FileGoneError,
    GateRefusedError,
    LakeUnavailableError,
)
from storage_engine.journal.journal import Journal
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.report.report import build_report
from storage_engine.retention.steps import archive_sealed, record_archive_lag
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore
from tests.lakes import damage, path_of

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
MIB = 1 << 20


def here(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    return archive_all(open_lake(jobs[0].lake), jobs)


def never(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    raise AssertionError(f"nothing had to be archived, found {jobs}")


@pytest.fixture
def second_dir(tmp_path: Path) -> Path:
    return tmp_path / "second"


@pytest.fixture
def doubled(managed: Make, second_dir: Path) -> ManagedStore:
    return managed(second_lake=LakeConfig.local(second_dir))


def take_away(directory: Path) -> None:
    shutil.move(directory, directory.with_name(f"{directory.name}-away"))
    directory.write_text("a file where the lake should be")


def bring_back(directory: Path) -> None:
    directory.unlink()
    shutil.move(directory.with_name(f"{directory.name}-away"), directory)


def held(store: ManagedStore, config: LakeConfig) -> list[int]:
    store_id = identify(store, Journal(store.journal_url)).store_id
    return [row.base_offset for row in receipts(open_lake(config), store_id)]


def plan(store: ManagedStore, run_key: str, segments: int) -> None:
    steps.make_plan(store, run_key, PlanRequest(manual=True, max_segments=segments))


def test_the_second_lake_takes_over_and_gives_back(
    doubled: ManagedStore, lake_dir: Path, second_dir: Path
) -> None:
    store = doubled
    assert store.second_lake is not None
    first = archive_sealed(store, "a", here, budget_bytes=2 * MIB)
    assert (first.lake, first.notices) == (store.lake.location, ())
    take_away(lake_dir)
    plan(store, "r", 3)
    done = steps.archive_planned(store, "r", here)
    assert done.lake == store.second_lake.location
    assert [str(lake_dir) in notice for notice in done.notices] == [True]
    released = steps.release(store, "r")
    assert {release.lake for release in released.deleted} == {store.second_lake.location}
    assert any(str(lake_dir) in notice for notice in released.notices)
    bring_back(lake_dir)
    assert archive_sealed(store, "b", here, budget_bytes=MIB).lake == store.lake.location
    assert held(store, store.lake) == [0, MIB, 3 * MIB]
    assert held(store, store.second_lake) == [0, MIB, 2 * MIB]
    report = build_report(store, "r")
    assert [(row.base_offset, row.lake) for row in report.archived] == [
        (0, store.lake.location),
        (MIB, store.lake.location),
        (2 * MIB, store.second_lake.location),
    ]


@pytest.mark.again
def test_segments_spread_over_both_lakes_go_in_one_plan(doubled: ManagedStore, lake_dir: Path) -> None:
    store = doubled
    archive_sealed(store, "a", here, budget_bytes=2 * MIB)
    take_away(lake_dir)
    archived = archive_sealed(store, "b", here, budget_bytes=2 * MIB)
    # What the first lake has by the journal's word is not archived again in the background.
    assert [row.base_offset for row in archived.receipts] == [2 * MIB, 3 * MIB]
    lag = record_archive_lag(store, "b")
    assert lag is not None
    assert (lag.segments, len(lag.notes)) == (3, 1)
    plan(store, "r", 4)
    with pytest.raises(GateRefusedError, match="no receipt in the lake; a lake could not be asked"):
        steps.release(store, "r")
    bring_back(lake_dir)
    assert steps.archive_planned(store, "r", never).receipts == ()
    released = steps.release(store, "r")
    assert [release.passage for release in released.deleted] == [Passage.PROVEN] * 4
    first, second = (lake.location for lake in store.lakes)
    assert [release.lake for release in released.deleted] == [first, first, second, second]


def test_with_both_unreachable_nothing_goes_and_both_reasons_are_told(
    doubled: ManagedStore, lake_dir: Path, second_dir: Path, fingerprint: Callable[[str], dict[str, str]]
) -> None:
    store = doubled
    archive_sealed(store, "a", here)
    plan(store, "r", 2)
    before = fingerprint(store.root)
    take_away(lake_dir)
    take_away(second_dir)
    for step in (
        lambda: steps.archive_planned(store, "r", never),
        lambda: archive_sealed(store, "b", never),
        lambda: steps.release(store, "r"),
    ):
        with pytest.raises(LakeUnavailableError) as raised:
            step()
        assert str(lake_dir) in str(raised.value)
        assert str(second_dir) in str(raised.value)
    assert fingerprint(store.root) == before


def test_an_outcome_that_is_not_known_is_archived_elsewhere_and_counts_where_it_is(
    doubled: ManagedStore,
) -> None:
    store = doubled
    plan(store, "r", 2)

    def unknown_then_here(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        if jobs[0].lake == store.lake:
            raise CommitStateUnknownError("connection cut after the request")
        return here(jobs)

    done = steps.archive_planned(store, "r", unknown_then_here)
    assert store.second_lake is not None
    assert done.lake == store.second_lake.location
    assert "connection cut" in done.notices[0]
    assert len(steps.release(store, "r").deleted) == 2


@pytest.mark.again
def test_a_commit_that_went_through_after_all_is_found_and_not_repeated(doubled: ManagedStore) -> None:
    store = doubled
    plan(store, "r", 2)

    def done_but_untold(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        assert jobs[0].lake == store.lake
        here(jobs)
        raise CommitStateUnknownError("connection cut after the request")

    assert steps.archive_planned(store, "r", done_but_untold).receipts == ()
    assert {release.lake for release in steps.release(store, "r").deleted} == {store.lake.location}


def test_a_catalog_server_that_is_down_is_an_unreachable_lake(managed: Make, second_dir: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    second = LakeConfig.local(second_dir)
    store = managed(second_lake=second)
    identify(store, Journal(store.journal_url))
    properties = {"type": "rest", "uri": f"http://127.0.0.1:{port}", "warehouse": "w"}
    store = replace(store, lake=LakeConfig("down", properties))
    plan(store, "r", 1)
    assert steps.archive_planned(store, "r", here).lake == second.location
    assert len(steps.release(store, "r").deleted) == 1


def test_lakes_that_disagree_about_a_segment_prove_nothing(
    doubled: ManagedStore, lake_dir: Path, second_dir: Path
) -> None:
    """As when a broker wrote an offset again, and that was archived while the other lake could not object."""
    store = doubled
    archive_sealed(store, "a", here, budget_bytes=1)
    path = Path(store.root) / "commitlog" / f"{0:020d}"
    original = path.read_bytes()
    segment = bytearray((path.parent / f"{MIB:020d}").read_bytes())
    old_ns = path.stat().st_mtime_ns
    path.write_bytes(segment)
    os.utime(path, ns=(old_ns, old_ns))
    take_away(lake_dir)
    plan(store, "damaged", 1)
    steps.archive_planned(store, "damaged", here, accept_damage=True)
    bring_back(lake_dir)
    path.write_bytes(original)
    os.utime(path, ns=(old_ns, old_ns))
    plan(store, "r", 1)
    with pytest.raises(GateRefusedError, match="its lakes disagree") as raised:
        steps.release(store, "r")
    for content in (original, segment):
        assert hashlib.sha256(content).hexdigest() in str(raised.value)
    assert path.exists()


def test_a_lost_journal_is_made_up_for_by_whichever_lake_knows_more(
    doubled: ManagedStore, lake_dir: Path
) -> None:
    store = doubled
    archive_sealed(store, "a", here, budget_bytes=1)
    adopt(store, "ann", "written again", force=True)
    take_away(lake_dir)
    archive_sealed(store, "b", here, budget_bytes=1)
    known = identify(store, Journal(store.journal_url))
    journal_file = Path(store.journal_url.removeprefix("sqlite:///"))
    journal_file.unlink()
    with pytest.raises(LakeUnavailableError, match=str(lake_dir)):
        identify(store, Journal(store.journal_url))
    bring_back(lake_dir)
    found = identify(store, Journal(store.journal_url))
    assert (found.store_id, found.lineage) == (known.store_id, known.lineage) == (known.store_id, 2)


@pytest.mark.parametrize("is_away", [True, False])
def test_what_went_is_proven_by_no_lake_that_is_away_or_damaged(
    doubled: ManagedStore, lake_dir: Path, is_away: bool
) -> None:
    """Neither by the journal's word, nor by a data file that has its length alone."""
    store = doubled
    plan(store, "r", 2)
    steps.archive_planned(store, "r", here)
    (Path(store.root) / "commitlog" / f"{0:020d}").unlink()
    if is_away:
        take_away(lake_dir)
    else:
        store_id = identify(store, Journal(store.journal_url)).store_id
        lake = open_lake(store.lake)
        damage(path_of(lake, next(iter(receipts(lake, store_id)))))
    with pytest.raises(GateRefusedError if is_away else FileGoneError):
        steps.release(store, "r")
    assert (Path(store.root) / "commitlog" / f"{MIB:020d}").is_file()
