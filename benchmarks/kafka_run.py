"""A run with nothing to do on a Kafka node of 10,000 partitions: ``python -m benchmarks.kafka_run``.

All closed segments of :mod:`benchmarks.kafka_plan`'s node are archived once, which takes minutes and isn't
measured. The run after that looks at the node, reads the lake's receipts, and finds all of it proven. Its
limit is 15 seconds, without Spark.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Bench, report
from benchmarks.kafka_plan import PARTITIONS, SEGMENTS, TOPICS, write_node
from storage_engine.cycle import archive_here
from storage_engine.lake.move.making import make_lake
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.store.managed_store import ManagedStore

LIMIT_SECONDS = 15.0


def run(topics: int = TOPICS, directory: Path | None = None) -> list[Bench]:
    with tempfile.TemporaryDirectory(dir=directory) as work:
        properties = write_node(Path(work, "node"), topics)
        store = ManagedStore.local("bench", str(properties), Path(work, "managed"), broker="kafka")
        make_lake(store.lake, "kafka")
        print("archiving first, which takes minutes …", file=sys.stderr, flush=True)
        began = time.perf_counter()
        archived = len(archive_sealed(store, "first", archive_here).receipts)
        filled = time.perf_counter()
        processor = time.process_time()
        left = len(archive_sealed(store, "second", archive_here).receipts)
        seconds = time.perf_counter() - filled
        processor_seconds = time.process_time() - processor
    expected = topics * PARTITIONS * (SEGMENTS - 1)
    if (archived, left) != (expected, 0):
        raise AssertionError(f"expected {expected} segments and then none, found {archived} and {left}")
    detail = {
        "partitions": topics * PARTITIONS,
        "segments": archived,
        "archive_seconds": filled - began,
        "seconds": seconds,
        "processor_seconds": processor_seconds,
    }
    return [Bench("kafka-run-with-nothing-to-do", LIMIT_SECONDS / seconds, 1.0, detail)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS, help="of ten partitions each")
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: for temporary files")
    asked = parser.parse_args()
    report(run(asked.topics, asked.directory))
