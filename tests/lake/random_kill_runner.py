"""Kills archiving, collecting garbage and restoring at random instants; a script of test_random_kills.

Each attempt is a fork of this process, which never opens a lake itself, and gets SIGKILL from outside after
a random part of the time that an undisturbed one takes. After each kill, what counts must hold; after the
attempt that is left alone, everything must be there once, and nothing else. Prints one JSON object.

Usage: random_kill_runner.py COMMITLOG_DIRECTORY WORK_DIRECTORY ROUNDS SEED
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from storage_engine.brokers import find_broker
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive import archive as archiving
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.gc.garbage_kind import GarbageKind
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.restore import config_names
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.rocketmq.codec.codec import CODEC
from tests.services.restoring import restore

STORE = "store-1"
MOST_KILLS_A_STEP = 3

Work = Callable[[], None]


class Round:
    """One lake, from nothing to a restored store."""

    def __init__(self, work: Path, source: Path) -> None:
        self.lake_dir, self.target, self.paths = work / "lake", work / "restored", sorted(source.iterdir())
        self.wanted = {f"commitlog/{path.name}": path.read_bytes() for path in self.paths}

    def archive(self) -> None:
        lake = make_lake(LakeConfig.local(self.lake_dir))
        segments = [
            Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED)
            for path in self.paths
        ]
        root = str(self.paths[0].parents[1])
        jobs = segment_jobs(lake, segments, store_id=STORE, lineage=0, broker="rocketmq", store_root=root)
        archive_all(lake, jobs)

    def receipts_hold(self) -> None:
        try:
            lake = open_lake(LakeConfig.local(self.lake_dir))
        except LakeUnavailableError:
            return  # killed before it was made
        rows = receipts(lake, STORE)
        check_chain(receipt_history(lake, STORE))
        assert broken_receipts(lake, rows) == {}

    def each_segment_is_there_once(self) -> None:
        lake = open_lake(LakeConfig.local(self.lake_dir))
        rows = receipts(lake, STORE)
        check_chain(receipt_history(lake, STORE))
        assert [row.base_offset for row in rows] == [int(path.name) for path in self.paths]
        assert broken_receipts(lake, rows) == {}
        messages = lake.messages()
        files = messages.inspect.files()["file_path"].to_pylist()
        assert sorted(files) == sorted({data_file_of(messages, row) for row in rows})
        table = messages.scan(selected_fields=("physical_offset", "size")).to_arrow()
        table = table.sort_by("physical_offset")
        at = rows[0].base_offset
        for offset, size in zip(*(column.to_pylist() for column in table.columns), strict=True):
            assert offset == at, f"expected the next row at {at}, found it at {offset}"
            at += size
        assert at == rows[-1].end

    def collect(self) -> None:
        lake = open_lake(LakeConfig.local(self.lake_dir))
        collect(lake, grace_ms=0, delete=True, trash_ms=0)

    def nothing_else_is_there(self) -> None:
        lake = open_lake(LakeConfig.local(self.lake_dir))
        # Receipts that were written and never committed are in no table: they are kept.
        collect(lake, grace_ms=0, delete=True, trash_ms=0)
        found = collect(lake, grace_ms=0, delete=False, trash_ms=0)
        assert (found.garbage, found.due, found.young_count, found.unknown) == ((), (), 0, ())
        assert not {GarbageKind.DATA_FILE, GarbageKind.STAGED} & {file.kind for file in found.orphans}
        data = {f"file://{path}" for path in self.lake_dir.glob("warehouse/**/messages/data/**/*.*")}
        assert data == {data_file_of(lake.messages(), row) for row in receipts(lake, STORE)}

    def restore(self) -> None:
        restore(open_lake(LakeConfig.local(self.lake_dir)), STORE, self.target)

    def restored_files_are_whole(self) -> None:
        for name, content in self.wanted.items():
            path = self.target / name
            assert not path.exists() or path.read_bytes() == content, name

    def everything_is_restored(self) -> None:
        config = find_broker("rocketmq").restored_config(())
        assert config is not None
        paths = (path.relative_to(self.target) for path in self.target.rglob("*") if path.is_file())
        found = {str(path) for path in paths if path.parts[0] not in config.FINISHED}
        assert found == {*self.wanted, *config_names(config, ())}
        self.restored_files_are_whole()


def forked(work: Work, kill_after_seconds: float | None = None) -> bool:
    """Whether the work came to its end; it is killed before that if it takes longer."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if kill_after_seconds is not None:
        time.sleep(kill_after_seconds)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if status:
        raise SystemExit(f"{work.__qualname__} failed")
    return True


def main(source: Path, work: Path, rounds: int, seed: int) -> None:
    warm_up(next(source.iterdir()))
    chance = random.Random(seed)
    took: dict[str, float] = {}
    kills: dict[str, int] = {}
    for number in range(-1, rounds):  # the first tells how long everything takes
        # In every other round the segments share a data file.
        archiving.SHARED_LEAST_SEGMENTS = 2 + 2 * (number % 2)
        archiving.topic_of = lambda broker, log: "orders"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        lake = Round(work, source)
        for step, holds, ends in (
            (lake.archive, lake.receipts_hold, lake.each_segment_is_there_once),
            (lake.collect, lake.each_segment_is_there_once, lake.nothing_else_is_there),
            (lake.restore, lake.restored_files_are_whole, lake.everything_is_restored),
        ):
            name = step.__name__
            for _ in range(0 if number < 0 else chance.randint(1, MOST_KILLS_A_STEP)):
                kills[name] = kills.get(name, 0) + (not forked(step, took[name] * chance.random()))
                forked(holds)
            began = time.monotonic()
            forked(step)
            took.setdefault(name, time.monotonic() - began)
            forked(ends)
    shutil.rmtree(work)
    sys.stdout.write(json.dumps({"rounds": rounds, "kills": kills, "seconds": took}))


def warm_up(segment: Path) -> None:
    """Load the compiled kernels once, instead of in every child."""
    codec, data = CODEC, segment.read_bytes()
    for rows, _ in codec.decode(memoryview(data), int(segment.name)):
        codec.encode(rows, memoryview(bytearray(len(data))), int(segment.name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
