"""A plan of many logs: built, checked, stored in a journal and read back. ``python -m benchmarks.plans``

Its limit is two seconds for 10,000 logs of 10 segments, and 5 MB. The same plan is stored once: how much the
journal grows by it again is a figure, too. Also what a shell and a DAG have to wait for on a store of 1,000
segments of which none has expired: a plan in a new process, and a look that finds nothing to do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.common import Bench, in_turns, report
from benchmarks.generate import Shape, write_store
from storage_engine.core.long_work import no_collection
from storage_engine.journal.journal import Journal
from storage_engine.lake.move.making import make_lake
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Decision, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.retention.store.broker_answers import check_plan, check_snapshot
from storage_engine.retention.store.managed_store import ManagedStore

LOGS = 10_000
SEGMENTS_A_LOG = 10
EXPIRED_A_LOG = 4
LIMIT_SECONDS = 2.0
LIMIT_BYTES = 5_000_000
SEGMENT_BYTES = 1 << 30
SEGMENTS = 1000
SMALL_SEGMENT_BYTES = 16 << 10
COLD_PLAN_SECONDS = 0.5
NOTHING_TO_DO_SECONDS = 0.6
DAY_NS = 86_400 * 10**9
WRITTEN_NS = 1_700_000_000 * 10**9


def _segment(log: str, number: int, inode: int) -> Segment:
    base_offset = number * SEGMENT_BYTES
    written_ns = WRITTEN_NS + number * DAY_NS + inode
    path = f"/data/{log}/{base_offset:020d}.log"
    facts = FileFacts(path, 64769, inode, SEGMENT_BYTES, written_ns, written_ns)
    return Segment(log, base_offset, facts, SegmentState.SEALED)


def segments_of_logs() -> list[tuple[str, list[Segment]]]:
    """What a broker has read of its store before it decides."""
    names = [f"topic-{number // 10}-{number % 10}" for number in range(LOGS)]
    return [
        (log, [_segment(log, i, number * SEGMENTS_A_LOG + i) for i in range(SEGMENTS_A_LOG)])
        for number, log in enumerate(names)
    ]


def plan_of_logs(logs: list[tuple[str, list[Segment]]], decided_at_ms: int) -> Plan:
    """A plan that deletes the first segments of each log, with a sentence for every segment."""
    # As the engine has a broker decide.
    with no_collection():
        plans = tuple(LogPlan(log, tuple(map(_decide, range(len(found)), found))) for log, found in logs)
        return Plan("/data", decided_at_ms, (), plans)


def _decide(number: int, segment: Segment) -> Decision:
    reason = Reason.EXPIRED if number < EXPIRED_A_LOG else Reason.NOT_EXPIRED
    detail = f"last written on day {number} at second {segment.facts.inode // 10}: {reason.value}"
    return Decision(segment, reason, detail)


def _snapshot_of_logs(logs: list[tuple[str, list[Segment]]]) -> StoreSnapshot:
    """The store that a broker has described."""
    seen = tuple(
        LogSnapshot(log, tuple(found), found[-1].end_offset, found[-1].end_offset) for log, found in logs
    )
    disk = DiskUsage("/data", 50)
    return StoreSnapshot("bench", "/data", 1, seen, (disk,), disk, crashed=False)


_LOOK = """
import sys, time
from pathlib import Path
began = time.process_time()
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.plan.cleanup_due import sense
from storage_engine.retention.store.managed_store import ManagedStore
store = ManagedStore.local("bench", sys.argv[1], Path(sys.argv[2]))
for key in ("first", "second"):
    sense(store)
    monitor(store, key)
    print(time.process_time() - began)
    began = time.process_time()
"""
"""The first look imports, the second is our own code."""


def measure_new_processes() -> list[Bench]:
    """Measure a plan from the shell by wall time, and what a DAG does each time by processor time."""
    with tempfile.TemporaryDirectory() as work:
        root = str(Path(work, "store"))
        shape = Shape(segments=SEGMENTS, segment_bytes=SMALL_SEGMENT_BYTES, body_bytes=4 << 10, topics=1)
        write_store(Path(root), shape, queue_file_bytes=6000 * 20)
        managed = Path(work, "managed")
        make_lake(ManagedStore.local("bench", root, managed).lake)
        looks: list[list[float]] = []

        def plan() -> None:
            command = [str(Path(sys.executable).with_name("storage-engine")), "plan", root]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        def look() -> None:
            command = [sys.executable, "-c", _LOOK, root, str(managed)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            looks.append(list(map(float, done.stdout.split())))

        spent = in_turns({"plan": plan, "look": look})
        first, ours = (median(found) for found in zip(*looks[1:], strict=True))
    return [
        Bench(
            "plan-cold",
            COLD_PLAN_SECONDS / spent["plan"].wall,
            1.0,
            {"wall_seconds": spent["plan"].wall, "processor_seconds": spent["plan"].processor},
        ),
        Bench(
            "nothing-to-do",
            NOTHING_TO_DO_SECONDS / ours,
            1.0,
            {"processor_seconds": ours, "first_processor_seconds": first},
        ),
    ]


def run() -> list[Bench]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "journal.db"
        journal = Journal(f"sqlite:///{file}")
        store_id = journal.add_store("/data", "bench").store_id
        first, second = (journal.begin_run(store_id, key, PlanRequest()) for key in ("first", "second"))
        logs = segments_of_logs()
        began = time.perf_counter()
        plan = plan_of_logs(logs, 1)
        built = time.perf_counter()
        snapshot = _snapshot_of_logs(logs)
        gathered = time.perf_counter()
        check_snapshot(snapshot, (Path("/data"),), "bench")
        check_plan(plan, snapshot)
        checked = time.perf_counter()
        journal.record_plan(first, plan, {})
        stored = time.perf_counter()
        read = journal.run(store_id, "first").plan
        done = time.perf_counter()
        if read != plan:
            raise AssertionError("expected the plan that was stored, found another")
        size = file.stat().st_size
        journal.record_plan(second, plan_of_logs(logs, 2), {})
        detail = {
            "build_seconds": built - began,
            "check_seconds": checked - gathered,
            "store_seconds": stored - checked,
            "read_seconds": done - stored,
            "journal_bytes": size,
            "again_bytes": file.stat().st_size - size,
        }
    return [
        Bench("plan-of-logs-seconds", LIMIT_SECONDS / (done - began - (gathered - built)), 1.0, detail),
        Bench("plan-of-logs-bytes", LIMIT_BYTES / size, 1.0, detail),
        *measure_new_processes(),
    ]


if __name__ == "__main__":
    report(run())
