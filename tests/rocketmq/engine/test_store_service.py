"""The passes over an open store, with clock and disks driven."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Cause, PlanRequest
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.store_service import CleanupLoop, cleaning
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.mapped_files import file_name
from tests.rocketmq.engine.scenarios import SIZES, messages, put_all, read_log, write_conf

NOON_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000 + 12 * 3_600_000
HOUR_MS = 3_600_000
ZONE = ZoneInfo("UTC")
FILE_BYTES = int(str(SIZES["mappedFileSizeCommitLog"]))


@dataclass
class World:
    """A clock that only pauses move, and disks of 100 bytes."""

    now_ms: int = NOON_MS
    used_percent: dict[str, int | None] = field(default_factory=dict)
    pauses_ms: list[int] = field(default_factory=list)

    def pause(self, pause_ms: int) -> None:
        self.pauses_ms.append(pause_ms)
        self.now_ms += pause_ms

    def measure(self, path: Path) -> DiskUsage:
        used = self.used_percent.get(path.name, 10)
        return DiskUsage(str(path), total_bytes=100, usable_bytes=100 - (used or 0), used_percent=used)


@contextmanager
def driven(
    tmp_path: Path, count: int = 400, **settings: object
) -> Iterator[tuple[MessageStore, CleanupLoop, World, BrokerConfig]]:
    """Open a store of some files that were all last written at noon, and its loop."""
    config = write_conf(tmp_path / "conf", tmp_path / "store", deleteWhen="04", **settings)
    world = World()
    with open_store(config) as store:
        put_all(store, messages(3, count))
        store.flush()
        for file in store.files.files:
            os.utime(file.path, ns=(NOON_MS * 1_000_000, NOON_MS * 1_000_000))
        loop = CleanupLoop(
            store, config, ZONE, clock=lambda: world.now_ms, measure=world.measure, pause=world.pause
        )
        yield store, loop, world, config


def log_names(store: MessageStore) -> list[str]:
    directory = store.layout.commitlog_paths[0]
    ahead = file_name(store.files.files[-1].end_offset)
    return sorted(path.name for path in directory.iterdir() if path.name != ahead)


def test_what_has_expired_goes_in_its_hour_a_batch_a_pass_oldest_first(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=1, deleteFileBatchMax=3) as (store, loop, world, _):
        before = log_names(store)
        assert len(before) > 6
        world.now_ms += 4 * HOUR_MS
        assert loop.clean_log().triggers == ()
        world.now_ms = NOON_MS + 16 * HOUR_MS
        found = loop.clean_log()
        assert [cause.cause for cause in found.triggers] == [Cause.TIME_UP]
        assert found.deleted == (0, FILE_BYTES, 2 * FILE_BYTES)
        assert world.pauses_ms == [100, 100]
        assert log_names(store) == before[3:]
        assert store.files.min_offset == 3 * FILE_BYTES
        for _ in before:
            loop.clean_log()
        assert log_names(store) == before[-1:]
        assert store.put(NewMessage("orders", b"goes on")).status is PutStatus.PUT_OK


def test_queues_and_index_go_behind_the_log(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=1, enableConsumeQueueExt=True) as (store, loop, world, _):
        assert store.index is not None
        files = sum(len(writer.files.bases) for writer in store.queues)
        indexes = len(store.index.paths)
        loop.clean_queues()
        assert sum(len(writer.files.bases) for writer in store.queues) == files
        world.now_ms = NOON_MS + 16 * HOUR_MS
        loop.clean_log()
        loop.clean_queues()
        min_offset = store.files.min_offset
        assert sum(len(writer.files.bases) for writer in store.queues) < files
        assert 0 < len(store.index.paths) < indexes
        for writer in store.queues:
            on_disk = sorted(int(path.name) for path in writer.files.directory.iterdir())
            assert on_disk == writer.files.bases
            assert 0 <= writer.min_queue_offset <= writer.next_queue_offset
        minima = {writer.files.directory: writer.min_queue_offset for writer in store.queues}
        assert any(minima.values())
        config = write_conf(tmp_path / "conf", tmp_path / "store", enableConsumeQueueExt=True)
    with open_store(config) as again:
        assert again.files.min_offset == min_offset
        assert {writer.files.directory: writer.min_queue_offset for writer in again.queues} == minima


def test_a_full_disk_deletes_at_once_and_refuses_messages_until_it_is_low_again(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=72) as (store, loop, world, _):
        world.used_percent = {"commitlog": 91}
        assert len(loop.clean_log().deleted) > 0
        assert store.put(NewMessage("orders", b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
        world.used_percent = {"commitlog": 88}
        loop.clean_log()
        assert store.disk_full
        world.used_percent = {"commitlog": 85}
        loop.clean_log()
        assert store.put(NewMessage("orders", b"x")).status is PutStatus.PUT_OK
        world.used_percent = {"consumequeue": 95}
        loop.clean_log()
        assert store.disk_full
        world.used_percent = {"commitlog": None, "consumequeue": None}
        left = log_names(store)
        assert loop.clean_log().triggers == ()
        assert store.disk_full, "a level that isn't known says nothing"
        assert log_names(store) == left


def test_a_person_s_word_counts_for_twenty_passes(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=1, deleteFileBatchMax=1) as (_, loop, world, _):
        loop.delete_manually()
        assert loop.clean_log().deleted == (), "nothing has expired"
        world.now_ms += 2 * HOUR_MS
        assert loop.clean_log().deleted == (0,)
        for _ in range(18):
            assert loop.clean_log().triggers
        assert loop.clean_log().triggers == ()


def test_a_file_that_is_read_stays_until_it_is_given_back_or_its_time_is_over(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=1) as (store, loop, world, config):
        world.now_ms += 16 * HOUR_MS
        first, second = read_log(store, 0, 50), read_log(store, FILE_BYTES, 50)
        assert first is not None
        assert second is not None
        was = bytes(second.data)
        assert loop.clean_log().deleted == ()
        assert store.files.min_offset == FILE_BYTES
        assert read_log(store, 0, 50) is None
        world.now_ms += HOUR_MS
        first.release()
        # No cause holds at this hour, but what was begun is ended.
        assert loop.clean_log().deleted == ()
        assert log_names(store)[0] == file_name(FILE_BYTES)
        loop.delete_manually()
        assert loop.clean_log().deleted == ()
        world.now_ms += config.destroy_mapped_file_interval_forcibly_ms - 1
        loop.clean_log()
        assert (tmp_path / "store" / "commitlog" / file_name(FILE_BYTES)).exists()
        world.now_ms += 1
        loop.clean_log()
        assert not (tmp_path / "store" / "commitlog" / file_name(FILE_BYTES)).exists()
        assert bytes(second.data) == was
        second.release()


def test_who_deletes_in_place_of_the_loop_alone_deletes(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=1) as (store, own, world, config):
        asked: list[PlanRequest] = []
        loop = CleanupLoop(
            store,
            config,
            ZONE,
            release=asked.append,
            clock=lambda: world.now_ms,
            measure=world.measure,
            pause=world.pause,
        )
        before = log_names(store)
        assert loop.clean_log().triggers == ()
        assert asked == []
        world.now_ms += 16 * HOUR_MS
        loop.delete_manually()
        assert loop.clean_log().deleted == ()
        assert asked == [PlanRequest(manual=True)]
        held = read_log(store, 0, 50)
        assert held is not None
        assert own.clean_log().deleted == ()
        held.release()
        world.now_ms += HOUR_MS
        loop.clean_log()
        assert log_names(store) == before
        own.clean_log()
        assert log_names(store) == before[1:]


def test_a_deletion_that_was_begun_is_ended_with_the_loop(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=1) as (store, loop, world, config):
        world.now_ms += 16 * HOUR_MS
        held = read_log(store, 0, 50)
        assert held is not None
        was = bytes(held.data)
        assert loop.clean_log().deleted == ()
        loop.clean_queues()
        assert store.files.min_offset == FILE_BYTES
        loop.stop()
    assert bytes(held.data) == was
    held.release()
    with open_store(config) as again:
        assert again.files.min_offset == FILE_BYTES


def test_no_file_goes_that_is_not_flushed_and_dispatched(tmp_path: Path) -> None:
    with driven(tmp_path, fileReservedTime=1, flushIntervalCommitLog=60_000) as (store, loop, world, _):
        world.now_ms += 16 * HOUR_MS
        store._reput.stop()
        flushed, dispatched = store.files.flushed_where, store.dispatched_offset
        store.files.flushed_where = FILE_BYTES - 1
        assert loop.clean_log().deleted == ()
        store.files.flushed_where, store.dispatched_offset = flushed, FILE_BYTES
        assert loop.clean_log().deleted == (0,)
        store.dispatched_offset = dispatched


def test_new_files_go_to_paths_that_are_not_full(tmp_path: Path) -> None:
    paths = f"{tmp_path}/a,{tmp_path}/b"
    config = write_conf(tmp_path / "conf", tmp_path / "store", storePathCommitLog=paths)
    world = World()
    with open_store(config) as store:
        loop = CleanupLoop(
            store, config, ZONE, clock=lambda: world.now_ms, measure=world.measure, pause=world.pause
        )
        put_all(store, messages(3, 120))
        assert {file.path.parent.name for file in store.files.files} == {"a", "b"}
        world.used_percent = {"a": 86}
        loop.clean_log()
        known = len(store.files.files) + 1  # the next one was made beforehand
        put_all(store, messages(4, 300))
        assert {file.path.parent.name for file in store.files.files[known:]} == {"b"}
        assert len(store.files.files) > known + 1
        world.used_percent = {"a": 87, "b": 86}
        loop.clean_log()
        known = len(store.files.files) + 1
        put_all(store, messages(5, 300))
        assert {file.path.parent.name for file in store.files.files[known:]} == {"a", "b"}


def test_the_loop_works_by_itself_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_engine.rocketmq.engine.store_service.FIRST_PASS_MS", 500)
    with driven(tmp_path, fileReservedTime=1, deleteFileBatchMax=2) as (store, _, _, config):
        with cleaning(store, config, ZONE) as loop:
            loop.delete_manually()
            deadline = time.monotonic() + 30
            while not any(writer.min_queue_offset > 0 for writer in store.queues):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert store.files.min_offset == 2 * FILE_BYTES
