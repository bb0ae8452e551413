"""What the driver of a Spark job takes for many small segments: ``python -m benchmarks.driver``.

Segments of 64 KiB, archived by ``local[2]`` in one run. Its tasks are processes of their own, so what this
one grows by is the driver's: what tasks give back, the commit, the receipts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.archive import jobs_of, peak_bytes, reset_peak
from benchmarks.generate import Shape, write_store
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.spark.archive_segments import archive_segments
from storage_engine.spark.session import spark_session

SEGMENT_BYTES = 64 << 10


def measure(directory: Path, segments: int) -> tuple[int, float, float]:
    """:return: bytes by which the driver's peak is above an idle one, and processor and wall seconds."""
    paths = write_store(directory / "store", Shape(segments + 1, SEGMENT_BYTES))[:-1]
    lake = make_lake(LakeConfig.local(directory / "lake"))
    with spark_session("bench driver") as spark:
        archive_segments(spark, jobs_of(lake, paths[:4], "warm-up"))
        idle = reset_peak()
        processor, wall = time.process_time(), time.perf_counter()
        archive_segments(spark, jobs_of(lake, paths, "measured"))
        return peak_bytes() - idle, time.process_time() - processor, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as work:
        grown, processor, wall = measure(Path(work), options.segments)
    print(
        f"{options.segments} segments: the driver grew by {grown >> 20} MiB and took {processor:.1f} s of "
        f"processor time; {wall:.0f} s in all"
    )


if __name__ == "__main__":
    main()
