"""Many threads on one store that write, read, flush and clean up: python -m tests.rocketmq.engine.crowding.

Every thread checks what it sees, and the store is held against what was acknowledged when it has stopped.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from storage_engine.core.clock import clock_ms
from storage_engine.model.disk import DiskUsage
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.dispatch.queue_writer import QueueWriter
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.store_service import CleanupLoop
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.index_file import open_index
from storage_engine.rocketmq.format.layout import resolve_layout
from tests.rocketmq.engine.scenarios import read_log, write_conf

PRODUCERS, READERS = 3, 3
FORCED_AFTER_MS = 40
SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"flushDiskType": "SYNC_FLUSH"},
    {"transientStorePoolEnable": True, "transientStorePoolSize": 3, "commitIntervalCommitLog": 2},
)
CLEANUP: dict[str, object] = {
    "mappedFileSizeConsumeQueue": 4000,
    "fileReservedTime": 1,
    "deleteFileBatchMax": 3,
    "deleteCommitLogFilesInterval": 1,
    "deleteConsumeQueueFilesInterval": 1,
    "destroyMapedFileIntervalForcibly": FORCED_AFTER_MS,
    "redeleteHangedFileInterval": FORCED_AFTER_MS // 4,
}
_KEPT_FILES = 6
_DAY_MS = 86_400_000
Acknowledged = dict[int, tuple[int, bytes]]
"""Size and body of messages, by their physical offsets."""


@dataclass
class Crowd:
    """What the threads share."""

    store: MessageStore
    loop: CleanupLoop
    seed: int
    acknowledged: Acknowledged = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    served: threading.Event = field(default_factory=threading.Event)
    """Set when nobody flushes, cleans up or looks any more, and the store is stopped."""
    ends: threading.Event = field(default_factory=threading.Event)
    reads: int = 0
    deleted: int = 0

    def thread(self, work: Callable[[random.Random], None], number: int) -> threading.Thread:
        ends = self.ends if work in (self.produce, self.read) else self.served

        def run() -> None:
            chance = random.Random(self.seed * 100 + number)
            try:
                while not ends.is_set():
                    work(chance)
            except BaseException as error:
                self.failures.append(error)
                self.served.set()
                self.ends.set()

        return threading.Thread(target=run, name=f"{work.__name__}-{number}")

    def produce(self, chance: random.Random) -> None:
        if len(self.store.files.files) > 2 * _KEPT_FILES and not self.served.is_set():
            time.sleep(0.002)  # not faster than the disk
            return
        body = chance.randbytes(8).hex().encode() * chance.choice([1, 20, 200])
        topic = f"topic{chance.randrange(2)}"
        properties = b"KEYS\x01" + body[:16] + b"\x02"
        result = self.store.put(NewMessage(topic, body, properties, chance.randrange(2)))
        if result.status is PutStatus.PUT_OK:
            self.acknowledged[result.physical_offset] = (result.size_bytes, body)
        else:
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE, result

    def read(self, chance: random.Random) -> None:
        known = list(self.acknowledged)
        if not known:
            time.sleep(0.001)
            return
        at = chance.choice(known[-chance.choice([10, 300, 10**9]) :])
        size, body = self.acknowledged[at]
        file = self.store.files.find(at)
        readable = file.base_offset + file.read_position if file else 0
        held = read_log(self.store, at, size)
        if held is None:
            gone = file is None or not file.available
            assert gone or at + size > readable, f"{at} can't be read"
            return
        self.reads += 1
        try:
            self._check(held.data, at, body)
            time.sleep(chance.choice([0, 0, 0.001, 0.02, 3 * FORCED_AFTER_MS / 1000]))
            self._check(held.data, at, body)
        finally:
            held.release()

    @staticmethod
    def _check(data: memoryview, at: int, body: bytes) -> None:
        frame = bytes(data)
        assert struct.unpack_from(">q", frame, 28) == (at,), "another message's bytes"
        assert body in frame

    def flush(self, chance: random.Random) -> None:
        before = self.store.positions()
        self.store.flush()
        after = self.store.positions()
        assert after.flushed >= before.wrote, (before, after)
        assert after.dispatched >= before.wrote, (before, after)
        time.sleep(chance.choice([0, 0.01]))

    def look(self, chance: random.Random) -> None:
        files = self.store.files
        min_offset, flushed = files.min_offset, files.flushed_where
        committed, wrote = files.committed_where, files.wrote_offset
        assert min_offset <= flushed <= wrote, (min_offset, flushed, wrote)
        assert committed <= wrote, (committed, wrote)
        time.sleep(0.002)
        assert files.min_offset >= min_offset
        assert files.flushed_where >= flushed

    def clean(self, chance: random.Random) -> None:
        # Not faster than it is written: something has to be left to read.
        if len(self.store.files.files) > _KEPT_FILES:
            self.loop.delete_manually()
            self.deleted += len(self.loop.clean_log().deleted)
        else:
            self.loop.clean_log()
        self.loop.clean_queues()
        time.sleep(chance.choice([0.001, 0.01]))


def crowd(config: BrokerConfig, seed: int, seconds: float) -> Crowd:
    """Let all threads work on a store for a time, and stop it under who writes and reads.

    :raises BaseException: what a thread has found.
    """
    with open_store(config) as store:
        loop = CleanupLoop(
            store,
            config,
            ZoneInfo("UTC"),
            clock=lambda: clock_ms() + _DAY_MS,
            measure=lambda path: DiskUsage(str(path), 10),
        )
        shared = Crowd(store, loop, seed)
        outside = [shared.produce] * PRODUCERS + [shared.read] * READERS
        inside = [shared.flush, shared.clean, shared.look]
        threads = [shared.thread(work, number) for number, work in enumerate([*outside, *inside])]
        for thread in threads:
            thread.start()
        shared.served.wait(seconds)
        shared.served.set()
        for thread in threads[len(outside) :]:
            thread.join()
        loop.stop()
    time.sleep(0.02)
    shared.ends.set()
    for thread in threads:
        thread.join()
    if shared.failures:
        raise shared.failures[0]
    return shared


def check(config: BrokerConfig, acknowledged: Acknowledged, *, all_said: bool = True) -> int:
    """Hold a store that was stopped against what was acknowledged; return how many messages it has.

    :param all_said: each message that was stored was acknowledged as well.
    :raises AssertionError: a promise was broken.
    """
    layout = resolve_layout(config)
    assert not layout.abort.exists()
    rows: dict[int, dict[str, Any]] = {}
    for path in sorted(layout.commitlog_paths[0].iterdir()):
        for table, _ in CODEC.decode(path.read_bytes(), int(path.name)):
            rows |= {row["physical_offset"]: row for row in table.to_pylist() if row["kind"] == "message"}
    with open_store(config) as store:
        min_offset = store.files.min_offset
        minima = {
            (writer.files.directory.parent.name, int(writer.files.directory.name)): writer.min_queue_offset
            for writer in store.queues
            if isinstance(writer, QueueWriter)
        }
    kept = {at: body for at, (_, body) in acknowledged.items() if at >= min_offset}
    found_rows = {at: row["body"] for at, row in rows.items()}
    assert kept.items() <= found_rows.items(), "messages are lost"
    assert not all_said or kept == found_rows, "messages are made up"
    queues: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for at in sorted(rows):
        row = rows[at]
        queues[row["topic"], row["queue_id"]].append((row["queue_offset"], at))
    for (topic, queue_id), expected in queues.items():
        first = expected[0][0]
        assert [offset for offset, _ in expected] == list(range(first, first + len(expected))), "a gap"
        files = consume_queue.FORMAT.files(layout.consumequeue / topic / str(queue_id))
        found = consume_queue.FORMAT.read_queue(files)["offset"]
        assert found[found >= min_offset].tolist() == [at for _, at in expected], "a queue isn't the log's"
        assert minima[topic, queue_id] == first
    with open_index(layout, config) as index:
        for at, row in rows.items():
            assert at in index.lookup(row["topic"], row["body"][:16].decode(), 64), f"the index lacks {at}"
    return len(rows)


def crowd_loop(work: Path, seconds: float, seed: int, round_seconds: float = 2.0) -> None:
    """Give one store after the other to a crowd, for so long at least, and one of each setting.

    :raises BaseException: what one of them has found.
    """
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end or number < len(SETTINGS):
        settings = SETTINGS[number % len(SETTINGS)]
        config = write_conf(work / "conf", work / str(number), **CLEANUP, **settings)
        shared = crowd(config, seed + number, round_seconds)
        left = check(config, shared.acknowledged)
        sys.stdout.write(
            f"round {number}: {len(shared.acknowledged)} messages, {shared.reads} reads, "
            f"{shared.deleted} files deleted, {left} messages left, {settings or 'ASYNC_FLUSH'}\n"
        )
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=float, default=2.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        crowd_loop(Path(directory), asked.seconds, asked.seed, asked.round)
