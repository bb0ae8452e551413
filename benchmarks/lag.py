"""Consumer lag of 100,000 queues read by 100 groups each, on Spark, against the limit of two minutes.

The default is a tenth of that many queues, and of the limit but for Spark's start; the whole is
``python -m benchmarks.lag --queues 100000``, which takes minutes to make and to remove that many directories.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.common import Bench, report
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.store import SegmentId
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.layout import LOG
from storage_engine.spark.consumer_lag import ConsumerLagRequest, consumer_lag
from storage_engine.spark.session import spark_session

LIMIT_SECONDS, LIMIT_QUEUES = 120, 100_000
SPARK_START_SECONDS = 10
"""Of the limit, what doesn't depend on the number of queues."""

GROUPS = 100
QUEUES = 10_000
QUEUES_PER_TOPIC = 8
MESSAGES_PER_QUEUE = 40
FRAME_BYTES = 128
SEGMENT_BYTES = 64 << 20
QUEUE_FILE_BYTES = 300_000 * 20
_FIRST_TIMESTAMP_MS = 1_790_000_000_000

_HEADER = np.dtype(
    {
        "names": ["size", "magic", "physical_offset", "time"],
        "formats": [">u4", ">u4", ">i8", ">i8"],
        "offsets": [frame.SIZE_AT, frame.MAGIC_AT, frame.PHYSICAL_OFFSET_AT, frame.STORE_TIMESTAMP_AT],
        "itemsize": FRAME_BYTES,
    }
)


def make_store(root: Path, queues: int, groups: int = GROUPS, seed: int = 1) -> int:
    """Make a store with what lag is read from: frames' headers, consume queues, offsets.

    Queues' messages alternate in the commitlog. Queue files are sparse, of the broker's size. A quarter of
    the groups is at each queue's end, one in a hundred positions doesn't exist, the others lie anywhere.

    :return: how many positions are committed.
    """
    random = np.random.default_rng(seed)
    messages = queues * MESSAGES_PER_QUEUE
    _write_commitlog(root / "commitlog", messages)
    entries = np.zeros(MESSAGES_PER_QUEUE, consume_queue.DTYPE)
    entries["size"] = FRAME_BYTES
    rounds = np.arange(MESSAGES_PER_QUEUE, dtype=np.int64) * queues
    topics = -(-queues // QUEUES_PER_TOPIC)
    for topic in range(topics):
        directory = root / "consumequeue" / _topic(topic)
        for queue_id in range(min(QUEUES_PER_TOPIC, queues - topic * QUEUES_PER_TOPIC)):
            (directory / str(queue_id)).mkdir(parents=True)
            entries["offset"] = (rounds + topic * QUEUES_PER_TOPIC + queue_id) * FRAME_BYTES
            _write_sparse(directory / str(queue_id) / f"{0:020d}", entries.tobytes(), QUEUE_FILE_BYTES)
    (root / "config").mkdir()
    return _write_offsets(root / "config" / "consumerOffset.json", topics, queues, groups, random)


def _write_commitlog(directory: Path, messages: int) -> None:
    directory.mkdir(parents=True)
    per_segment = SEGMENT_BYTES // FRAME_BYTES
    for number, first in enumerate(range(0, messages, per_segment)):
        serials = np.arange(first, min(first + per_segment, messages))
        headers = np.zeros(len(serials), _HEADER)
        headers["size"], headers["magic"] = FRAME_BYTES, frame.MAGIC_V1
        headers["physical_offset"] = serials * FRAME_BYTES
        headers["time"] = _FIRST_TIMESTAMP_MS + serials
        _write_sparse(directory / f"{number * SEGMENT_BYTES:020d}", headers.tobytes(), SEGMENT_BYTES)


def _write_sparse(path: Path, content: bytes, size_bytes: int) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(content)
        file.truncate(size_bytes)


def _write_offsets(path: Path, topics: int, queues: int, groups: int, random: np.random.Generator) -> int:
    """As the broker's ConsumerOffsetManager writes it, pretty-printed."""
    written = 0
    with path.open("w") as file:
        file.write('{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1\n\t},\n')
        file.write('\t"offsetTable":{')
        comma = ""
        for topic in range(topics):
            here = min(QUEUES_PER_TOPIC, queues - topic * QUEUES_PER_TOPIC)
            offsets: npt.NDArray[np.int64] = random.integers(0, MESSAGES_PER_QUEUE + 1, (groups, here))
            offsets[: groups // 4] = MESSAGES_PER_QUEUE
            missing = random.random((groups, here)) < 0.01
            for group, (row, gone) in enumerate(zip(offsets.tolist(), missing.tolist(), strict=True)):
                items = [f"{queue}:{offset}" for queue, offset in enumerate(row) if not gone[queue]]
                if items:
                    file.write(
                        f'{comma}\n\t\t"{_topic(topic)}@readers-{group:03d}":{{{",".join(items)}\n\t\t}}'
                    )
                    comma = ","
                    written += len(items)
        file.write("\n\t}\n}")
    return written


def _topic(number: int) -> str:
    return f"topic-{number:06d}"


class _Watch(threading.Thread):
    """Follows this process and its children, Spark's among them, ten times a second.

    Resident memory counts pages of files with each process that has looked at them.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._me = psutil.Process()
        self._ended = threading.Event()
        self._cpu_seconds: dict[int, float] = {}
        self.driver_peak_mib = 0
        self.task_peak_mib = 0

    def run(self) -> None:
        begun = sum(self._me.cpu_times()[:2])
        while not self._ended.wait(0.1):
            self.driver_peak_mib = max(self.driver_peak_mib, self._me.memory_info().rss >> 20)
            self._cpu_seconds[self._me.pid] = sum(self._me.cpu_times()[:2]) - begun
            for child in self._me.children(recursive=True):
                with suppress(psutil.Error):
                    self._cpu_seconds[child.pid] = sum(child.cpu_times()[:2])
                    if child.name().startswith("python"):
                        self.task_peak_mib = max(self.task_peak_mib, child.memory_info().rss >> 20)

    def __enter__(self) -> _Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu_seconds.values())


def run(queues: int = QUEUES, groups: int = GROUPS, directory: str | None = None) -> list[Bench]:
    """Measure a store of so many queues, made for it."""
    with tempfile.TemporaryDirectory(prefix="bench-lag-", dir=directory) as work:
        root = Path(work) / "store"
        committed = make_store(root, queues, groups)
        json_bytes = (root / "config" / "consumerOffset.json").stat().st_size
        request = ConsumerLagRequest(
            StoreSettings(str(root), time_zone="UTC"),
            str(Path(work) / "table"),
            plan_segments=(SegmentId(LOG, 0),),
        )
        begun = time.perf_counter()
        with _Watch() as watch, spark_session("lag benchmark", f"local[{os.cpu_count() or 1}]") as spark:
            result = consumer_lag(spark, request)
        seconds, cpu = time.perf_counter() - begun, watch.cpu_seconds
        table_bytes = sum(path.stat().st_size for path in Path(result.table_path).iterdir())
        print(f"lag: {seconds:.1f} s, {cpu:.1f} s of CPU; removing the store", flush=True)
    if result.summary.queues != queues or result.summary.unknown != queues * groups - committed:
        raise SystemExit(
            f"lag: expected {queues} queues and {committed} known positions, found {result.summary}"
        )
    return [
        Bench(
            "lag",
            (SPARK_START_SECONDS + (LIMIT_SECONDS - SPARK_START_SECONDS) * queues / LIMIT_QUEUES) / seconds,
            1.0,
            {
                "queues": queues,
                "groups": groups,
                "wall_seconds": round(seconds, 2),
                "cpu_seconds": round(cpu, 2),
                "offsets_json_mib": json_bytes >> 20,
                "table_mib": table_bytes >> 20,
                "driver_peak_mib": watch.driver_peak_mib,
                "task_peak_mib": watch.task_peak_mib,
            },
        )
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--directory", help="where the store is made; removed at the end")
    arguments = parser.parse_args()
    benches = run(arguments.queues, arguments.groups, arguments.directory)
    report(benches)
    for name, value in benches[0].detail.items():
        print(f"  {name} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
