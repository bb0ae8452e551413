"""Where the time of archiving and restoring goes: processor and wall time a stage, one segment at a time.

Archiving is one thread's work beside one that syncs, restoring one that reads beside one that
writes; ``rest`` waits for them. The segments before the last warm up. The functions of the product are
watched from outside: nothing of it measures itself.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from benchmarks.archive import jobs_of
from benchmarks.generate import Shape, write_store
from storage_engine.core.durable import NewFile
from storage_engine.lake.archive import archive, proving
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file import data_file, source_file
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore import restore as restoring
from storage_engine.rocketmq.codec.codec import RocketMQCodec
from tests.services.restoring import restore


@dataclass(slots=True)
class Taken:
    """Seconds that a stage took, without the stages within it."""

    wall: float = 0.0
    processor: float = 0.0


class Watch:
    """Adds up what each stage takes, in any thread."""

    def __init__(self) -> None:
        self.stages: dict[str, Taken] = {}
        self._local = threading.local()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        outer: list[Taken] = self._local.__dict__.setdefault("outer", [])
        inner = Taken()
        outer.append(inner)
        wall, processor = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            wall, processor = time.perf_counter() - wall, time.thread_time() - processor
            outer.pop()
            taken = self.stages.setdefault(name, Taken())
            taken.wall += wall - inner.wall
            taken.processor += processor - inner.processor
            if outer:
                outer[-1].wall += wall
                outer[-1].processor += processor

    def function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **named)

        return watched

    def generator(self, name: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def watched(*arguments: Any, **named: Any) -> Iterator[Any]:
            running = function(*arguments, **named)
            while True:
                with self.stage(name):
                    item = next(running, None)
                if item is None:
                    return
                yield item
                # Or what was yielded would be in memory while the next is made.
                del item

        return watched


class _WatchedHash:
    """What is hashed here is a stage of its own."""

    def __init__(self, watch: Watch, content: bytes = b"") -> None:
        self._digest = hashlib.sha256()
        self.update = watch.function("hash", self._digest.update)
        self.hexdigest = self._digest.hexdigest
        self.update(content)


def _watched(watch: Watch, stack: ExitStack) -> None:
    functions: list[tuple[Any, str, str]] = [
        (archive, "read_source", "read source"),
        (pq.ParquetWriter, "write_table", "write Parquet"),
        (archive, "fsync_path", "fsync"),
        (pq.ParquetFile, "read_row_group", "read back"),
        (RocketMQCodec, "encode", "encode"),
        (data_file, "check_tiled", "check tiles"),
        (proving.RowCounter, "add", "count"),
        (proving, "_compare", "compare"),
        (proving, "sha256_of_file", "hash data file"),
        (restoring, "_write_chunk", "write file"),
        (NewFile, "sha256", "sync and hash file"),
        (restoring, "queues_of_segment", "config"),
        (os, "fsync", "fsync"),
    ]
    for owner, name, stage in functions:
        stack.enter_context(patch.object(owner, name, watch.function(stage, getattr(owner, name))))
    stack.enter_context(
        patch.object(data_file, "_checked_groups", watch.generator("decode", data_file._checked_groups))
    )
    stack.enter_context(
        patch.object(RocketMQCodec, "decode_groups", watch.generator("scan", RocketMQCodec.decode_groups))
    )
    proxy = type("hashing", (), {"sha256": partial(_WatchedHash, watch)})
    stack.enter_context(patch.object(source_file, "hashlib", proxy))


def measure(directory: Path, shape: Shape) -> tuple[dict[str, Taken], dict[str, Taken], float]:
    """Archive and restore all sealed segments of a store, one by one.

    :return: what archiving and restoring the last one took, and its archived size as a share of the raw.
    """
    paths = write_store(directory / "store", shape)[:-1]
    lake = make_lake(LakeConfig.local(directory / "lake"))
    archived = restored = Watch()
    share = 0.0
    for number, path in enumerate(paths):
        store_id = f"store-{number}"
        with ExitStack() as stack:
            archived = Watch()
            _watched(archived, stack)
            (job,) = jobs_of(lake, [path], store_id)
            with archived.stage("rest"):
                proven = archive.archive_segment(job)
            share = proven.data_file_bytes / proven.size_bytes
        with archived.stage("commit"):
            commit_segments(lake, [proven])
        with ExitStack() as stack:
            restored = Watch()
            _watched(restored, stack)
            with restored.stage("rest"):
                restore(lake, store_id, directory / f"restored-{number}")
        # The next one finds their pages: new ones cost a virtual machine more than writing to them.
        shutil.rmtree(directory / f"restored-{number}")
    return archived.stages, restored.stages, share


def print_stages(title: str, stages: dict[str, Taken], size_bytes: int) -> None:
    """Print a table, in the order in which the stages ended first."""
    print(f"{title}, a segment of {size_bytes >> 20} MiB: stage, CPU ms, wall ms")
    for name, taken in stages.items():
        print(f"  {name:15} {taken.processor * 1000:7.0f} {taken.wall * 1000:7.0f}")
    total = sum(taken.processor for taken in stages.values())
    print(f"  {'all':15} {total * 1000:7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=4, help="the last one is active and not archived")
    parser.add_argument("--segment-bytes", type=int, default=128 << 20)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as work:
        shape = Shape(options.segments, options.segment_bytes, options.body_bytes)
        archived, restored, share = measure(Path(work), shape)
    print_stages("archive", archived, options.segment_bytes)
    print_stages("restore", restored, options.segment_bytes)
    print(f"archived size: {share:.1%} of the raw size")


if __name__ == "__main__":
    main()
