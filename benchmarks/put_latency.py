"""A running broker's puts, without and with something beside it: a whole archive cycle (plan, archive, prove,
release), a watch that tends fence and shield of a held store, an agent that serves segments with TLS at the
pace that is usual beside a broker, or a quarantine of large files that is emptied.

A steady producer sends all the while. In a round spans of nothing else and of one of these follow each other,
in the other order each second time, so that a busy machine slows both. Each cycle archives as much again,
which is sent before the clock runs. What the agent serves is received in this process and forgotten, as by an
executor on another host. Figures are those of the producer, from its call to the broker's answer. The ratio
is the p99 without over the p99 with it, the median of the rounds. ``put-latency`` is beside cycles at the
pace that is usual beside a broker.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.agent import agent_of
from benchmarks.common import Bench, report
from demo.brokers.rocketmq import Load, RocketMQ, find_jars
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.file.agent_files import AgentFiles, begin_run
from storage_engine.lake.file.jobs import AgentAccess, SegmentJob
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.settings.policy import GENTLE_BYTES_PER_SECOND, LagPolicy, PendingPolicy, Policy
from storage_engine.model.store import FileFacts
from storage_engine.project.up import interruptible
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import Acceptance
from storage_engine.retention.monitor.store_watch import HostWatch
from storage_engine.retention.quarantine.places import Place, make_place, remove
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield
from tests.integration.secured import certificate

MUST = 0.1
"""An aim: beside a cycle that takes all it can get, a put's p99 is at most ten times as long on two cores."""
MUST_LIMITED = 0.5
"""An aim: beside a cycle at a limit, twice as long."""

MUST_GENTLE = 0.9
"""Beside one at the usual pace."""

MUST_WATCHED = 0.7
"""An aim: beside a watch with its shield, less than half as long again."""

MUST_SERVED = 0.9
"""Beside an agent."""

MUST_LEAVING = 0.8
"""Beside files that leave the disk in steps."""

LEAVING_FILES, LEAVING_BYTES = 20, 1 << 30
"""Written and synced, on the broker's disk: fewer where it has no room."""
OF_FREE_BYTES = 0.8

FIRST_PASS_SECONDS = 60.0
ROUNDS = 5
SECONDS = 60.0
"""Of a span alone, and beside a watch; the others last as long as their work."""
TEND_DEADLINE_SECONDS = 120.0
"""By then a watch has made its shield, on however busy a machine."""
SEGMENT_BYTES = 32 << 20
SEGMENTS_A_CYCLE = 16
LIMIT_BYTES_PER_SECOND = 50_000_000

KINDS = ("gentle", "leaving", "watched", "unlimited", "limited", "served")
_MUSTS = {
    "gentle": MUST_GENTLE,
    "limited": MUST_LIMITED,
    "watched": MUST_WATCHED,
    "served": MUST_SERVED,
    "leaving": MUST_LEAVING,
}

_LIMITS = {"unlimited": 0, "limited": LIMIT_BYTES_PER_SECOND}

RATE = 1000
BODY_BYTES = 1024
FILL_BODY_BYTES = 32 << 10
EXPIRED_HOURS = 100

SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "fileReservedTime": 48,
    "deleteFileBatchMax": SEGMENTS_A_CYCLE,
    "cleanResourceInterval": 1000,
    "deleteWhen": "99",
    "diskMaxUsedSpaceRatio": 95,
    "cleanFileForciblyEnable": "false",
}
"""Of a broker that deletes only what it is told to."""


@dataclass
class Puts:
    """What one kind of span saw.

    :param micros: latencies of all puts of its spans.
    :param failed: puts that the broker refused, or never answered, counted by what the client was told.
    :param seconds: its spans together.
    """

    micros: list[int] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    archived_bytes: int = 0

    def at(self, share: float) -> float:
        """A percentile in milliseconds."""
        ordered = sorted(self.micros)
        return ordered[min(len(ordered) - 1, math.floor(len(ordered) * share))] / 1000

    def line(self, name: str) -> str:
        return (
            f"{name}: {len(self.micros) / self.seconds:,.0f} puts/s, p50 {self.at(0.5):.2f} ms, "
            f"p99 {self.at(0.99):.2f} ms, max {self.at(1):.0f} ms, {self.failed.total()} failed "
            f"({self.seconds:.0f} s, {self.archived_bytes / self.seconds / 1e6:.0f} MB/s archived)"
            + "".join(f"\n  {count} failed: {error}" for error, count in self.failed.most_common(3))
        )


@dataclass(frozen=True)
class Round:
    """What a span alone saw, and one beside something."""

    alone: Puts = field(default_factory=Puts)
    beside: Puts = field(default_factory=Puts)

    @property
    def ratio(self) -> float:
        return self.alone.at(0.99) / self.beside.at(0.99)


def managed(directory: Path, mq: RocketMQ, limit: int | None) -> ManagedStore:
    policy = Policy(
        lag_policy=LagPolicy.IGNORE, pending_policy=PendingPolicy.IGNORE, archive_bytes_per_second=limit
    )
    live = LiveBroker(address=mq.address, allow_same_disk=True)
    store = ManagedStore.local("bench", str(mq.root), directory / "managed", policy=policy, live=live)
    make_lake(store.lake)
    return store


def fill(mq: RocketMQ) -> None:
    """Send until so many more segments are sealed, and let them be old."""
    load = mq.load("fill", "topics=fill", "rate=0", "threads=2", f"body-bytes={FILL_BODY_BYTES}")
    load.wait_until_sending()
    goal = mq.max_offset() + (SEGMENTS_A_CYCLE + 1) * SEGMENT_BYTES
    while mq.max_offset() < goal:
        time.sleep(0.1)
    load.stop()
    # So that what is left to write doesn't count for what comes next.
    os.sync()
    end = mq.max_offset()
    old_ns = time.time_ns() - EXPIRED_HOURS * 3600 * 10**9
    for path in sorted((mq.root / "commitlog").iterdir()):
        if int(path.name) + SEGMENT_BYTES <= end and path.stat().st_mtime_ns > old_ns:
            os.utime(path, ns=(old_ns, old_ns))


def cycle(store: ManagedStore, key: str) -> int:
    """One run of retention, in this process.

    :return: bytes that were archived and are gone from the store.
    """

    def archive_with(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
        return archive_all(open_lake(jobs[0].lake), jobs)

    planned = steps.make_plan(store, key, PlanRequest(manual=True, max_segments=SEGMENTS_A_CYCLE))
    steps.archive_planned(store, key, archive_with)
    released = steps.release(store, key)
    steps.clean_dependents(store, key)
    if len(released.deleted) != SEGMENTS_A_CYCLE or released.freed_bytes != planned.delete_bytes:
        raise AssertionError(f"expected {SEGMENTS_A_CYCLE} segments to go, found {released}")
    return released.freed_bytes


def watch(store: ManagedStore) -> None:
    """Hold a store and watch it for a while; all that is sealed gets a second name, and is read once."""
    steps.hold(store)
    host = HostWatch(lambda _text: None)
    host.add(store)
    time.sleep(SECONDS)
    deadline = time.monotonic() + TEND_DEADLINE_SECONDS
    while not look_at_shield(store.real_root).links and time.monotonic() < deadline:
        time.sleep(0.5)
    if not look_at_shield(store.real_root).links:
        raise AssertionError("expected a shield beside the watched broker, found none")
    host.end()


def read_by_agent(mq: RocketMQ, agent: AgentAccess) -> int:
    """Receive as much as a cycle archives from an agent, and keep none of it.

    :return: bytes that came.
    """
    # Behind the file that the broker writes to it has made the next one.
    root, end = mq.root, mq.max_offset()
    names = sorted((root / "commitlog").iterdir())
    paths = [path for path in names if int(path.name) + SEGMENT_BYTES <= end][-SEGMENTS_A_CYCLE:]
    run = begin_run(agent, {str(root): [FileFacts.of(path) for path in paths]}, GENTLE_BYTES_PER_SECOND)
    files, into = AgentFiles(run), memoryview(bytearray(SEGMENT_BYTES))
    try:
        for path in map(str, paths):
            files.settled(path)
            if files.read(path, into, lambda _block: None)[0] != SEGMENT_BYTES:
                raise AssertionError(f"expected all of {path}")
    finally:
        files.close()
    return len(paths) * SEGMENT_BYTES


def set_aside(directory: Path) -> Place:
    """Write large files into a quarantine."""
    place = Place(str(directory), ("quarantine", "leaving"))
    make_place(place, b"{}")
    block, free_bytes = os.urandom(1 << 20), shutil.disk_usage(directory).free
    for number in range(min(LEAVING_FILES, int(OF_FREE_BYTES * free_bytes) // LEAVING_BYTES)):
        with (place.directory / f"{number:020d}").open("wb") as file:
            for _ in range(LEAVING_BYTES // len(block)):
                file.write(block)
            os.fsync(file.fileno())
    return place


def measure(
    mq: RocketMQ, directory: Path, kinds: Sequence[str], agent: AgentAccess
) -> dict[str, list[Round]]:
    """Measure rounds of each kind, in turns."""
    rounds: dict[str, list[Round]] = {kind: [] for kind in kinds}
    # A broker deletes nothing before, and a release would only wait.
    time.sleep(FIRST_PASS_SECONDS)
    for number in range(ROUNDS):
        for kind in kinds:
            rounds[kind].append(_round(mq, directory, kind, number, agent))
            print(f"{kind}, round {number + 1}: {rounds[kind][-1].ratio:.2f}", flush=True)
    return rounds


def _round(mq: RocketMQ, directory: Path, kind: str, number: int, agent: AgentAccess) -> Round:
    found = Round()
    place = set_aside(directory) if kind == "leaving" else None
    if place is None:
        fill(mq)
    load = mq.load(
        f"steady-{number}-{kind}", "topics=steady", f"rate={RATE}", "threads=2", f"body-bytes={BODY_BYTES}"
    )
    load.wait_until_sending()
    # Its virtual machine has to warm up.
    time.sleep(5)

    def work() -> None:
        store = managed(directory, mq, _LIMITS.get(kind))
        if place is not None:
            remove(place, lambda: None)
        elif kind == "served":
            found.beside.archived_bytes += read_by_agent(mq, agent)
        elif kind == "watched":
            watch(store)
        else:
            found.beside.archived_bytes += cycle(store, f"{number}-{kind}")

    spans: list[tuple[Puts, int, int]] = []
    turns: list[tuple[Puts, Callable[[], object]]] = [
        (found.alone, partial(time.sleep, SECONDS)),
        (found.beside, work),
    ]
    for puts, act in reversed(turns) if number % 2 else turns:
        begin_ms = now_ms()
        act()
        spans.append((puts, begin_ms, now_ms()))
    load.stop()
    if kind not in ("leaving", "served"):
        # What is dated back next must not be what the hold has set and remembers.
        acceptance = Acceptance(1_000_000, "benchmark", "the load has ended")
        steps.unmanage(managed(directory, mq, None), acceptance=acceptance)
    for puts, begin_ms, end_ms in spans:
        count(load, puts, begin_ms, end_ms)
    return found


def count(load: Load, puts: Puts, begin_ms: int, end_ms: int) -> None:
    """Add a load's puts that were sent in a span of milliseconds since the epoch."""
    puts.seconds += (end_ms - begin_ms) / 1000
    for record in load.records():
        if begin_ms <= record.get("atMs", -1) < end_ms:
            if "sent" in record:
                puts.micros.append(record["micros"])
            elif "failed" in record:
                puts.failed[record["error"].partition("\n")[0]] += 1


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def run(kinds: Sequence[str] = KINDS) -> list[Bench]:
    """Measure beside each of some kinds of work."""
    directory = Path(tempfile.mkdtemp(prefix="bench-put-latency-"))
    try:
        # So that no broker lives on when this is ended.
        with (
            interruptible(),
            RocketMQ(directory, find_jars(directory), SETTINGS) as mq,
            agent_of(mq.root, "tls", *certificate(directory, timedelta(days=1))) as (_, agent),
        ):
            rounds = measure(mq, directory, kinds, agent)
    finally:
        shutil.rmtree(directory)
    return [_bench(kind, found) for kind, found in rounds.items()]


def _bench(kind: str, rounds: Sequence[Round]) -> Bench:
    alone, beside = _together(it.alone for it in rounds), _together(it.beside for it in rounds)
    print(alone.line(f"before or behind {kind}"))
    print(beside.line(kind))
    ratios = [it.ratio for it in rounds]
    return Bench(
        "put-latency" if kind == "gentle" else f"put-latency-{kind}",
        median(ratios),
        _MUSTS.get(kind, MUST),
        {
            "ratios": " ".join(f"{ratio:.2f}" for ratio in ratios),
            **{f"p{share}_ms_alone": alone.at(share / 100) for share in (50, 99)},
            **{f"p{share}_ms_beside": beside.at(share / 100) for share in (50, 99)},
            "max_ms_alone": alone.at(1),
            "max_ms_beside": beside.at(1),
            "seconds_beside": round(beside.seconds / len(rounds)),
            "puts_per_second_alone": round(len(alone.micros) / alone.seconds),
            "puts_per_second_beside": round(len(beside.micros) / beside.seconds),
            "failed": beside.failed.total(),
            "archived_mb_per_second": round(beside.archived_bytes / beside.seconds / 1e6, 1),
            "cores": os.cpu_count() or 0,
        },
    )


def _together(spans: Iterable[Puts]) -> Puts:
    all_of = Puts()
    for puts in spans:
        all_of.micros += puts.micros
        all_of.failed += puts.failed
        all_of.seconds += puts.seconds
        all_of.archived_bytes += puts.archived_bytes
    return all_of


def main() -> None:
    global ROUNDS, SECONDS, LEAVING_FILES  # as smaller runs set them
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a span alone")
    parser.add_argument("--files", type=int, default=LEAVING_FILES, help="of 1 GiB that leave the disk")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    options = parser.parse_args()
    ROUNDS, SECONDS, LEAVING_FILES = options.rounds, options.seconds, options.files
    report(run(options.kinds))


if __name__ == "__main__":
    main()
