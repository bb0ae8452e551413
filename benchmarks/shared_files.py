"""Many small segments in shared data files: ``python -m benchmarks.shared_files [SEGMENTS]``.

``shared-archive``: Kafka segments of 64 KiB archived with proof in this process; 20,000 may take 60 seconds
and 40 data files, fewer their part of it. ``shared-size``: data files of segments of 871 bytes to 16 KiB, and
1.2 times these; receipts are counted apart. ``shared-query``: reading one topic of as many segments as data
files of their own, against the same in shared ones, and must be ten times as quick. ``compact-query``: the
same once these became larger files. ``compact``: making those of segments of 64 KiB, against archiving the
same bytes into shared files, by processor time. ``verify-receipts``: ``verify --level receipts`` of 50
receipts for each segment, in files of 500, by processor time; 1,000,000 may take 60 seconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

from pyiceberg.expressions import EqualTo

from benchmarks.common import Bench, report
from benchmarks.growth import add_history, clean_one, make_store
from benchmarks.kafka_archive import values_of
from benchmarks.kafka_plan import NOW_MS, batch
from storage_engine.kafka.codec.segment_context import SegmentTransactions
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import live_files
from storage_engine.lake.gc.compaction import compact_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import placed_tables
from storage_engine.lake.soundness.segment_reader import ReadCount, message_batches
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.model.store import FileFacts, Segment, SegmentContext, SegmentState
from storage_engine.retention.ranges.verification import verify_lake

SEGMENTS = 2_000
SEGMENT_BYTES = 64 << 10
MOST_SECONDS, MOST_FILES, OF_SEGMENTS = 60, 40, 20_000
TOPICS = 20
RECEIPTS_A_FILE, VERIFY_SECONDS, OF_RECEIPTS = 500, 60, 1_000_000
_SIZES = (871, 16 << 10)


def archive(lake: Lake, segments: Sequence[Segment], root: Path) -> tuple[Receipt, ...]:
    jobs = segment_jobs(
        lake,
        segments,
        store_id="bench",
        lineage=0,
        broker="kafka",
        store_root=str(root),
        contexts={it.id: _context_of(it) for it in segments},
    )
    return archive_all(lake, jobs)


def _context_of(segment: Segment) -> SegmentContext:
    topic, _, partition = segment.log.rpartition("-")
    known = SegmentTransactions(topic, int(partition), segment.end_offset, (), ())
    return SegmentContext(codec=known.as_text())


def data_files(lake: Lake) -> dict[str, int]:
    """Return the sizes of the data files of a lake's table of rows."""
    files = live_files(placed_tables(lake)[lake.rows_table])
    return {location: file.file_size_in_bytes for location, file in files.items()}


def measure_archive(directory: Path, count: int) -> Bench:
    segments = write_kafka(directory / "node", count, (SEGMENT_BYTES, SEGMENT_BYTES))
    lake = make_lake(LakeConfig.local(directory / "lake"), "kafka")
    # A broker's sealed segments have long been on disk.
    os.sync()
    archive(lake, segments[:4], directory / "node")
    began, processor = time.perf_counter(), time.process_time()
    archive(lake, segments[4:], directory / "node")
    seconds, files = time.perf_counter() - began, len(data_files(lake)) - 1
    detail = {
        "segments": count,
        "seconds": round(seconds, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "data_files": files,
    }
    return Bench("shared-archive", MOST_SECONDS * count / OF_SEGMENTS / seconds, 1.0, detail)


def write_kafka(directory: Path, count: int, sizes: tuple[int, int] = _SIZES) -> list[Segment]:
    """Write segments of a few records each, and return them by topic."""
    random, values = Random(1), values_of(400)
    segments = []
    for number in range(count):
        log = f"topic-{number * TOPICS // count:05d}-{number % 8}"
        target, base, data, at = random.randint(*sizes), number * 1000, b"", 0
        while len(data) < target:
            records = [random.choice(values) for _ in range(min(20, max(1, (target - len(data)) // 420)))]
            data += batch(base + at, records, NOW_MS + number)
            at += len(records)
        path = directory / log / f"{base:020d}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        segments.append(Segment(log, base, FileFacts.of(path), SegmentState.SEALED, end=base + at))
    return sorted(segments, key=lambda it: (it.log, it.base_offset))


def query_seconds(lake: Lake) -> tuple[float, ReadCount]:
    """Return how long it takes to read one topic, and what was read."""
    table, best = lake.messages(), float("inf")
    for _ in range(3):
        count, began = ReadCount(), time.perf_counter()
        where = EqualTo("topic", "topic-00007")
        assert sum(rows.num_rows for rows in message_batches(table, where, ("offset", "value"), count=count))
        best = min(best, time.perf_counter() - began)
    return best, count


def measure_kafka(directory: Path, count: int) -> list[Bench]:
    segments = write_kafka(directory / "node", count)
    raw = sum(segment.facts.size_bytes for segment in segments)
    lake = make_lake(LakeConfig.local(directory / "lake"), "kafka")
    rows = archive(lake, segments, directory / "node")
    files, tables = data_files(lake), placed_tables(lake)
    receipt_bytes = sum(it.file_size_in_bytes for it in live_files(tables["segments"]).values())
    own = make_lake(LakeConfig.local(directory / "own"), "kafka")
    with patch("storage_engine.lake.archive.archive.SHARED_SEGMENT_BYTES", 0):
        archive(own, segments[:-1], directory / "node")
    shared, apart = query_seconds(lake), query_seconds(own)
    size_bytes = sum(data_files(own).values())
    compact_lake(own)
    # The commit of a compaction lists each small file once more, as one that left; the next one doesn't.
    archive(own, segments[-1:], directory / "node")
    larger = query_seconds(own)
    size = {
        "segments": len(rows),
        "raw_bytes": raw,
        "data_files": len(files),
        "data_file_bytes": sum(files.values()),
        "receipt_bytes": receipt_bytes,
        "own_data_file_bytes": size_bytes,
    }
    query = {
        "seconds": round(shared[0], 3),
        "own_seconds": round(apart[0], 3),
        "files_read": shared[1].files,
        "own_files_read": apart[1].files,
    }
    return [
        Bench("shared-size", 1.2 * raw / sum(files.values()), 1.0, size),
        Bench("shared-query", apart[0] / shared[0], 10.0, query),
        Bench(
            "compact-query",
            apart[0] / larger[0],
            10.0,
            {"seconds": round(larger[0], 3), "files_read": larger[1].files},
        ),
    ]


def measure_compact(directory: Path, count: int) -> Bench:
    segments = write_kafka(directory / "node", count, (SEGMENT_BYTES, SEGMENT_BYTES))
    lake = make_lake(LakeConfig.local(directory / "lake"), "kafka")
    peer = make_lake(LakeConfig.local(directory / "peer"), "kafka")
    with patch("storage_engine.lake.archive.archive.SHARED_SEGMENT_BYTES", 0):
        archive(lake, segments, directory / "node")
    began = time.process_time()
    archive(peer, segments, directory / "node")
    archived = time.process_time()
    done = compact_lake(lake)
    seconds, peer_seconds = time.process_time() - archived, archived - began
    assert (done.files, done.larger_files) == (count, TOPICS), done
    detail = {
        "segments": count,
        "processor_seconds": round(seconds, 2),
        "peer_seconds": round(peer_seconds, 2),
    }
    return Bench("compact", peer_seconds / seconds, 0.8, detail)


def measure_verify(directory: Path, count: int) -> Bench:
    count -= count % RECEIPTS_A_FILE
    store = make_store(directory, first_offset=count << 20, segments=3, segment_bytes=1 << 20)
    clean_one(store, "first")
    add_history(store, count, 1, RECEIPTS_A_FILE)
    for location, size_bytes in data_files(open_lake(store.lake)).items():
        # Of their bytes this level asks the number alone.
        with Path(location.removeprefix("file://")).open("ab") as file:
            file.truncate(size_bytes)
    spent = {}
    for name in ("first", "again"):
        began = time.process_time()
        (found,) = verify_lake(store.lake, store.journal_url, VerifyLevel.RECEIPTS)
        spent[f"{name}_processor_seconds"] = round(time.process_time() - began, 2)
        assert (found.receipt_count, found.findings) == (count + 1, ())
    detail = {"receipts": count, **spent}
    return Bench("verify-receipts", VERIFY_SECONDS * count / OF_RECEIPTS / max(spent.values()), 1.0, detail)


def run(count: int = SEGMENTS) -> list[Bench]:
    with tempfile.TemporaryDirectory() as work:
        benches = [measure_archive(Path(work) / "archive", count)]
        benches += measure_kafka(Path(work) / "kafka", count)
        benches.append(measure_compact(Path(work) / "compact", count))
        return [*benches, measure_verify(Path(work) / "verify", 50 * count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segments", type=int, nargs="?", default=SEGMENTS)
    benches = run(parser.parse_args().segments)
    report(benches)
    for bench in benches:
        print(dict(bench.detail))


if __name__ == "__main__":
    main()
