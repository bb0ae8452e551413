from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_engine.exceptions import StoreBusyError, StoreNotFoundError
from storage_engine.model.store import FileFacts, SegmentState, StoreSnapshot
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.mapped_files import file_name
from storage_engine.rocketmq.store.store import RocketMQStore

MIB = 1 << 20
STORES = ["clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames"]


def open_store(root: Path, **overrides: str) -> RocketMQStore:
    if (root / "cl1").is_dir():
        overrides.setdefault("storePathCommitLog", f"{root}/cl1,{root}/cl2")
    return RocketMQStore.open(load_broker_config(None, overrides, root=root))


def snapshot_of(root: Path, **overrides: str) -> StoreSnapshot:
    return open_store(root, **overrides).snapshot(now_ms=1_700_000_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_the_log_ends_where_the_brokers_recovery_ends_it(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    frames = ground_truth(name, "commitlog")
    last = max((f for f in frames if f["kind"] == "message"), key=lambda f: f["pos"])
    (log,) = snapshot_of(store_copy(name)).logs
    assert log.max_offset == last["pos"] + last["size"]
    assert log.min_offset == 0
    for segment in log.segments:
        sealed = segment.end_offset <= last["pos"]
        assert segment.state is (SegmentState.SEALED if sealed else SegmentState.ACTIVE)
        assert segment.facts == FileFacts.of(segment.facts.path)


@pytest.mark.parametrize("name", STORES)
def test_everything_sealed_is_known_to_be_dispatched(name: str, store_copy: Callable[[str], Path]) -> None:
    (log,) = snapshot_of(store_copy(name)).logs
    assert log.sealed[-1].end_offset <= log.dispatched_offset <= log.max_offset


def test_only_an_unclean_stop_is_a_crash(store_copy: Callable[[str], Path]) -> None:
    assert snapshot_of(store_copy("kill9")).crashed
    assert not snapshot_of(store_copy("clean-stop")).crashed  # abort.bak means nothing


def test_each_disk_is_measured(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("multipath")
    snapshot = snapshot_of(root)
    assert [disk.path for disk in snapshot.log_disks] == [f"{root}/cl1", f"{root}/cl2"]
    assert snapshot.dependents_disk.path == f"{root}/consumequeue"
    assert all(disk.used_percent is not None for disk in (*snapshot.log_disks, snapshot.dependents_disk))
    assert snapshot.used_bytes is None


def test_a_shared_disk_needs_the_stores_own_size(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("edge-frames")
    files = [
        path
        for directory in ("commitlog", "consumequeue", "index")
        for path in (root / directory).rglob("*")
        if path.is_file()
    ]
    snapshot = snapshot_of(root, replicasPerDiskPartition="2")
    assert snapshot.used_bytes == sum(path.stat().st_size for path in files)


def test_preallocated_files_are_active_and_the_last_file_with_frames_too(
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("clean-stop")
    (root / "commitlog" / file_name(8 * MIB)).write_bytes(bytes(MIB))
    (root / "commitlog" / file_name(9 * MIB)).write_bytes(b"")
    (log,) = snapshot_of(root).logs
    assert [s.base_offset for s in log.segments if s.state is SegmentState.ACTIVE] == [7 * MIB, 8 * MIB]


def test_a_full_last_file_stays_active_with_or_without_an_empty_one_behind_it(
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("clean-stop")
    last = root / "commitlog" / file_name(7 * MIB)
    last.unlink()
    (log,) = snapshot_of(root).logs
    assert log.max_offset == 7 * MIB
    assert [s.base_offset for s in log.segments if s.state is SegmentState.ACTIVE] == [6 * MIB]
    last.write_bytes(bytes(MIB))
    (log,) = snapshot_of(root).logs
    assert log.max_offset == 7 * MIB
    assert [s.base_offset for s in log.segments if s.state is SegmentState.ACTIVE] == [6 * MIB, 7 * MIB]


def test_a_log_that_was_only_preallocated_has_no_sealed_segment(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for base_offset in (0, MIB):
        (tmp_path / "commitlog" / file_name(base_offset)).write_bytes(bytes(MIB))
    (log,) = snapshot_of(tmp_path).logs
    assert log.sealed == ()
    assert log.max_offset == 0


def remove_tree(path: Path) -> None:
    for found in sorted(path.rglob("*"), reverse=True):
        found.unlink() if found.is_file() else found.rmdir()


def test_without_consume_queues_nothing_counts_as_dispatched(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("clean-stop")
    remove_tree(root / "consumequeue")
    (log,) = snapshot_of(root).logs
    assert log.dispatched_offset == log.min_offset == 0


def erase_entries(root: Path, limit: int) -> int:
    """Take every consume queue entry at or above ``limit`` away; returns where the highest left one ends."""
    highest = 0
    for queue in iter_queues(root / "consumequeue"):
        for file in consume_queue.FORMAT.files(queue.path):
            entries = np.fromfile(file.path, consume_queue.DTYPE)
            entries[entries["offset"] >= limit] = 0
            entries.tofile(file.path)
            highest = max(highest, int((entries["offset"] + entries["size"]).max()))
    return highest


def test_segments_behind_the_newest_entries_are_not_dispatched(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("clean-stop")
    highest = erase_entries(root, 3 * MIB)
    (log,) = snapshot_of(root).logs
    assert highest < log.dispatched_offset == 3 * MIB  # only a blank tail lies between


def test_segments_of_blanks_behind_the_newest_entry_are_dispatched(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("clean-stop")  # segment 6 is one blank frame
    highest = erase_entries(root, 6 * MIB)
    (log,) = snapshot_of(root).logs
    assert highest < 6 * MIB
    assert log.dispatched_offset == 7 * MIB


@pytest.mark.parametrize("name", STORES)
def test_a_segments_bytes_are_the_files(name: str, store_copy: Callable[[str], Path]) -> None:
    store = open_store(store_copy(name))
    for segment in store.snapshot(now_ms=0).logs[0].segments:
        with store.read_segment(segment) as data:
            assert data.readonly
            assert bytes(data) == Path(segment.facts.path).read_bytes()


def test_a_segment_that_changes_under_us_is_an_error(store_copy: Callable[[str], Path]) -> None:
    store = open_store(store_copy("edge-frames"))
    segment = store.snapshot(now_ms=0).logs[0].segments[0]
    path = Path(segment.facts.path)
    for change in (
        lambda: path.write_bytes(bytes(100)),
        lambda: path.write_bytes(bytes(MIB + 1)),
        path.unlink,
    ):
        change()
        with pytest.raises(StoreBusyError, match=path.name), store.read_segment(segment):
            pass


def test_a_torn_frame_in_the_tail_ends_the_log(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("kill9")
    (before,) = snapshot_of(root).logs
    path = root / "commitlog" / file_name(3 * MIB)
    data = bytearray(path.read_bytes())
    first_end = int.from_bytes(data[:4], "big")
    data[first_end + 100 : first_end + 104] = b"torn"
    path.write_bytes(data)
    (after,) = snapshot_of(root).logs
    assert after.max_offset == 3 * MIB + first_end < before.max_offset
    assert after.sealed == before.sealed


def test_a_half_written_store_has_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / file_name(0)).write_bytes(b"")
    with pytest.raises(StoreNotFoundError, match="empty store"):
        snapshot_of(tmp_path)


@pytest.mark.parametrize(("says", "confirmed"), [({}, 0), ({"enableControllerMode": "false"}, None)])
def test_no_number_in_a_controllers_store_confirms_its_log(
    says: dict[str, str], confirmed: int | None, store_copy: Callable[[str], Path]
) -> None:
    """A broker that ran without a controller has the end of its log there, and a slave what it was sent."""
    root = store_copy("clean-stop")
    (root / "epochFileCheckpoint").write_text("1-0\n")
    (log,) = snapshot_of(root, **says).logs
    with (root / "checkpoint").open("r+b") as checkpoint:
        checkpoint.seek(32)
        checkpoint.write(log.max_offset.to_bytes(8))
    assert snapshot_of(root, **says).logs[0].confirmed_offset == confirmed
    assert open_store(root, **says).raw_log().confirmed_offset == confirmed
