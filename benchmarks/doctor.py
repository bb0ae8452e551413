"""``storage-engine doctor`` on a store of 1,000 segments and 10,000 queues, against the limit of 5 seconds.

A whole call of the shell's command counts, Python's start included: ``python -m benchmarks.doctor``. Files
are sparse, of the broker's sizes. A second store has ten times the messages: their number must not count.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import Bench, report
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.format import consume_queue

LIMIT_SECONDS = 5.0
SEGMENTS, QUEUES, GROUPS = 1_000, 10_000, 3
MESSAGES_PER_QUEUE = 20
QUEUES_PER_TOPIC = 8
FRAME_BYTES = 128
SEGMENT_BYTES = 1 << 30
QUEUE_FILE_BYTES = 300_000 * 20
_DAY_MS = 24 * 3_600_000

_HEADER = np.dtype(
    {
        "names": ["size", "magic", "queue_id", "queue_offset", "physical_offset", "time"],
        "formats": [">u4", ">u4", ">i4", ">i8", ">i8", ">i8"],
        "offsets": [
            frame.SIZE_AT,
            frame.MAGIC_AT,
            frame.QUEUE_ID_AT,
            frame.QUEUE_OFFSET_AT,
            frame.PHYSICAL_OFFSET_AT,
            frame.STORE_TIMESTAMP_AT,
        ],
        "itemsize": FRAME_BYTES,
    }
)


def make_store(root: Path, segments: int, queues: int, messages_per_queue: int) -> None:
    """Make a store in which each segment has its share of the messages at its beginning, and a hole behind.

    It is three days long, one group in three is far behind, and the oldest tenth of the segments has expired.
    """
    messages = queues * messages_per_queue
    per_segment = -(-messages // segments)
    serials = np.arange(messages)
    physical = serials // per_segment * SEGMENT_BYTES + serials % per_segment * FRAME_BYTES
    now_ms = time.time_ns() // 1_000_000
    times = now_ms - 3 * _DAY_MS - 3_600_000 + serials * (3 * _DAY_MS) // messages
    _write_commitlog(root / "commitlog", segments, per_segment, physical, times)
    entries = np.zeros(messages_per_queue, consume_queue.DTYPE)
    entries["size"] = FRAME_BYTES
    for queue in range(queues):
        directory = root / "consumequeue" / _topic(queue // QUEUES_PER_TOPIC) / str(queue % QUEUES_PER_TOPIC)
        directory.mkdir(parents=True)
        entries["offset"] = physical[queue::queues]
        _write_sparse(directory / f"{0:020d}", entries.tobytes(), QUEUE_FILE_BYTES)
    (root / "config").mkdir()
    _write_offsets(root / "config" / "consumerOffset.json", queues, messages_per_queue)


def _write_commitlog(
    directory: Path, segments: int, per_segment: int, physical: np.ndarray, times: np.ndarray
) -> None:
    directory.mkdir(parents=True)
    for number in range(segments):
        here = slice(number * per_segment, (number + 1) * per_segment)
        headers = np.zeros(len(physical[here]), _HEADER)
        headers["size"], headers["magic"] = FRAME_BYTES, frame.MAGIC_V1
        headers["physical_offset"], headers["time"] = physical[here], times[here]
        path = directory / f"{number * SEGMENT_BYTES:020d}"
        _write_sparse(path, headers.tobytes(), SEGMENT_BYTES)
        os.utime(path, ns=(int(times[here][-1]) * 1_000_000,) * 2)


def _write_sparse(path: Path, content: bytes, size_bytes: int) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(content)
        file.truncate(size_bytes)


def _write_offsets(path: Path, queues: int, messages_per_queue: int) -> None:
    """As the broker's ConsumerOffsetManager writes it."""
    tables = []
    for topic in range(-(-queues // QUEUES_PER_TOPIC)):
        here = min(QUEUES_PER_TOPIC, queues - topic * QUEUES_PER_TOPIC)
        for group in range(GROUPS):
            offset = 0 if group == 0 else messages_per_queue
            items = ",".join(f"{queue}:{offset}" for queue in range(here))
            tables.append(f'\n\t\t"{_topic(topic)}@readers-{group:03d}":{{{items}\n\t\t}}')
    path.write_text('{\n\t"offsetTable":{' + ",".join(tables) + "\n\t}\n}")


def _topic(number: int) -> str:
    return f"topic-{number:06d}"


def _seconds(root: Path) -> tuple[float, float]:
    """Return wall and processor seconds of a call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.doctor", "--call", str(root)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 1 or "lose" not in done.stdout:
        raise SystemExit(f"doctor: expected a group that loses messages, found:\n{done.stdout}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(segments: int = SEGMENTS, queues: int = QUEUES, directory: str | None = None) -> list[Bench]:
    """Measure stores made for it."""
    with tempfile.TemporaryDirectory(prefix="bench-doctor-", dir=directory) as work:
        found = []
        for messages in (MESSAGES_PER_QUEUE, 10 * MESSAGES_PER_QUEUE):
            root = Path(work) / f"store-{messages}"
            make_store(root, segments, queues, messages)
            found.append(min(_seconds(root) for _ in range(2)))
    (wall, processor), (more_wall, more_processor) = found
    return [
        Bench(
            "doctor",
            LIMIT_SECONDS / wall,
            1.0,
            {
                "segments": segments,
                "queues": queues,
                "messages": queues * MESSAGES_PER_QUEUE,
                "wall_seconds": round(wall, 2),
                "processor_seconds": round(processor, 2),
                "wall_seconds_of_ten_times_the_messages": round(more_wall, 2),
                "processor_seconds_of_ten_times_the_messages": round(more_processor, 2),
            },
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=SEGMENTS)
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--directory", help="where the stores are made; removed at the end")
    parser.add_argument("--call", metavar="STORE", help="diagnose this store, as the measured process does")
    arguments = parser.parse_args()
    if arguments.call is not None:
        from storage_engine.cli.main import main as command_line

        command_line(["doctor", arguments.call])
    benches = run(arguments.segments, arguments.queues, arguments.directory)
    report(benches)
    for name, value in benches[0].detail.items():
        print(f"  {name} {value}")


if __name__ == "__main__":
    main()
