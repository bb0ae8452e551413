from __future__ import annotations

import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from storage_engine.exceptions import (
    CommitStateUnknownError,
    LakeConflictError,
    LakeUnavailableError,
    ProofError,
    ReceiptError,
)
from storage_engine.lake.archive.archive import SegmentJob, archive_all, archive_segment
from storage_engine.lake.archive.commit import commit_segments, missing_data, prepare_data
from storage_engine.lake.archive.small_tables import prepare_receipts
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import PlacedTable, relative_name
from storage_engine.lake.catalog.tables import SCHEMA_VERSION_PROPERTY, TREE_FIELDS
from storage_engine.lake.catalog.writing import LOCK_NAME, committing, ready_to_write
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.jobs import ProvenSegment, split_data_file_name
from storage_engine.lake.file.staging import publish
from storage_engine.lake.move.rebuilding import find_orphans, prove_orphan
from storage_engine.lake.soundness.chain import check_links_on, forget_links
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.receipts import receipts_in as receipts_of_table
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.proof.receipt import Receipt
from tests.lake.committed import assert_each_is_there_once, live_files

MakeJobs = Callable[..., tuple[SegmentJob, ...]]
CommitTable = Callable[..., Any]


@pytest.fixture(scope="module")
def staged() -> dict[Path, tuple[ProvenSegment, bytes]]:
    """Staged files with what they hold; the first test that asks for them fills it."""
    return {}


@pytest.fixture
def proven(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, staged: dict[Path, tuple[ProvenSegment, bytes]]
) -> list[ProvenSegment]:
    """Three segments that were proven once; their staged files are put into the lake, which is the same."""
    if not staged:
        for job in make_jobs(lake, *segments):
            segment = archive_segment(job)
            path = local_path(segment.staged_file)
            assert path is not None
            staged[path] = segment, path.read_bytes()
    for path, (_, content) in staged.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return [segment for segment, _ in staged.values()]


@pytest.mark.slow
def test_all_segments_land_in_one_snapshot_before_their_receipts(
    lake: Lake, proven: list[ProvenSegment]
) -> None:
    rows = commit_segments(lake, proven)
    assert [row.identity for row in rows] == [segment.identity for segment in proven]
    (data,) = lake.messages().metadata.snapshots
    (receipt,) = lake.segments().metadata.snapshots
    assert data.timestamp_ms <= receipt.timestamp_ms
    assert_each_is_there_once(lake, proven)


def test_where_there_is_no_lock_an_old_proof_is_not_committed(
    lake: Lake, proven: list[ProvenSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    hours_ago = [
        replace(proven[0], proven_at_ms=time.time_ns() // 1_000_000 - hours * 3_600_000) for hours in (13, 11)
    ]
    monkeypatch.setattr("storage_engine.lake.archive.commit.local_path", lambda _: None)
    with pytest.raises(ProofError, match=r"last 12 hours, found one that is 13\.0 hours old"):
        commit_segments(lake, hours_ago[:1])
    assert live_files(lake) == []
    assert len(commit_segments(lake, hours_ago[1:])) == 1


def test_where_there_is_a_lock_an_old_proof_is_committed(lake: Lake, proven: list[ProvenSegment]) -> None:
    assert len(commit_segments(lake, [replace(proven[0], proven_at_ms=1)])) == 1


@pytest.mark.slow
def test_more_than_a_batch_is_committed_in_several_and_in_the_order_of_the_log(
    lake: Lake, proven: list[ProvenSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.lake.archive.commit.BATCH_SEGMENTS", 1)
    backwards = proven[::-1]
    found = commit_segments(lake, backwards)
    assert [row.identity for row in found] == [segment.identity for segment in backwards]
    assert [row.sequence for row in found] == list(range(len(proven)))[::-1]
    assert len(lake.messages().snapshots()) == len(proven)
    assert_each_is_there_once(lake, proven)


def test_nothing_to_commit_is_fine(lake: Lake) -> None:
    assert commit_segments(lake, []) == ()
    assert lake.messages().current_snapshot() is None


def test_committing_twice_commits_once(lake: Lake, proven: list[ProvenSegment]) -> None:
    assert commit_segments(lake, proven) == commit_segments(lake, [*proven, proven[0]])[:3]
    assert_each_is_there_once(lake, proven)


def test_a_run_killed_between_the_two_tables_goes_on_from_there(
    lake: Lake, proven: list[ProvenSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("storage_engine.lake.archive.commit.prepare_receipts", killed)
        with pytest.raises(KeyboardInterrupt):
            commit_segments(lake, proven)
    assert len(live_files(lake)) == 3
    assert receipts(lake, "store-1") == ()
    commit_segments(lake, proven)
    assert_each_is_there_once(lake, proven)


def test_staged_files_of_every_attempt_are_gone_after_the_commit(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, proven: list[ProvenSegment]
) -> None:
    killed_attempt = archive_segment(make_jobs(lake, segments[0])[0])
    final = local_path(proven[0].data_file)
    assert final is not None
    unfinished = final.with_name("0-commitlog-00000000000009437184-0123456789abcdef.parquet.1a.partial")
    unfinished.write_bytes(b"of another segment, maybe being written at this moment")
    commit_segments(lake, proven)
    staged = local_path(killed_attempt.staged_file)
    assert staged is not None
    assert not staged.exists()
    assert [path.name for path in final.parent.glob("*.partial")] == [unfinished.name]


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_run")
@pytest.mark.parametrize("moment", ["after the other", "before it is published", "before its receipt"])
def test_of_two_files_of_one_segment_with_other_keys_one_is_committed(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    jobs = make_jobs(lake, segments[0])
    first, second = (archive_segment(job) for job in jobs * 2)
    assert first.data_file == second.data_file
    assert first.data_file_sha256 != second.data_file_sha256
    assert first.root != second.root
    if moment == "after the other":
        (row,) = commit_segments(lake, [first])
    else:
        # The first was killed, and another archives what it has left.
        at = "publish" if moment == "before it is published" else "prepare_receipts"
        with monkeypatch.context() as killed:
            killed.setattr(f"storage_engine.lake.archive.commit.{at}", _raise(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                commit_segments(lake, [first])
        row = None
    (committed,) = commit_segments(lake, [second])
    assert row in (None, committed)
    assert commit_segments(lake, [first]) == (committed,)
    assert committed.root == (first if row else second).root
    assert broken_receipts(lake, [committed], Depth.ROWS) == {}
    assert_each_is_there_once(lake, [first if row else replace(second, data_file=live_files(lake)[0])])


@pytest.mark.slow
def test_a_root_is_never_dropped_where_the_lake_went_back_to_an_older_version(
    lake: Lake, proven: list[ProvenSegment]
) -> None:
    ready_to_write(lake)
    with lake.segments().update_schema() as update:
        for name in TREE_FIELDS:
            update.delete_column(name)
    with lake.segments().transaction() as change:
        change.set_properties({SCHEMA_VERSION_PROPERTY: "2.0"})
    with pytest.raises(LakeUnavailableError, match="expected the columns root, streams, found none"):
        commit_segments(lake, proven[:1])
    assert receipts(lake, "store-1") == ()


def test_a_file_with_trees_is_not_proven_for_a_lake_that_went_back_to_an_older_version(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    """Its table of rows has no column for the properties' text: a rewrite would lose it."""
    (job,) = make_jobs(lake, segments[0])
    (kept,) = publish([archive_segment(job)])
    again = archive_segment(replace(job, trees=False))
    assert (again.data_file == kept.data_file, again.root) == (False, None)
    columns = pq.read_schema(again.staged_file).names
    assert ("properties" in columns, "properties_text" in columns) == (True, False)
    table = lake.messages()
    rows = PlacedTable("messages", table.metadata, "", table.location().rstrip("/"), table.io)
    (orphan,) = find_orphans(rows, ()).found
    with pytest.raises(ProofError, match="Run storage-engine lake upgrade"):
        prove_orphan(rows, orphan, {}, trees=False)
    assert prove_orphan(rows, orphan, {}, trees=True).root == kept.root


def test_other_bytes_under_the_same_offset_are_refused(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, segments[0]))
    segments[0].write_bytes(segments[0].read_bytes()[:-1] + b"\x01")
    other = make_jobs(lake, segments[0], accept_damage=True)
    before = live_files(lake)
    with pytest.raises(LakeConflictError, match="storage-engine adopt"):
        archive_all(lake, other)
    assert live_files(lake) == before
    data = local_path(before[0])
    assert data is not None
    assert [path.name for path in data.parent.iterdir()] == [data.name]
    in_a_new_lineage = make_jobs(lake, segments[0], lineage=1, accept_damage=True)
    (receipt,) = archive_all(lake, in_a_new_lineage)
    assert receipt.lineage == 1
    assert [row.lineage for row in receipts(lake, "store-1")] == [0, 1]


def test_other_bytes_are_refused_even_when_the_first_have_no_receipt_yet(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven = archive_segment(make_jobs(lake, segments[0])[0])
    with monkeypatch.context() as patched:
        patched.setattr("storage_engine.lake.archive.commit.prepare_receipts", _raise(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            commit_segments(lake, [proven])
    segments[0].write_bytes(segments[0].read_bytes()[:-1] + b"\x01")
    with pytest.raises(LakeConflictError, match=proven.sha256[:16]):
        archive_all(lake, make_jobs(lake, segments[0], accept_damage=True))


def test_two_contents_of_one_slot_in_one_commit_are_refused(lake: Lake, proven: list[ProvenSegment]) -> None:
    with pytest.raises(LakeConflictError):
        commit_segments(lake, [proven[0], replace(proven[0], sha256="0" * 64)])
    assert live_files(lake) == []


def test_a_file_that_shrank_after_its_proof_is_not_committed(lake: Lake, proven: list[ProvenSegment]) -> None:
    staged = local_path(proven[1].staged_file)
    assert staged is not None
    staged.write_bytes(staged.read_bytes()[:-100])
    with pytest.raises(ProofError):
        commit_segments(lake, proven)
    assert live_files(lake) == []


def test_a_broken_chain_takes_no_further_receipt(lake: Lake, proven: list[ProvenSegment]) -> None:
    commit_segments(lake, proven[:2])
    lake.segments().delete("base_offset = 0")
    # Another process, which doesn't know how far the chain was whole.
    forget_links()
    with pytest.raises(ReceiptError, match="was removed or replaced"):
        commit_segments(lake, proven[2:])


def _raise(error: BaseException) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def _after(error: Exception, original: CommitTable, calls: list[int]) -> CommitTable:
    def commit_and_fail(self: SqlCatalog, *arguments: Any, **keywords: Any) -> Any:
        original(self, *arguments, **keywords)
        calls.append(1)
        if len(calls) <= 2:
            raise error
        return original

    return commit_and_fail


@pytest.mark.parametrize(
    "error",
    [
        CommitStateUnknownException("502 Bad Gateway"),
        ConnectionResetError("connection reset by peer"),
        OperationalError("COMMIT", {}, Exception("server closed the connection")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_commit_that_went_through_but_looked_failed_is_found(
    error: Exception, lake: Lake, proven: list[ProvenSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(SqlCatalog, "commit_table", _after(error, SqlCatalog.commit_table, calls))
    rows = commit_segments(lake, proven)
    assert len(rows) == 3
    assert len(calls) == 2
    assert_each_is_there_once(lake, proven)


def test_a_commit_that_failed_before_it_was_sent_leaves_nothing_behind(
    lake: Lake,
    proven: list[ProvenSegment],
    monkeypatch: pytest.MonkeyPatch,
    fingerprint: Callable[[Path], dict[str, str]],
) -> None:
    metadata = local_path(lake.messages().location())
    assert metadata is not None
    before = fingerprint(metadata / "metadata")
    with monkeypatch.context() as patched:
        error = OperationalError("UPDATE", {}, Exception("attempt to write a readonly database"))
        patched.setattr(SqlCatalog, "commit_table", _raise(error))
        with pytest.raises(LakeUnavailableError, match="attempt to write a readonly database"):
            commit_segments(lake, proven)
    assert fingerprint(metadata / "metadata") == before
    assert live_files(lake) == []
    commit_segments(lake, proven)
    assert_each_is_there_once(lake, proven)


def test_a_commit_on_a_server_that_may_still_land_is_tried_again_and_counts_once(
    lake: Lake, proven: list[ProvenSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SqlCatalog.commit_table
    pending: list[Callable[[], Any]] = []

    def answer_late(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        """The first request times out, and is carried out just before the second one."""
        if not pending:
            pending.append(lambda: original(self, table, requirements, updates))
            raise ConnectionResetError("timed out")
        if len(pending) == 1:
            pending.append(pending[0])
            pending[0]()
        return original(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", answer_late)
    monkeypatch.setattr("storage_engine.lake.archive.commit_retries._is_settled", lambda lake, error: False)
    commit_segments(lake, proven)
    assert_each_is_there_once(lake, proven)


def test_an_outcome_that_cannot_be_read_is_unknown(
    lake: Lake, proven: list[ProvenSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SqlCatalog.commit_table

    def commit_and_break(self: SqlCatalog, *arguments: Any) -> None:
        original(self, *arguments)
        monkeypatch.setattr(SqlCatalog, "load_table", _raise(ConnectionRefusedError("catalog is gone")))
        raise CommitStateUnknownException("gateway timeout")

    with monkeypatch.context():
        monkeypatch.setattr(SqlCatalog, "commit_table", commit_and_break)
        with pytest.raises(CommitStateUnknownError, match="gateway timeout"):
            commit_segments(lake, proven)
    monkeypatch.undo()
    commit_segments(lake, proven)
    assert_each_is_there_once(lake, proven)


def test_somebody_elses_commit_in_between_is_waited_out(
    lake: Lake, proven: list[ProvenSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SqlCatalog.commit_table
    overtaken: list[int] = []

    def overtake(self: SqlCatalog, *arguments: Any) -> Any:
        if not overtaken:
            overtaken.append(1)
            raise CommitFailedException("Table has been updated by another process")
        return original(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtake)
    commit_segments(lake, proven)
    assert_each_is_there_once(lake, proven)


def test_a_file_of_another_run_that_is_between_its_commits_stays(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = (archive_segment(*make_jobs(lake, segments[0])) for _ in range(2))
    commit_data_alone(lake, theirs)

    def their_receipt_comes(_: float) -> None:
        table = lake.segments()
        if table.current_snapshot() is None:
            receipt = theirs.receipt(relative_name(lake.messages(), theirs.data_file))
            heads = {theirs.store_id: check_links_on(table, theirs.store_id)}
            prepare_receipts(table, heads, [receipt]).commit_transaction()

    monkeypatch.setattr(time, "sleep", their_receipt_comes)
    (row,) = commit_segments(lake, [ours])
    assert row.proven_files == theirs.receipt(row.data_file).proven_files
    assert live_files(lake) == [theirs.data_file]
    assert_each_is_there_once(lake, [theirs])


@pytest.mark.usefixtures("no_other_run")
def test_a_file_of_another_run_that_was_killed_between_its_commits_is_replaced(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = (archive_segment(*make_jobs(lake, segments[0])) for _ in range(2))
    commit_data_alone(lake, theirs)
    read: list[object] = []

    def receipts_in(*asked: Any, **of: Any) -> tuple[Receipt, ...]:
        read.append(of.get("base_offsets"))
        return receipts_of_table(*asked, **of)

    monkeypatch.setattr("storage_engine.lake.archive.commit.receipts_in", receipts_in)
    commit_segments(lake, [ours])
    # However many the store has: they are read again and again while commits wait.
    assert set(read) == {(0, 0)}
    assert live_files(lake) != [theirs.data_file]
    assert_each_is_there_once(lake, [ours])


def commit_data_alone(lake: Lake, segment: ProvenSegment) -> None:
    messages, offset = lake.messages(), segment.base_offset
    publish([segment])
    missing = missing_data(messages, segment.store_id, [segment], (offset, offset))
    prepare_data(messages, missing).commit_transaction()


@pytest.mark.slow
def test_threads_that_commit_the_same_segments_commit_them_once(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    attempts = [[archive_segment(job) for job in make_jobs(lake, *segments)] for _ in range(3)]
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda mine=mine: results.append(commit_segments(lake, mine)))
        for mine in attempts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert results[0] == results[1] == results[2]
    assert_each_is_there_once(lake, attempts[0])


@pytest.mark.again
@pytest.mark.slow
def test_processes_that_make_the_lake_and_archive_the_same_segments_commit_them_once(
    tmp_path: Path, segments: list[Path], make_jobs: MakeJobs
) -> None:
    config = LakeConfig.local(tmp_path / "shared lake")
    script = tmp_path / "archive.py"
    script.write_text(_ARCHIVE)
    gate = tmp_path / "go"
    command = [sys.executable, str(script), str(tmp_path / "shared lake"), str(gate), *map(str, segments)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    ready = [gate.with_suffix(f".{process.pid}") for process in processes]
    while not all(path.exists() for path in ready):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)
    gate.touch()
    assert [process.wait() for process in processes] == [0, 0]
    lake = open_lake(config)
    proven = [archive_segment(job) for job in make_jobs(lake, *segments)]
    assert_each_is_there_once(lake, proven)
    data = local_path(proven[0].data_file)
    assert data is not None
    names = {path.name for path in data.parent.iterdir()}
    live = {path.rsplit("/", 1)[1] for path in live_files(lake)}
    assert live <= names
    # A file of who came second has other keys and a name of its own; gc removes it. Nothing is left staged.
    assert {split_data_file_name(name) for name in names} == {split_data_file_name(name) for name in live}


_ARCHIVE = """
import os, sys, time
from pathlib import Path
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.store import FileFacts, Segment, SegmentState

directory, gate, *paths = sys.argv[1:]
Path(f"{gate}.{os.getpid()}").touch()
while not Path(gate).exists():
    time.sleep(0.01)
lake = make_lake(LakeConfig.local(directory))
segments = [
    Segment("commitlog", int(Path(p).name), FileFacts.of(p), SegmentState.SEALED) for p in paths
]
jobs = segment_jobs(
    lake, segments, store_id="store-1", lineage=0, broker="rocketmq", store_root="/store"
)
assert len(archive_all(lake, jobs)) == 3
"""


def test_only_who_may_write_a_lake_may_lock_it(lake: Lake) -> None:
    """Whoever can open the file can keep every commit waiting; older releases let anybody read it."""
    lock = Path(lake.messages().location().removeprefix("file://")) / LOCK_NAME
    with committing(lake):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.chmod(0o644)
    with committing(lake):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
