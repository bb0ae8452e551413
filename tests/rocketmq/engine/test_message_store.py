from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import StoreBusyError
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.engine.append.append import NewBatch, NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.index_file import java_hash, open_index, read_header
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.format.mapped_files import file_name
from storage_engine.rocketmq.inspect import look_up
from tests.rocketmq.engine.scenarios import BATCH_TOPIC, encode_batch, messages, put_all, read_log, write_conf


def rows_of(root: Path) -> list[dict[str, Any]]:
    """Return every message of a store's log in its order, read by the archive's decoder."""
    rows = [
        row
        for path in sorted((root / "commitlog").iterdir())
        for table, _ in CODEC.decode(path.read_bytes(), int(path.name))
        for row in table.to_pylist()
    ]
    return sorted((row for row in rows if row["kind"] == "message"), key=lambda row: row["physical_offset"])


def test_what_is_put_is_read_by_the_archives_decoder(tmp_path: Path) -> None:
    root = tmp_path / "store"
    sent = [
        NewMessage("orders", b"body %d" % i, b"KEYS\x01k%d\x02TAGS\x01t\x02" % i, i % 2) for i in range(300)
    ]
    with open_store(write_conf(tmp_path / "conf", root)) as store:
        assert {result.status for result in put_all(store, sent)} == {PutStatus.PUT_OK}
    rows = rows_of(root)
    assert [row["body"] for row in rows] == [message.body for message in sent]
    assert [row["queue_offset"] for row in rows] == [i // 2 for i in range(300)]
    layout = resolve_layout(write_conf(tmp_path / "conf", root))
    for queue in iter_queues(layout.consumequeue):
        entries = consume_queue.FORMAT.read_queue(consume_queue.FORMAT.files(queue.path))
        expected = [row["physical_offset"] for row in rows if row["queue_id"] == queue.queue_id]
        assert entries["offset"].tolist() == expected
    config = write_conf(tmp_path / "conf", root)
    assert look_up(layout, config, "orders", "k77").offsets == (rows[77]["physical_offset"],)
    assert not layout.abort.exists()


@pytest.mark.parametrize(
    "settings",
    [{}, {"flushDiskType": "SYNC_FLUSH"}, {"transientStorePoolEnable": True}],
    ids=["async", "sync", "pool"],
)
def test_many_producers_leave_no_gap_in_a_queue(settings: dict[str, object], tmp_path: Path) -> None:
    root, each = tmp_path / "store", 60
    failed: list[object] = []

    def produce(store: MessageStore, number: int) -> None:
        for i in range(each):
            result = store.put(NewMessage("orders", b"%d/%d" % (number, i), queue_id=i % 2))
            if result.status is not PutStatus.PUT_OK:
                failed.append(result)
            elif settings.get("flushDiskType") and store.positions().flushed < result.physical_offset:
                failed.append("not on disk")

    with open_store(write_conf(tmp_path / "conf", root, **settings)) as store:
        threads = [threading.Thread(target=produce, args=(store, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    rows = rows_of(root)
    assert sorted((row["queue_id"], row["queue_offset"]) for row in rows) == [
        (queue, offset) for queue in range(2) for offset in range(4 * each // 2)
    ]
    assert len({row["body"] for row in rows}) == 4 * each


def test_a_store_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = write_conf(tmp_path / "conf", root)
    once, twice = messages(3, 120), messages(4, 120)
    with open_store(config, batches=frozenset({BATCH_TOPIC})) as store:
        first = put_all(store, once)
        end = store.positions().wrote
    with open_store(config, batches=frozenset({BATCH_TOPIC})) as store:
        assert (store.recovered.offset, store.positions().dispatched) == (end, end)
        second = put_all(store, twice)
    assert second[0].physical_offset == end
    assert {result.status for result in first + second} == {PutStatus.PUT_OK}


def test_the_code_of_tags_that_are_no_text_is_the_brokers(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(write_conf(tmp_path / "conf", root)) as store:
        for tags in (b"plain", b"a\xffb", b"plain"):
            store.put(NewMessage("orders", b"", b"TAGS\x01" + tags + b"\x02"))
    entries = consume_queue.FORMAT.read_queue(consume_queue.FORMAT.files(root / "consumequeue/orders/0"))
    # new String(new byte[] {'a', (byte) 0xff, 'b'}, UTF_8).hashCode()
    assert entries["tags_code"].tolist() == [java_hash("plain"), 2_124_838, java_hash("plain")]


@pytest.mark.parametrize(
    "sent",
    [
        NewMessage("", b""),
        NewMessage("t", bytes(1 << 16)),
        NewBatch("t", encode_batch([(b"", b"", 0)] * 750)),
        NewBatch("t", b"\0"),
    ],
    ids=["topic", "size", "batch-size", "batch"],
)
def test_a_store_gets_no_file_for_what_it_refuses(sent: NewMessage | NewBatch, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(write_conf(tmp_path / "conf", root)) as store:
        (refused,) = put_all(store, [sent])
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert not list((root / "commitlog").iterdir())
        assert store.put_batch(NewBatch("t", encode_batch([(b"1", b"", 0)]))).physical_offset == 0


@pytest.mark.parametrize("number", [b"x", b"40000", b"-32769", b"9" * 5000])
def test_an_inner_batch_whose_number_no_broker_reads_is_refused(number: bytes, tmp_path: Path) -> None:
    root, batches = tmp_path / "store", frozenset({BATCH_TOPIC})
    properties = b"INNER_NUM\x01" + number + b"\x02"
    with open_store(write_conf(tmp_path / "conf", root), batches=batches) as store:
        refused = store.put(NewMessage(BATCH_TOPIC, b"1", properties, sys_flag=0x80))
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert store.put(NewMessage("orders", b"2")).status is PutStatus.PUT_OK
    with open_store(write_conf(tmp_path / "conf", root), batches=batches):
        pass
    assert [row["body"] for row in rows_of(root)] == [b"2"]


def test_what_a_flag_says_of_hosts_gives_way_to_the_hosts(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(write_conf(tmp_path / "conf", root)) as store:
        assert store.put(NewMessage("orders", b"1", sys_flag=0x30)).status is PutStatus.PUT_OK
        store.put(NewMessage("orders", b"2", born_host=bytes(20), store_host=bytes(20)))
    assert [(row["body"], row["sys_flag"]) for row in rows_of(root)] == [(b"1", 0), (b"2", 0x30)]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (NewMessage("t", bytes(1025)), PutStatus.MESSAGE_ILLEGAL),
        (NewMessage("t" * 40_000, b""), PutStatus.MESSAGE_ILLEGAL),
        (NewMessage("t", b"", b"k\x01" + b"v" * 32_768), PutStatus.PROPERTIES_SIZE_EXCEEDED),
        (NewMessage("t", b"", b"INNER_NUM\x012\x02"), PutStatus.MESSAGE_ILLEGAL),
        (NewMessage("t", b"", sys_flag=0x80), PutStatus.MESSAGE_ILLEGAL),
        (NewMessage("t", b"", flag=1 << 31), PutStatus.MESSAGE_ILLEGAL),
        (NewMessage("t", b"", born_timestamp_ms=1 << 63), PutStatus.MESSAGE_ILLEGAL),
        (NewBatch("t", encode_batch([(b"", b"", 0)]), born_timestamp_ms=1 << 63), PutStatus.MESSAGE_ILLEGAL),
        (NewMessage("t", b"", reconsume_times=-(1 << 31) - 1), PutStatus.MESSAGE_ILLEGAL),
        (NewMessage("t", b"", born_host=bytes(7)), PutStatus.MESSAGE_ILLEGAL),
        (NewBatch("t", encode_batch([(b"", b"", 0)]), store_host=bytes(21)), PutStatus.MESSAGE_ILLEGAL),
        (NewBatch("t", b"\0" * 19), PutStatus.MESSAGE_ILLEGAL),
        (NewBatch("t", encode_batch([(b"", b"", 0)]), sys_flag=4), PutStatus.MESSAGE_ILLEGAL),
        (
            NewBatch("t", encode_batch([(b"", b"k\x01v\x02", 0)]), b"v" * 32_767),
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
        ),
    ],
)
def test_what_no_frame_can_hold_is_refused_and_takes_no_offset(
    message: NewMessage | NewBatch, status: PutStatus, tmp_path: Path
) -> None:
    with open_store(write_conf(tmp_path / "conf", tmp_path / "store", maxMessageSize=1024)) as store:
        assert put_all(store, [message])[0].status is status
        assert store.put(NewMessage("t", b"")).queue_offset == 0


def test_a_flush_waits_for_what_is_there_and_not_for_what_comes(tmp_path: Path) -> None:
    batch = NewBatch("orders", encode_batch([(b"", b"", 0)] * 40))
    flushed = threading.Event()
    limit = time.monotonic() + 20

    def produce() -> None:
        while not flushed.is_set() and time.monotonic() < limit:
            store.put_batch(batch)

    with open_store(write_conf(tmp_path / "conf", tmp_path / "store")) as store:
        producers = [threading.Thread(target=produce) for _ in range(2)]
        for producer in producers:
            producer.start()
        store.put_batch(batch)
        store.flush()
        flushed_at = time.monotonic()
        flushed.set()
        for producer in producers:
            producer.join()
    assert flushed_at < limit


def test_a_full_disk_and_a_stop_refuse_messages(tmp_path: Path) -> None:
    with open_store(write_conf(tmp_path / "conf", tmp_path / "store")) as store:
        store.disk_full = True
        assert store.put(NewMessage("t", b"")).status is PutStatus.SERVICE_NOT_AVAILABLE
        store.disk_full = False
        assert store.put(NewMessage("t", b"")).status is PutStatus.PUT_OK
    assert store.put(NewMessage("t", b"")).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_a_disk_that_refuses_a_flush_ends_all_writing(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    config = write_conf(tmp_path / "conf", tmp_path / "store", flushDiskType="SYNC_FLUSH")
    with open_store(config) as store:
        assert store.put(NewMessage("t", b"")).status is PutStatus.PUT_OK
        with monkeypatch.context() as context:
            context.setattr("os.fdatasync", refuse)
            assert store.put(NewMessage("t", b"")).status is PutStatus.FLUSH_DISK_TIMEOUT
        assert store.put(NewMessage("t", b"")).status is PutStatus.SERVICE_NOT_AVAILABLE
    # Nobody knows what the disk has: the next start has to recover.
    assert (tmp_path / "store" / "abort").exists()


@pytest.mark.parametrize("who", ["the timer", "a caller"])
def test_after_one_refusal_no_later_flush_counts(who: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A system tells of lost pages once. So a put whose own flush succeeds afterwards isn't on disk."""

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    config = write_conf(
        tmp_path / "conf", tmp_path / "store", flushDiskType="SYNC_FLUSH", flushIntervalCommitLog=3_600_000
    )
    with open_store(config) as store:
        assert store.put(NewMessage("orders", b"before")).status is PutStatus.PUT_OK
        noted = store.checkpoint.values
        lost = store._appender.put(NewMessage("orders", b"lost"))
        with monkeypatch.context() as context:
            context.setattr("os.fdatasync", refuse)
            flush = store.flush if who == "a caller" else lambda: store.files.flush(0)
            with pytest.raises(OSError, match="Input/output error"):
                flush()
        assert not store._flusher.wait_for(lost.physical_offset + lost.size_bytes)
        with pytest.raises(OSError, match="Input/output error"):
            store.flush()
        assert store.files.flushed_where == lost.physical_offset
        assert store.put(NewMessage("orders", b"after")).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert store.checkpoint.values.physic_msg_timestamp_ms == noted.physic_msg_timestamp_ms
    assert (tmp_path / "store" / "abort").exists()


def test_only_one_may_write(tmp_path: Path) -> None:
    config = write_conf(tmp_path / "conf", tmp_path / "store")
    with open_store(config), pytest.raises(StoreBusyError), open_store(config):
        pass


def test_a_stop_leaves_no_file_that_nobody_needed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(write_conf(tmp_path / "conf", root)) as store:
        store.put(NewMessage("t", b""))
    assert [path.name for path in (root / "commitlog").iterdir()] == [file_name(0)]


def test_bytes_stay_readable_while_somebody_has_them(tmp_path: Path) -> None:
    with open_store(write_conf(tmp_path / "conf", tmp_path / "store")) as store:
        result = store.put(NewMessage("t", b"kept"))
        held = read_log(store, result.physical_offset, result.size_bytes)
        assert held is not None
        file = held.file
        assert not file.destroy(120_000, 0)
        assert file.path.exists()
        assert read_log(store, result.physical_offset, result.size_bytes) is None
        assert b"kept" in bytes(held.data)
        held.release()
        assert file.destroy(120_000, 0)
        assert not file.path.exists()


def test_a_file_goes_by_force_and_its_readers_keep_their_memory(tmp_path: Path) -> None:
    with open_store(write_conf(tmp_path / "conf", tmp_path / "store")) as store:
        result = store.put(NewMessage("t", b"kept"))
        held = read_log(store, result.physical_offset, result.size_bytes)
        assert held is not None
        assert not held.file.destroy(0, 0)
        assert held.file.destroy(0, 0)
        assert not held.file.path.exists()
        assert b"kept" in bytes(held.data)
        held.release()


def test_the_index_is_whole_after_crashes_though_local_time_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_conf(tmp_path / "conf", tmp_path / "store", messageIndexSafe=True)
    start_ms, keys = 1_795_000_000_000, 0
    for life in range(4):
        # An hour less each time, as where summer time ends.
        name = f"202611200{9 - life}0000000"
        writer = "storage_engine.rocketmq.engine.dispatch.index_writer"
        monkeypatch.setattr(f"{writer}._time_name", lambda _, name=name: name)
        with open_store(config, clock=lambda life=life: start_ms + life * 600_000) as store:
            for _ in range(250):
                store.put(NewMessage("orders", b"x", b"KEYS\x01k%d\x02" % keys))
                keys += 1
            assert store.wait_until_dispatched()
            assert store.index is not None
            paths, layout = list(store.index.paths), store.layout
        assert paths == sorted(paths)
        begins = [read_header(path).begin_phy_offset for path in paths]
        assert begins == sorted(begins)
        # What a power loss leaves of a file that isn't full: its name.
        with paths[-1].open("r+b") as file:
            file.write(bytes(paths[-1].stat().st_size))
        layout.abort.touch()
    with open_store(config, clock=lambda: start_ms + 3_600_000):
        pass
    with open_index(layout, config) as index:
        for number in range(keys):
            # Twice where it was the last one of a full file.
            assert len(set(index.lookup("orders", f"k{number}", 64))) == 1, number
