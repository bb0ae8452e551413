"""How archiving grows with Spark's workers, and what Spark costs: ``python -m benchmarks.scale``.

Segments of 128 MiB through one local core, two local cores, and local clusters of one and of two worker
processes with a core each, every one to stores of its own in one lake. ``scale-…`` is the speed over that of
one local core; with two of anything it can't go beyond the machine's cores or its disk. Starting Spark is not
measured; each worker has archived small segments before, and the best round counts.

``spark-workers`` is the speed of two workers of a standalone master over that of one, over 3 GiB: the
segments of several stores. Beside it stands the machine's own limit: two processes that hash over one.
``spark-workers-agent`` is the same where they read from an agent with TLS, which has the same two cores.
``spark-threads`` is the speed of ``local[N]`` over that of this process with N threads. ``spark-job`` has
small segments archived by spark-submit and by a Python process, both from their start to their end: 20 s over
what the job takes longer.

Details have the processor time of all processes: it says more than the seconds where others use the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from benchmarks.agent import agent_of
from benchmarks.archive import WARM_UP_BYTES, jobs_of
from benchmarks.common import Bench, report
from benchmarks.generate import Shape, write_store
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.archive.threads import threads_for
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import AgentAccess
from storage_engine.lake.move.making import make_lake
from storage_engine.resources import project_path
from storage_engine.spark.archive_segments import ArchiveRequest, archive_segments
from storage_engine.spark.job_io import write_request
from storage_engine.spark.session import environment, spark_environment, spark_session, spark_settings
from tests.integration.secured import certificate
from tests.integration.spark_cluster import CLUSTER_SETTINGS, standalone

ROUNDS = 2
WORKER_MEMORY_MIB = 1024
REFERENCE = "local[1]"
MUST_BY_MASTER = {
    "local[2]": 1.4,
    f"local-cluster[1,1,{WORKER_MEMORY_MIB}]": 0.8,
    f"local-cluster[2,1,{WORKER_MEMORY_MIB}]": 1.4,
}


JOB_SECONDS = 20
"""What a job may take longer than the same work in a process."""

HASHED_BYTES = 1 << 30

WORKERS_BYTES = 3 << 30
"""What workers of a cluster archive at least."""

IN_PROCESS = """
import sys
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.spark.archive_segments import ArchiveRequest
from storage_engine.spark.job_io import read_request
jobs = read_request(sys.argv[1], ArchiveRequest).jobs
archive_all(open_lake(jobs[0].lake), jobs)
"""

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, order=True)
class Spent:
    """:param processor: seconds of this process and all below it."""

    wall: float
    processor: float

    @classmethod
    def by(cls, work: Callable[[], object]) -> Spent:
        processor, started = _processor_seconds(), time.perf_counter()
        work()
        return cls(time.perf_counter() - started, _processor_seconds() - processor)


def _processor_seconds() -> float:
    # Of those that have ended their parents know it.
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (me, *me.children(recursive=True)))


def measure(
    master: str,
    lake: Lake,
    paths: list[Path],
    warm_up: list[Path],
    settings: Mapping[str, str] | None = None,
    name: str = "",
    stores: int = 1,
    agent: AgentAccess | None = None,
) -> Spent:
    """Return what the best round took.

    :param stores: how many stores have the segments.
    :param agent: that all but the first small ones are read from.
    """
    name = name or master
    with spark_session("bench scale", master, settings) as spark:
        for number in range(ROUNDS):
            archive_segments(spark, jobs_of(lake, warm_up, f"{name}-warm-up-{number}"))
        return _best(lambda jobs: archive_segments(spark, jobs, agent), lake, paths, name, stores)


def _best(archive: Callable[..., object], lake: Lake, paths: list[Path], name: str, stores: int = 1) -> Spent:
    rounds = [
        [job for store in range(stores) for job in jobs_of(lake, paths, f"{name}-{number}-{store}")]
        for number in range(ROUNDS)
    ]
    return min(Spent.by(lambda jobs=jobs: archive(jobs)) for jobs in rounds)  # type: ignore[misc]


def measure_workers(
    directory: Path, lake: Lake, paths: list[Path], warm_up: list[Path], agent: AgentAccess | None = None
) -> Bench:
    """Compare two workers of a standalone master with one, over so much that it isn't planning and commit.

    Those take a second or two, which no worker shares.
    """
    directory.mkdir()
    size_bytes = sum(path.stat().st_size for path in paths)
    stores = -(-WORKERS_BYTES // size_bytes)
    spent = []
    name, must = ("spark-workers", 1.8) if agent is None else ("spark-workers-agent", 1.6)
    with environment({"PYSPARK_PYTHON": sys.executable}), standalone(directory) as url:
        for cores in (1, 2):
            settings = {
                **CLUSTER_SETTINGS,
                "spark.cores.max": str(cores),
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            }
            kind = f"{name}-{cores}"
            spent.append(measure(url, lake, paths, warm_up, settings, kind, stores, agent))
    one, two = spent
    limit = measure_machine(directory / "hashed")
    detail = {
        "gib": round(stores * size_bytes / (1 << 30), 1),
        "machines_limit": round(limit, 2),
        "one_worker_seconds": round(one.wall, 2),
        "two_workers_seconds": round(two.wall, 2),
        "one_worker_processor_seconds": round(one.processor, 2),
        "two_workers_processor_seconds": round(two.processor, 2),
    }
    return Bench(name, one.wall / two.wall, must, detail)


def measure_workers_by_agent(directory: Path, lake: Lake, paths: list[Path], warm_up: list[Path]) -> Bench:
    directory.mkdir()
    with agent_of(paths[0].parents[1], "tls", *certificate(directory, timedelta(days=1))) as (_, agent):
        return measure_workers(directory / "cluster", lake, paths, warm_up, agent)


def measure_machine(path: Path) -> float:
    """Return what two processes that hash a file do over what one does: two where each has a core."""
    with path.open("wb") as file:
        file.truncate(HASHED_BYTES)

    def seconds(processes: int) -> float:
        command = ["openssl", "dgst", "-sha256", str(path)]
        started = time.perf_counter()
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(processes)]
        assert not any(process.wait() for process in running)
        return time.perf_counter() - started

    return 2 * min(seconds(1) for _ in range(ROUNDS)) / min(seconds(2) for _ in range(ROUNDS))


def measure_threads(lake: Lake, paths: list[Path], warm_up: list[Path]) -> Bench:
    """Compare ``local[N]`` with N threads of this process."""
    threads = threads_for(jobs_of(lake, paths, "threads"))
    spark = measure(f"local[{threads}]", lake, paths, warm_up, name="threads-spark")
    archive_all(lake, jobs_of(lake, warm_up, "threads-warm-up"))
    here = _best(lambda jobs: archive_all(lake, jobs), lake, paths, "threads-here")
    detail = {
        "threads": threads,
        "spark_seconds": round(spark.wall, 2),
        "threads_seconds": round(here.wall, 2),
        "spark_processor_seconds": round(spark.processor, 2),
        "threads_processor_seconds": round(here.processor, 2),
    }
    return Bench("spark-threads", here.wall / spark.wall, 0.85, detail)


def measure_job(directory: Path, lake: Lake, paths: list[Path]) -> Bench:
    """Compare spark-submit with a Python process that archives the same segments."""
    # What a process leaves behind is then this one's, and its processor time is known.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    master = f"local[{threads_for(jobs_of(lake, paths, 'job'))}]"
    variables = {**os.environ, **spark_environment(master)}
    conf = [word for pair in spark_settings(master).items() for word in ("--conf", "=".join(pair))]
    submit = [f"{variables['SPARK_HOME']}/bin/spark-submit", "--master", master, *conf]
    commands = {
        "job": [*submit, str(project_path("spark_jobs/archive_segments.py"))],
        "process": [sys.executable, "-c", IN_PROCESS],
    }
    spent: dict[str, Spent] = {}
    for number in range(ROUNDS):
        for name, command in commands.items():
            asked = directory / f"{name}-{number}.json"
            write_request(asked, ArchiveRequest(jobs_of(lake, paths, f"{name}-{number}")))
            words = [*command, str(asked), f"{asked}.result"]
            run_once = Spent.by(
                lambda words=words: subprocess.run(  # type: ignore[misc]
                    words, env=variables, check=True, stderr=subprocess.DEVNULL
                )
            )
            spent[name] = min(spent.get(name, run_once), run_once)
    job, process = spent["job"], spent["process"]
    detail = {
        "job_seconds": round(job.wall, 1),
        "process_seconds": round(process.wall, 1),
        "job_processor_seconds": round(job.processor, 1),
        "process_processor_seconds": round(process.processor, 1),
    }
    return Bench("spark-job", JOB_SECONDS / max(job.wall - process.wall, 0.01), 1.0, detail)


def run(directory: Path | None = None, segments: int = 5, segment_bytes: int = 128 << 20) -> list[Bench]:
    """Measure in a temporary directory.

    :param directory: on the disk to measure; None: where temporary files go.
    :param segments: the last one is active and not archived.
    """
    with tempfile.TemporaryDirectory(dir=directory) as work:
        paths = write_store(Path(work, "store"), Shape(segments=segments, segment_bytes=segment_bytes))[:-1]
        warm_up = write_store(Path(work, "warm-up"), Shape(segments=5, segment_bytes=WARM_UP_BYTES))[:-1]
        lake = make_lake(LakeConfig.local(Path(work, "lake")))
        size_mib = segment_bytes * len(paths) / (1 << 20)
        reference = measure(REFERENCE, lake, paths, warm_up)
        benches = []
        for master, must in MUST_BY_MASTER.items():
            spent = measure(master, lake, paths, warm_up)
            detail = {
                "mib_per_second": round(size_mib / spent.wall),
                "one_local_core_mib_per_second": round(size_mib / reference.wall),
            }
            name = master.replace("[", "-").replace("]", "").replace(",", "-")
            benches.append(Bench(f"scale-{name}", reference.wall / spent.wall, must, detail))
        return [
            *benches,
            measure_workers(Path(work, "cluster"), lake, paths, warm_up),
            measure_workers_by_agent(Path(work, "by-agent"), lake, paths, warm_up),
            measure_threads(lake, paths, warm_up),
            measure_job(Path(work), lake, warm_up),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=5, help="the last one is active and not archived")
    parser.add_argument("--segment-bytes", type=int, default=128 << 20)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary one")
    options = parser.parse_args()
    for bench in run(options.directory, options.segments, options.segment_bytes):
        report([bench])
        print("  " + ", ".join(f"{name} {value}" for name, value in bench.detail.items()))


if __name__ == "__main__":
    main()
