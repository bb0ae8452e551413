"""However a fence is lost: what is there stays once a watch has looked, and one that can't look says so."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import GateRefusedError, StoreNotFoundError
from storage_engine.model.hold import DriftKind
from storage_engine.rocketmq.hold import hold_state
from storage_engine.rocketmq.hold.hold_state import HoldState, Touched, read_local, write_local
from storage_engine.rocketmq.hold.marker import write_marker
from storage_engine.rocketmq.live.fence_mending import LAST_FILES, FencedDirectory, FenceKeeper, is_mounted
from storage_engine.rocketmq.live.observe import mount_point
from tests.full_disks import small_disk
from tests.rocketmq.live.held_files import FIRST_NS, LEASE_NS, SIZE, held_store, mtimes_ns, path_of
from tests.rounds import rounds

FILES, FENCED = 12, 4
LOSS_ROUNDS = rounds("STORAGE_ENGINE_FENCE_LOSSES", 25, 500)
IDENTITIES = st.sampled_from([None, (1, 2), (1, 3)])
POINTS = st.sampled_from(["", "/", "/data"])


def now_ms() -> int:
    return time.time_ns() // 10**6


@given(known=IDENTITIES, held=POINTS, has_lost=st.booleans(), point=POINTS, identity=IDENTITIES)
def test_a_directory_with_segments_is_mounted_and_none_that_is_not_there(
    known: tuple[int, int] | None,
    held: str,
    has_lost: bool,
    point: str,
    identity: tuple[int, int] | None,
) -> None:
    def answer(has_segments: bool) -> bool:
        return is_mounted(FencedDirectory(identity, has_segments, has_lost, point), known, held)

    assert answer(True) == (identity is not None)
    if identity is None or identity == known:
        assert answer(False) == (identity is not None)
    elif held:
        # By the mount alone, whatever became of the fence.
        assert answer(False) == (point == held)
    else:
        assert answer(False) == (not has_lost)


@dataclass
class Log:
    """A held log of expired files in two directories.

    :param first_odd: from this file on it uses both, by turns, as a broker does that was given the second.
    """

    root: Path
    first_odd: int = 0

    def path(self, number: int) -> Path:
        return self.directory(number % 2 if number >= self.first_odd else 0) / f"{number * SIZE:020d}"

    def directory(self, number: int) -> Path:
        return self.root / ("even", "odd")[number]

    def files(self) -> list[Path]:
        found = [path for number in (0, 1) for path in self.directory(number).glob("0*")]
        return sorted(found, key=lambda path: path.name)

    def taken_by_a_pass(self) -> list[Path]:
        """What a broker deletes: from the oldest on, never the last file (deleteExpiredFileByTime)."""
        taken = []
        for path in self.files()[:-1]:
            if path.stat().st_mtime_ns > time.time_ns():
                break
            taken.append(path)
        return taken

    def hold(self, knows_paths: bool) -> None:
        touched = []
        for number in range(FILES):
            path = self.path(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * SIZE)
            first_ns = FIRST_NS + number
            mtime_ns = LEASE_NS if number < FENCED else first_ns
            os.utime(path, ns=(mtime_ns, mtime_ns))
            if number < FENCED:
                inode = path.stat().st_ino
                touched.append(Touched(number * SIZE, str(path), inode, first_ns, LEASE_NS, ctime_ns=1))
        directories = [self.directory(number) for number in (0, 1)]
        state = HoldState(
            "me",
            1,
            fence_offset=0,
            ends_at_ms=LEASE_NS // 10**6,
            touched=tuple(touched),
            fence=tuple(one.base_offset for one in touched),
            fence_count=FENCED,
            log_paths={str(path): mount_point(path) for path in directories} if knows_paths else {},
        )
        write_local(self.root, state)


numbers = st.sets(st.integers(0, FILES - 1))
LOSSES = st.one_of(
    st.tuples(st.just("touched"), numbers),
    st.tuples(st.just("removed"), numbers),
    st.tuples(st.just("copied"), st.sets(st.integers(0, 1), min_size=1)),
    st.tuples(st.just("emptied"), st.sets(st.integers(0, 1), min_size=1, max_size=1)),
    st.tuples(st.just("away"), st.sets(st.integers(0, 1), min_size=1)),
)


def lose(log: Log, how: str, which: set[int]) -> None:
    for number in which:
        if how in ("touched", "removed"):
            path = log.path(number)
            if path.exists():
                os.utime(path, ns=(0, 0)) if how == "touched" else path.unlink()
            continue
        directory, aside = log.directory(number), log.root / f"aside-{number}"
        if how == "emptied":
            for path in directory.glob("0*"):
                path.unlink()
        elif directory.exists() and not aside.exists():
            directory.rename(aside)
            if how == "copied":  # cp -a
                shutil.copytree(aside, directory)


@settings(
    max_examples=rounds("STORAGE_ENGINE_FENCE_LOSSES", 25, 500),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    losses=st.lists(LOSSES, min_size=1, max_size=3),
    has_looked=st.booleans(),
    knows_paths=st.booleans(),
    first_odd=st.sampled_from([0, FENCED]),
)
@example(losses=[("emptied", {0})], has_looked=False, knows_paths=True, first_odd=FENCED)
def test_whatever_a_fence_lost_a_broker_takes_nothing_of_what_is_there_after_a_look(
    losses: list[tuple[str, set[int]]], has_looked: bool, knows_paths: bool, first_odd: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        log = Log(Path(name), first_odd)
        log.hold(knows_paths)
        keeper = FenceKeeper(log.root)
        if has_looked:
            assert keeper.look(now_ms()) == ()
            assert keeper.last_look.fenced == FENCED
        looked_before = keeper.last_look
        for how, which in losses:
            lose(log, how, which)
        was_there, at_ms = log.files(), now_ms() + 1
        lost = [number for number in range(FENCED) if not log.path(number).exists()]
        try:
            told = keeper.look(at_ms)
        except StoreNotFoundError:
            told = keeper.left_over()
            # It can't tell, so it says so.
            assert keeper.last_look == looked_before
        else:
            assert keeper.last_look.looked_at_ms >= looked_before.looked_at_ms
            assert keeper.last_look is not looked_before
            assert all(log.directory(number).exists() for number in (0, 1)) or not knows_paths
            if lost:
                assert any("expected" in one.detail and "removed or replaced" in one.detail for one in told)
        assert all(one.kind is DriftKind.FENCE_MENDED for one in told)
        assert log.files() == was_there
        if knows_paths or lost_on_known_paths(log):
            assert set(log.taken_by_a_pass()) <= set(was_there[-LAST_FILES:])


def lost_on_known_paths(log: Log) -> bool:
    """Whether both directories are named by the fence, as an older release's hold has no other names."""
    state = read_local(log.root)
    assert state is not None
    return len({Path(one.path).parent for one in state.touched if one.base_offset in state.fence}) == 2


@pytest.mark.parametrize("first", [True, False], ids=["new", "known"])
def test_a_log_whose_disk_is_really_unmounted_is_told_from_an_emptied_one(
    tmp_path: Path, first: bool
) -> None:
    disk = tmp_path / "commitlog"
    disk.mkdir()
    with small_disk(disk, 1 << 20):
        held = held_on(tmp_path)
        for number in range(20):
            path_of(tmp_path, number).unlink()
        keeper = FenceKeeper(tmp_path)
        (gone,) = keeper.look(now_ms())
        assert "expected 4 segments of the hold's fence" in gone.detail
        assert "the log's files begin nowhere" in gone.detail
    keeper = FenceKeeper(tmp_path) if first else keeper
    looked = keeper.last_look
    for _ in range(2):
        with pytest.raises(StoreNotFoundError, match=r"commitlog: expected segments .* isn't mounted"):
            keeper.look(now_ms())
    assert (keeper.last_look, keeper.left_over()) == (looked, ())
    assert read_local(tmp_path) == held


def held_on(root: Path) -> HoldState:
    """A held store whose log is a mount of its own."""
    commitlog = root / "commitlog"
    away = root / "made"
    held_store(away)
    for path in (away / "commitlog").iterdir():
        shutil.copy2(path, commitlog)
    state = read_local(away)
    assert state is not None
    touched = tuple(
        Touched(
            one.base_offset,
            str(path_of(root, one.base_offset // SIZE)),
            path_of(root, one.base_offset // SIZE).stat().st_ino,
            one.original_mtime_ns,
            one.mtime_ns,
            ctime_ns=1,
        )
        for one in state.touched
    )
    held = HoldState(
        "me",
        1,
        ends_at_ms=state.ends_at_ms,
        fence_offset=0,
        touched=touched,
        fence=state.fence,
        fence_count=state.fence_count,
        log_paths={str(commitlog): mount_point(commitlog)},
    )
    write_local(root, held)
    return held


def test_once_a_disk_was_away_all_that_is_there_is_fenced_until_a_run_has_asked_the_broker(
    tmp_path: Path,
) -> None:
    """The broker has forgotten files by then, and begins behind them."""
    held = held_store(tmp_path)
    log, keeper = tmp_path / "commitlog", FenceKeeper(tmp_path)
    keeper.look(now_ms())
    log.rename(tmp_path / "away")
    with pytest.raises(StoreNotFoundError):
        keeper.look(now_ms())
    (tmp_path / "away").rename(log)
    assert keeper.look(now_ms()) == ()
    sealed = list(range(20 - LAST_FILES))
    assert fenced_in(tmp_path) == sealed
    assert keeper.last_look.fenced == len(sealed)
    # Also one that began later mends all of them.
    path_of(tmp_path, 0).unlink()
    os.utime(path_of(tmp_path, 9), ns=(0, 0))
    assert len(FenceKeeper(tmp_path).look(now_ms())) == 2
    assert fenced_in(tmp_path) == sealed[1:]
    write_local(tmp_path, held)
    for number in sealed[FENCED:]:
        os.utime(path_of(tmp_path, number), ns=(0, FIRST_NS))
    keeper.look(now_ms())
    assert fenced_in(tmp_path) == [1, 2, 3, 4]


def fenced_in(root: Path) -> list[int]:
    return [number for number, mtime_ns in mtimes_ns(root).items() if mtime_ns == LEASE_NS]


def test_a_copy_of_a_segment_keeps_its_first_time(tmp_path: Path) -> None:
    held_store(tmp_path)
    log = tmp_path / "commitlog"
    shutil.copytree(log, tmp_path / "copy")
    shutil.rmtree(log)
    (tmp_path / "copy").rename(log)
    assert len(FenceKeeper(tmp_path).look(now_ms())) == 1
    state = read_local(tmp_path)
    assert state is not None
    assert [one.original_mtime_ns for one in state.touched] == [FIRST_NS + n for n in range(4)]


def test_a_log_that_had_only_its_active_segment_is_fenced_once_it_has_more(tmp_path: Path) -> None:
    held_store(tmp_path, files=6, fenced=0, fence_count=2)
    state = read_local(tmp_path)
    assert state is not None
    log = tmp_path / "commitlog"
    write_local(
        tmp_path, HoldState("me", 1, ends_at_ms=state.ends_at_ms, fence_count=2, log_paths={str(log): ""})
    )
    keeper = FenceKeeper(tmp_path)
    assert keeper.look(now_ms()) == ()
    assert fenced_in(tmp_path) == [0, 1]
    assert keeper.last_look.fenced == 2


def test_a_held_store_without_its_hold_is_not_looked_at(tmp_path: Path) -> None:
    held_store(tmp_path)
    write_marker(tmp_path, "me", LEASE_NS // 10**6)
    (tmp_path / DIRECTORY / hold_state.RECORD).write_bytes(b"\0" * 512)
    keeper = FenceKeeper(tmp_path)
    with pytest.raises(GateRefusedError, match="expected the hold of a store that is held until"):
        keeper.look(now_ms())
    assert keeper.last_look.looked_at_ms == 0
