"""How archiving grows with Spark's workers: ``python -m benchmarks.scale``.

Segments of 128 MiB through one local core, two local cores, and local clusters of one and of two worker
processes with a core each, every one to stores of its own in one lake. ``scale-…`` is the speed over that of
one local core; with two of anything it can't go beyond the machine's cores or its disk. Starting Spark is not
measured; each worker has archived small segments before, and the best round counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.archive import WARM_UP_BYTES, jobs_of
from benchmarks.common import Bench, report
from benchmarks.generate import Shape, write_store
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.spark.archive_segments import archive_segments
from storage_engine.spark.session import spark_session

ROUNDS = 2
WORKER_MEMORY_MIB = 1024
REFERENCE = "local[1]"
MUST_BY_MASTER = {
    "local[2]": 1.4,
    f"local-cluster[1,1,{WORKER_MEMORY_MIB}]": 0.8,
    f"local-cluster[2,1,{WORKER_MEMORY_MIB}]": 1.4,
}


def measure(master: str, lake: Lake, paths: list[Path], warm_up: list[Path]) -> float:
    """Seconds of the best round."""
    seconds = []
    with spark_session("bench scale", master) as spark:
        for number in range(ROUNDS):
            archive_segments(spark, jobs_of(lake, warm_up, f"{master}-warm-up-{number}"))
        for number in range(ROUNDS):
            jobs = jobs_of(lake, paths, f"{master}-{number}")
            started = time.perf_counter()
            archive_segments(spark, jobs)
            seconds.append(time.perf_counter() - started)
    return min(seconds)


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
            seconds = measure(master, lake, paths, warm_up)
            detail = {
                "mib_per_second": round(size_mib / seconds),
                "one_local_core_mib_per_second": round(size_mib / reference),
            }
            name = master.replace("[", "-").replace("]", "").replace(",", "-")
            benches.append(Bench(f"scale-{name}", reference / seconds, must, detail))
    return benches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=5, help="the last one is active and not archived")
    parser.add_argument("--segment-bytes", type=int, default=128 << 20)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary one")
    options = parser.parse_args()
    report(run(options.directory, options.segments, options.segment_bytes))


if __name__ == "__main__":
    main()
