"""Kill who writes a store at random moments, and see what is left: python -m tests.rocketmq.engine.killing.

A store lives through several kills; each is recovered by who writes next.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from storage_engine.core.clock import clock_ms
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.index_file import java_hash, open_index
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.inspect import unindexed_ranges
from tests.rocketmq.engine.scenarios import write_conf

THREADS = 3
KILLS_A_STORE = 5
SETTINGS: tuple[dict[str, object], ...] = (
    {"flushDiskType": "SYNC_FLUSH"},
    {},
    {"messageIndexSafe": True},
    {"transientStorePoolEnable": True, "transientStorePoolSize": 3},
    {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 20_000},
)
CLOCK_SPEED = 100
STARTED_MS = clock_ms()
QUICK: dict[str, object] = {
    "flushIntervalCommitLog": 20,
    "flushCommitLogThoroughInterval": 40,
    "flushIntervalConsumeQueue": 20,
    "flushConsumeQueueThoroughInterval": 60,
    "commitIntervalCommitLog": 20,
    "commitCommitLogThoroughInterval": 40,
}
"""Flushes that come often in a short life."""


def quick_clock_ms() -> int:
    """Return a store time that runs ahead, so that a recovery begins where a long life's would."""
    return STARTED_MS + (clock_ms() - STARTED_MS) * CLOCK_SPEED


def write_until_killed(
    config: BrokerConfig, run: int, acknowledged: int, clock: Callable[[], int] = clock_ms
) -> None:
    """Put numbered messages from several threads; each that was taken is said on a pipe."""

    def produce(thread: int) -> None:
        chance = random.Random(thread)
        number = 0
        while True:
            key = f"{run}-{thread}-{number}"
            body = key.encode() + b"." * chance.choice([0, 100, 2000])
            properties = f"KEYS\x01{key}\x02TAGS\x01t{number % 3}\x02".encode()
            result = store.put(NewMessage(f"topic{thread}", body, properties, number % 2))
            if result.status is PutStatus.PUT_OK:
                os.write(acknowledged, f"{key} {result.physical_offset}\n".encode())
            number += 1

    with open_store(config, clock=clock) as store:
        threads = [threading.Thread(target=produce, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def kill_once(config: BrokerConfig, run: int, chance: random.Random) -> dict[str, int]:
    """Let a child write and kill it; return the physical offsets of what it said it has, by key."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            write_until_killed(config, run, writing, quick_clock_ms)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        first = said.readline()
        assert first, "the child ended before it wrote anything"
        time.sleep(chance.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        lines = [first, *said.readlines()]
    os.waitpid(child, 0)
    pairs = (line.decode().split() for line in lines if line.endswith(b"\n"))
    return {key: int(offset) for key, offset in pairs}


def rows_of(root: Path) -> list[dict[str, Any]]:
    """Return every message of a store's log."""
    rows: list[dict[str, Any]] = []
    for path in sorted((root / "commitlog").glob("*")):
        for table, _ in CODEC.decode(path.read_bytes(), int(path.name)):
            rows += [row for row in table.to_pylist() if row["kind"] == "message"]
    return rows


def check_extensions(layout: StoreLayout, rows: list[dict[str, Any]]) -> None:
    """Hold the units that entries point to against the log."""
    messages = {
        row["physical_offset"]: (java_hash(row["tags"]), round(row["store_timestamp"].timestamp() * 1000))
        for row in rows
    }
    for queue in iter_queues(layout.consumequeue_ext):
        units = {}
        for file in consume_queue.list_files(queue.path):
            read = consume_queue.read_units(file)
            said = zip(read.tags_code.tolist(), read.store_time_ms.tolist(), strict=True)
            units |= dict(zip(read.offset.tolist(), said, strict=True))
        files = consume_queue.FORMAT.files(layout.consumequeue / queue.topic / str(queue.queue_id))
        for entry in consume_queue.FORMAT.read_queue(files):
            at = consume_queue.unit_offset(int(entry["tags_code"]))
            found = None if at is None else units.get(at)
            assert found == messages[int(entry["offset"])], f"{queue.path}: unit at {at}: {found}"


def check(
    config: BrokerConfig,
    acknowledged: dict[str, int],
    unindexed: Sequence[tuple[int, int]],
    *,
    all_kept: bool,
) -> int:
    """Hold a recovered store against what was acknowledged, and its queues and index against its log.

    :param unindexed: between which offsets the store said that keys aren't found.
    :return: how many messages lie there.
    """
    layout = resolve_layout(config)
    rows = rows_of(layout.root)
    offsets = {row["body"].rstrip(b".").decode(): row["physical_offset"] for row in rows}
    if all_kept:
        lost = sorted((at, key) for key, at in acknowledged.items() if offsets.get(key) != at)
        assert not lost, f"acknowledged and not there: {lost[:3]} and {len(lost)} in all, of {len(offsets)}"
    threads = defaultdict(list)
    for key in offsets:
        run, thread, number = key.split("-")
        threads[run, thread].append(int(number))
    for numbers in threads.values():
        assert sorted(numbers) == list(range(len(numbers))), "messages in the middle are missing"
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["physical_offset"]):
        queue = queues[row["topic"], row["queue_id"]]
        assert row["queue_offset"] == len(queue), "a queue has a gap"
        queue.append(row["physical_offset"])
    for queue in iter_queues(layout.consumequeue):
        entries = consume_queue.FORMAT.read_queue(consume_queue.FORMAT.files(queue.path))["offset"].tolist()
        expected = queues.pop((queue.topic, queue.queue_id), [])
        wrong = next((n for n, pair in enumerate(zip_longest(entries, expected)) if pair[0] != pair[1]), None)
        assert wrong is None, (
            f"{queue.topic}/{queue.queue_id} isn't the log's: entry {wrong} of {len(entries)}, expected "
            f"{expected[wrong : wrong + 3]} of {len(expected)}, found {entries[wrong : wrong + 3]}"
        )
    assert not any(queues.values()), "a queue is missing"
    check_extensions(layout, rows)
    with open_index(layout, config) as index:
        missing = [
            offset
            for key, offset in offsets.items()
            if offset not in index.lookup(f"topic{key.split('-')[1]}", key, 64)
        ]
    unsaid = [at for at in missing if not any(begin <= at < end for begin, end in unindexed)]
    assert not unsaid, f"the index lacks {len(unsaid)} messages, {min(unsaid)} to {max(unsaid)}: {unindexed}"
    seen = unindexed_ranges(layout, config)
    unseen = [at for at in missing if not any(begin <= at < (end or at + 1) for begin, end in seen)]
    assert not unseen, f"a look at the index doesn't tell {min(unseen)} to {max(unseen)}: {seen}"
    return len(missing)


def kill_loop(work: Path, runs: int, seed: int) -> None:
    """:raises AssertionError: a promise was broken."""
    chance = random.Random(seed)
    acknowledged: dict[str, int] = {}
    unindexed: list[tuple[int, int]] = []
    for run in range(runs):
        number, life = divmod(run, KILLS_A_STORE)
        if life == 0:
            acknowledged, unindexed = {}, []
            settings = SETTINGS[number % len(SETTINGS)]
            root = work / str(number)
            config = write_conf(work / "conf", root, maxIndexNum=20_000, **QUICK, **settings)
        acknowledged |= kill_once(config, run, chance)
        with open_store(config, clock=quick_clock_ms) as store:
            assert store.wait_until_dispatched()
            unindexed += [store.unindexed] if store.unindexed else []
        # What the pool had not written into a file yet went with the process.
        kept = "transientStorePoolEnable" not in settings
        missing = check(config, acknowledged, unindexed, all_kept=kept)
        said = f"{len(acknowledged)} messages, {missing} without an entry, {settings or 'ASYNC_FLUSH'}"
        sys.stdout.write(f"run {run}: {said}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        kill_loop(Path(directory), asked.runs, asked.seed)
