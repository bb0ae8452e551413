from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import StoreNotFoundError
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.rocketmq.hold import marker
from storage_engine.rocketmq.hold.heartbeat import last_look, watching
from storage_engine.rocketmq.hold.hold_state import lock_settled, read_local, write_local
from storage_engine.rocketmq.live import fence_mending
from storage_engine.rocketmq.live.fence_mending import LAST_FILES, FenceKeeper
from storage_engine.same_bytes.own_acts import read_own_acts
from tests.rocketmq.live.held_files import (
    FIRST_NS,
    HOUR_NS,
    LEASE_NS,
    SIZE,
    held_store,
    mtimes_ns,
    path_of,
)


def look(keeper: FenceKeeper) -> tuple[Drift, ...]:
    return keeper.look(time.time_ns() // 10**6)


def fenced(root: Path) -> list[int]:
    """Numbers of the files that have the lease."""
    return [number for number, mtime_ns in mtimes_ns(root).items() if mtime_ns == LEASE_NS]


def test_what_is_as_the_hold_left_it_is_left_alone(tmp_path: Path) -> None:
    held_store(tmp_path)
    before = {path: path.stat().st_ctime_ns for path in (tmp_path / "commitlog").iterdir()}
    assert look(FenceKeeper(tmp_path)) == ()
    assert {path: path.stat().st_ctime_ns for path in before} == before


@pytest.mark.parametrize("touched_ns", [0, time.time_ns(), LEASE_NS - HOUR_NS], ids=["first", "now", "less"])
def test_times_that_somebody_has_set_are_set_again(tmp_path: Path, touched_ns: int) -> None:
    held_store(tmp_path)
    for number in range(4):
        os.utime(path_of(tmp_path, number), ns=(touched_ns, touched_ns))
    mended = look(FenceKeeper(tmp_path))
    # One touch is one line, however many files it was of.
    assert [one.kind for one in mended] == [DriftKind.FENCE_MENDED]
    assert f"{path_of(tmp_path, 0)} and 3 more, the last {3 * SIZE:020d}: " in mended[0].detail
    assert fenced(tmp_path) == [0, 1, 2, 3]
    assert look(FenceKeeper(tmp_path)) == ()
    # What the keeper did itself isn't taken for a touch by others.
    assert len(read_own_acts(tmp_path).files) == 4


def test_what_keeps_longer_is_not_made_older(tmp_path: Path) -> None:
    held_store(tmp_path)
    os.utime(path_of(tmp_path, 0), ns=(LEASE_NS, LEASE_NS + HOUR_NS))
    assert look(FenceKeeper(tmp_path)) == ()
    assert mtimes_ns(tmp_path)[0] == LEASE_NS + HOUR_NS


def test_removed_segments_are_replaced_in_the_fence_with_their_first_times_known(tmp_path: Path) -> None:
    held_store(tmp_path)
    for number in (0, 2):
        path_of(tmp_path, number).unlink()
    keeper = FenceKeeper(tmp_path)
    mended = look(keeper)
    assert [one.kind for one in mended] == [DriftKind.FENCE_MENDED]
    assert f"{path_of(tmp_path, 0)} and 1 more, the last {2 * SIZE:020d}: " in mended[0].detail
    assert fenced(tmp_path) == [1, 3, 4, 5]
    state = read_local(tmp_path)
    assert state is not None
    assert state.fence == (SIZE, 3 * SIZE, 4 * SIZE, 5 * SIZE)
    assert state.fence_offset == SIZE
    assert [state.touched_at(n * SIZE).original_mtime_ns for n in (4, 5)] == [FIRST_NS + 4, FIRST_NS + 5]  # type: ignore[union-attr]
    assert look(keeper) == ()


def test_a_fence_that_was_removed_as_a_whole_is_put_behind_it(tmp_path: Path) -> None:
    held_store(tmp_path)
    keeper = FenceKeeper(tmp_path)
    look(keeper)
    for number in range(4):
        path_of(tmp_path, number).unlink()
    (gone,) = look(keeper)
    assert "expected 4 segments of the hold's fence" in gone.detail
    assert fenced(tmp_path) == [4, 5, 6, 7]


def test_another_file_under_a_name_of_the_fence_is_fenced_as_it_is(tmp_path: Path) -> None:
    held_store(tmp_path)
    copy = tmp_path / "copy"
    shutil.copy(path_of(tmp_path, 0), copy)
    os.utime(copy, ns=(FIRST_NS, FIRST_NS + 7))
    copy.replace(path_of(tmp_path, 0))
    assert look(FenceKeeper(tmp_path))
    assert fenced(tmp_path) == [0, 1, 2, 3]
    state = read_local(tmp_path)
    assert state is not None
    touched = state.touched_at(0)
    assert touched is not None
    assert (touched.inode, touched.original_mtime_ns) == (path_of(tmp_path, 0).stat().st_ino, FIRST_NS + 7)


def test_files_that_a_broker_may_write_to_are_never_fenced(tmp_path: Path) -> None:
    held_store(tmp_path, files=6, fenced=2, fence_count=11)
    look(FenceKeeper(tmp_path))
    assert fenced(tmp_path) == list(range(6 - LAST_FILES))


def test_a_segment_that_the_broker_said_is_sealed_is_fenced(tmp_path: Path) -> None:
    held_store(tmp_path, files=6, fenced=2, fence_count=11, max_offset=5 * SIZE + 1)
    look(FenceKeeper(tmp_path))
    assert fenced(tmp_path) == [0, 1, 2, 3, 4]


def test_what_is_deleted_on_purpose_stays_as_old_as_it_was_made(tmp_path: Path) -> None:
    state = held_store(tmp_path)
    write_local(tmp_path, replace(state, releasing=(0, SIZE), fence=(2 * SIZE, 3 * SIZE), fence_count=2))
    for number in (0, 1):
        os.utime(path_of(tmp_path, number), ns=(0, 0))
    assert look(FenceKeeper(tmp_path)) == ()
    path_of(tmp_path, 0).unlink()
    assert look(FenceKeeper(tmp_path)) == ()
    assert mtimes_ns(tmp_path)[1] == 0


def test_what_was_put_back_is_not_fenced_again(tmp_path: Path) -> None:
    state = held_store(tmp_path)
    write_local(tmp_path, replace(state, fence=()))
    os.utime(path_of(tmp_path, 0), ns=(FIRST_NS, FIRST_NS))
    assert look(FenceKeeper(tmp_path)) == ()
    write_local(tmp_path, None)
    assert look(FenceKeeper(tmp_path)) == ()
    assert mtimes_ns(tmp_path)[0] == FIRST_NS


def test_a_hold_that_has_ended_is_not_mended(tmp_path: Path) -> None:
    """A dead pipeline must not fill the disk, whether a watch is alive or not."""
    state = held_store(tmp_path)
    os.utime(path_of(tmp_path, 0), ns=(0, 0))
    assert FenceKeeper(tmp_path).look(state.ends_at_ms) == ()
    assert mtimes_ns(tmp_path)[0] == 0


def test_a_disk_that_is_not_mounted_has_lost_nothing(tmp_path: Path) -> None:
    held_store(tmp_path)
    keeper = FenceKeeper(tmp_path)
    look(keeper)
    log, away = tmp_path / "commitlog", tmp_path / "away"
    log.rename(away)
    with pytest.raises(StoreNotFoundError, match="isn't mounted"):
        look(keeper)
    log.mkdir()  # the mount point
    for one in (keeper, FenceKeeper(tmp_path)):
        with pytest.raises(StoreNotFoundError, match="isn't mounted"):
            look(one)
        assert one.left_over() == ()
    log.rmdir()
    away.rename(log)
    path_of(tmp_path, 0).unlink()
    assert len(look(keeper)) == 1


def test_a_fence_is_extended_while_a_run_has_the_store(tmp_path: Path) -> None:
    """A release can take many minutes."""
    held_store(tmp_path)
    path_of(tmp_path, 0).unlink()
    with marker.alone(tmp_path):
        look(FenceKeeper(tmp_path))
        assert fenced(tmp_path) == [1, 2, 3, 4]


def test_a_run_that_is_changing_the_hold_is_waited_for_and_touches_are_mended_meanwhile(
    tmp_path: Path,
) -> None:
    held_store(tmp_path)
    path_of(tmp_path, 0).unlink()
    os.utime(path_of(tmp_path, 1), ns=(0, 0))
    keeper = FenceKeeper(tmp_path)
    with marker.changing(tmp_path):
        assert len(look(keeper)) == 2
        assert fenced(tmp_path) == [1, 2, 3]
        assert look(keeper) == ()
    look(keeper)
    assert fenced(tmp_path) == [1, 2, 3, 4]


def test_a_segment_that_a_killed_watch_only_meant_to_fence_is_fenced_by_the_next(tmp_path: Path) -> None:
    held_store(tmp_path)
    path_of(tmp_path, 0).unlink()
    child = os.fork()
    if not child:  # killed between its intent and the first mtime

        def die(acts: object, touched: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        fence_mending.set_mtime = die  # type: ignore[assignment]
        look(FenceKeeper(tmp_path))
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    state = read_local(tmp_path)
    assert state is not None
    assert state.fence == (SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE)
    assert fenced(tmp_path) == [1, 2, 3]
    keeper = FenceKeeper(tmp_path)
    with marker.changing(tmp_path):  # a run that is at it sets it itself
        look(keeper)
        assert fenced(tmp_path) == [1, 2, 3]
    assert look(keeper) == ()
    assert fenced(tmp_path) == [1, 2, 3, 4]
    # From now on it is a fence as any other.
    os.utime(path_of(tmp_path, 4), ns=(0, FIRST_NS + 4))
    assert [one.kind for one in look(keeper)] == [DriftKind.FENCE_MENDED]
    finished = read_local(tmp_path)
    assert finished is not None
    touched = finished.touched_at(4 * SIZE)
    assert touched is not None
    assert touched.original_mtime_ns == FIRST_NS + 4


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """Let nobody set the file's times, root neither."""
    done = subprocess.run(["chattr", "+i", str(path)], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("files can't be made immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def try_again_at_once(keeper: FenceKeeper) -> None:
    """Let the pause end after which an mtime that couldn't be set is tried again."""
    keeper._unset = {key: (count, 0.0) for key, (count, _) in keeper._unset.items()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file immutable")
def test_a_file_whose_time_can_not_be_set_is_named_once_and_the_others_are_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_store(tmp_path)
    for number in range(4):
        os.utime(path_of(tmp_path, number), ns=(0, 0))
    monkeypatch.setattr(fence_mending, "RETRY_SECONDS", 0.0)
    keeper = FenceKeeper(tmp_path)
    with immutable(path_of(tmp_path, 1)):
        (mended,) = look(keeper)
        assert f"{path_of(tmp_path, 0)} and 2 more" in mended.detail
        assert fenced(tmp_path) == [0, 2, 3]
        (unset,) = look(keeper)
        assert unset.kind is DriftKind.FENCE_NOT_MENDED
        assert str(path_of(tmp_path, 1)) in unset.detail
        assert look(keeper) == ()
        os.utime(path_of(tmp_path, 3), ns=(0, 0))
        assert len(look(keeper)) == 1
        assert fenced(tmp_path) == [0, 2, 3]
    assert len(look(keeper)) == 1
    assert fenced(tmp_path) == [0, 1, 2, 3]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file immutable")
def test_a_file_that_can_not_be_fenced_is_named_and_keeps_the_next_ones_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_mending, "EXTEND_SECONDS", 0.0)
    monkeypatch.setattr(fence_mending, "RETRY_SECONDS", 3600.0)
    held_store(tmp_path)
    keeper = FenceKeeper(tmp_path)
    with immutable(path_of(tmp_path, 4)):
        for number in (0, 1):
            path_of(tmp_path, number).unlink()
        assert len(look(keeper)) == 1
        assert fenced(tmp_path) == [2, 3, 5]
        try_again_at_once(keeper)
        (unset,) = look(keeper)
        assert str(path_of(tmp_path, 4)) in unset.detail
        state = read_local(tmp_path)
        assert state is not None
        assert state.fence == (2 * SIZE, 3 * SIZE, 5 * SIZE)
        before = hold_bytes(tmp_path)
        assert look(keeper) == ()
        assert hold_bytes(tmp_path) == before
    try_again_at_once(keeper)
    assert look(keeper) == ()
    assert fenced(tmp_path) == [2, 3, 4, 5]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file immutable")
def test_each_of_two_files_whose_times_can_not_be_set_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_mending, "RETRY_SECONDS", 0.05)
    held_store(tmp_path)
    for number in (1, 2):
        os.utime(path_of(tmp_path, number), ns=(0, 0))
    keeper = FenceKeeper(tmp_path)
    named: list[Drift] = []
    deadline = time.monotonic() + 30
    with immutable(path_of(tmp_path, 1)):
        with immutable(path_of(tmp_path, 2)):
            while len(named) < 2 and time.monotonic() < deadline:
                named += look(keeper)
        assert [one.kind for one in named] == [DriftKind.FENCE_NOT_MENDED] * 2
        while fenced(tmp_path) != [0, 2, 3] and time.monotonic() < deadline:
            look(keeper)
        assert fenced(tmp_path) == [0, 2, 3]


def hold_bytes(root: Path) -> bytes:
    return (root / DIRECTORY / "hold").read_bytes()


def test_a_hold_without_a_sealed_segment_is_written_once_not_at_each_look(tmp_path: Path) -> None:
    held_store(tmp_path, files=6, fenced=3)
    keeper = FenceKeeper(tmp_path)
    look(keeper)
    for number in range(3):
        path_of(tmp_path, number).unlink()
    look(keeper)
    before = hold_bytes(tmp_path)
    for _ in range(5):
        assert look(keeper) == ()
    assert hold_bytes(tmp_path) == before


def test_what_was_found_by_a_look_that_a_lock_ended_is_told_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped while it had one of our locks."""
    monkeypatch.setattr(fence_mending, "WATCH_WAIT_SECONDS", 0.05)
    held_store(tmp_path)
    path_of(tmp_path, 0).unlink()
    keeper = FenceKeeper(tmp_path)
    with lock_settled(tmp_path), pytest.raises(TimeoutError, match=r"hold-record\.lock"):
        look(keeper)
    (gone,) = look(keeper)
    assert str(path_of(tmp_path, 0)) in gone.detail
    assert fenced(tmp_path) == [1, 2, 3, 4]


def test_what_was_found_is_told_though_each_look_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_mending, "WATCH_WAIT_SECONDS", 0.05)
    held_store(tmp_path)
    path_of(tmp_path, 0).unlink()
    keeper = FenceKeeper(tmp_path)
    with lock_settled(tmp_path):
        with pytest.raises(TimeoutError, match=r"hold-record\.lock"):
            look(keeper)
        (gone,) = keeper.left_over()
        assert str(path_of(tmp_path, 0)) in gone.detail
        assert keeper.left_over() == ()


@pytest.mark.parametrize(("left", "is_said"), [(0.51, False), (0.49, True)])
def test_a_look_says_from_half_of_a_holds_time_on_when_it_runs_out(
    tmp_path: Path, left: float, is_said: bool
) -> None:
    lasts_ms = 24 * 3_600_000
    state = held_store(tmp_path, lasts_ms=lasts_ms)
    keeper = FenceKeeper(tmp_path)
    keeper.look(state.ends_at_ms - int(left * lasts_ms))
    assert keeper.last_look.runs_out_at_ms == (state.ends_at_ms if is_said else 0)
    assert keeper.last_look.fenced == 4
    with watching(tmp_path) as own:
        assert own is not None
        own.beat(keeper.last_look)
        assert last_look(tmp_path) == keeper.last_look


def test_of_a_hold_that_an_older_release_renewed_it_is_not_said_when_it_runs_out(tmp_path: Path) -> None:
    state = held_store(tmp_path)
    keeper = FenceKeeper(tmp_path)
    keeper.look(state.ends_at_ms - 1)
    assert keeper.last_look.runs_out_at_ms == 0
