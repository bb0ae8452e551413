"""Planned segments whose files are elsewhere, or another log's, or not all there, when they are archived."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_engine.cycle import archive_here
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.move.making import make_lake
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention import steps
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.release.releasing import ReleaseResult
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of
from tests.kafka.stopped_nodes import LOGS, NO_LAG, OLD_MS, make_node, managed
from tests.kafka.test_topics_of_one_name import make_again


@pytest.fixture
def node(tmp_path: Path) -> MadeNode:
    """Two logs, a-0 in the first directory and b-0 in the second, each with two segments to delete."""
    return make_node(tmp_path / "node")


@pytest.fixture
def store(node: MadeNode, tmp_path: Path) -> ManagedStore:
    """The same, planned under the run key "r"."""
    store = managed(tmp_path / "managed", node.root)
    make_lake(store.lake, "kafka")
    steps.make_plan(store, "r", PlanRequest())
    return store


def move(node: MadeNode, name: str) -> Path:
    first, second = (path / name for path in node.directories)
    first.rename(second)
    node.write()
    return second


def release(store: ManagedStore) -> ReleaseResult:
    steps.record_lag(store, "r", NO_LAG, [])
    return steps.release(store, "r")


def gone(store: ManagedStore) -> list[str]:
    context = open_context(store)
    return [drift.log for drift, _ in recorded_gone(context.journal, context.record)]


def test_a_log_in_another_directory_is_archived_and_deleted_there(
    node: MadeNode, store: ManagedStore
) -> None:
    move(node, "a-0")
    done = steps.archive_planned(store, "r", archive_here)
    planned = [(log, at) for log in LOGS for at in (0, 2)]
    assert [(row.log, row.base_offset) for row in done.receipts] == planned
    released = release(store)
    assert (done.refused, released.refused, released.gone, gone(store)) == ((), (), (), [])
    assert [(one.log, one.base_offset) for one in released.deleted] == planned


@pytest.mark.parametrize("before", ["archive", "release"])
def test_records_that_another_file_has_by_now_are_not_lost_and_wait(
    node: MadeNode, store: ManagedStore, before: str
) -> None:
    """A replica that was moved has the same batches in other files."""

    def merge() -> None:
        path = move(node, "a-0")
        for file in [*path.glob(f"{0:020d}.*"), *path.glob(f"{2:020d}.*")]:
            file.unlink()
        for suffix in ("index", "timeindex", "txnindex"):
            (path / f"{0:020d}.{suffix}").touch()
        (path / f"{0:020d}.log").write_bytes(batch_of(0, ms=OLD_MS) + batch_of(2, ms=OLD_MS))

    if before == "archive":
        merge()
    done = steps.archive_planned(store, "r", archive_here)
    if before == "release":
        merge()
    else:
        assert [row.log for row in done.receipts] == ["b-0", "b-0"]
        said = [notice for notice in done.notices if "waits for a later plan" in notice]
        merged = node.directories[1] / "a-0" / f"{0:020d}.log"
        assert [str(merged) in one for one in said] == [True, True]
    released = release(store)
    assert (done.refused, released.gone, gone(store)) == ((), (), [])
    assert [one.log for one in released.deleted] == ["b-0", "b-0"]
    (refused,) = released.refused
    assert (refused.log, "LOST" in refused.why, "no file" in refused.why) == ("a-0", False, False)


def test_another_topic_s_records_of_the_same_name_are_not_those_that_went(
    node: MadeNode, store: ManagedStore
) -> None:
    make_again(node, 2, 8, 1)
    done = steps.archive_planned(store, "r", archive_here)
    assert [row.log for row in done.receipts] == ["b-0", "b-0"]
    assert [(one.log, "[0, 4) on disk" in one.why, "LOST" in one.why) for one in done.refused] == [
        ("a-0", True, True)
    ]
    assert gone(store) == ["a-0"]


def test_a_topic_that_is_made_again_while_it_is_archived_hides_no_loss(
    node: MadeNode, tmp_path: Path
) -> None:
    store = managed(tmp_path / "managed", node.root)
    make_lake(store.lake, "kafka")
    turns = 0

    def overtaken(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
        nonlocal turns
        turns += 1
        if turns == 1:
            make_again(node, 2, 8, 1)
        return archive_here(jobs)

    done = steps.archive_sealed(store, "s", overtaken)
    assert [row.log for row in done.receipts] == ["b-0", "b-0"]
    assert [(one.log, "LOST" in one.why) for one in done.refused] == [("a-0", True)]
    assert gone(store) == ["a-0"]


@pytest.mark.parametrize("logs", [("a-0",), LOGS])
def test_a_segment_whose_companion_is_gone_waits_for_a_later_plan(
    tmp_path: Path, logs: tuple[str, ...]
) -> None:
    node = make_node(tmp_path / "node", logs)
    store = managed(tmp_path / "managed", node.root)
    make_lake(store.lake, "kafka")
    steps.make_plan(store, "r", PlanRequest())
    companion = node.directories[0] / "a-0" / f"{0:020d}.txnindex"
    companion.unlink()
    done = steps.archive_planned(store, "r", archive_here)
    assert done.refused == ()
    assert [str(companion) in notice for notice in done.notices] == [True]
    released = release(store)
    assert {one.log for one in released.deleted} == {*logs} - {"a-0"}
    assert [(one.log, one.base_offset) for one in released.kept] == [("a-0", 0), ("a-0", 2)]
    assert str(companion) in released.kept[0].detail
    # With the files that it has by then it goes.
    steps.make_plan(store, "again", PlanRequest())
    steps.archive_planned(store, "again", archive_here)
    steps.record_lag(store, "again", NO_LAG, [])
    assert {one.log for one in steps.release(store, "again").deleted} == {"a-0"}
