"""Archiving with proof, and restoring, against what the same bytes cost without any promise.

``archive``: Spark with two local cores, from segment files to a committed, proven lake on disk, against
two processes of PyArrow that write the same columns, already decoded, as Parquet with zstd: nothing read,
proven, hashed or fsynced. The figures also have PyArrow with the lake's own, quicker Parquet options.
Starting Spark is not measured, and nor is starting the peer's processes. Each of our workers has archived
small segments before; of both the best round counts, with everything in the page cache.
``restore``: from the lake to fsynced files with their SHA-256 checked, against ``cp`` of the segments, which
copies from page to page in the kernel and leaves the disk for later; the figures also have ``cp`` with
``sync``.
Both on 1 GiB of segments with bodies around 1 KiB and, as ``-small``, on 256 MiB with bodies of 100 bytes.
``archive_tree``: processor time of all threads for one segment as lakes of version 2 have it, without a tree
over its rows and with pairs of properties, against that for version 3, in turns; the least of each counts.
``thin``: seconds to archive one segment, against those to write its data file again without the rows of a
third of its topics, each proven, in turns; the least of each counts.
``archive_memory`` and ``restore_memory``: 2.5 segments over what one task takes beyond an idle one.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.common import Bench, report
from benchmarks.generate import Shape, write_store
from storage_engine.lake.archive.archive import SegmentJob, archive_segment, segment_jobs
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.data_file import write_rows
from storage_engine.lake.file.jobs import new_attempt
from storage_engine.lake.file.staging import discard
from storage_engine.lake.gc.thinning import discard_files, thin_segment
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.restore import restore
from storage_engine.model.store.store import FileFacts, Segment, SegmentState
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.spark.archive_segments import archive_segments
from storage_engine.spark.session import spark_session

ROUNDS = 3
PEER_PROCESSES = 2
TREE_ROUNDS = 10
MEMORY_LIMIT = 2.5
WARM_UP_BYTES = 4 << 20


def jobs_of(lake: Lake, paths: list[Path], store_id: str) -> tuple[SegmentJob, ...]:
    segments = [Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in paths]
    return segment_jobs(
        lake, segments, store_id=store_id, lineage=0, broker="rocketmq", store_root=str(paths[0].parents[1])
    )


def measure_archive(lake: Lake, paths: list[Path], warm_up: list[Path]) -> list[float]:
    """Seconds of each round; every round is another store to the lake."""
    seconds = []
    with spark_session("bench archive") as spark:
        archive_segments(spark, jobs_of(lake, warm_up * PEER_PROCESSES, "warm-up")[:1])
        archive_segments(spark, jobs_of(lake, warm_up, "warm-up"))
        for number in range(ROUNDS):
            jobs = jobs_of(lake, paths, f"store-{number}")
            started = time.perf_counter()
            archive_segments(spark, jobs)
            seconds.append(time.perf_counter() - started)
    return seconds


def measure_peer(lake: Lake, paths: list[Path], directory: Path) -> dict[str, float]:
    """Seconds of the best round of plain writing, from the word go to the last process's last byte.

    :return: by whose Parquet options: ``plain`` or ``lake``.
    """
    context = multiprocessing.get_context("spawn")
    shares = [jobs_of(lake, paths[n::PEER_PROCESSES], "peer") for n in range(PEER_PROCESSES) if paths[n:]]
    pipes, processes = [], []
    for share in shares:
        ours, theirs = context.Pipe()
        process = context.Process(target=_write_plainly, args=(share, directory, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    seconds: dict[str, float] = {}
    for options in ("plain", "lake") * ROUNDS:
        started = time.perf_counter()
        for pipe in pipes:
            pipe.send(options)
        for pipe in pipes:
            pipe.recv()
        seconds[options] = min(seconds.get(options, math.inf), time.perf_counter() - started)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send("")
        process.join()
    return seconds


def _write_plainly(jobs: tuple[SegmentJob, ...], directory: Path, pipe: Connection) -> None:
    decoded = []
    for job in jobs:
        data = memoryview(bytearray(Path(job.path).read_bytes()))
        decoded.append((job, [rows for rows, _ in CODEC.decode(data, job.base_offset)]))
    pipe.send("ready")
    while options := pipe.recv():
        for job, chunks in decoded:
            path = directory / f"{job.base_offset}.parquet"
            if options == "lake":
                write_rows(job, CODEC, chunks, str(path))
            else:
                with pq.ParquetWriter(path, chunks[0].schema, compression="zstd") as writer:
                    for rows in chunks:
                        writer.write_table(rows)
            path.unlink()
        pipe.send("done")


def measure_restore(lake: Lake, paths: list[Path], directory: Path) -> tuple[float, float, float]:
    """Seconds of the best round of restoring, of copying, and of copying and syncing.

    In turns, so that all find the same load, and the pages that the one before has left.
    """
    restored, copied, synced = [], [], []
    target = directory / "copied"
    for number in range(ROUNDS):
        started = time.perf_counter()
        restore(lake, "store-0", directory / f"restored-{number}")
        restored.append(time.perf_counter() - started)
        shutil.rmtree(directory / f"restored-{number}")
        target.mkdir()
        started = time.perf_counter()
        subprocess.run(["cp", *map(str, paths), str(target)], check=True)
        copied.append(time.perf_counter() - started)
        subprocess.run(["sync", *map(str, target.iterdir()), str(target)], check=True)
        synced.append(time.perf_counter() - started)
        shutil.rmtree(target)
    return min(restored), min(copied), min(synced)


def measure_tree(lake: Lake, path: Path) -> tuple[float, float]:
    """Seconds of a processor to archive a segment for a lake of version 2, and for one of version 3."""
    (job,) = jobs_of(lake, [path], "tree")
    least = {False: math.inf, True: math.inf}
    for number in range(TREE_ROUNDS):
        for trees in (True, False) if number % 2 else (False, True):
            began = time.process_time()
            proven = archive_segment(replace(job, trees=trees))
            least[trees] = min(least[trees], time.process_time() - began)
            discard([proven])
    return least[False], least[True]


def measure_thinning(lake: Lake, path: Path) -> tuple[float, float, float]:
    """Seconds to archive a segment and to thin it, and the part of its bytes that goes."""
    (job,) = jobs_of(lake, [path], "thin")
    (receipt,) = commit_segments(lake, [archive_segment(job)])
    streams = [stream for stream in json.loads(receipt.streams or "[]") if stream["name"]]
    gone = streams[: math.ceil(len(streams) / 3)]
    archived = thinned = math.inf
    for _ in range(TREE_ROUNDS):
        began = time.perf_counter()
        proven = archive_segment(replace(job, attempt=new_attempt()))
        archived = min(archived, time.perf_counter() - began)
        discard([proven])
        began = time.perf_counter()
        thinning = thin_segment(lake, receipt, [stream["name"] for stream in gone])
        thinned = min(thinned, time.perf_counter() - began)
        discard_files(lake.messages(), [thinning.kept.location])
    return archived, thinned, sum(stream["bytes"] for stream in gone) / receipt.size_bytes


def measure_memory(lake: Lake, path: Path, warm_up: Path, directory: Path) -> tuple[int, int]:
    """Peak bytes beyond an idle task's, of archiving and of restoring one segment."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_watch_memory,
        args=(jobs_of(lake, [warm_up], "idle")[0], jobs_of(lake, [path], "memory")[0], directory, theirs),
    )
    process.start()
    # With its end closed here, a process that dies is an end of file and not a wait for ever.
    theirs.close()
    archived, restored = ours.recv()
    process.join()
    return archived, restored


def _watch_memory(warm_up: SegmentJob, job: SegmentJob, directory: Path, pipe: Connection) -> None:
    lake = open_lake(job.lake)
    commit_segments(lake, [archive_segment(warm_up)])
    restore(lake, warm_up.store_id, directory / "restored-warm-up")
    idle = reset_peak()
    proven = archive_segment(job)
    archived = peak_bytes() - idle
    commit_segments(lake, [proven])
    idle = reset_peak()
    restore(lake, job.store_id, directory / "restored-memory")
    pipe.send((archived, peak_bytes() - idle))


def reset_peak() -> int:
    """Let the kernel forget the peak so far; returns what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise KeyError(name)


def measure(directory: Path, shape: Shape, most_of_tree: float = 0.12) -> list[Bench]:
    """Measure everything on a store of this shape, in a directory on the disk to be measured.

    :param most_of_tree: part of a segment's time that its tree may cost on top.
    """
    directory.mkdir()
    paths = write_store(directory / "store", shape)[:-1]
    warm_up = write_store(directory / "warm-up", Shape(segments=3, segment_bytes=WARM_UP_BYTES))[:-1]
    lake = make_lake(LakeConfig.local(directory / "lake"))
    size_mib = shape.segment_bytes * len(paths) / (1 << 20)
    ours, peer = measure_archive(lake, paths, warm_up), measure_peer(lake, paths, directory)
    restored, copied, synced = measure_restore(lake, paths, directory)
    without_tree, with_tree = measure_tree(lake, paths[0])
    archived_in, thinned_in, gone = measure_thinning(lake, paths[0])
    archive_peak, restore_peak = measure_memory(lake, paths[0], warm_up[0], directory)
    limit = MEMORY_LIMIT * shape.segment_bytes
    stored = sum(
        task.file.file_size_in_bytes for task in lake.messages().scan("store_id = 'store-0'").plan_files()
    )
    return [
        Bench(
            "archive",
            peer["plain"] / min(ours),
            0.40,
            {
                "archive_mib_per_second": round(size_mib / min(ours)),
                "peer_mib_per_second": round(size_mib / peer["plain"]),
                "peer_with_lake_options_mib_per_second": round(size_mib / peer["lake"]),
                "segments_mib": round(size_mib),
                "data_files_mib": round(stored / (1 << 20)),
                "archived_percent": round(stored / (size_mib * (1 << 20)) * 100, 1),
            },
        ),
        Bench(
            "restore",
            copied / restored,
            0.25,
            {
                "restore_mib_per_second": round(size_mib / restored),
                "cp_mib_per_second": round(size_mib / copied),
                "cp_and_sync_mib_per_second": round(size_mib / synced),
                "ratio_to_cp_and_sync": round(synced / restored, 2),
            },
        ),
        Bench(
            "archive_tree",
            without_tree / with_tree,
            1 / (1 + most_of_tree),
            {"tree_percent": round((with_tree / without_tree - 1) * 100, 1)},
        ),
        Bench(
            "thin",
            archived_in / thinned_in,
            0.50,
            {
                "thin_mib_per_second": round(shape.segment_bytes / (1 << 20) / thinned_in),
                "archive_mib_per_second": round(shape.segment_bytes / (1 << 20) / archived_in),
                "gone_percent": round(gone * 100, 1),
            },
        ),
        Bench("archive_memory", limit / archive_peak, 1.0, {"peak_mib": archive_peak >> 20}),
        Bench("restore_memory", limit / restore_peak, 1.0, {"peak_mib": restore_peak >> 20}),
    ]


def run(directory: Path | None = None, segments: int = 9, segment_bytes: int = 128 << 20) -> list[Bench]:
    """Measure in a temporary directory.

    :param directory: on the disk to measure; None: where temporary files go.
    :param segments: of the store with bodies around 1 KiB; the last one is active and not archived.
    """
    with tempfile.TemporaryDirectory(dir=directory) as work:
        benches = measure(Path(work, "large"), Shape(segments=segments, segment_bytes=segment_bytes))
    with tempfile.TemporaryDirectory(dir=directory) as work:
        small = Shape(segments=min(3, segments), segment_bytes=segment_bytes, body_bytes=100)
        benches += [
            replace(bench, name=f"{bench.name}-small") for bench in measure(Path(work, "small"), small, 0.17)
        ]
    return benches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=9, help="the last one is active and not archived")
    parser.add_argument("--segment-bytes", type=int, default=128 << 20)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary one")
    options = parser.parse_args()
    report(run(options.directory, options.segments, options.segment_bytes))


if __name__ == "__main__":
    main()
