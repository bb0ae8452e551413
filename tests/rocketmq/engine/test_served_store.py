"""A store that the engine writes, managed beside it: looked at, flushed, and deleted from through it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import (
    BadInputError,
    ChangedUnderUsError,
    CorruptFrameError,
    StoreBusyError,
    StoreLayoutError,
)
from storage_engine.hooks.connection import Defaults, managed_store
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.store.brokers import open_store as open_managed
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.recover_on_demand import rebuild_queues
from storage_engine.rocketmq.engine.served_store import ServedStore, open_served
from storage_engine.rocketmq.engine.serving import ask_who_serves, serving
from storage_engine.rocketmq.engine.store_service import serve_store
from tests.rocketmq.engine.killing import rows_of
from tests.rocketmq.engine.scenarios import contents, write_conf


def settings_of(work: Path) -> StoreSettings:
    return StoreSettings(str(work / "store"), str(work / "conf"), {"fileReservedTime": "0"}, engine=True)


@contextmanager
def served(work: Path, **settings: object) -> Iterator[tuple[MessageStore, ServedStore]]:
    """Open a store of several files, and look at it from beside."""
    with open_store(write_conf(work / "conf", work / "store", **settings)) as store, serving(store):
        for i in range(1500):
            store.put(NewMessage("orders", b"%d" % i * 100, b"KEYS\x01k%d\x02" % i, i % 2))
        store.flush()
        with closing(open_served(settings_of(work))) as beside:
            yield store, beside


def test_the_oldest_segments_go_and_the_engine_goes_on(tmp_path: Path) -> None:
    with served(tmp_path) as (store, beside):
        snapshot = beside.snapshot(1)
        (log,) = snapshot.logs
        assert not snapshot.crashed
        plan = beside.plan(snapshot, clock_ms() + 10_000, PlanRequest(manual=True))
        going = [decision.segment for decision in plan.decisions if decision.deletes]
        assert len(going) > 3
        with beside.lock():
            beside.delete_segments(going, lambda: None)
            beside.delete_segments(going, lambda: None)
        left = beside.snapshot(2).logs[0]
        assert [s.base_offset for s in left.segments] == [
            s.base_offset for s in log.segments if s not in going
        ]
        assert store.files.min_offset == left.min_offset == going[-1].end_offset
        dependents = beside.dependents.find({"commitlog": left.min_offset})
        assert {file.kind for file in dependents} == {"consume-queue", "index"}
        with beside.lock():
            beside.dependents.delete(dependents, lambda: None)
        assert beside.dependents.find({"commitlog": left.min_offset}) == ()
        assert store.put(NewMessage("orders", b"goes on")).status is PutStatus.PUT_OK
        end = store.positions().wrote
    with open_store(write_conf(tmp_path / "conf", tmp_path / "store")) as again:
        assert (again.files.min_offset, again.positions().dispatched) == (left.min_offset, end)
    assert b"goes on" in {row["body"] for row in rows_of(tmp_path / "store")}


def test_what_is_not_the_oldest_or_not_as_it_was_stays(tmp_path: Path) -> None:
    with served(tmp_path) as (store, beside):
        first, second, *_, active = beside.snapshot(1).logs[0].segments
        with beside.lock():
            with pytest.raises(ChangedUnderUsError, match="first file"):
                beside.delete_segments([second], lambda: None)
            other = replace(first, facts=replace(first.facts, mtime_ns=first.facts.mtime_ns - 1))
            with pytest.raises(ChangedUnderUsError) as raised:
                beside.delete_segments([other], lambda: None)
            assert raised.value.path == first.facts.path
        with pytest.raises(StoreBusyError, match="expected a lock"):
            beside.delete_segments([first], lambda: None)
        assert Path(first.facts.path).exists()
        assert Path(active.facts.path).exists()
        assert store.files.min_offset == 0


def until_free(lock: Callable[[], object]) -> None:
    """Try until the engine has noticed that who had the lock is gone."""
    for _ in range(600):
        with suppress(StoreBusyError):
            lock()
            return
        time.sleep(0.05)
    raise AssertionError("nobody has the lock, and it isn't free")


def test_one_run_at_a_time_cleans_and_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    with served(tmp_path) as (_, beside), closing(open_served(settings_of(tmp_path))) as other:
        with beside.lock(), pytest.raises(StoreBusyError, match="another run"), other.lock():
            pass
        with other.lock():
            pass
        # A process that dies has its connection closed.
        session = ask_who_serves(tmp_path / "store")
        assert session is not None
        with closing(session):
            until_free(lambda: session.ask("lock"))

        def lock_and_leave() -> None:
            with other.lock():
                pass

        until_free(lock_and_leave)
        offline = find_broker("rocketmq").open_store(replace(settings_of(tmp_path), engine=False), None)
        with pytest.raises(StoreBusyError), offline.lock():
            pass


def test_a_flush_tells_the_positions_before_and_after(tmp_path: Path) -> None:
    slow = {"flushIntervalCommitLog": 600_000, "flushConsumeQueueThoroughInterval": 600_000}
    with served(tmp_path, **slow) as (store, beside):
        result = store.put(NewMessage("orders", b"new"))
        assert store.wait_until_dispatched()
        found = beside.process.flush_now()
        assert found.before.flushed == result.physical_offset
        end = result.physical_offset + result.size_bytes
        assert (found.after.wrote, found.after.committed) == (end, end)
        assert (found.after.flushed, found.after.dispatched) == (end, end)
        assert found.after.checkpoint["logics_msg_timestamp_ms"] == result.store_timestamp_ms
        progress = beside.process.progress(1)
        assert progress is not None
        assert (progress.flush_behind_bytes, progress.dispatch_behind_bytes) == (0, 0)
        # What isn't on disk is sealed for nobody.
        last = store.files.last
        assert last is not None
        while store.files.last is last:
            store.put(NewMessage("orders", bytes(5000)))
        assert store.files.flushed_where < last.end_offset
        sealed = beside.snapshot(2).logs[0].sealed
        assert max(segment.end_offset for segment in sealed) <= store.files.flushed_where


def test_a_store_that_nobody_serves_is_recovered_and_flushed(tmp_path: Path) -> None:
    with served(tmp_path):
        pass
    (tmp_path / "store" / "abort").touch()
    with closing(open_served(settings_of(tmp_path))) as beside:
        assert beside.session is None
        assert beside.snapshot(1).crashed
        found = beside.process.flush_now()
        assert found.after.flushed == found.after.dispatched == found.after.wrote > 0
        assert not beside.snapshot(2).crashed
        assert beside.process.progress(3) is None


def test_lines_become_messages(tmp_path: Path) -> None:
    settings = StoreSettings(str(tmp_path / "new"), None, {"mappedFileSizeCommitLog": "65536"})
    serve_store(settings, "lines", [b"one", b"two"], threading.Event(), None)
    assert [row["body"] for row in rows_of(tmp_path / "new")] == [b"one", b"two"]
    assert not (tmp_path / "new" / "abort").exists()
    assert not any((tmp_path / "new" / ".storage-engine").iterdir())


def test_a_connection_names_the_mode(tmp_path: Path) -> None:
    extra = {"root": str(tmp_path), "mode": "engine", "lake": str(tmp_path / "lake")}
    store = managed_store("orders", extra, None, Defaults(home=str(tmp_path)))
    assert (store.engine, store.live, store.broker) == (True, None, "rocketmq")
    assert ManagedStore.from_json(store.to_json()) == store
    with pytest.raises(BadInputError, match="undo_window_hours"):
        replace(store, policy=replace(store.policy, undo_window_hours=24))
    with pytest.raises(BadInputError, match="Apache Kafka"):
        open_managed(replace(store, broker="kafka"))


def test_neither_a_flush_nor_who_serves_cuts_off_whole_messages(tmp_path: Path) -> None:
    with served(tmp_path):
        pass
    root = tmp_path / "store"
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    first, *_ = sorted((root / "commitlog").iterdir())
    data = bytearray(first.read_bytes())
    data[400] ^= 1
    first.write_bytes(data)
    before = contents(root / "commitlog")
    beside = open_served(settings_of(tmp_path))
    with closing(beside), pytest.raises(CorruptFrameError, match="whole messages"):
        beside.process.flush_now()
    with pytest.raises(CorruptFrameError, match="whole messages"):
        serve_store(settings_of(tmp_path), None, [], threading.Event(), None)
    assert contents(root / "commitlog") == before


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("../../out", 0), ("", 0), ("a/b", 0), ("..", 0), ("L" * 300, 0), ("orders", -1)]
)
def test_no_directory_is_made_outside_of_the_store(tmp_path: Path, topic: str, queue_id: int) -> None:
    with open_store(write_conf(tmp_path / "conf", tmp_path / "store")) as store:
        assert store.put(NewMessage(topic, b"x", queue_id=queue_id)).status is PutStatus.MESSAGE_ILLEGAL
        with pytest.raises(StoreLayoutError, match="topic and queue can name directories"):
            store.queues.find(topic, queue_id)


def test_queues_made_again_go_on_where_the_log_has_none_of_their_messages(tmp_path: Path) -> None:
    config = write_conf(tmp_path / "conf", tmp_path / "store")
    with open_store(config) as store:
        for _ in range(5):
            store.put(NewMessage("quiet", b"x"))
        while len(store.files.files) < 3:
            store.put(NewMessage("busy", b"b" * 1000))
    first, second, *_ = sorted((tmp_path / "store" / "commitlog").iterdir())
    first.unlink()
    rebuild_queues(config)
    with open_store(config) as store:
        assert store.put(NewMessage("quiet", b"x")).queue_offset == 5
    first.touch()
    first.write_bytes(second.read_bytes())
    second.unlink()
    with pytest.raises(StoreLayoutError, match="expected a file that begins at"):
        rebuild_queues(config)
