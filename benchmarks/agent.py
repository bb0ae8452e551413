"""Archiving through an agent, against archiving from the disk itself: what the broker's host still pays.

``agent-plain`` and ``agent-tls``: the agent's processor time as a part of that of archiving the same segments
in one process; the ratio says how often it fits into what it may take. ``agent-wall``: seconds to archive
from the disk over those through the agent without TLS, ``agent-wall-tls`` with it. Each segment is archived
in each way, in turn, with its pages in the cache; the least of each counts, and the figures have means, too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean

from benchmarks.archive import WARM_UP_BYTES, jobs_of
from benchmarks.common import Bench, report
from benchmarks.generate import Shape, write_store
from storage_engine.lake.agent import Agent, AgentListening
from storage_engine.lake.archive.archive import SegmentJob, archive_segment
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.agent_files import PLAIN, leave_agent, run_of
from storage_engine.lake.file.jobs import AgentAccess, new_attempt
from storage_engine.lake.file.staging import discard
from storage_engine.lake.move.making import make_lake
from storage_engine.model.store import FileFacts
from tests.integration.secured import certificate

TOKEN = "benchmark" * 4
MOST = {"plain": 0.03, "tls": 0.12}
"""Of archiving's processor time that an agent may take."""


@contextmanager
def agent_of(store: Path, way: str, pem: Path, key: Path) -> Iterator[tuple[int, AgentAccess]]:
    """An agent in a process of its own, for all segments of a store."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    files = (None, None) if way == "plain" else (pem, key)
    process = context.Process(target=_serve, args=(store, files, theirs), daemon=True)
    process.start()
    theirs.close()
    address = f"127.0.0.1:{ours.recv()}"
    try:
        access = AgentAccess(address if way == "tls" else PLAIN + address, TOKEN, pem.read_text())
        assert process.pid is not None
        yield process.pid, access
    finally:
        process.kill()
        process.join()


def _serve(store: Path, files: tuple[Path | None, Path | None], pipe: Connection) -> None:
    served = {str(store): lambda: [FileFacts.of(path) for path in (store / "commitlog").iterdir()]}
    agent = Agent(served, AgentListening("127.0.0.1", 0, *files, token=TOKEN), lease_seconds=3600)
    pipe.send(agent.port)
    agent.serve()


def _time_of(pid: int) -> float:
    """Return the processor time of another process, by its clock (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def _archive(job: SegmentJob) -> tuple[float, float]:
    """Return the seconds and the processor time of this process that a segment took."""
    began, before = time.perf_counter(), time.process_time()
    proven = archive_segment(replace(job, attempt=new_attempt()))
    took = time.perf_counter() - began, time.process_time() - before
    discard([proven])
    return took


def run(directory: Path | None = None, segments: int = 64, segment_bytes: int = 128 << 20) -> list[Bench]:
    """Measure in a temporary directory.

    :param directory: on the disk to measure; None: where temporary files go.
    """
    with tempfile.TemporaryDirectory(dir=directory) as work, ExitStack() as held:
        root = Path(work)
        shape = Shape(segments=segments + 1, segment_bytes=segment_bytes)
        paths = write_store(root / "store", shape)[:-1]
        warm_up = write_store(root / "warm-up", Shape(segments=2, segment_bytes=WARM_UP_BYTES))[:-1]
        lake = make_lake(LakeConfig.local(root / "lake"))
        jobs = jobs_of(lake, paths, "store")
        _archive(jobs_of(lake, warm_up, "warm-up")[0])
        pem, key = certificate(root)
        agents = {way: held.enter_context(agent_of(root / "store", way, pem, key)) for way in MOST}
        runs = {way: held.enter_context(run_of(access, jobs)) for way, (_, access) in agents.items()}
        held.callback(leave_agent)
        spent: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ("disk", *MOST)}
        for number, job in enumerate(jobs):
            ways = list(spent)
            for way in ways[number % 3 :] + ways[: number % 3]:
                Path(job.path).read_bytes()
                before = _time_of(agents[way][0]) if way in agents else 0.0
                took = _archive(job if way == "disk" else replace(job, agent=runs[way]))
                after = _time_of(agents[way][0]) if way in agents else 0.0
                spent[way].append((*took, after - before))
    least = {way: [min(each) for each in zip(*rounds, strict=True)] for way, rounds in spent.items()}
    mean = {way: [fmean(each) for each in zip(*rounds, strict=True)] for way, rounds in spent.items()}
    detail = {
        "segments": segments,
        "load": round(os.getloadavg()[0], 1),
        "archive_ms_of_processor": round(least["disk"][1] * 1000),
    }
    benches = []
    for way, most in MOST.items():
        share = least[way][2] / least["disk"][1]
        shown = {**detail, "agent_ms_of_processor": round(least[way][2] * 1000, 1)}
        shown["agent_percent"] = round(share * 100, 2)
        shown["mean_percent"] = round(mean[way][2] / mean["disk"][1] * 100, 2)
        benches.append(Bench(f"agent-{way}", most / share, 1.0, shown))
        name = "agent-wall" if way == "plain" else "agent-wall-tls"
        means = {**detail, "mean_ratio": round(mean["disk"][0] / mean[way][0], 2)}
        benches.append(Bench(name, least["disk"][0] / least[way][0], 0.8, means))
    return benches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=64)
    parser.add_argument("--segment-bytes", type=int, default=128 << 20)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary one")
    options = parser.parse_args()
    report(run(options.directory, options.segments, options.segment_bytes))


if __name__ == "__main__":
    main()
