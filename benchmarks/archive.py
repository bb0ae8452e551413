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
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.common import Bench, Spent, in_turns, machine_limit, report, run_beside
from benchmarks.generate import Shape, write_store
from storage_engine.arrow.row_groups import cut_rows
from storage_engine.lake.archive.archive import SegmentJob, archive_all, archive_segment, segment_jobs
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.data_file import write_decoded
from storage_engine.lake.file.jobs import new_attempt
from storage_engine.lake.file.staging import discard
from storage_engine.lake.gc.thinning import discard_files, thin_segment
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.verify.verify import VerifyLevel, verify
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.spark.archive_segments import archive_segments
from storage_engine.spark.session import spark_session
from tests.services.restoring import restore

ROUNDS = 3
PEER_PROCESSES = 2
TREE_ROUNDS = 10
MEMORY_LIMIT = 2.5
MOST_ANONYMOUS = 300 / 1024
"""Of a segment, as a part of it: 300 MiB of 1 GiB."""
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
                write_decoded(job, CODEC, map(cut_rows, chunks), str(path))
            else:
                with pq.ParquetWriter(path, chunks[0].schema, compression="zstd") as writer:
                    for rows in chunks:
                        writer.write_table(rows)
            path.unlink()
        pipe.send("done")


def measure_proof(lake: Lake, path: Path, directory: Path) -> tuple[dict[str, Spent], float]:
    """Measure one segment archived with proof, and PyArrow that writes the same decoded columns, in turns.

    :return: what both took, and the size of our data file over PyArrow's.
    """
    (job,) = jobs_of(lake, [path], "proof")
    data = memoryview(bytearray(path.read_bytes()))
    chunks = [rows for rows, _ in CODEC.decode(data, job.base_offset)]
    target, sizes = directory / "plain.parquet", {"archive": 0, "peer": 0}

    def archive() -> None:
        proven = archive_segment(job)
        sizes["archive"] = proven.data_file_bytes
        discard([proven])

    def write() -> None:
        with pq.ParquetWriter(target, chunks[0].schema, compression="zstd", compression_level=1) as writer:
            for rows in chunks:
                writer.write_table(rows)
        sizes["peer"] = target.stat().st_size

    return in_turns({"archive": archive, "peer": write}), sizes["archive"] / sizes["peer"]


def measure_restore(lake: Lake, paths: list[Path], directory: Path) -> dict[str, Spent]:
    """Measure restoring, and what else reads or writes the same bytes, in turns: all find the same load, and
    the pages that the one before has left.

    A restore and its peers begin with an empty directory, and end when all is on disk. ``served`` also makes
    queues and index. ``again`` finds what ``restore`` has written.
    """
    target, packed = directory / "copied", directory / "packed"
    packed.mkdir()
    run_beside([f"zstd -q -1 {path} -o {packed / path.name}.zst" for path in paths])

    def restored(name: str, *, files_only: bool = True) -> None:
        restore(lake, "store-0", directory / name, files_only=files_only)

    def clear(name: str) -> None:
        shutil.rmtree(directory / name, ignore_errors=True)

    def empty() -> None:
        clear(target.name)
        target.mkdir()

    def unpack() -> None:
        each = [
            f"zstd -q -d {packed / path.name}.zst -o {target / path.name} && "
            f"openssl dgst -sha256 {target / path.name} && sync {target / path.name}"
            for path in paths
        ]
        threads = len(os.sched_getaffinity(0))
        run_beside([" && ".join(each[number::threads]) for number in range(threads) if each[number:]])

    return in_turns(
        {
            "restore": lambda: restored("restored"),
            "again": lambda: restored("restored"),
            "verify": lambda: verify(lake, VerifyLevel.BYTES, store_id="store-0"),
            "served": lambda: restored("served", files_only=False),
            "cp_and_sync": lambda: run_beside(
                [f"cp {' '.join(map(str, paths))} {target} && sync {target}/* {target}"]
            ),
            "zstd_and_openssl": unpack,
        },
        {
            "restore": lambda: clear("restored"),
            "served": lambda: clear("served"),
            "cp_and_sync": empty,
            "zstd_and_openssl": empty,
        },
    )


def measure_cores(lake: Lake, paths: list[Path]) -> tuple[float, float]:
    """:return: archiving in this process on all of its cores over on one, and what the machine allows."""
    every = os.sched_getaffinity(0)

    def archive(cores: set[int]) -> None:
        os.sched_setaffinity(0, cores)
        try:
            archive_all(lake, jobs_of(lake, paths, f"cores-{new_attempt()}"))
        finally:
            os.sched_setaffinity(0, every)

    spent = in_turns({"one": lambda: archive({min(every)}), "all": lambda: archive(every)})
    return spent["one"].wall / spent["all"].wall, machine_limit(paths[0], len(every))


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


def measure_anonymous(lake: Lake, path: Path, warm_up: Path) -> int:
    """Return the most anonymous bytes of archiving a segment above an idle task's."""
    jobs = [jobs_of(lake, [it], "anonymous")[0] for it in (warm_up, path)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_most_anonymous, jobs)


def _most_anonymous(warm_up: SegmentJob, job: SegmentJob) -> int:
    discard([archive_segment(warm_up)])
    idle, most, ended = _status_bytes("RssAnon"), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.002):
            most = max(most, _status_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    discard([archive_segment(job)])
    ended.set()
    watcher.join()
    return most - idle


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


@dataclass(frozen=True, slots=True)
class Musts:
    """What differs by the size of bodies.

    :param proof: of PyArrow's speed without proof, archiving with it.
    :param larger: than PyArrow's a data file may be, as a part of it.
    :param tree: part of a segment's time that its tree may cost on top.
    """

    proof: float = 0.65
    larger: float = 0.10
    tree: float = 0.12


def measure(directory: Path, shape: Shape, musts: Musts) -> list[Bench]:
    """Measure everything on a store of this shape, in a directory on the disk to be measured."""
    directory.mkdir()
    paths = write_store(directory / "store", shape)[:-1]
    warm_up = write_store(directory / "warm-up", Shape(segments=3, segment_bytes=WARM_UP_BYTES))[:-1]
    lake = make_lake(LakeConfig.local(directory / "lake"))
    size_mib = shape.segment_bytes * len(paths) / (1 << 20)
    ours, peer = measure_archive(lake, paths, warm_up), measure_peer(lake, paths, directory)
    proof, larger = measure_proof(lake, paths[0], directory)
    spent = measure_restore(lake, paths, directory)
    on_all, limit_on_all = measure_cores(lake, paths)
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
            "archive_proof",
            proof["peer"].processor / proof["archive"].processor,
            musts.proof,
            {
                "ratio_of_wall_time": round(proof["peer"].wall / proof["archive"].wall, 2),
                **_milliseconds(proof),
            },
        ),
        Bench("archive_size", (1 + musts.larger) / larger, 1.0, {"over_pyarrow": round(larger, 3)}),
        Bench(
            "archive_cores", on_all / limit_on_all, 0.95, {"all_over_one": on_all, "openssl": limit_on_all}
        ),
        *_restores(spent, size_mib),
        Bench(
            "archive_tree",
            without_tree / with_tree,
            1 / (1 + musts.tree),
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


def _restores(spent: Mapping[str, Spent], size_mib: float) -> list[Bench]:
    ours, copy, unpack = (spent[name] for name in ("restore", "cp_and_sync", "zstd_and_openssl"))
    detail = {"restore_mib_per_second": round(size_mib / ours.wall), **_milliseconds(spent)}
    of_processor = {"ratio_of_processor_time": round(unpack.processor / ours.processor, 2)}
    return [
        Bench("restore", copy.wall / ours.wall, 0.60, detail),
        Bench("restore_zstd", unpack.wall / ours.wall, 0.60, {**detail, **of_processor}),
        Bench("restore_again", ours.wall / spent["again"].wall, 5.0, detail),
        Bench("verify_bytes", ours.wall / spent["verify"].wall, 1.2, detail),
    ]


def _milliseconds(spent: Mapping[str, Spent]) -> dict[str, int]:
    return {
        f"{name}_{kind}_ms": round(1000 * getattr(it, kind))
        for name, it in spent.items()
        for kind in ("processor", "wall")
    }


def run(directory: Path | None = None, segments: int = 9, segment_bytes: int = 128 << 20) -> list[Bench]:
    """Measure in a temporary directory.

    :param directory: on the disk to measure; None: where temporary files go.
    :param segments: of the store with bodies around 1 KiB; the last one is active and not archived.
    """
    with tempfile.TemporaryDirectory(dir=directory) as work:
        benches = measure(Path(work, "large"), Shape(segments=segments, segment_bytes=segment_bytes), Musts())
    with tempfile.TemporaryDirectory(dir=directory) as work:
        small = Shape(segments=min(3, segments), segment_bytes=segment_bytes, body_bytes=100)
        benches += [
            replace(bench, name=f"{bench.name}-small")
            for bench in measure(Path(work, "small"), small, Musts(0.60, 0.25, 0.17))
        ]
    with tempfile.TemporaryDirectory(dir=directory) as work:
        large = write_store(Path(work, "large"), Shape(segments=2, segment_bytes=8 * segment_bytes))[0]
        warm_up = write_store(Path(work, "warm-up"), Shape(segments=2, segment_bytes=WARM_UP_BYTES))[0]
        anonymous = measure_anonymous(make_lake(LakeConfig.local(Path(work, "lake"))), large, warm_up)
    anonymous_limit = MOST_ANONYMOUS * 8 * segment_bytes
    benches.append(
        Bench("archive_anonymous", anonymous_limit / anonymous, 1.0, {"anonymous_mib": anonymous >> 20})
    )
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
