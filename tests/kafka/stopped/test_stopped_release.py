"""A stopped node's expired segments go once they are proven: whole, from the oldest on, and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from storage_engine import cycle
from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.exceptions import (
    ChangedUnderUsError,
    GateRefusedError,
    StoreBusyError,
)
from storage_engine.kafka.stopped import store_lock
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.report.validation import Status
from storage_engine.retention import steps
from storage_engine.retention.release.releasing import ReleaseResult
from storage_engine.retention.report.report import Outcome, build_report
from tests.kafka.made_node import MadeNode, batch_of
from tests.kafka.stopped_nodes import clean, cleanup_steps, files_of, make_node, managed

KEPT = [f"{4:020d}.{suffix}" for suffix in ("index", "log", "snapshot", "timeindex", "txnindex")]
"""Of the active segment; the snapshot at its base says which producers write to it."""
END = f"{6:020d}.snapshot"


@pytest.fixture
def node(tmp_path: Path) -> MadeNode:
    return make_node(tmp_path / "node")


def small_files(root: Path) -> dict[str, str]:
    """Return all files but segments' own, and the locks, with their digests."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.name[:20].isdigit() and path.name not in (".lock", PLAIN_STAMP)
    }


def until(node: MadeNode, tmp_path: Path, last: str, run: str = "run") -> None:
    for name, step in cleanup_steps(managed(tmp_path / "managed", node.root), run).items():
        step()
        if name == last:
            return


def test_what_has_expired_goes_with_its_files_and_nothing_else_is_touched(
    node: MadeNode, tmp_path: Path
) -> None:
    before = small_files(node.root)
    store = managed(tmp_path / "managed", node.root)
    clean(store, "run")
    for number, log in enumerate(("a-0", "b-0")):
        assert files_of(node.directories[number] / log) == [*KEPT, END]
    assert small_files(node.root) == before
    report = build_report(store, "run")
    assert report.outcome is Outcome.DONE
    validated = cycle.validate(cycle.Cleanup(store, "run"), full=True)
    assert validated.overall is Status.OK, validated
    released = steps.release(store, "run")
    assert {(one.log, one.base_offset) for one in released.deleted} == {
        (log, base) for log in ("a-0", "b-0") for base in (0, 2)
    }
    assert released.new_min_offsets == {"a-0": 4, "b-0": 4}
    assert (steps.clean_dependents(store, "run").deleted) == {"offset index": 4, "time index": 4}
    clean(store, "again")
    assert build_report(store, "again").outcome is Outcome.NOTHING_TO_DO


def test_nothing_goes_that_no_lake_proves(node: MadeNode, tmp_path: Path) -> None:
    store = managed(tmp_path / "managed", node.root)
    todo = cleanup_steps(store, "run")
    todo["init_lake"]()
    todo["make_plan"]()
    with pytest.raises(GateRefusedError, match="no receipt in the lake"):
        todo["release"]()
    assert len(files_of(node.directories[0] / "a-0")) == 15


def test_a_log_that_was_written_to_since_keeps_all_and_no_other_does(node: MadeNode, tmp_path: Path) -> None:
    until(node, tmp_path, "record_lag")
    path = node.directories[0] / "a-0" / f"{2:020d}.log"
    path.write_bytes(batch_of(2, ms=1_780_000_000_001))
    store = managed(tmp_path / "managed", node.root)
    released = steps.release(store, "run")
    assert [one.log for one in released.refused] == ["a-0"]
    assert len(files_of(node.directories[0] / "a-0")) == 15
    assert {one.log for one in released.deleted} == {"b-0"}


def test_a_replica_elsewhere_since_the_plan_keeps_its_log(node: MadeNode, tmp_path: Path) -> None:
    until(node, tmp_path, "record_lag")
    node.replicas["a-0"] = (1, 2)
    node.write()
    store = managed(tmp_path / "managed", node.root)
    released = steps.release(store, "run")
    assert {one.log for one in released.deleted} == {"b-0"}
    assert {one.reason for one in released.kept if one.log == "a-0"} == {Reason.REPLICAS_ELSEWHERE}


def test_a_person_s_word_on_other_replicas_is_kept_with_the_run(node: MadeNode, tmp_path: Path) -> None:
    node.replicas["a-0"] = (1, 2)
    node.write()
    store = managed(tmp_path / "managed", node.root)
    clean(store, "run", PlanRequest(replicas_stopped="the whole cluster is down, ticket 7"))
    assert {one.log for one in steps.release(store, "run").deleted} == {"a-0", "b-0"}
    report = build_report(store, "run")
    assert report.request.replicas_stopped == "the whole cluster is down, ticket 7"


def test_a_broker_that_starts_meanwhile_is_not_deleted_from(
    node: MadeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(node, tmp_path, "record_lag")
    lock, real, seen = node.directories[0] / ".lock", store_lock.LockedDirectories.check, []

    def check(self: store_lock.LockedDirectories) -> None:
        seen.append(1)
        # Each segment's deletion looks twice: the step does, and the node right before the file goes.
        if len(seen) == 4:
            lock.unlink()
        real(self)

    monkeypatch.setattr(store_lock.LockedDirectories, "check", check)
    store = managed(tmp_path / "managed", node.root)
    with pytest.raises(ChangedUnderUsError, match="another program removed the file"):
        steps.release(store, "run")
    assert files_of(node.directories[0] / "a-0")[:1] == [f"{0:020d}.index"]
    assert not (node.directories[0] / "a-0" / f"{0:020d}.log").exists()
    assert (node.directories[0] / "a-0" / f"{2:020d}.log").exists()
    monkeypatch.undo()
    released: ReleaseResult = steps.release(store, "run")
    assert len(released.deleted) == 4


def test_a_segment_that_is_not_the_oldest_stays(node: MadeNode) -> None:
    store = KafkaStore(OpenNode(node.properties))
    (log, _) = store.snapshot(0).logs
    with store.lock(), pytest.raises(ChangedUnderUsError, match="expected the oldest segment of its log"):
        store.delete_segments(log.segments[1:2], lambda: None)
    with store.lock(), pytest.raises(ChangedUnderUsError, match="found segments at 0, 2, 4"):
        store.delete_segments(log.segments[2:], lambda: None)
    (node.directories[0] / "a-0" / f"{2:020d}.log").unlink()
    with store.lock(), pytest.raises(ChangedUnderUsError, match="with the next one at 2, found"):
        store.delete_segments(log.segments[:1], lambda: None)
    assert files_of(node.directories[0] / "a-0")[1] == f"{0:020d}.log"


def test_an_index_whose_segment_is_there_stays(node: MadeNode) -> None:
    store = KafkaStore(OpenNode(node.properties))
    store.snapshot(0)
    files = store.dependents.find({"a-0": 4})
    assert {Path(one.facts.path).name for one in files} == {
        f"{base:020d}.{suffix}" for base in (0, 2) for suffix in ("index", "timeindex")
    }
    before = files_of(node.directories[0] / "a-0")
    with store.lock():
        store.dependents.delete(files, lambda: None)
    assert files_of(node.directories[0] / "a-0") == before


def test_another_process_keeps_a_cleanup_away(node: MadeNode, tmp_path: Path) -> None:
    until(node, tmp_path, "record_lag")
    store = managed(tmp_path / "managed", node.root)
    with store_lock.lock([node.directories[1]]), pytest.raises(StoreBusyError):
        steps.release(store, "run")
    assert len(files_of(node.directories[0] / "a-0")) == 15
