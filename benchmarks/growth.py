"""What a run costs on a lake that has had 10,000 commits, against the first run on a new lake.

A run is plan, archive, release and archive lag of one segment, each step as a process of its own would do it:
it has parsed none of the lake's files before. The history is written as metadata (:mod:`benchmarks.history`);
then ``maintain_lake`` runs, unless ``--unmaintained`` says otherwise. Both figures may be 1.5 at most.

``--receipts 1000000`` measures instead what looks and runs cost with so many receipts, against those with
1,000: ``growth-open`` of the lake, ``growth-plan``, ``growth-archive``, ``growth-commit``, which is a part of
it, ``growth-monitor`` and ``growth-console``, which is the page of one store. Both lakes are in turn, and of
each step the median processor time counts; it may be 1.5 times as much. What a store's first run and look
read of the lake, they have read. A release is left out: it follows the chain from the first receipt on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest.mock import patch

from benchmarks.common import Bench, report
from benchmarks.generate import Shape, write_store
from benchmarks.history import write_history
from storage_engine.console.store import one_store
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import CATALOG_FILE
from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import forget_links
from storage_engine.lake.storage.small_files import forget_files
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore

LIMIT = 1.5
COMMITS = 10_000
SEGMENT_BYTES = 1 << 20
"""A thousandth of a broker's: the smaller the segment, the more of a run is metadata."""

FEW_RECEIPTS = 1_000
RECEIPTS_A_FILE = 500
TURNS = 5

_SNAPSHOTS = 100
"""As maintenance leaves them."""
_RUNS = 8
_EXPIRED_NS = 100 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Cost:
    """:param written_bytes: to files below the warehouse."""

    cpu_seconds: float
    written_bytes: int


def make_store(directory: Path, *, first_offset: int, segments: int, segment_bytes: int) -> ManagedStore:
    """Make a store all of whose segments have expired, and its lake."""
    root = directory / "store"
    shape = Shape(
        segments=segments, segment_bytes=segment_bytes, body_bytes=512, topics=2, first_offset=first_offset
    )
    write_store(root, shape, queue_file_bytes=20_000)
    then_ns = time.time_ns() - _EXPIRED_NS
    for path in (root / "commitlog").iterdir():
        os.utime(path, ns=(then_ns, then_ns))
    store = ManagedStore.local(directory.name, str(root), directory, time_zone="UTC")
    make_lake(store.lake)
    return store


def clean_one(store: ManagedStore, run_key: str) -> Cost:
    """Archive and release one segment."""
    request = PlanRequest(manual=True, max_segments=1, reason="a benchmark")
    before = _files(store)
    cpu_seconds = sum(
        map(
            _cpu_seconds,
            (
                lambda: steps.make_plan(store, run_key, request),
                lambda: steps.archive_planned(
                    store, run_key, lambda jobs: steps.archive(store, run_key, jobs)
                ),
                lambda: steps.release(store, run_key),
                lambda: steps.record_archive_lag(store, run_key),
            ),
        )
    )
    after = _files(store)
    return Cost(cpu_seconds, sum(file[0] for path, file in after.items() if before.get(path) != file))


def _step_seconds(store: ManagedStore, run_key: str) -> dict[str, float]:
    """Return the processor time of each step of a run of one segment, and of the looks beside it."""
    commits: list[float] = []

    def commit(*arguments: Any) -> tuple[Receipt, ...]:
        began = time.process_time()
        rows = commit_segments(*arguments)
        commits.append(time.process_time() - began)
        return rows

    def open_tables() -> None:
        lake = open_lake(store.lake)
        lake.messages(), lake.segments()

    reader, now_ms = JournalReader(store.journal_url), time.time_ns() // 1_000_000
    request = PlanRequest(manual=True, max_segments=1, reason="a benchmark")
    with patch("storage_engine.lake.archive.archive.commit_segments", commit):
        seconds = {
            name: _cpu_seconds(step)
            for name, step in {
                "open": open_tables,
                "plan": lambda: steps.make_plan(store, run_key, request),
                "archive": lambda: steps.archive_planned(
                    store, run_key, lambda jobs: steps.archive(store, run_key, jobs)
                ),
                "release": lambda: steps.release(store, run_key),
                "monitor": lambda: steps.monitor(store, f"monitor-{run_key}"),
                "console": lambda: one_store(reader, store.name, now_ms),
            }.items()
        }
    return {**seconds, "commit": sum(commits)}


def run_receipts(
    receipts: int, few: int = FEW_RECEIPTS, a_file: int = RECEIPTS_A_FILE, turns: int = TURNS
) -> list[Bench]:
    """Measure each step with some receipts and with many.

    :param a_file: how many segments share a data file.
    """
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        stores = {}
        for count in (few, receipts):
            stores[count] = make_store(
                Path(name) / f"{count}",
                first_offset=count * SEGMENT_BYTES,
                segments=turns + 4,
                segment_bytes=SEGMENT_BYTES,
            )
            clean_one(stores[count], "first")
            add_history(stores[count], count, _SNAPSHOTS, a_file)
            maintain_lake(open_lake(stores[count].lake), LakePolicy(), time.time_ns() // 1_000_000)
        spent: dict[int, list[dict[str, float]]] = {count: [] for count in stores}
        for turn in range(turns + 1):
            for count, store in stores.items():
                spent[count].append(_step_seconds(store, f"{turn}"))
    benches = []
    for step in set(spent[few][0]) - {"release"}:
        before, after = (median(each[step] for each in spent[count][1:]) for count in (few, receipts))
        seconds = {"few_seconds": round(before, 4), "seconds": round(after, 4)}
        detail = {"receipts": receipts, **seconds, "times": round(after / before, 2)}
        benches.append(Bench(f"growth-{step}", before / after, 1 / LIMIT, detail))
    return sorted(benches, key=attrgetter("name"))


def add_history(store: ManagedStore, commits: int, snapshots: int | None = None, a_file: int = 1) -> None:
    """Give a store's lake, which holds one segment, the metadata of so many commits before it."""
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    write_history(open_lake(store.lake), record.store_id, commits, snapshots, a_file)


def run(
    commits: int = COMMITS,
    segment_bytes: int = SEGMENT_BYTES,
    snapshots: int | None = None,
    *,
    maintained: bool = True,
) -> list[Bench]:
    """Measure both lakes.

    :param snapshots: that maintenance has left of the commits so far; None: it runs here for the first time.
    """
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        stores = {}
        for lake in ("warm", "new", "old"):
            stores[lake] = make_store(
                Path(name) / lake,
                first_offset=commits * segment_bytes,
                segments=_RUNS + 3,
                segment_bytes=segment_bytes,
            )
        for number in range(2):
            clean_one(stores["warm"], f"{number}")
        clean_one(stores["old"], "first")
        add_history(stores["old"], commits, snapshots)
        if maintained:
            maintain_lake(open_lake(stores["old"].lake), LakePolicy(), time.time_ns() // 1_000_000)
        first = clean_one(stores["new"], "first")
        costs = [clean_one(stores["old"], f"{number}") for number in range(_RUNS)]
    detail = {"commits": commits, "segment_bytes": segment_bytes, "maintained": int(maintained)}
    return [
        _bench("growth_cpu", first.cpu_seconds, [cost.cpu_seconds for cost in costs], detail),
        _bench("growth_written", first.written_bytes, [cost.written_bytes for cost in costs], detail),
    ]


def _bench(name: str, first: float, later: list[float], detail: dict[str, int]) -> Bench:
    figures = {
        "first": first,
        "mean": mean(later),
        "most": max(later),
        "times_the_first": round(mean(later) / first, 3),
        "limit": LIMIT,
    }
    return Bench(name, first / mean(later), 1 / LIMIT, {**detail, **figures})


def _cpu_seconds(step: Callable[[], object]) -> float:
    forget_files()
    forget_links()
    began = time.process_time()
    step()
    return time.process_time() - began


def _files(store: ManagedStore) -> dict[Path, tuple[int, int]]:
    """Size and time of every file of the lake but its catalog."""
    directory = Path(store.lake.properties["warehouse"].removeprefix("file://"))
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and path.name != CATALOG_FILE
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receipts", type=int, help="measure looks and runs with so many, and with 1,000")
    parser.add_argument("--commits", type=int, default=COMMITS)
    parser.add_argument("--segment-bytes", type=int, default=SEGMENT_BYTES)
    parser.add_argument("--snapshots", type=int, help="that earlier maintenance has left; default: all")
    parser.add_argument("--unmaintained", action="store_true", help="measure the lake as the history left it")
    options = parser.parse_args()
    if options.receipts:
        benches = run_receipts(options.receipts)
        report(benches)
        for bench in benches:
            print(f"{bench.name}: {dict(bench.detail)}")
        return
    benches = run(
        options.commits, options.segment_bytes, options.snapshots, maintained=not options.unmaintained
    )
    report(benches)
    for bench in benches:
        print(f"{bench.name}: {bench.detail['times_the_first']} times the first run, limit {LIMIT}")


if __name__ == "__main__":
    main()
