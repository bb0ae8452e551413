"""Cut the power of who writes a store, and see what is left: python -m tests.rocketmq.engine.power_cuts.

The writer is killed at a random moment, also while it recovers. Mostly its store is brought to what is on
disk for sure, or to what may be there beside it; sometimes nothing is lost but the process. A copy is then
recovered and looked at, and the next writer goes on with the store. The times of messages pass quickly, so
that a recovery doesn't begin at the first file. Needs power_loss.c preloaded.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.checkpoint import Checkpoint, read_checkpoint
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.index_file import IndexFile, read_entries, read_header
from storage_engine.rocketmq.format.layout import resolve_layout
from tests.rocketmq.engine.killing import (
    QUICK,
    SETTINGS,
    check,
    quick_clock_ms,
    rows_of,
    write_until_killed,
)
from tests.rocketmq.engine.scenarios import write_conf
from tests.services.power_loss import (
    Disk,
    Loss,
    compiled_recorder,
    disk_after,
    disk_at_first,
    lose,
    names_in,
    record,
)

CUTS_A_STORE = 5
LONGEST_LIFE_SECONDS = 0.5
WRITES_SHARE = 0.75
SAFE = {**QUICK, "messageIndexSafe": True}


def settled(disk: Disk, directory: Path) -> Disk:
    """Return the same disk with numbers of its own for inodes that a new file may get."""
    there = {inode for entries in names_in(directory).values() for inode in entries.values()}

    def number(inode: int) -> int:
        return inode if inode in there or inode < 0 else -inode

    names = {
        path: {name: number(inode) for name, inode in entries.items()} for path, entries in disk.names.items()
    }
    return Disk(names, {number(inode): copy for inode, copy in disk.bytes_of.items()})


def write_and_kill(
    config: BrokerConfig, run: int, directory: Path, log: Path, chance: random.Random
) -> dict[str, int]:
    """Let a child write; return the physical offsets of what it said it has, by key."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            # Whatever is deleted, no other file gets its inode's number.
            for path in directory.rglob("*"):
                os.open(path, os.O_RDONLY)
            record(directory, log)
            write_until_killed(config, run, writing, quick_clock_ms)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        # However busy the machine is, most writers get beyond their recovery.
        lines = [said.readline()] if chance.random() < WRITES_SHARE else []
        time.sleep(chance.uniform(0, LONGEST_LIFE_SECONDS))
        os.kill(child, signal.SIGKILL)
        lines += said.readlines()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    pairs = (line.decode().split() for line in lines if line.endswith(b"\n"))
    return {key: int(offset) for key, offset in pairs}


@dataclass(frozen=True, slots=True)
class Written:
    """What was in a store before the power went: of each message's offset its bytes, and its time."""

    frames: dict[int, bytes]
    stored_ms: dict[int, int]


def written_in(root: Path) -> Written:
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").glob("*")}
    bases = sorted(files)
    frames, stored_ms = {}, {}
    for row in rows_of(root):
        at = row["physical_offset"]
        base = bases[int(np.searchsorted(bases, at, "right")) - 1]
        frames[at] = files[base][at - base : at - base + row["size"]]
        stored_ms[at] = round(row["store_timestamp"].timestamp() * 1000)
    return Written(frames, stored_ms)


def check_checkpoint(config: BrokerConfig, before: Written) -> Checkpoint | None:
    """Hold the times in the checkpoint that is left against log, queues and index that are left."""
    layout = resolve_layout(config)
    said = read_checkpoint(layout.checkpoint)
    if said is None:
        return None
    left = written_in(layout.root).frames
    form = consume_queue.FORMAT
    queued = {
        offset
        for queue in iter_queues(layout.consumequeue)
        for offset in form.read_queue(form.files(queue.path))["offset"].tolist()
    }
    indexed: set[int] = set()
    if any(stored_ms < said.index_msg_timestamp_ms for stored_ms in before.stored_ms.values()):
        slots, capacity = config.max_hash_slot_num, config.max_index_num
        assert slots is not None
        assert capacity is not None
        # Of a file that was just begun its name alone may be left.
        for path in (path for path in layout.index.iterdir() if path.stat().st_size):
            file = IndexFile(path, path.stat().st_size, slots, capacity, read_header(path))
            if file.header.end_timestamp_ms <= said.index_msg_timestamp_ms:
                indexed |= set(read_entries(file)["offset"].tolist())
    for at, stored_ms in before.stored_ms.items():
        # Of messages of one time some may be on disk and some not.
        if stored_ms < said.physic_msg_timestamp_ms:
            assert left.get(at) == before.frames[at], "the checkpoint is ahead of the log"
        if stored_ms < said.logics_msg_timestamp_ms:
            assert at in queued, "the checkpoint is ahead of the queues"
        if stored_ms < said.index_msg_timestamp_ms:
            assert at in indexed, "the checkpoint is ahead of the index"
    return said


def keys_in(root: Path) -> dict[str, int]:
    return {row["body"].rstrip(b".").decode(): row["physical_offset"] for row in rows_of(root)}


def recovered_copy(directory: Path, copy: Path, settings: Mapping[str, object]) -> BrokerConfig:
    """Recover a copy of a store, and return its settings."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    config = write_conf(copy / "conf", copy / "store", **settings)
    with open_store(config, clock=quick_clock_ms) as store:
        assert store.wait_until_dispatched()
    return config


def cut_loop(work: Path, cuts: int, seed: int) -> None:
    """:raises AssertionError: a promise was broken."""
    chance = random.Random(seed)
    for run in range(cuts):
        number, life = divmod(run, CUTS_A_STORE)
        directory = work / f"store{number}"
        settings = {**SAFE, **SETTINGS[number % len(SETTINGS)]}
        if life == 0:
            directory.mkdir()
            disk = Disk(names_in(directory), {})
            acknowledged: dict[str, int] = {}
            kept: dict[str, int] = {}
            config = write_conf(work / "conf", directory / "store", **settings)
        log = work / f"log{run}"
        new = write_and_kill(config, run, directory, log, chance)
        acknowledged |= new
        loss = chance.choice([None, *Loss])
        before = written_in(directory / "store")
        disk = disk_after(disk, log, loss or Loss.EVERYTHING, directory)
        said = None
        if loss is not None:
            lose(directory, disk, chance if loss is Loss.BUT_PAGES else None)
            if (directory / "store" / "commitlog").is_dir():
                said = check_checkpoint(config, before)
        mode = SETTINGS[number % len(SETTINGS)]
        sys.stdout.write(f"cut {run}: {len(new)} of {len(acknowledged)} messages, {mode}, {loss}, {said}\n")
        sys.stdout.flush()
        copied = recovered_copy(directory, work / "copy", settings)
        sync = "flushDiskType" in settings
        pool = "transientStorePoolEnable" in settings
        check(copied, acknowledged, (), all_kept=sync or (loss is None and not pool))
        found = keys_in(work / "copy" / "store")
        if new:
            # What a writer recovered was on disk before it took its first message.
            assert kept.items() <= found.items(), "what was recovered is lost"
        kept, acknowledged = found, {key: at for key, at in acknowledged.items() if key in found}
        if loss is None:
            disk = settled(disk, directory)
        else:
            pristine = work / f"disk{run}"
            shutil.copytree(directory, pristine)
            disk = disk_at_first(directory, pristine)
        if life == CUTS_A_STORE - 1:
            for path in work.glob("*[0-9]"):
                shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        if "power_loss" not in os.environ.get("LD_PRELOAD", ""):
            os.environ["LD_PRELOAD"] = str(compiled_recorder(directory))
            command = [
                sys.executable,
                "-m",
                __spec__.name,
                "--cuts",
                str(asked.cuts),
                "--seed",
                str(asked.seed),
            ]
            sys.exit(os.spawnv(os.P_WAIT, sys.executable, command))
        cut_loop(directory, asked.cuts, asked.seed)


if __name__ == "__main__":
    main()
