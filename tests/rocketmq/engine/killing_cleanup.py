"""Kill who writes and cleans up at a chosen deletion: python -m tests.rocketmq.engine.killing_cleanup.

The process kills itself right before a file of the store is removed, or up to some milliseconds after.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zoneinfo import ZoneInfo

from storage_engine.core.clock import clock_ms
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.proven_cleanup import proven_release
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.serving import serving
from storage_engine.rocketmq.engine.store_service import CleanupLoop
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from tests.lakes import make_lakes
from tests.rocketmq.engine.crowding import CLEANUP, Acknowledged, check
from tests.rocketmq.engine.scenarios import write_conf

THREADS = 2
SETTINGS: tuple[dict[str, object], ...] = ({}, {"flushDiskType": "SYNC_FLUSH"})
_KEPT_FILES = 4
_LONGEST_SECONDS = 300
_DAY_MS = 86_400_000


@contextmanager
def loop_of(store: MessageStore, config: BrokerConfig, managed: ManagedStore | None) -> Iterator[CleanupLoop]:
    """Make the loop of an open store; with a lake, one that deletes what is proven alone."""
    if managed is None:
        yield CleanupLoop(store, config, ZoneInfo("UTC"))
        return
    with serving(store):
        yield CleanupLoop(store, config, ZoneInfo("UTC"), release=proven_release(managed))


def clean(store: MessageStore, loop: CleanupLoop) -> None:
    """Do a pass over files that seem to be written long ago."""
    store.flush()
    for file in store.files.files[:-1]:
        if file.last_modified_ms() > clock_ms() - _DAY_MS:
            os.utime(file.path, ns=(1_700_000_000 * 10**9, 1_700_000_000 * 10**9))
    loop.delete_manually()
    loop.clean_log()
    loop.clean_queues()


def write_and_clean(
    config: BrokerConfig, managed: ManagedStore | None, place: int, late_ms: float, said: Path
) -> None:
    """Write and clean up until the deletion of this number; each message that was taken is said in a file."""
    count = 0

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        # Files of log, queues and index are named by digits alone.
        if event != "os.remove" or not Path(str(arguments[0])).name.isdigit():
            return
        count += 1
        if count == place and late_ms:
            threading.Timer(late_ms / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()
        elif count == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def produce(number: int) -> None:
        chance = random.Random(clock_ms() * 10 + number)
        while True:
            if len(store.files.files) > 3 * _KEPT_FILES:
                time.sleep(0.002)
                continue
            body = chance.randbytes(8).hex().encode() * chance.choice([1, 20, 200])
            properties = b"KEYS\x01" + body[:16] + b"\x02"
            result = store.put(NewMessage(f"topic{number}", body, properties, chance.randrange(2)))
            if result.status is PutStatus.PUT_OK:
                os.write(fd, b"%d %d %s\n" % (result.physical_offset, result.size_bytes, body))

    fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open_store(config) as store, loop_of(store, config, managed) as loop:
        sys.addaudithook(on_event)
        for number in range(THREADS):
            threading.Thread(target=produce, args=(number,), daemon=True).start()
        end = time.monotonic() + _LONGEST_SECONDS
        while time.monotonic() < end:
            if len(store.files.files) > _KEPT_FILES:
                clean(store, loop)
            time.sleep(0.005)
    os._exit(1)


def kill_once(
    config: BrokerConfig, managed: ManagedStore | None, place: int, late_ms: float, said: Path
) -> Acknowledged:
    """Have a process write, clean up and be killed; return what it said it has."""
    arguments = (config, managed, place, late_ms, said)
    child = multiprocessing.get_context("spawn").Process(target=write_and_clean, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, child.exitcode
    lines = (line.split() for line in said.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
    return {int(offset): (int(size), body) for offset, size, body in lines}


def check_proven(managed: ManagedStore, min_offset: int, *, ended: bool) -> None:
    """Make sure that what is gone was meant, and is in the lake.

    :param ended: each deletion that was meant has its result.
    """
    journal = Journal(managed.journal_url)
    record = journal.find_store(managed.real_root, None)
    assert record is not None
    meant = journal.store_events(record.store_id, Step.RELEASE, Phase.INTENT)
    proven = {receipt.base_offset for receipt in receipts(open_lake(managed.lake), record.store_id)}
    gone = set(range(0, min_offset, 1 << 16))
    assert gone <= {int(event.payload["base_offset"]) for event in meant}
    assert gone <= proven
    for step in (Step.RELEASE, Step.DEPENDENTS) if ended else ():
        intents = {event.subject for event in journal.store_events(record.store_id, step, Phase.INTENT)}
        results = {event.subject for event in journal.store_events(record.store_id, step, Phase.RESULT)}
        assert intents <= results, (step, intents - results)


def kill_loop(work: Path, runs: int, seed: int, *, proven: bool) -> None:
    """Kill so often, each time a new store; and go on with it.

    :param proven: with a lake.
    :raises AssertionError: a promise was broken.
    """
    chance = random.Random(seed)
    for run in range(runs):
        root, settings = work / str(run), SETTINGS[run % len(SETTINGS)]
        conf = work / f"{run}.conf"
        config = write_conf(conf, root, messageIndexSafe=True, **CLEANUP, **settings)
        managed = None
        if proven:
            root.mkdir()
            managed = ManagedStore.local(
                f"s{run}", str(root), work / f"managed{run}", broker_conf=str(conf), time_zone="UTC"
            )
            make_lakes(managed)
        place, late_ms = chance.randrange(1, 10), chance.choice([0, 0, chance.uniform(0, 8)])
        acknowledged = kill_once(config, managed, place, late_ms, work / f"{run}.said")
        with open_store(config) as store, loop_of(store, config, managed) as loop:
            assert store.wait_until_dispatched()
            left = store.files.min_offset
            if managed is not None:
                check_proven(managed, left, ended=False)
            clean(store, loop)
            assert store.files.min_offset >= left
            if managed is not None:
                check_proven(managed, store.files.min_offset, ended=True)
        count = check(config, acknowledged, all_said=False)
        sys.stdout.write(
            f"run {run}: killed at {place}+{late_ms:.1f} ms, {count} messages left, {settings}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--proven", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        kill_loop(Path(directory), asked.runs, asked.seed, proven=asked.proven)
