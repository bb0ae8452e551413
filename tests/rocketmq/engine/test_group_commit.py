"""Puts that wait for the disk together: none returns before its bytes are there."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from storage_engine.rocketmq.engine.append.flush import GroupCommit

LONG_SECONDS = 20.0


class Disk:
    """A log that threads write to, and how much of it is on disk."""

    def __init__(self, flush_seconds: float = 0.0) -> None:
        self._guard = threading.Lock()
        self.wrote = self.flushed = self.flushes = 0
        self.flush_seconds = flush_seconds
        self.refuses = False

    def write(self) -> int:
        with self._guard:
            self.wrote += 1
            return self.wrote

    def flush(self) -> None:
        wrote = self.wrote
        time.sleep(self.flush_seconds)
        if self.refuses:
            raise OSError("no")
        self.flushed, self.flushes = wrote, self.flushes + 1


def in_threads(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_SECONDS)
        assert not thread.is_alive()


def test_nobody_returns_before_the_disk_has_it_and_all_return() -> None:
    disk = Disk(0.0002)
    commits = GroupCommit(disk.flush, lambda: disk.flushed)
    early: list[int] = []

    def produce(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            offset = disk.write()
            if not commits.wait_for(offset, LONG_SECONDS) or disk.flushed < offset:
                early.append(offset)
            if chance.random() < 0.1:
                time.sleep(chance.random() / 500)

    in_threads(*(lambda seed=seed: produce(seed) for seed in range(8)))  # type: ignore[misc]
    assert not early
    assert disk.flushed == disk.wrote == 8 * 150


def test_one_flush_serves_all_that_wait() -> None:
    disk = Disk(0.01)
    commits = GroupCommit(disk.flush, lambda: disk.flushed)
    in_threads(*[lambda: [commits.wait_for(disk.write(), LONG_SECONDS) for _ in range(20)] for _ in range(4)])
    assert 20 <= disk.flushes < 60


def test_one_that_is_alone_does_not_wait_for_those_who_left() -> None:
    disk = Disk()
    commits = GroupCommit(disk.flush, lambda: disk.flushed)
    in_threads(*[lambda: [commits.wait_for(disk.write(), LONG_SECONDS) for _ in range(5)] for _ in range(4)])
    assert commits.wait_for(disk.write(), LONG_SECONDS)


def test_what_is_on_disk_already_needs_no_flush() -> None:
    disk = Disk()
    commits = GroupCommit(disk.flush, lambda: disk.flushed)
    first, second = disk.write(), disk.write()
    assert commits.wait_for(second, LONG_SECONDS)
    assert commits.wait_for(first, LONG_SECONDS)
    assert disk.flushes == 1


def test_a_disk_that_refuses_refuses_all_that_wait() -> None:
    disk = Disk(0.02)
    disk.refuses = True
    commits = GroupCommit(disk.flush, lambda: disk.flushed)
    said: list[bool] = []
    in_threads(*[lambda: said.append(commits.wait_for(disk.write(), LONG_SECONDS)) for _ in range(6)])
    assert said == [False] * 6


def test_a_flush_that_takes_too_long_is_no_success() -> None:
    disk = Disk(0.2)
    commits = GroupCommit(disk.flush, lambda: disk.flushed)
    said: list[bool] = []
    in_threads(*[lambda: said.append(commits.wait_for(disk.write(), 0.05)) for _ in range(3)])
    assert said == [False] * 3
    disk.flush_seconds = 0.0
    assert commits.wait_for(disk.write(), LONG_SECONDS)


def test_one_whose_flush_did_not_reach_it_leaves_the_others_to_flush() -> None:
    disk = Disk(0.1)
    reaches: list[int] = []

    def flush() -> None:
        wrote = disk.flushed
        disk.flush()
        if not reaches:
            disk.flushed = wrote
        reaches.append(disk.flushed)

    commits = GroupCommit(flush, lambda: disk.flushed)
    said: list[bool] = []

    def follow() -> None:
        time.sleep(0.03)
        said.append(commits.wait_for(disk.write(), 1.0))

    in_threads(lambda: commits.wait_for(disk.write(), 1.0), follow, follow)
    assert said == [True, True]
